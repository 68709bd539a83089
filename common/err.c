#include "common/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/utf8.h"

static void set_va(struct err *err, enum err_code code, int reason, const char *fmt, va_list ap)
    __attribute__((format(printf, 4, 0)));

static void set_va(struct err *err, enum err_code code, int reason, const char *fmt, va_list ap) {
    memset(err, 0, sizeof *err);
    err->code = code;
    err->reason = reason;
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    utf8_scrub(err->text); /* it may quote somebody's bytes */
}

void err_fill(struct err *err, enum err_code code, int reason, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_va(err, code, reason, fmt, ap);
    va_end(ap);
}

void err_fill_errno(struct err *err, int errnum, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_va(err, ERR_INTERNAL, 0, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->text);
    snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(errnum));
}

void err_prefix(struct err *err, const char *fmt, ...) {
    char context[ERR_TEXT_MAX];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(context, sizeof context, fmt, ap);
    va_end(ap);
    char inner[ERR_TEXT_MAX];
    memcpy(inner, err->text, sizeof inner);
    size_t n = strlen(context);
    if (n > sizeof err->text / 2)
        n = sizeof err->text / 2;
    snprintf(err->text, sizeof err->text, "%.*s: %.*s", (int)n, context, (int)(sizeof err->text - n - 3),
             inner);
}

void err_add_violation(struct err *err, int reason, const char *field, const char *fmt, ...) {
    if (err->code != ERR_INVALID_ARGUMENT) {
        memset(err, 0, sizeof *err);
        err->code = ERR_INVALID_ARGUMENT;
        err->reason = reason;
    }
    if (err->violation_count >= ERR_VIOLATIONS_MAX)
        return;
    struct err_violation *v = &err->violations[err->violation_count++];
    snprintf(v->field, sizeof v->field, "%s", field);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->description, sizeof v->description, fmt, ap);
    va_end(ap);
    size_t used = strlen(err->text);
    if (used + 4 < sizeof err->text)
        snprintf(err->text + used, sizeof err->text - used, "%s%s: %s", used ? "; " : "", v->field,
                 v->description);
}
