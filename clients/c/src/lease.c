/* Descriptors and leases. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/c/src/errors.h"
#include "clients/c/src/handle.h"
#include "clients/c/src/lists.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/lease.pb-c.h"

int sandlot_open(struct sandlot_client *client, const char *descriptor_json, struct sandlot_sandbox **ret,
                 struct sandlot_error *err) {
    struct descriptor descriptor;
    struct sandlot_client *own = NULL;
    if (descriptor_parse(descriptor_json, &descriptor, err) < 0)
        return -1;
    int rc = client ? client_check_broker(client, descriptor.broker_id, err)
                    : client_open_endpoints(&descriptor, &own, err);
    descriptor_fini(&descriptor);
    if (rc < 0)
        return -1;
    return handle_make(client ? client : own, own, descriptor_json, ret, err);
}

int sandlot_connect(struct sandlot_client *client, const char *descriptor_json, const char *holder,
                    struct sandlot_sandbox **ret, struct sandlot_error *err) {
    Sandlot__V1__ConnectRequest request = SANDLOT__V1__CONNECT_REQUEST__INIT;
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    struct sandlot_sandbox *lent;
    if (sandlot_open(client, descriptor_json, &lent, err) < 0)
        return -1;
    request.holder = text_or_empty(holder);
    struct rpc_opts rpc = handle_rpc(lent, "/sandlot.v1.LeaseService/Connect", 0);
    if (rpc_unary(lent->client->channel, &rpc, &request.base, &sandlot__v1__connect_response__descriptor,
                  &arena, &message, err) < 0) {
        sandlot_close(lent);
        return -1;
    }
    const Sandlot__V1__ConnectResponse *response = (const void *)message;
    struct sandlot_client *own = lent->own_client, *used = lent->client;
    lent->own_client = NULL;
    sandlot_close(lent);
    return handle_make(used, own, response->descriptor_json, ret, err);
}

static int parse_scope(const char *text, Sandlot__V1__Scope *ret, struct sandlot_error *err) {
    static const char *const names[] = {NULL, "observe", "operate", "owner"};
    *ret = SANDLOT__V1__SCOPE__SCOPE_UNSPECIFIED;
    for (int i = 1; text && i < (int)ARRAY_LEN(names); i++)
        if (strcmp(names[i], text) == 0) {
            *ret = (Sandlot__V1__Scope)i;
            return 0;
        }
    return text ? error_set(err, 3, "INVALID_REQUEST",
                            "unknown scope \"%s\": it is observe, operate or owner", text)
                : 0;
}

int sandlot_serialize(struct sandlot_sandbox *sandbox, const struct sandlot_serialize_opts *opts,
                      char **ret_descriptor_json, struct sandlot_error *err) {
    static const struct sandlot_serialize_opts defaults;
    Sandlot__V1__SerializeRequest request = SANDLOT__V1__SERIALIZE_REQUEST__INIT;
    Google__Protobuf__Duration ttl;
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    if (!opts)
        opts = &defaults;
    if (parse_scope(opts->scope, &request.scope, err) < 0)
        return -1;
    if (opts->ttl != 0) {
        if (!(opts->ttl > 0 && opts->ttl < 1e12))
            return error_set(err, 3, "INVALID_REQUEST", "ttl must be a positive number of seconds");
        duration_set(&ttl, opts->ttl);
        request.expiration_case = SANDLOT__V1__SERIALIZE_REQUEST__EXPIRATION_TTL;
        request.ttl = &ttl;
    }
    request.holder = text_or_empty(opts->holder);
    request.for_other_host = opts->for_other_host != 0;
    struct rpc_opts rpc = handle_rpc(sandbox, "/sandlot.v1.LeaseService/Serialize", 0);
    if (rpc_unary(sandbox->client->channel, &rpc, &request.base, &sandlot__v1__serialize_response__descriptor,
                  &arena, &message, err) < 0)
        return -1;
    *ret_descriptor_json =
        xstrdup(((const Sandlot__V1__SerializeResponse *)(const void *)message)->descriptor_json);
    return 0;
}

int sandlot_release(struct sandlot_sandbox *sandbox, uint32_t *ret_remaining, struct sandlot_error *err) {
    Sandlot__V1__ReleaseRequest request = SANDLOT__V1__RELEASE_REQUEST__INIT;
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    if (sandbox->created)
        return error_set(err, 9, "",
                         "this handle created the sandbox: destroy it instead, a release would orphan it");
    struct rpc_opts rpc = handle_rpc(sandbox, "/sandlot.v1.LeaseService/Release", 0);
    if (rpc_unary(sandbox->client->channel, &rpc, &request.base, &sandlot__v1__release_response__descriptor,
                  &arena, &message, err) < 0)
        return -1;
    if (ret_remaining)
        *ret_remaining = ((const Sandlot__V1__ReleaseResponse *)(const void *)message)->live_leases;
    return 0;
}

static const char *const scope_names[] = {"none", "observe", "operate", "owner"};
static const char *const kind_names[] = {"unknown", "created", "serialized", "connected"};
static const char *const lease_state_names[] = {"unknown", "live", "released", "revoked", "expired"};

static char *copy_name(const char *const *names, size_t name_count, int value) {
    return xstrdup(value >= 0 && value < (int)name_count ? names[value] : "unknown");
}

int sandlot_leases(struct sandlot_sandbox *sandbox, struct sandlot_lease_list **ret,
                   struct sandlot_error *err) {
    Sandlot__V1__ListLeasesRequest request = SANDLOT__V1__LIST_LEASES_REQUEST__INIT;
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    struct rpc_opts rpc = handle_rpc(sandbox, "/sandlot.v1.LeaseService/ListLeases", 0);
    if (rpc_unary(sandbox->client->channel, &rpc, &request.base,
                  &sandlot__v1__list_leases_response__descriptor, &arena, &message, err) < 0)
        return -1;
    const Sandlot__V1__ListLeasesResponse *response = (const void *)message;
    struct sandlot_lease_list *list = xcalloc(1, sizeof *list);
    list->items = xcalloc(response->n_leases, sizeof *list->items);
    for (size_t i = 0; i < response->n_leases; i++) {
        const Sandlot__V1__Lease *from = response->leases[i];
        struct sandlot_lease_info *item = &list->items[list->count++];
        item->id = xstrdup(from->id);
        item->parent_id = xstrdup(from->parent_id);
        item->holder = xstrdup(from->holder);
        item->scope = copy_name(scope_names, ARRAY_LEN(scope_names), (int)from->scope);
        item->kind = copy_name(kind_names, ARRAY_LEN(kind_names), (int)from->kind);
        item->state = copy_name(lease_state_names, ARRAY_LEN(lease_state_names), (int)from->state);
        item->create_time = timestamp_seconds(from->create_time);
        item->expire_time = timestamp_seconds(from->expire_time);
    }
    *ret = list;
    return 0;
}

void sandlot_lease_list_free(struct sandlot_lease_list *list) {
    if (!list)
        return;
    for (size_t i = 0; i < list->count; i++) {
        struct sandlot_lease_info *item = &list->items[i];
        char *texts[] = {item->id, item->parent_id, item->holder, item->scope, item->kind, item->state};
        for (size_t k = 0; k < ARRAY_LEN(texts); k++)
            free(texts[k]);
    }
    free(list->items);
    free(list);
}

int sandlot_revoke(struct sandlot_sandbox *sandbox, const char *lease_id, uint32_t *ret_count,
                   struct sandlot_error *err) {
    Sandlot__V1__RevokeLeaseRequest request = SANDLOT__V1__REVOKE_LEASE_REQUEST__INIT;
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    request.lease_id = text_or_empty(lease_id);
    struct rpc_opts rpc = handle_rpc(sandbox, "/sandlot.v1.LeaseService/RevokeLease", 0);
    if (rpc_unary(sandbox->client->channel, &rpc, &request.base,
                  &sandlot__v1__revoke_lease_response__descriptor, &arena, &message, err) < 0)
        return -1;
    if (ret_count)
        *ret_count = ((const Sandlot__V1__RevokeLeaseResponse *)(const void *)message)->revoked;
    return 0;
}
