/* All sandboxes of this broker: creation, look-up, expiry, teardown, and finding them again after a
 * restart. Owned by the loop thread. */
#pragma once

#include <uv.h>

#include "broker/access/grant.h"
#include "broker/sandbox/sandbox.h"
#include "broker/store/store.h"

struct registry;

struct registry_limits {
    uint32_t max_sandboxes;
    double default_ttl, max_ttl; /* seconds */
    uint64_t default_memory, max_memory, default_layer;
    uint32_t default_pids, max_pids;
};

struct registry_ops {
    /* The sandbox is gone and its record deleted; for those who keep something under its id. */
    void (*gone)(void *arg, const char *sandbox_id);
};

/* What is known about an id that a lease names. */
enum sandbox_presence { PRESENCE_LIVE, PRESENCE_UNKNOWN, PRESENCE_DESTROYED, PRESENCE_EXPIRED };

struct registry *registry_create(uv_loop_t *loop, struct store *store, const struct registry_limits *limits,
                                 const struct registry_ops *ops, void *arg);
/* The first one added is the default. */
void registry_add_provider(struct registry *registry, struct provider *provider);
/* Reads the store, lists what the providers own, re-adopts, finishes interrupted work; then cb. */
void registry_load(struct registry *registry, sandbox_cb cb, void *arg);
/* Ends all connections; with destroy also all sandboxes. Then cb. */
void registry_shutdown(struct registry *registry, bool destroy, void (*cb)(void *arg), void *arg);
void registry_destroy(struct registry *registry); /* after shutdown */

/* cb: once, with the sandbox RUNNING, or gone and the reason. Takes a copy of the request. A known
 * request_id joins the first request. *ret is valid until cb; NULL if -1. */
int registry_create_sandbox(struct registry *registry, const struct identity *identity,
                            const Sandlot__V1__CreateSandboxRequest *request, sandbox_cb cb, void *arg,
                            struct sandbox **ret, struct err *err);
/* Nobody waits for the creation any more: tears down unless another waiter is left. False: cb is
 * on its way already and will still be called. */
bool registry_abandon_create(struct registry *registry, struct sandbox *sandbox, void *arg);

/* Refuses new work at once, ends what runs with SANDBOX_DESTROYED, then tears down. */
void registry_destroy_sandbox(struct registry *registry, struct sandbox *sandbox, sandbox_cb cb, void *arg);

struct sandbox *registry_find(struct registry *registry, const char *id);
enum sandbox_presence registry_presence(struct registry *registry, const char *id);
/* True if the store has a record of it, readable or not. */
bool registry_has_record(struct registry *registry, const char *id);
size_t registry_count(const struct registry *registry);
const struct registry_limits *registry_get_limits(const struct registry *registry);
struct provider *registry_provider(const struct registry *registry, size_t index); /* NULL: no more */
/* Sorted by id, after `after`; returns how many were stored. */
size_t registry_list(struct registry *registry, const char *tenant, const char *rollout_id, const char *after,
                     struct sandbox **ret, size_t max);

/* The provider's event. */
void registry_on_exited(struct registry *registry, const char *id);
