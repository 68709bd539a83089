#include "common/xalloc.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *checked(void *p) {
    if (!p)
        abort();
    return p;
}

void *xcalloc(size_t count, size_t size) {
    return checked(calloc(count ? count : 1, size ? size : 1));
}

char *xstrdup(const char *s) {
    return checked(strdup(s));
}

void *xmemdup(const void *p, size_t len) {
    char *copy = checked(malloc(len + 1));
    if (len)
        memcpy(copy, p, len);
    copy[len] = '\0';
    return copy;
}

char *xasprintf(const char *fmt, ...) {
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    return checked(n < 0 ? NULL : text);
}
