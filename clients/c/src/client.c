/* Clients and handles: who is talked to, and under which lease. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clients/c/src/errors.h"
#include "clients/c/src/handle.h"
#include "clients/c/src/lists.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/broker.pb-c.h"

#define DEFAULT_TIMEOUT 60.0
#define CONNECT_TIMEOUT 5.0

double monotonic_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static char *default_address(void) {
    const char *given = getenv("SANDLOT_ADDRESS"), *runtime = getenv("XDG_RUNTIME_DIR");
    if (given && *given)
        return xstrdup(given);
    if (geteuid() == 0)
        return xstrdup("unix:/run/sandlot/sandlot.sock");
    if (runtime && *runtime)
        return xasprintf("unix:%s/sandlot/sandlot.sock", runtime);
    return xasprintf("unix:/tmp/sandlot-%u/sandlot.sock", (unsigned)geteuid());
}

int sandlot_client_open(const struct sandlot_client_opts *opts, struct sandlot_client **ret,
                        struct sandlot_error *err) {
    static const struct sandlot_client_opts defaults;
    (void)err;
    if (!opts)
        opts = &defaults;
    AUTO_FREE char *address =
        opts->address ? opts->address[0] == '/' ? xasprintf("unix:%s", opts->address) : xstrdup(opts->address)
                      : default_address();
    struct sandlot_client *client = xcalloc(1, sizeof *client);
    client->timeout = opts->timeout != 0 ? opts->timeout : DEFAULT_TIMEOUT;
    client->channel = channel_open(address);
    *ret = client;
    return 0;
}

void sandlot_client_close(struct sandlot_client *client) {
    if (!client)
        return;
    channel_close(client->channel);
    free(client);
}

const char *sandlot_client_address(const struct sandlot_client *client) {
    return channel_address(client->channel);
}

/* ---- Who answers ---- */

static int ask(struct sandlot_client *client, double timeout, struct arena **ret_arena,
               const Sandlot__V1__GetBrokerInfoResponse **ret, struct sandlot_error *err) {
    Sandlot__V1__GetBrokerInfoRequest request = SANDLOT__V1__GET_BROKER_INFO_REQUEST__INIT;
    struct rpc_opts rpc = {.method = "/sandlot.v1.BrokerService/GetBrokerInfo", .timeout = timeout};
    const ProtobufCMessage *message;
    if (rpc_unary(client->channel, &rpc, &request.base, &sandlot__v1__get_broker_info_response__descriptor,
                  ret_arena, &message, err) < 0)
        return -1;
    *ret = (const void *)message;
    snprintf(client->broker_id, sizeof client->broker_id, "%s", (*ret)->broker_id);
    return 0;
}

int client_check_broker(struct sandlot_client *client, const char *broker_id, struct sandlot_error *err) {
    AUTO_ARENA struct arena *arena = NULL;
    const Sandlot__V1__GetBrokerInfoResponse *info;
    if (channel_check_process(client->channel, err) < 0)
        return -1;
    if (!client->broker_id[0] && ask(client, CONNECT_TIMEOUT, &arena, &info, err) < 0)
        return -1;
    if (strcmp(client->broker_id, broker_id) != 0)
        return error_set(err, 9, "BROKER_MISMATCH",
                         "the broker at %s is %s, the descriptor is of %s: its lease was not sent",
                         channel_address(client->channel), client->broker_id, broker_id);
    return 0;
}

int client_open_endpoints(const struct descriptor *descriptor, struct sandlot_client **ret,
                          struct sandlot_error *err) {
    if (!descriptor->endpoints[0])
        return error_set(err, 3, "DESCRIPTOR_INVALID", "the descriptor names no endpoint; give an address");
    for (char **endpoint = descriptor->endpoints; *endpoint; endpoint++) {
        struct sandlot_client_opts opts = {.address = *endpoint};
        struct sandlot_client *client;
        sandlot_client_open(&opts, &client, err);
        if (client_check_broker(client, descriptor->broker_id, err) == 0) {
            *ret = client;
            return 0;
        }
        sandlot_client_close(client);
    }
    return -1; /* the last one's error */
}

int sandlot_get_info(struct sandlot_client *client, struct sandlot_info **ret, struct sandlot_error *err) {
    AUTO_ARENA struct arena *arena = NULL;
    const Sandlot__V1__GetBrokerInfoResponse *from;
    if (ask(client, client->timeout, &arena, &from, err) < 0)
        return -1;
    struct sandlot_info *info = xcalloc(1, sizeof *info);
    info->version = xstrdup(from->version);
    info->broker_id = xstrdup(from->broker_id);
    info->user = xstrdup(from->user);
    info->serving = from->serving;
    info->endpoints = strings_copy(from->endpoints, from->n_endpoints);
    info->provider_count = from->n_providers;
    info->providers = xcalloc(from->n_providers, sizeof *info->providers);
    for (size_t i = 0; i < from->n_providers; i++) {
        const Sandlot__V1__ProviderInfo *provider = from->providers[i];
        info->providers[i].name = xstrdup(provider->name);
        info->providers[i].images = strings_copy(provider->images, provider->n_images);
        info->providers[i].capabilities = strings_copy(provider->capabilities, provider->n_capabilities);
        info->providers[i].notes = strings_copy(provider->notes, provider->n_notes);
    }
    info->sandboxes = from->sandboxes;
    if (from->limits) {
        info->max_sandboxes = from->limits->max_sandboxes;
        info->default_ttl = duration_seconds(from->limits->default_ttl);
        info->max_ttl = duration_seconds(from->limits->max_ttl);
    }
    *ret = info;
    return 0;
}

void sandlot_info_free(struct sandlot_info *info) {
    if (!info)
        return;
    for (size_t i = 0; i < info->provider_count; i++) {
        free(info->providers[i].name);
        strings_free(info->providers[i].images);
        strings_free(info->providers[i].capabilities);
        strings_free(info->providers[i].notes);
    }
    free(info->providers);
    strings_free(info->endpoints);
    free(info->version);
    free(info->broker_id);
    free(info->user);
    free(info);
}

/* ---- Handles ---- */

int handle_make(struct sandlot_client *client, struct sandlot_client *own_client, const char *json,
                struct sandlot_sandbox **ret, struct sandlot_error *err) {
    struct sandlot_sandbox *sandbox = xcalloc(1, sizeof *sandbox);
    sandbox->client = client;
    sandbox->own_client = own_client;
    if (descriptor_parse(json, &sandbox->descriptor, err) < 0) {
        sandlot_close(sandbox);
        return -1;
    }
    sandbox->descriptor_json = xstrdup(json);
    *ret = sandbox;
    return 0;
}

void sandlot_close(struct sandlot_sandbox *sandbox) {
    if (!sandbox)
        return;
    sandlot_client_close(sandbox->own_client);
    descriptor_fini(&sandbox->descriptor);
    free(sandbox->descriptor_json);
    free(sandbox);
}

double handle_cut_timeout(const struct sandlot_sandbox *sandbox, double timeout) {
    if (sandbox->deadline <= 0)
        return timeout;
    double left = sandbox->deadline - monotonic_seconds();
    if (left < 0.001)
        left = 0.001; /* 0 would mean none */
    return timeout > 0 && timeout < left ? timeout : left;
}

struct rpc_opts handle_rpc(const struct sandlot_sandbox *sandbox, const char *method, double timeout) {
    const char *rollout = sandbox->descriptor.rollout_id;
    double wanted = timeout != 0 ? timeout : sandbox->client->timeout;
    return (struct rpc_opts){.method = method,
                             .lease = sandbox->descriptor.lease,
                             .rollout = *rollout ? rollout : NULL,
                             .timeout = handle_cut_timeout(sandbox, wanted)};
}

const char *sandlot_descriptor(const struct sandlot_sandbox *sandbox) {
    return sandbox->descriptor_json;
}

const char *sandlot_id(const struct sandlot_sandbox *sandbox) {
    return sandbox->descriptor.sandbox_id;
}

const char *sandlot_scope(const struct sandlot_sandbox *sandbox) {
    return sandbox->descriptor.scope;
}

const char *sandlot_workdir(const struct sandlot_sandbox *sandbox) {
    return sandbox->descriptor.workdir;
}

void sandlot_string_free(char *text) {
    free(text);
}
