/* Shared by registry.c (the collection) and lifecycle.c (one sandbox's moves). */
#pragma once

#include "broker/sandbox/registry.h"

#define PROVIDERS_MAX 8

struct tombstone;

struct registry {
    uv_loop_t *loop;
    struct store *store;
    struct registry_limits limits;
    const struct registry_ops *ops;
    void *arg;
    struct provider *providers[PROVIDERS_MAX];
    size_t provider_count;
    struct sandbox *sandboxes; /* by id */
    size_t count;
    struct tombstone *tombstones;
    struct tombstone *unreadable; /* records that are left alone: their sandboxes are no strays */
    unsigned tombstone_count;
    bool shutting_down, destroy_all;
    void (*shutdown_cb)(void *arg);
    void *shutdown_arg;
    unsigned adopting; /* loads that still connect */
    sandbox_cb load_cb;
    void *load_arg;
};

/* lifecycle.c */
struct sandbox *lifecycle_new(struct registry *registry, const char *id, enum sandbox_state state);
void lifecycle_start(struct sandbox *sandbox); /* RECORDING: stores the intent and goes on */
void lifecycle_adopt(struct sandbox *sandbox); /* STARTING, alive at its provider: connect again */
void lifecycle_fail(struct sandbox *sandbox, const char *why);
void lifecycle_stop(struct sandbox *sandbox, bool expired);
void lifecycle_detach(struct sandbox *sandbox); /* shutdown: forget it, leave it running */
void lifecycle_arm_expiry(struct sandbox *sandbox);

/* registry.c */
void registry_on_adopted(struct registry *registry);
void registry_on_gone(struct sandbox *sandbox); /* takes it off the list */
/* A sandbox has come to rest: a shutdown may have waited for it. */
void registry_on_settled(struct registry *registry);
