#include "clients/c/src/errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/unpack.h"
#include "google/rpc/error_details.pb-c.h"
#include "google/rpc/status.pb-c.h"

#define DETAILS_MAX (256u * 1024)
#define ERROR_INFO_URL "type.googleapis.com/google.rpc.ErrorInfo"

const char *sandlot_status_name(int status) {
    static const char *const names[] = {
        "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED",
    };
    return status >= 0 && status < (int)ARRAY_LEN(names) ? names[status] : "UNKNOWN";
}

const char *sandlot_version(void) {
    return SANDLOT_VERSION;
}

int error_set(struct sandlot_error *err, int status, const char *reason, const char *fmt, ...) {
    if (!err)
        return -1;
    err->status = status;
    snprintf(err->reason, sizeof err->reason, "%s", reason);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return -1;
}

static void find_reason(const uint8_t *details, size_t len, char *reason, size_t size) {
    struct err ignored = {0};
    AUTO_ARENA struct arena *arena = NULL;
    const Google__Rpc__Status *status =
        (void *)unpack(&google__rpc__status__descriptor, details, len, DETAILS_MAX, 0, &arena, &ignored);
    for (size_t i = 0; status && i < status->n_details; i++) {
        const Google__Protobuf__Any *any = status->details[i];
        AUTO_ARENA struct arena *info_arena = NULL;
        if (strcmp(any->type_url, ERROR_INFO_URL) != 0)
            continue;
        const Google__Rpc__ErrorInfo *info =
            (void *)unpack(&google__rpc__error_info__descriptor, any->value.data, any->value.len, DETAILS_MAX,
                           0, &info_arena, &ignored);
        if (info)
            snprintf(reason, size, "%s", info->reason);
    }
}

int error_from_status(struct sandlot_error *err, int status, const char *text, size_t text_len,
                      const uint8_t *details, size_t details_len) {
    char reason[64] = "";
    if (details_len)
        find_reason(details, details_len, reason, sizeof reason);
    return error_set(err, status, reason, "%.*s", (int)text_len, text);
}
