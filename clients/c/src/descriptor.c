#include "clients/c/src/descriptor.h"

#include <stdlib.h>
#include <string.h>

#include "clients/c/src/errors.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/xalloc.h"

#define VERSION 1
#define JSON_MAX (64 * 1024)
#define ENDPOINTS_MAX 16
#define TOKEN_MAX 2048

static int invalid(struct sandlot_error *err, const char *why) {
    return error_set(err, 3, "DESCRIPTOR_INVALID", "not a usable descriptor: %s", why);
}

static int take_string(const cJSON *json, const char *key, const char *fallback, char **ret,
                       struct sandlot_error *err) {
    struct err parse = {0};
    const char *value = fallback;
    if (json_get_string(json, key, &value, &parse) < 0)
        return invalid(err, parse.text);
    if (!value) {
        char why[64];
        snprintf(why, sizeof why, "\"%s\" is missing", key);
        return invalid(err, why);
    }
    *ret = xstrdup(value);
    return 0;
}

static int take_endpoints(const cJSON *json, struct descriptor *ret, struct sandlot_error *err) {
    struct err parse = {0};
    const cJSON *list = NULL, *item;
    size_t count = 0;
    if (json_get_array(json, "endpoints", &list, &parse) < 0)
        return invalid(err, parse.text);
    ret->endpoints = xcalloc(ENDPOINTS_MAX + 1, sizeof *ret->endpoints);
    cJSON_ArrayForEach (item, list) {
        if (!cJSON_IsString(item) || count == ENDPOINTS_MAX)
            return invalid(err, "\"endpoints\" must be at most 16 strings");
        ret->endpoints[count++] = xstrdup(item->valuestring);
    }
    return 0;
}

static int take_all(const cJSON *json, struct descriptor *ret, struct sandlot_error *err) {
    struct err parse = {0};
    double version = 0;
    if (json_get_double(json, "version", 0, 1e9, &version, &parse) < 0)
        return invalid(err, parse.text);
    if ((int)version != VERSION)
        return invalid(err, "its version is unknown to this library");
    if (take_string(json, "broker_id", NULL, &ret->broker_id, err) < 0 ||
        take_string(json, "sandbox_id", NULL, &ret->sandbox_id, err) < 0 ||
        take_string(json, "lease", NULL, &ret->lease, err) < 0 ||
        take_string(json, "scope", "operate", &ret->scope, err) < 0 ||
        take_string(json, "workdir", "/", &ret->workdir, err) < 0 ||
        take_string(json, "rollout_id", "", &ret->rollout_id, err) < 0)
        return -1;
    for (const char *c = ret->lease; *c; c++)
        if (*c < 0x21 || *c > 0x7e || c - ret->lease > TOKEN_MAX)
            return invalid(err, "its lease is no token");
    return take_endpoints(json, ret, err);
}

int descriptor_parse(const char *text, struct descriptor *ret, struct sandlot_error *err) {
    struct err parse = {0};
    *ret = (struct descriptor){0};
    size_t len = strlen(text);
    if (len > JSON_MAX)
        return invalid(err, "it is too long");
    CLEANUP(cleanup_cjson_p) cJSON *json = json_parse(text, len, &parse);
    if (!json)
        return invalid(err, parse.text);
    if (!cJSON_IsObject(json))
        return invalid(err, "it is no JSON object");
    if (take_all(json, ret, err) < 0) {
        descriptor_fini(ret);
        return -1;
    }
    return 0;
}

void descriptor_fini(struct descriptor *descriptor) {
    char *texts[] = {descriptor->broker_id, descriptor->sandbox_id, descriptor->scope,
                     descriptor->lease,     descriptor->workdir,    descriptor->rollout_id};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free(texts[i]);
    for (char **endpoint = descriptor->endpoints; endpoint && *endpoint; endpoint++)
        free(*endpoint);
    free(descriptor->endpoints);
    *descriptor = (struct descriptor){0};
}
