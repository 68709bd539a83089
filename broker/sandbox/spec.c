#include "broker/sandbox/spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define LABEL_MAX 128
#define ENTRIES_MAX 256
#define LABEL_BYTES_MAX (16 * 1024)
#define PORTS_MAX 64
#define MEMORY_MIN (16u * 1024 * 1024)
#define LAYER_MIN (1024u * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name
#define VIOLATION(err, field, ...) err_violation(err, REASON(INVALID_REQUEST), field, __VA_ARGS__)

bool spec_duration_ms(const Google__Protobuf__Duration *duration, uint64_t max_ms, uint64_t *ret) {
    if (duration->seconds < 0 || duration->nanos < 0 || duration->nanos > 999999999 ||
        (duration->seconds == 0 && duration->nanos == 0))
        return false;
    if ((uint64_t)duration->seconds > max_ms / 1000)
        return false;
    uint64_t ms = (uint64_t)duration->seconds * 1000 + ((uint64_t)duration->nanos + 999999) / 1000000;
    if (ms > max_ms)
        return false;
    *ret = ms;
    return true;
}

bool spec_env_is_valid(const char *name, const char *value, const char **ret_why) {
    (void)value;
    if (!*name || strchr(name, '='))
        *ret_why = "a name is not empty and has no \"=\"";
    else if (strncmp(name, "SANDLOT_", 8) == 0)
        *ret_why = "names that start with SANDLOT_ are reserved";
    else
        return true;
    return false;
}

static void check_expiration(const Sandlot__V1__CreateSandboxRequest *request,
                             const struct registry_limits *limits, struct err *err) {
    uint64_t ms;
    int64_t now = clock_unix_ms();
    switch (request->expiration_case) {
    case SANDLOT__V1__CREATE_SANDBOX_REQUEST__EXPIRATION_TTL:
        if (!spec_duration_ms(request->ttl, (uint64_t)(limits->max_ttl * 1000), &ms))
            VIOLATION(err, "ttl", "must be over 0 and at most %g s", limits->max_ttl);
        break;
    case SANDLOT__V1__CREATE_SANDBOX_REQUEST__EXPIRATION_EXPIRE_TIME: {
        int64_t seconds = request->expire_time->seconds;
        if (request->expire_time->nanos < 0 || request->expire_time->nanos > 999999999 ||
            seconds <= now / 1000 || seconds > now / 1000 + (int64_t)limits->max_ttl)
            VIOLATION(err, "expire_time", "must be in the future, at most %g s ahead", limits->max_ttl);
        break;
    }
    default: break;
    }
}

static void check_resources(const Sandlot__V1__Resources *resources, const struct registry_limits *limits,
                            struct err *err) {
    if (!resources)
        return;
    if (resources->memory_bytes &&
        (resources->memory_bytes < MEMORY_MIN || resources->memory_bytes > limits->max_memory))
        VIOLATION(err, "resources.memory_bytes", "must be from %u to %llu", MEMORY_MIN,
                  (unsigned long long)limits->max_memory);
    if (resources->pids && (resources->pids < 8 || resources->pids > limits->max_pids))
        VIOLATION(err, "resources.pids", "must be from 8 to %u", limits->max_pids);
    if (!isfinite(resources->cpu) || resources->cpu < 0 || resources->cpu > 1024 ||
        (resources->cpu > 0 && resources->cpu < 0.01))
        VIOLATION(err, "resources.cpu", "must be 0, or from 0.01 to 1024");
    if (resources->layer_bytes &&
        (resources->layer_bytes < LAYER_MIN || resources->layer_bytes > UINT64_C(1) << 50))
        VIOLATION(err, "resources.layer_bytes", "must be from 1 MiB to 1 PiB");
}

static void check_ports(const Sandlot__V1__CreateSandboxRequest *request, struct err *err) {
    if (request->n_ports > PORTS_MAX)
        VIOLATION(err, "ports", "at most %d", PORTS_MAX);
    for (size_t i = 0; i < request->n_ports && i < PORTS_MAX; i++) {
        if (request->ports[i] < 1 || request->ports[i] > 65535)
            VIOLATION(err, "ports", "%u is not in 1..65535", request->ports[i]);
        for (size_t k = 0; k < i; k++)
            if (request->ports[k] == request->ports[i])
                VIOLATION(err, "ports", "%u is twice", request->ports[i]);
    }
}

static void check_files(const Sandlot__V1__CreateSandboxRequest *request, struct err *err) {
    if (request->n_files > ENTRIES_MAX)
        VIOLATION(err, "files", "at most %d", ENTRIES_MAX);
    for (size_t i = 0; i < request->n_files; i++) {
        const Sandlot__V1__InitialFile *file = request->files[i];
        if (!file->path.len || file->path.len >= 4096 || memchr(file->path.data, 0, file->path.len))
            VIOLATION(err, "files", "files[%zu].path must be 1..4095 bytes without NUL", i);
        if (file->mode_presence_case == SANDLOT__V1__INITIAL_FILE__MODE_PRESENCE_MODE && file->mode > 07777)
            VIOLATION(err, "files", "files[%zu].mode must be at most 07777 (4095)", i);
    }
}

static void check_text(const char *text, const char *field, struct err *err) {
    if (strlen(text) > LABEL_MAX)
        VIOLATION(err, field, "at most %d bytes", LABEL_MAX);
}

static void check_request_id(const char *id, struct err *err) {
    check_text(id, "request_id", err);
    for (const char *c = id; *c; c++)
        if (*c < 0x21 || *c > 0x7e) {
            VIOLATION(err, "request_id", "printable ASCII without spaces only");
            return;
        }
}

int spec_check(const Sandlot__V1__CreateSandboxRequest *request, const struct registry_limits *limits,
               struct err *err) {
    check_request_id(request->request_id, err);
    check_text(request->rollout_id, "rollout_id", err);
    check_text(request->holder, "holder", err);
    check_text(request->image, "image", err);
    if (*request->workdir && (request->workdir[0] != '/' || strlen(request->workdir) >= 4096))
        VIOLATION(err, "workdir", "must be an absolute path below 4096 bytes");
    check_expiration(request, limits, err);
    check_resources(request->resources, limits, err);
    check_ports(request, err);
    check_files(request, err);
    if (request->layer < 0 || request->layer > SANDLOT__V1__LAYER__LAYER_DISK)
        VIOLATION(err, "layer", "unknown value %d", (int)request->layer);
    if (request->n_env > ENTRIES_MAX * 4 || request->n_labels > ENTRIES_MAX)
        VIOLATION(err, "env", "at most %d variables and %d labels", ENTRIES_MAX * 4, ENTRIES_MAX);
    size_t env_bytes = 0, label_bytes = 0;
    for (size_t i = 0; i < request->n_env; i++)
        env_bytes += strlen(request->env[i]->key) + strlen(request->env[i]->value);
    for (size_t i = 0; i < request->n_labels; i++)
        label_bytes += strlen(request->labels[i]->key) + strlen(request->labels[i]->value);
    if (env_bytes > SPEC_ENV_BYTES_MAX)
        VIOLATION(err, "env", "at most %d bytes in all", SPEC_ENV_BYTES_MAX);
    if (label_bytes > LABEL_BYTES_MAX)
        VIOLATION(err, "labels", "at most %d bytes in all", LABEL_BYTES_MAX);
    for (size_t i = 0; i < request->n_env; i++) {
        const char *why;
        if (!spec_env_is_valid(request->env[i]->key, request->env[i]->value, &why))
            VIOLATION(err, "env", "%s", why);
    }
    return err_is_set(err) ? -1 : 0;
}

static void set_string(char **field, const char *value) {
    if (**field)
        return;
    *field = xstrdup(value); /* an absent one points at protobuf-c's static empty string */
}

void spec_fill_defaults(Sandlot__V1__CreateSandboxRequest *spec, const struct registry_limits *limits) {
    set_string(&spec->image, "host");
    set_string(&spec->workdir, "/root");
    size_t len = strlen(spec->workdir);
    while (len > 1 && spec->workdir[len - 1] == '/')
        spec->workdir[--len] = '\0';
    if (!spec->resources) {
        spec->resources = xcalloc(1, sizeof *spec->resources);
        sandlot__v1__resources__init(spec->resources);
    }
    Sandlot__V1__Resources *resources = spec->resources;
    if (!resources->memory_bytes)
        resources->memory_bytes = limits->default_memory;
    if (!resources->pids)
        resources->pids = limits->default_pids;
    if (!resources->layer_bytes)
        resources->layer_bytes = limits->default_layer;
    if (spec->layer == SANDLOT__V1__LAYER__LAYER_UNSPECIFIED)
        spec->layer = SANDLOT__V1__LAYER__LAYER_MEMORY;
}

int64_t spec_expiry(const Sandlot__V1__CreateSandboxRequest *request, const struct registry_limits *limits,
                    int64_t now_unix_ms) {
    uint64_t ms;
    if (request->expiration_case == SANDLOT__V1__CREATE_SANDBOX_REQUEST__EXPIRATION_EXPIRE_TIME)
        return request->expire_time->seconds * 1000 + request->expire_time->nanos / 1000000;
    if (request->expiration_case == SANDLOT__V1__CREATE_SANDBOX_REQUEST__EXPIRATION_TTL &&
        spec_duration_ms(request->ttl, (uint64_t)(limits->max_ttl * 1000), &ms))
        return now_unix_ms + (int64_t)ms;
    return now_unix_ms + (int64_t)(limits->default_ttl * 1000);
}
