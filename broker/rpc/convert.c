#include "broker/rpc/convert.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "broker/access/token.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/xalloc.h"

#define DESCRIPTOR_VERSION 1

static void set_timestamp(Google__Protobuf__Timestamp *timestamp, int64_t unix_ms) {
    google__protobuf__timestamp__init(timestamp);
    timestamp->seconds = unix_ms / 1000;
    timestamp->nanos = (int32_t)(unix_ms % 1000) * 1000000;
}

void convert_sandbox(const struct rpc_context *context, const struct sandbox *sandbox,
                     struct public_sandbox *ret) {
    Sandlot__V1__Sandbox *message = &ret->message;
    sandlot__v1__sandbox__init(message);
    set_timestamp(&ret->create_time, sandbox->create_unix_ms);
    set_timestamp(&ret->expire_time, sandbox->expire_unix_ms);
    message->id = (char *)(uintptr_t)sandbox->id;
    message->state = sandbox_public_state(sandbox);
    message->provider = (char *)(uintptr_t)sandbox->provider->ops->name;
    message->image = sandbox->spec->image;
    message->workdir = sandbox->workdir;
    message->create_time = &ret->create_time;
    message->expire_time = &ret->expire_time;
    message->rollout_id = sandbox->rollout_id;
    message->n_ports = sandbox->spec->n_ports;
    message->ports = sandbox->spec->ports;
    message->n_labels = sandbox->spec->n_labels;
    message->labels = (Sandlot__V1__Sandbox__LabelsEntry **)sandbox->spec->labels;
    message->resources = sandbox->spec->resources;
    message->live_leases = lease_live_count(context->leases, sandbox->id);
    message->teardown_pending = sandbox->sm.state >= SANDBOX_STOPPING;
    message->last_error = (char *)(uintptr_t)sandbox->last_error;
    message->layer = sandbox->spec->layer;
}

void convert_lease(const struct lease *lease, struct public_lease *ret) {
    Sandlot__V1__Lease *message = &ret->message;
    sandlot__v1__lease__init(message);
    set_timestamp(&ret->create_time, lease->create_unix_ms);
    set_timestamp(&ret->expire_time, lease->expire_unix_ms);
    message->id = (char *)(uintptr_t)lease->id;
    message->parent_id = (char *)(uintptr_t)lease->parent_id;
    message->scope = (Sandlot__V1__Scope)lease->scope;
    message->kind = (Sandlot__V1__Lease__Kind)lease->kind;
    message->state = (Sandlot__V1__Lease__State)lease_state_now(lease);
    message->holder = (char *)(uintptr_t)lease->holder;
    message->rollout_id = lease->group->rollout_id;
    message->create_time = &ret->create_time;
    message->expire_time = &ret->expire_time;
}

const char *scope_text(enum scope scope) {
    static const char *const names[] = {"none", "observe", "operate", "owner"};
    return names[scope];
}

char *make_descriptor(const struct rpc_context *context, const struct sandbox *sandbox,
                      const struct lease *lease) {
    char token[TOKEN_MAX], expire[CLOCK_RFC3339_MAX];
    token_make(context->keyring, lease->id, sandbox->id, token);
    clock_format_rfc3339(lease->expire_unix_ms, expire);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "version", DESCRIPTOR_VERSION);
    cJSON_AddStringToObject(json, "broker_id", context->keyring->broker_id);
    cJSON *endpoints = cJSON_AddArrayToObject(json, "endpoints");
    for (const char *const *endpoint = context->endpoints; *endpoint; endpoint++)
        cJSON_AddItemToArray(endpoints, cJSON_CreateString(*endpoint));
    cJSON_AddStringToObject(json, "sandbox_id", sandbox->id);
    cJSON_AddStringToObject(json, "provider", sandbox->provider->ops->name);
    cJSON_AddStringToObject(json, "scope", scope_text(lease->scope));
    cJSON_AddStringToObject(json, "lease", token);
    cJSON_AddStringToObject(json, "workdir", sandbox->workdir);
    cJSON *ports = cJSON_AddArrayToObject(json, "ports");
    for (size_t i = 0; i < sandbox->spec->n_ports; i++)
        cJSON_AddItemToArray(ports, cJSON_CreateNumber(sandbox->spec->ports[i]));
    cJSON_AddStringToObject(json, "expire_time", expire);
    cJSON_AddStringToObject(json, "rollout_id", sandbox->rollout_id);
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text)
        abort();
    return text;
}
