#include "broker/sandbox/registry.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker/sandbox/record.h"
#include "broker/sandbox/registry_internal.h"
#include "broker/sandbox/spec.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define TOMBSTONES_MAX 16384
#define RECORD_MEMORY_MAX (16u * 1024 * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/* Ids that were, so that their leases get a better answer than "unknown". Oldest first. */
struct tombstone {
    char id[ID_MAX];
    bool expired;
    UT_hash_handle hh;
};

struct registry *registry_create(uv_loop_t *loop, struct store *store, const struct registry_limits *limits,
                                 const struct registry_ops *ops, void *arg) {
    struct registry *registry = xcalloc(1, sizeof *registry);
    registry->loop = loop;
    registry->store = store;
    registry->limits = *limits;
    registry->ops = ops;
    registry->arg = arg;
    return registry;
}

void registry_add_provider(struct registry *registry, struct provider *provider) {
    if (registry->provider_count < PROVIDERS_MAX)
        registry->providers[registry->provider_count++] = provider;
}

static void tombstone_drop(struct registry *registry, struct tombstone *tombstone) {
    HASH_DEL(registry->tombstones, tombstone);
    free(tombstone);
    registry->tombstone_count--;
}

static void tombstone_add(struct registry *registry, const struct sandbox *sandbox) {
    struct tombstone *tombstone = xcalloc(1, sizeof *tombstone);
    memcpy(tombstone->id, sandbox->id, sizeof tombstone->id);
    tombstone->expired = sandbox->expired;
    HASH_ADD_STR(registry->tombstones, id, tombstone);
    if (++registry->tombstone_count > TOMBSTONES_MAX)
        tombstone_drop(registry, registry->tombstones);
}

void registry_destroy(struct registry *registry) {
    if (!registry)
        return;
    struct tombstone *tombstone, *next;
    HASH_ITER (hh, registry->tombstones, tombstone, next)
        tombstone_drop(registry, tombstone);
    HASH_ITER (hh, registry->unreadable, tombstone, next) {
        HASH_DEL(registry->unreadable, tombstone);
        free(tombstone);
    }
    free(registry);
}

/* ---- Look-up ---- */

struct sandbox *registry_find(struct registry *registry, const char *id) {
    struct sandbox *sandbox = NULL;
    HASH_FIND_STR(registry->sandboxes, id, sandbox);
    return sandbox;
}

enum sandbox_presence registry_presence(struct registry *registry, const char *id) {
    const struct sandbox *sandbox = registry_find(registry, id);
    if (sandbox) {
        if (sandbox->expired || clock_unix_ms() >= sandbox->expire_unix_ms)
            return PRESENCE_EXPIRED;
        return PRESENCE_LIVE;
    }
    struct tombstone *tombstone = NULL;
    HASH_FIND_STR(registry->tombstones, id, tombstone);
    return !tombstone ? PRESENCE_UNKNOWN : tombstone->expired ? PRESENCE_EXPIRED : PRESENCE_DESTROYED;
}

bool registry_has_record(struct registry *registry, const char *id) {
    struct tombstone *unreadable = NULL;
    HASH_FIND_STR(registry->unreadable, id, unreadable);
    return unreadable || registry_find(registry, id);
}

static void leave_alone(struct registry *registry, const char *id) {
    struct tombstone *unreadable = xcalloc(1, sizeof *unreadable);
    snprintf(unreadable->id, sizeof unreadable->id, "%s", id);
    HASH_ADD_STR(registry->unreadable, id, unreadable);
}

size_t registry_count(const struct registry *registry) {
    return registry->count;
}

const struct registry_limits *registry_get_limits(const struct registry *registry) {
    return &registry->limits;
}

struct provider *registry_provider(const struct registry *registry, size_t index) {
    return index < registry->provider_count ? registry->providers[index] : NULL;
}

static int compare_ids(const void *a, const void *b) {
    const struct sandbox *const *left = a, *const *right = b;
    return strcmp((*left)->id, (*right)->id);
}

size_t registry_list(struct registry *registry, const char *tenant, const char *rollout_id, const char *after,
                     struct sandbox **ret, size_t max) {
    AUTO_FREE struct sandbox **all = xcalloc(registry->count + 1, sizeof *all);
    size_t count = 0;
    for (struct sandbox *sandbox = registry->sandboxes; sandbox; sandbox = sandbox->hh.next)
        if ((!tenant || strcmp(tenant, sandbox->tenant) == 0) &&
            (!*rollout_id || strcmp(rollout_id, sandbox->rollout_id) == 0) && strcmp(sandbox->id, after) > 0)
            all[count++] = sandbox;
    qsort(all, count, sizeof *all, compare_ids);
    if (count > max)
        count = max;
    memcpy(ret, all, count * sizeof *all);
    return count;
}

/* ---- Creation ---- */

static void add(struct registry *registry, struct sandbox *sandbox) {
    HASH_ADD_STR(registry->sandboxes, id, sandbox);
    registry->count++;
}

static void add_waiter(struct sandbox_waiters *waiters, sandbox_cb cb, void *arg) {
    struct sandbox_waiter *waiter = xcalloc(1, sizeof *waiter);
    waiter->cb = cb;
    waiter->arg = arg;
    STAILQ_INSERT_TAIL(waiters, waiter, link);
}

static struct provider *find_provider(struct registry *registry, const char *name) {
    for (size_t i = 0; i < registry->provider_count; i++)
        if (!*name || strcmp(registry->providers[i]->ops->name, name) == 0)
            return registry->providers[i];
    return NULL;
}

static bool has_image(struct provider *provider, const char *name) {
    const char *const *images = provider->ops->images(provider);
    for (; *images; images++)
        if (strcmp(*images, *name ? name : "host") == 0)
            return true;
    return false;
}

static struct sandbox *find_request(struct registry *registry, const char *tenant, const char *request_id) {
    for (struct sandbox *sandbox = registry->sandboxes; sandbox; sandbox = sandbox->hh.next)
        if (*request_id && strcmp(sandbox->request_id, request_id) == 0 &&
            strcmp(sandbox->tenant, tenant) == 0)
            return sandbox;
    return NULL;
}

static void hash_request(const Sandlot__V1__CreateSandboxRequest *request, uint8_t hash[32]) {
    size_t len = sandlot__v1__create_sandbox_request__get_packed_size(request);
    AUTO_FREE uint8_t *bytes = xcalloc(1, len);
    sandlot__v1__create_sandbox_request__pack(request, bytes);
    crypto_generichash(hash, 32, bytes, len, NULL, 0);
}

struct soon {
    uv_timer_t timer;
    sandbox_cb cb;
    void *arg;
};

static void on_soon_closed(uv_handle_t *handle) {
    free(CONTAINER_OF((uv_timer_t *)handle, struct soon, timer));
}

static void on_soon(uv_timer_t *timer) {
    struct soon *soon = CONTAINER_OF(timer, struct soon, timer);
    uv_close((uv_handle_t *)timer, on_soon_closed);
    soon->cb(soon->arg, NULL);
}

/* Answers on the next turn of the loop: a callback never fires before its function has returned. */
static void answer_soon(struct registry *registry, sandbox_cb cb, void *arg) {
    struct soon *soon = xcalloc(1, sizeof *soon);
    soon->cb = cb;
    soon->arg = arg;
    uv_timer_init(registry->loop, &soon->timer);
    uv_timer_start(&soon->timer, on_soon, 0, 0);
}

/* The same id again: the same sandbox, also while it is still being made. */
static int join_request(struct registry *registry, struct sandbox *sandbox, const uint8_t hash[32],
                        sandbox_cb cb, void *arg, struct err *err) {
    if (memcmp(sandbox->request_hash, hash, 32) != 0)
        return err_set(err, ERR_ALREADY_EXISTS, REASON(REQUEST_ID_REUSED),
                       "request_id \"%s\" was used for a different request", sandbox->request_id);
    if (sandbox->sm.state < SANDBOX_RUNNING)
        add_waiter(&sandbox->created, cb, arg);
    else
        answer_soon(registry, cb, arg);
    return 0;
}

static int check_create(struct registry *registry, const Sandlot__V1__CreateSandboxRequest *request,
                        struct provider **ret_provider, struct err *err) {
    if (spec_check(request, &registry->limits, err) < 0)
        return -1;
    *ret_provider = find_provider(registry, request->provider);
    if (!*ret_provider)
        return err_violation(err, REASON(PROVIDER_NOT_FOUND), "provider",
                             "this broker has no provider \"%s\"", request->provider);
    if (!has_image(*ret_provider, request->image))
        return err_violation(err, REASON(IMAGE_NOT_FOUND), "image",
                             "no image \"%s\" in the configuration; GetBrokerInfo lists them",
                             request->image);
    return 0;
}

static struct sandbox *make_sandbox(struct registry *registry, const struct identity *identity,
                                    const Sandlot__V1__CreateSandboxRequest *request) {
    char id[ID_MAX];
    id_make("sb-", id);
    struct sandbox *sandbox = lifecycle_new(registry, id, SANDBOX_RECORDING);
    sandbox->spec = record_copy_spec(request);
    spec_fill_defaults(sandbox->spec, &registry->limits);
    snprintf(sandbox->tenant, sizeof sandbox->tenant, "%s", identity->tenant);
    sandbox->create_unix_ms = clock_unix_ms();
    sandbox->expire_unix_ms = spec_expiry(request, &registry->limits, sandbox->create_unix_ms);
    sandbox->request_id = xstrdup(request->request_id);
    sandbox->workdir = xstrdup(sandbox->spec->workdir);
    if (*request->rollout_id) {
        sandbox->rollout_id = xstrdup(request->rollout_id);
    } else {
        char rollout[ID_MAX];
        id_make("ro-", rollout);
        sandbox->rollout_id = xstrdup(rollout);
    }
    return sandbox;
}

int registry_create_sandbox(struct registry *registry, const struct identity *identity,
                            const Sandlot__V1__CreateSandboxRequest *request, sandbox_cb cb, void *arg,
                            struct sandbox **ret, struct err *err) {
    struct provider *provider;
    uint8_t hash[32];
    if (check_create(registry, request, &provider, err) < 0)
        return -1;
    hash_request(request, hash);
    struct sandbox *sandbox = find_request(registry, identity->tenant, request->request_id);
    if (sandbox) {
        *ret = sandbox;
        return join_request(registry, sandbox, hash, cb, arg, err);
    }
    if (registry->count >= registry->limits.max_sandboxes) {
        err_set(err, ERR_RESOURCE_EXHAUSTED, REASON(CAPACITY_EXHAUSTED),
                "all %u sandboxes of this broker are in use; destroy one, wait, or raise "
                "limits.max_sandboxes",
                registry->limits.max_sandboxes);
        err->retry_delay_ms = 1000;
        return -1;
    }
    sandbox = make_sandbox(registry, identity, request);
    sandbox->provider = provider;
    memcpy(sandbox->request_hash, hash, sizeof sandbox->request_hash);
    add_waiter(&sandbox->created, cb, arg);
    add(registry, sandbox);
    lifecycle_start(sandbox);
    *ret = sandbox;
    return 0;
}

bool registry_abandon_create(struct registry *registry, struct sandbox *sandbox, void *arg) {
    (void)registry;
    struct sandbox_waiter *waiter;
    STAILQ_FOREACH (waiter, &sandbox->created, link)
        if (waiter->arg == arg)
            break;
    if (!waiter)
        return false;
    STAILQ_REMOVE(&sandbox->created, waiter, sandbox_waiter, link);
    free(waiter);
    /* With a request_id the caller will ask again and finds it. */
    if (STAILQ_EMPTY(&sandbox->created) && !*sandbox->request_id)
        lifecycle_stop(sandbox, false);
    return true;
}

/* ---- End ---- */

void registry_destroy_sandbox(struct registry *registry, struct sandbox *sandbox, sandbox_cb cb, void *arg) {
    (void)registry;
    add_waiter(&sandbox->destroyed, cb, arg);
    lifecycle_stop(sandbox, false);
}

/* Nothing is on its way to the provider or the store for it. */
static bool is_at_rest(const struct sandbox *sandbox, bool destroy_all) {
    switch ((enum sandbox_state)sandbox->sm.state) {
    case SANDBOX_RUNNING:
    case SANDBOX_FAILED: return !destroy_all;
    case SANDBOX_WAITING: return true; /* its teardown failed; the next start goes on with it */
    default: return false;
    }
}

void registry_on_settled(struct registry *registry) {
    struct sandbox *sandbox, *next;
    if (!registry->shutting_down || !registry->shutdown_cb || registry->load_cb)
        return;
    for (sandbox = registry->sandboxes; sandbox; sandbox = sandbox->hh.next)
        if (!is_at_rest(sandbox, registry->destroy_all))
            return;
    HASH_ITER (hh, registry->sandboxes, sandbox, next) {
        HASH_DEL(registry->sandboxes, sandbox);
        lifecycle_detach(sandbox);
    }
    registry->count = 0;
    void (*cb)(void *) = registry->shutdown_cb;
    registry->shutdown_cb = NULL;
    cb(registry->shutdown_arg);
}

void registry_on_gone(struct sandbox *sandbox) {
    struct registry *registry = sandbox->registry;
    HASH_DEL(registry->sandboxes, sandbox);
    registry->count--;
    tombstone_add(registry, sandbox);
    registry->ops->gone(registry->arg, sandbox->id);
}

/* Unfinished creations are undone and teardowns finished in any case; both end within a bound. */
void registry_shutdown(struct registry *registry, bool destroy, void (*cb)(void *arg), void *arg) {
    struct sandbox *sandbox, *next;
    registry->shutdown_cb = cb;
    registry->shutdown_arg = arg;
    registry->shutting_down = true;
    registry->destroy_all = destroy;
    HASH_ITER (hh, registry->sandboxes, sandbox, next)
        if (destroy || (sandbox->sm.state < SANDBOX_RUNNING && !sandbox->adopting))
            lifecycle_stop(sandbox, false);
    registry_on_settled(registry);
}

void registry_on_exited(struct registry *registry, const char *id) {
    struct sandbox *sandbox = registry_find(registry, id);
    if (!sandbox)
        return;
    if (clock_unix_ms() >= sandbox->expire_unix_ms)
        lifecycle_stop(sandbox, true);
    else if (sandbox->sm.state == SANDBOX_RUNNING) /* before that its stream tells */
        lifecycle_fail(sandbox, "its first process ended");
}

/* ---- After a restart ---- */

struct load {
    struct registry *registry;
    char (*alive)[ID_MAX]; /* ids that the provider reaches; sorted by use of linear search */
    size_t alive_count, alive_capacity;
    size_t provider_index;
};

static bool is_alive(const struct load *load, const char *id) {
    for (size_t i = 0; i < load->alive_count; i++)
        if (strcmp(load->alive[i], id) == 0)
            return true;
    return false;
}

static void finish_load(struct registry *registry, const struct err *err) {
    sandbox_cb cb = registry->load_cb;
    registry->load_cb = NULL;
    if (cb)
        cb(registry->load_arg, err);
    registry_on_settled(registry);
}

void registry_on_adopted(struct registry *registry) {
    if (--registry->adopting == 0)
        finish_load(registry, NULL);
}

static void restore_one(struct load *load, struct registry *registry,
                        const Sandlot__Store__V1__SandboxRecord *record) {
    struct provider *provider = find_provider(registry, record->provider);
    if (!provider || !record->spec || !id_is_valid("sb-", record->id)) {
        log_error("registry", "id=%s of unknown provider \"%s\" is left alone", record->id, record->provider);
        leave_alone(registry, record->id);
        return;
    }
    struct sandbox *sandbox = lifecycle_new(registry, record->id, SANDBOX_STARTING);
    sandbox->provider = provider;
    record_restore(sandbox, record);
    add(registry, sandbox);
    if (record->state != SANDLOT__STORE__V1__SANDBOX_RECORD__STATE__STATE_RUNNING) {
        lifecycle_fail(sandbox, "the broker ended before this sandbox was complete");
        lifecycle_stop(sandbox, sandbox->expired);
    } else if (clock_unix_ms() >= sandbox->expire_unix_ms) {
        lifecycle_fail(sandbox, "expired while the broker was away");
        lifecycle_stop(sandbox, true);
    } else if (!is_alive(load, sandbox->id)) {
        lifecycle_fail(sandbox, "it ended while the broker was away");
    } else {
        registry->adopting++;
        lifecycle_adopt(sandbox);
    }
}

static void on_record(void *arg, const char *key, uint64_t revision, const uint8_t *value, size_t len) {
    (void)revision;
    struct load *load = arg;
    struct err err = {0};
    AUTO_ARENA struct arena *arena = NULL;
    const Sandlot__Store__V1__SandboxRecord *record =
        (void *)unpack(&sandlot__store__v1__sandbox_record__descriptor, value, len, RECORD_MEMORY_MAX,
                       REASON(INTERNAL), &arena, &err);
    if (record)
        restore_one(load, load->registry, record);
    else
        log_error("registry", "record %s can't be read and is left alone: %s", key, err.text);
    if (!record)
        leave_alone(load->registry, key + strlen(RECORD_PREFIX));
}

static void on_stray_destroyed(void *arg, const struct err *err) {
    (void)arg;
    if (err)
        log_error("registry", "a sandbox without a record can't be destroyed: %s", err->text);
}

static void on_records_listed(void *arg, const struct err *err) {
    struct load *load = arg;
    struct registry *registry = load->registry;
    struct provider *provider = registry->providers[0];
    for (size_t i = 0; !err && i < load->alive_count; i++)
        if (!registry_has_record(registry, load->alive[i])) {
            log_warning("registry", "id=%s has no record: destroyed", load->alive[i]);
            provider->ops->destroy(provider, load->alive[i], on_stray_destroyed, NULL);
        }
    free(load->alive);
    free(load);
    if (err)
        finish_load(registry, err); /* unknown is not lost: nothing is destroyed */
    else
        registry_on_adopted(registry);
}

static void on_owned(void *arg, const char *id, bool alive, const struct err *err) {
    struct load *load = arg;
    struct registry *registry = load->registry;
    if (id) {
        if (!alive)
            return;
        if (load->alive_count == load->alive_capacity) {
            load->alive_capacity = load->alive_capacity ? load->alive_capacity * 2 : 64;
            load->alive = realloc(load->alive, load->alive_capacity * sizeof *load->alive);
            if (!load->alive)
                abort();
        }
        snprintf(load->alive[load->alive_count++], ID_MAX, "%s", id);
        return;
    }
    if (err) {
        free(load->alive);
        free(load);
        finish_load(registry, err);
        return;
    }
    store_list(registry->store, RECORD_PREFIX, on_record, on_records_listed, load);
}

void registry_load(struct registry *registry, sandbox_cb cb, void *arg) {
    struct load *load = xcalloc(1, sizeof *load);
    load->registry = registry;
    registry->load_cb = cb;
    registry->load_arg = arg;
    registry->adopting = 1; /* the listing itself */
    registry->providers[0]->ops->list_owned(registry->providers[0], on_owned, load);
}
