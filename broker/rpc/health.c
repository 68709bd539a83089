#include "broker/rpc/health.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "broker/rpc/call.h"
#include "broker/rpc/handlers.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "grpc/health/v1/health.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define STATUS(name) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##name

struct watcher {
    struct call *call;
    bool known_service, sending;
    serving_status told, current;
    LIST_ENTRY(watcher) link;
};

struct health {
    atomic_bool serving;
    LIST_HEAD(, watcher) watchers;
};

struct health *health_create(void) {
    struct health *health = xcalloc(1, sizeof *health);
    LIST_INIT(&health->watchers);
    return health;
}

void health_destroy(struct health *health) {
    free(health);
}

bool health_is_serving(const struct health *health) {
    return atomic_load(&health->serving);
}

static bool is_known(const char *service) {
    static const char *const services[] = {
        "",
        "sandlot.v1.SandboxService",
        "sandlot.v1.LeaseService",
        "sandlot.v1.ExecService",
        "sandlot.v1.FileService",
        "sandlot.v1.BrokerService",
    };
    for (size_t i = 0; i < ARRAY_LEN(services); i++)
        if (strcmp(services[i], service) == 0)
            return true;
    return false;
}

void handle_health_check(struct call *call) {
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)call_request(call);
    if (!is_known(request->service)) {
        struct err err;
        err_set(&err, ERR_NOT_FOUND, SANDLOT__V1__ERROR_REASON__ERROR_REASON_METHOD_UNKNOWN,
                "no service \"%s\"", request->service);
        call_fail(call, &err);
        return;
    }
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = health_is_serving(call_context(call)->health) ? STATUS(SERVING) : STATUS(NOT_SERVING);
    call_reply(call, &response.base);
}

static void tell(struct watcher *watcher) {
    if (watcher->sending || watcher->told == watcher->current)
        return;
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = watcher->told = watcher->current;
    watcher->sending = true;
    call_send(watcher->call, &response.base);
}

static void on_sent(struct call *call) {
    struct watcher *watcher = call_state(call);
    watcher->sending = false;
    tell(watcher);
}

static void on_cancelled(struct call *call) {
    struct watcher *watcher = call_state(call);
    LIST_REMOVE(watcher, link);
    free(watcher);
}

static const struct call_ops watch_ops = {.sent = on_sent, .cancelled = on_cancelled};

void handle_health_watch(struct call *call) {
    const Grpc__Health__V1__HealthCheckRequest *request = (const void *)call_request(call);
    struct health *health = call_context(call)->health;
    struct watcher *watcher = xcalloc(1, sizeof *watcher);
    watcher->call = call;
    watcher->known_service = is_known(request->service);
    watcher->told = STATUS(UNKNOWN);
    watcher->current = !watcher->known_service     ? STATUS(SERVICE_UNKNOWN)
                       : health_is_serving(health) ? STATUS(SERVING)
                                                   : STATUS(NOT_SERVING);
    LIST_INSERT_HEAD(&health->watchers, watcher, link);
    call_set_ops(call, &watch_ops, watcher);
    tell(watcher);
}

void health_set_serving(struct health *health, bool serving) {
    struct watcher *watcher;
    atomic_store(&health->serving, serving);
    LIST_FOREACH (watcher, &health->watchers, link)
        if (watcher->known_service) {
            watcher->current = serving ? STATUS(SERVING) : STATUS(NOT_SERVING);
            tell(watcher);
        }
}
