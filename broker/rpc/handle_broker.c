/* BrokerService. */
#include <math.h>
#include <stdlib.h>

#include "broker/rpc/call.h"
#include "broker/rpc/handlers.h"
#include "broker/rpc/health.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/broker.pb-c.h"

#define PROVIDERS_MAX 8

static size_t count_texts(const char *const *texts) {
    size_t n = 0;
    while (texts[n])
        n++;
    return n;
}

/* The optional operations, by their names. */
static size_t list_capabilities(const struct provider_ops *ops, char **ret) {
    static char pause[] = "pause", resume[] = "resume";
    size_t n = 0;
    if (ops->pause)
        ret[n++] = pause;
    if (ops->resume)
        ret[n++] = resume;
    return n;
}

static void set_seconds(Google__Protobuf__Duration *duration, double seconds) {
    google__protobuf__duration__init(duration);
    duration->seconds = (int64_t)seconds;
    duration->nanos = (int32_t)((seconds - floor(seconds)) * 1e9);
}

void handle_get_broker_info(struct call *call) {
    static char version[] = SANDLOT_VERSION;
    const struct rpc_context *context = call_context(call);
    const struct registry_limits *from = registry_get_limits(context->registry);
    Google__Protobuf__Duration default_ttl, max_ttl;
    Sandlot__V1__BrokerLimits limits = SANDLOT__V1__BROKER_LIMITS__INIT;
    set_seconds(&default_ttl, from->default_ttl);
    set_seconds(&max_ttl, from->max_ttl);
    limits.max_sandboxes = from->max_sandboxes;
    limits.default_ttl = &default_ttl;
    limits.max_ttl = &max_ttl;
    limits.default_memory_bytes = from->default_memory;
    limits.max_memory_bytes = from->max_memory;
    limits.default_pids = from->default_pids;
    limits.max_pids = from->max_pids;

    Sandlot__V1__ProviderInfo providers[PROVIDERS_MAX], *list[PROVIDERS_MAX];
    char *capabilities[PROVIDERS_MAX][8];
    size_t count = 0;
    for (struct provider *provider; (provider = registry_provider(context->registry, count)); count++) {
        Sandlot__V1__ProviderInfo *info = list[count] = &providers[count];
        sandlot__v1__provider_info__init(info);
        info->name = (char *)(uintptr_t)provider->ops->name;
        info->capabilities = capabilities[count];
        info->n_capabilities = list_capabilities(provider->ops, capabilities[count]);
        info->images = (char **)(uintptr_t)provider->ops->images(provider);
        info->n_images = count_texts(provider->ops->images(provider));
        info->notes = (char **)(uintptr_t)provider->ops->notes(provider);
        info->n_notes = count_texts(provider->ops->notes(provider));
    }
    Sandlot__V1__GetBrokerInfoResponse response = SANDLOT__V1__GET_BROKER_INFO_RESPONSE__INIT;
    response.version = version;
    response.broker_id = (char *)(uintptr_t)context->keyring->broker_id;
    response.serving = health_is_serving(context->health);
    response.endpoints = (char **)(uintptr_t)context->endpoints;
    response.n_endpoints = count_texts(context->endpoints);
    response.providers = list;
    response.n_providers = count;
    response.limits = &limits;
    response.sandboxes = (uint32_t)registry_count(context->registry);
    response.user = (char *)(uintptr_t)context->user;
    call_reply(call, &response.base);
}
