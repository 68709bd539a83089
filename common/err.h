/* The one error type. Passed last, filled where the error happens, wrapped going up, logged once at
 * the top. Functions return 0 or a negative value; on a negative value *err is filled. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The numbers are those of gRPC's status codes. */
enum err_code {
    ERR_OK = 0,
    ERR_CANCELLED = 1,
    ERR_UNKNOWN = 2,
    ERR_INVALID_ARGUMENT = 3,
    ERR_DEADLINE_EXCEEDED = 4,
    ERR_NOT_FOUND = 5,
    ERR_ALREADY_EXISTS = 6,
    ERR_PERMISSION_DENIED = 7,
    ERR_RESOURCE_EXHAUSTED = 8,
    ERR_FAILED_PRECONDITION = 9,
    ERR_ABORTED = 10,
    ERR_OUT_OF_RANGE = 11,
    ERR_UNIMPLEMENTED = 12,
    ERR_INTERNAL = 13,
    ERR_UNAVAILABLE = 14,
    ERR_DATA_LOSS = 15,
    ERR_UNAUTHENTICATED = 16,
};

#define ERR_TEXT_MAX 400
#define ERR_VIOLATIONS_MAX 4

struct err_violation {
    char field[64];
    char description[160];
};

struct err {
    enum err_code code;
    int reason; /* sandlot.v1.ErrorReason; 0 = none named */
    char text[ERR_TEXT_MAX];
    struct err_violation violations[ERR_VIOLATIONS_MAX];
    unsigned violation_count;
    uint32_t retry_delay_ms; /* 0 = no advice */
};

void err_fill(struct err *err, enum err_code code, int reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void err_fill_errno(struct err *err, int errnum, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void err_add_violation(struct err *err, int reason, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static inline int err_failed(void) {
    return -1;
}

/* Each is -1, visibly to the compiler, so that `return err_set(...)` reads well. */
#define err_set(...) (err_fill(__VA_ARGS__), err_failed())
/* code INTERNAL, text "...: strerror(errnum)". */
#define err_set_errno(...) (err_fill_errno(__VA_ARGS__), err_failed())
/* Puts "context: " before the text; code and reason stay. */
#define err_wrap(...) (err_prefix(__VA_ARGS__), err_failed())
/* Adds a field violation and makes the error INVALID_ARGUMENT with the given reason. */
#define err_violation(...) (err_add_violation(__VA_ARGS__), err_failed())

static inline bool err_is_set(const struct err *err) {
    return err->code != ERR_OK;
}
