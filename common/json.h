/* Strict getters over cJSON: a wrong type is an error that names the key, an unknown key is found. */
#pragma once

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* Parses one JSON value that fills the text; trailing bytes are an error. Free with cJSON_Delete. */
cJSON *json_parse(const char *text, size_t len, struct err *err);

/* The getters leave *ret alone when the key is absent. -1: present with another type or range. */
int json_get_string(const cJSON *object, const char *key, const char **ret, struct err *err);
int json_get_bool(const cJSON *object, const char *key, bool *ret, struct err *err);
int json_get_double(const cJSON *object, const char *key, double min, double max, double *ret,
                    struct err *err);
int json_get_u64(const cJSON *object, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                 struct err *err);
/* NULL when absent. */
int json_get_array(const cJSON *object, const char *key, const cJSON **ret, struct err *err);
int json_get_object(const cJSON *object, const char *key, const cJSON **ret, struct err *err);

/* Error naming the first key of the object that is not in the NULL-terminated list, or is twice in it. */
int json_check_keys(const cJSON *object, const char *where, const char *const *allowed, struct err *err);

static inline void cleanup_cjson_p(cJSON **json) {
    cJSON_Delete(*json);
}
