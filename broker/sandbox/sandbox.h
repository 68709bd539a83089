/* One sandbox: its lifecycle from recorded intent to confirmed teardown. Owned by the registry, on the
 * loop thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uthash.h>
#include <uv.h>

#include "broker/link/link.h"
#include "common/err.h"
#include "common/id.h"
#include "common/sm.h"
#include "providers/provider.h"
#include "sandlot/v1/sandbox.pb-c.h"
#include "sandlot/v1/types.pb-c.h"

/*
 *  RECORDING --intent is stored--> STARTING --agent said Hello--> PREPARING --workdir, files--> RUNNING
 *      |                              |                               |                          |  |
 *      |  (any failure, destroy, expiry)                              |            agent is lost |  |
 *      +------------------------------+---------------+---------------+          FAILED <--------+  |
 *                                                     v                             |               |
 *                                  GONE <-- DELETING <-- STOPPING <-----------------+---------------+
 *                                                          | ^
 *                                        teardown failed   v |  retry timer, or destroy again
 *                                                         WAITING
 */
enum sandbox_state {
    SANDBOX_RECORDING,
    SANDBOX_STARTING,
    SANDBOX_PREPARING,
    SANDBOX_RUNNING,
    SANDBOX_FAILED,
    SANDBOX_STOPPING, /* intent to tear down is stored, the provider is at it */
    SANDBOX_WAITING,
    SANDBOX_DELETING, /* the provider confirmed; the record goes */
    SANDBOX_GONE,
    SANDBOX_STATE_MAX
};

/* Something that runs in a sandbox and must end with it. Embedded in its owner. */
struct sandbox_op {
    /* The sandbox ends: complete with err. Called once, then the op is no longer listed. */
    void (*end)(struct sandbox_op *op, const struct err *err);
    LIST_ENTRY(sandbox_op) link;
};

struct registry;

typedef void (*sandbox_cb)(void *arg, const struct err *err);

struct sandbox_waiter {
    sandbox_cb cb;
    void *arg;
    STAILQ_ENTRY(sandbox_waiter) link;
};
STAILQ_HEAD(sandbox_waiters, sandbox_waiter);

struct sandbox {
    char id[ID_MAX];
    struct sm sm;
    struct registry *registry;
    struct provider *provider;
    char tenant[64];
    char *rollout_id;
    char *request_id; /* empty: none */
    uint8_t request_hash[32];
    int64_t create_unix_ms, expire_unix_ms;
    Sandlot__V1__CreateSandboxRequest *spec; /* defaults filled in; its files only until RUNNING */
    char *workdir;
    char last_error[256];
    bool expired;            /* torn down because its time was up */
    bool storing;            /* a write of its record is under way */
    bool destroy_wanted;     /* while storing or starting: tear down as soon as that ends */
    bool adopting;           /* found after a restart: connect, prepare nothing */
    struct err create_error; /* why it never got to RUNNING */
    struct link *link;
    uv_timer_t expiry_timer, retry_timer;
    unsigned open_timers, tries;
    size_t next_file;
    struct sandbox_waiters created; /* answered when RUNNING or GONE */
    struct sandbox_waiters destroyed;
    LIST_HEAD(, sandbox_op) ops;
    UT_hash_handle hh;
};

/* OK, or why it takes no work: starting, failed, expired, being destroyed. */
int sandbox_check_ready(const struct sandbox *sandbox, struct err *err);
void sandbox_add_op(struct sandbox *sandbox, struct sandbox_op *op);
void sandbox_remove_op(struct sandbox_op *op);
/* An agent that is gone because its sandbox's time was up: then that is the error. */
void sandbox_explain(const struct sandbox *sandbox, struct err *err);
/* Makes a path absolute by the workdir; malloc'd, *ret_len without the NUL. */
char *sandbox_resolve_path(const struct sandbox *sandbox, const uint8_t *path, size_t len, size_t *ret_len);
Sandlot__V1__SandboxState sandbox_public_state(const struct sandbox *sandbox);
