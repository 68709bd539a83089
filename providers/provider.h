/* What makes, finds, reaches and destroys sandboxes with an agent in them; nothing else. One const
 * table of operations per provider. All operations are asynchronous on the loop thread and complete
 * exactly once, never before they return. An operation that is NULL does not exist here: it is
 * reported as a missing capability and its use as UNIMPLEMENTED. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct provider;

/* Borrowed for the duration of the call that takes it. */
struct provider_spec {
    const char *id;
    const char *image;
    bool layer_on_disk;
    uint64_t layer_bytes;
    uint64_t memory_bytes; /* 0: no limit */
    uint32_t pids;         /* 0: no limit */
    double cpu;            /* cores; 0: no limit */
    int64_t expire_unix_ms;
};

/* fd: a connected, non-blocking stream to the agent, taken over by the callback; -1 with err. */
typedef void (*provider_stream_cb)(void *arg, int fd, const struct err *err);
typedef void (*provider_done_cb)(void *arg, const struct err *err);
/* Once per sandbox with its id (alive: its agent can be reached), then once with NULL, or with err. */
typedef void (*provider_list_cb)(void *arg, const char *id, bool alive, const struct err *err);

struct provider_events {
    /* A sandbox ended without being asked to; nothing of it is left at the provider. */
    void (*exited)(void *arg, const char *id);
    /* The provider itself is lost for good: the broker must end. */
    void (*lost)(void *arg);
};

struct provider_ops {
    const char *name;
    /* Returns a stream when the agent answers. On failure nothing is left. */
    void (*create)(struct provider *provider, const struct provider_spec *spec, provider_stream_cb cb,
                   void *arg);
    /* A further stream, also to a sandbox found by list_owned. */
    void (*open_stream)(struct provider *provider, const char *id, provider_stream_cb cb, void *arg);
    /* OK when nothing is left, also when there was nothing. A failure may be retried. */
    void (*destroy)(struct provider *provider, const char *id, provider_done_cb cb, void *arg);
    /* All that carry this broker's label. */
    void (*list_owned)(struct provider *provider, provider_list_cb cb, void *arg);
    /* Image names, NULL-terminated; valid as long as the provider. */
    const char *const *(*images)(struct provider *provider);
    /* What this machine can't do, NULL-terminated texts. */
    const char *const *(*notes)(struct provider *provider);
    /* Sandboxes are left alone. Pending operations complete with CANCELLED first. Frees. */
    void (*close)(struct provider *provider);

    /* Optional. */
    void (*pause)(struct provider *provider, const char *id, provider_done_cb cb, void *arg);
    void (*resume)(struct provider *provider, const char *id, provider_done_cb cb, void *arg);
};

/* The first member of every provider. */
struct provider {
    const struct provider_ops *ops;
    /* What it owns does not survive a restart of this machine. */
    bool dies_with_boot;
};
