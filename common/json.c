#include "common/json.h"

#include <math.h>
#include <string.h>

/* Doubles hold integers exactly up to here. */
#define EXACT_MAX 9007199254740992.0

static int wrong(const char *key, const char *wanted, struct err *err) {
    return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"%s\" must be %s", key, wanted);
}

cJSON *json_parse(const char *text, size_t len, struct err *err) {
    const char *end = NULL;
    cJSON *json = cJSON_ParseWithLengthOpts(text, len, &end, 0);
    if (!json) {
        size_t at = end && end >= text && end <= text + len ? (size_t)(end - text) : 0;
        err_set(err, ERR_INVALID_ARGUMENT, 0, "not valid JSON near byte %zu", at);
        return NULL;
    }
    while (end < text + len && (*end == ' ' || *end == '\n' || *end == '\r' || *end == '\t'))
        end++;
    if (end < text + len && *end != '\0') {
        cJSON_Delete(json);
        err_set(err, ERR_INVALID_ARGUMENT, 0, "something follows the JSON value at byte %zu",
                (size_t)(end - text));
        return NULL;
    }
    return json;
}

int json_get_string(const cJSON *object, const char *key, const char **ret, struct err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item)
        return 0;
    if (!cJSON_IsString(item))
        return wrong(key, "a string", err);
    *ret = item->valuestring;
    return 0;
}

int json_get_bool(const cJSON *object, const char *key, bool *ret, struct err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item)
        return 0;
    if (!cJSON_IsBool(item))
        return wrong(key, "true or false", err);
    *ret = cJSON_IsTrue(item);
    return 0;
}

int json_get_double(const cJSON *object, const char *key, double min, double max, double *ret,
                    struct err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item)
        return 0;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return wrong(key, "a number", err);
    if (item->valuedouble < min || item->valuedouble > max)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"%s\" must be from %g to %g", key, min, max);
    *ret = item->valuedouble;
    return 0;
}

int json_get_u64(const cJSON *object, const char *key, uint64_t min, uint64_t max, uint64_t *ret,
                 struct err *err) {
    double value = -1;
    if (!cJSON_GetObjectItemCaseSensitive(object, key))
        return 0;
    if (json_get_double(object, key, 0, EXACT_MAX, &value, err) < 0)
        return -1;
    if (floor(value) < value || value < (double)min || value > (double)max)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"%s\" must be a whole number from %llu to %llu", key,
                       (unsigned long long)min, (unsigned long long)max);
    *ret = (uint64_t)value;
    return 0;
}

int json_get_array(const cJSON *object, const char *key, const cJSON **ret, struct err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item)
        return 0;
    if (!cJSON_IsArray(item))
        return wrong(key, "an array", err);
    *ret = item;
    return 0;
}

int json_get_object(const cJSON *object, const char *key, const cJSON **ret, struct err *err) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (!item)
        return 0;
    if (!cJSON_IsObject(item))
        return wrong(key, "an object", err);
    *ret = item;
    return 0;
}

int json_check_keys(const cJSON *object, const char *where, const char *const *allowed, struct err *err) {
    if (!cJSON_IsObject(object))
        return wrong(where, "an object", err);
    for (const cJSON *item = object->child; item; item = item->next) {
        const char *const *known = allowed;
        while (*known && strcmp(*known, item->string) != 0)
            known++;
        if (!*known)
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "unknown key \"%s\" in %s", item->string, where);
        for (const cJSON *other = item->next; other; other = other->next)
            if (strcmp(other->string, item->string) == 0)
                return err_set(err, ERR_INVALID_ARGUMENT, 0, "key \"%s\" is twice in %s", item->string,
                               where);
    }
    return 0;
}
