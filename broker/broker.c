#include "broker/broker.h"

#include <grpc/grpc.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "broker/rpc/find.h"
#include "broker/rpc/health.h"
#include "broker/rpc/reflection.h"
#include "broker/sandbox/registry.h"
#include "broker/store/store.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "providers/local/local.h"

struct broker {
    const struct broker_opts *opts;
    uv_loop_t loop;
    uv_signal_t terminate, interrupt;
    struct store *store;
    struct registry *registry;
    struct lease_table *leases;
    struct provider *local;
    struct server *server;
    const char **images;
    struct rpc_context context;
    bool stopping, spawner_lost, loading_leases;
    int code;
};

/* ---- Down, in reverse ---- */

static void on_store_closed(void *arg) {
    struct broker *broker = arg;
    broker->store = NULL;
    lease_table_close(broker->leases); /* the store has answered all that the table had asked */
}

static void on_registry_down(void *arg) {
    struct broker *broker = arg;
    broker->local->ops->close(broker->local);
    store_close(broker->store, on_store_closed, broker);
}

static void on_server_closed(void *arg) {
    struct broker *broker = arg;
    broker->server = NULL;
    if (broker->loading_leases)
        return; /* on_leases_loaded goes on */
    bool destroy = broker->opts->config->destroy_on_shutdown && !broker->spawner_lost;
    registry_shutdown(broker->registry, destroy, on_registry_down, broker);
}

static void stop(struct broker *broker, int code) {
    if (broker->stopping)
        return;
    broker->stopping = true;
    broker->code = code;
    log_info("broker", "shutting down");
    uv_close((uv_handle_t *)&broker->terminate, NULL);
    uv_close((uv_handle_t *)&broker->interrupt, NULL);
    uint64_t drain_ms = broker->spawner_lost ? 0 : (uint64_t)(broker->opts->config->drain_timeout * 1000);
    server_close(broker->server, drain_ms, on_server_closed, broker);
}

static void on_signal(uv_signal_t *signal, int signum) {
    (void)signum;
    stop(signal->data, 0);
}

/* ---- Events between modules ---- */

static void on_sandbox_gone(void *arg, const char *sandbox_id) {
    struct broker *broker = arg;
    lease_forget_sandbox(broker->leases, sandbox_id);
}

static void on_sandbox_exited(void *arg, const char *id) {
    struct broker *broker = arg;
    registry_on_exited(broker->registry, id);
}

static void on_spawner_lost(void *arg) {
    struct broker *broker = arg;
    broker->spawner_lost = true;
    stop(broker, 1);
}

static const struct registry_ops registry_ops = {.gone = on_sandbox_gone};
static const struct provider_events provider_events = {.exited = on_sandbox_exited, .lost = on_spawner_lost};

/* ---- Up ---- */

static void on_leases_loaded(void *arg, uint32_t count, const struct err *err) {
    struct broker *broker = arg;
    broker->loading_leases = false;
    if (broker->stopping) {
        if (!broker->server)
            on_server_closed(broker);
        return;
    }
    if (err) {
        log_error("broker", "the registry can't be read, nothing is touched: %s", err->text);
        stop(broker, 1);
        return;
    }
    server_open(broker->server);
    log_info("broker", "serving: %zu sandboxes, %u leases found again", registry_count(broker->registry),
             count);
    if (broker->opts->ready_fd >= 0) {
        ssize_t ignored = write(broker->opts->ready_fd, "READY\n", 6);
        (void)ignored;
    }
}

static bool sandbox_exists(void *arg, const char *sandbox_id) {
    struct broker *broker = arg;
    return registry_has_record(broker->registry, sandbox_id);
}

static void on_registry_loaded(void *arg, const struct err *err) {
    struct broker *broker = arg;
    if (broker->stopping)
        return;
    if (err) {
        log_error("broker", "the registry can't be read, nothing is touched: %s", err->text);
        stop(broker, 1);
        return;
    }
    broker->loading_leases = true;
    lease_table_load(broker->leases, sandbox_exists, on_leases_loaded, broker);
}

static void list_images(struct broker *broker) {
    const struct config *config = broker->opts->config;
    broker->images = xcalloc(config->image_count + 2, sizeof *broker->images);
    broker->images[0] = "host";
    for (size_t i = 0; i < config->image_count; i++)
        broker->images[i + 1] = config->images[i].name;
}

static int build(struct broker *broker, int spawner_fd, struct err *err) {
    const struct broker_opts *opts = broker->opts;
    AUTO_FREE char *directory = xasprintf("%s/broker", opts->config->state_dir);
    broker->store = store_open(&broker->loop, directory, err);
    if (!broker->store)
        return -1;
    list_images(broker);
    broker->local =
        local_create(&broker->loop, spawner_fd, broker->images, opts->notes, &provider_events, broker);
    broker->leases = lease_table_create(&broker->loop, broker->store);
    broker->registry =
        registry_create(&broker->loop, broker->store, &opts->config->limits, &registry_ops, broker);
    registry_add_provider(broker->registry, broker->local);
    broker->context = (struct rpc_context){
        .registry = broker->registry,
        .leases = broker->leases,
        .keyring = opts->keyring,
        .access = {.keyring = opts->keyring,
                   .leases = broker->leases,
                   .check_sandbox = check_sandbox_present,
                   .arg = broker->registry},
        .health = health_create(),
        .endpoints = (const char *const *)opts->config->advertise,
        .user = opts->user,
    };
    struct server_opts server_opts = {opts->listeners, opts->listener_count, opts->uid};
    broker->server = server_create(&broker->loop, &broker->context, &server_opts, err);
    if (!broker->server)
        return -1;
    registry_load(broker->registry, on_registry_loaded, broker);
    return 0;
}

static void watch_signal(struct broker *broker, uv_signal_t *signal, int signum) {
    uv_signal_init(&broker->loop, signal);
    uv_signal_start(signal, on_signal, signum);
    uv_unref((uv_handle_t *)signal);
    signal->data = broker;
}

int broker_run(const struct broker_opts *opts, int spawner_fd) {
    struct broker broker = {.opts = opts};
    struct err err = {0};
    signal(SIGPIPE, SIG_IGN);
    if (sodium_init() < 0)
        return 1;
    uv_loop_init(&broker.loop);
    watch_signal(&broker, &broker.terminate, SIGTERM);
    watch_signal(&broker, &broker.interrupt, SIGINT);
    reflection_init();
    grpc_init();
    if (build(&broker, spawner_fd, &err) < 0) {
        log_error("broker", "%s", err.text);
        return 1;
    }
    uv_run(&broker.loop, UV_RUN_DEFAULT);
    registry_destroy(broker.registry);
    health_destroy(broker.context.health);
    uv_loop_close(&broker.loop);
    grpc_shutdown();
    reflection_fini();
    free(broker.images);
    log_info("broker", "down");
    return broker.code;
}
