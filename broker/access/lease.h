/* The leases of all sandboxes: a tree per sandbox, the creator's lease at its root. A lease's record
 * decides, not its token. Ended leases are kept until their sandbox ends, so that their holders learn
 * why. Owned by the loop thread. */
#pragma once

#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#include "broker/access/grant.h"
#include "broker/store/store.h"
#include "common/err.h"

/* The numbers are those of sandlot.v1.Lease.Kind and State. */
enum lease_kind { LEASE_CREATED = 1, LEASE_SERIALIZED = 2, LEASE_CONNECTED = 3 };
enum lease_state { LEASE_LIVE = 1, LEASE_RELEASED = 2, LEASE_REVOKED = 3, LEASE_EXPIRED = 4 };

#define LEASE_HOLDER_MAX 129
#define LEASE_ROLLOUT_MAX 129

struct lease_group;

struct lease {
    char id[ID_MAX];
    char parent_id[ID_MAX]; /* empty: the creator's */
    struct lease *parent;   /* NULL likewise */
    uint32_t children, depth;
    enum scope scope;
    enum lease_kind kind;
    enum lease_state state; /* LIVE may be over by the clock: ask lease_state_now */
    char holder[LEASE_HOLDER_MAX];
    int64_t create_unix_ms, expire_unix_ms;
    uint64_t sequence; /* by age */
    struct lease_group *group;
    TAILQ_ENTRY(lease) link;
};

/* The leases of one sandbox, oldest first. */
struct lease_group {
    char sandbox_id[ID_MAX];
    char rollout_id[LEASE_ROLLOUT_MAX];
    TAILQ_HEAD(, lease) leases;
    uint32_t count;
};

/* A call that runs under a lease and ends with it. Embedded in its owner. */
struct lease_watch {
    const struct lease *lease;
    /* Once; the watch is removed before. err is LEASE_REVOKED, LEASE_RELEASED or LEASE_EXPIRED. */
    void (*ended)(struct lease_watch *watch, const struct err *err);
    LIST_ENTRY(lease_watch) link;
};

struct lease_mint_opts {
    const struct lease *parent;          /* NULL: the creator's */
    const char *sandbox_id, *rollout_id; /* with no parent */
    enum scope scope;
    enum lease_kind kind;
    const char *holder;
    int64_t expire_unix_ms;
};

struct lease_table;

/* Once. RESOURCE_EXHAUSTED: the sandbox has too many, or too long a chain of them.
 * lease is NULL with err; else it is stored and valid while its sandbox is. */
typedef void (*lease_mint_cb)(void *arg, const struct lease *lease, const struct err *err);
typedef void (*lease_done_cb)(void *arg, uint32_t count, const struct err *err);

struct lease_table *lease_table_create(uv_loop_t *loop, struct store *store);
/* Reads all records; those of sandboxes that `exists` denies are deleted. Then cb. */
void lease_table_load(struct lease_table *table, bool (*exists)(void *arg, const char *sandbox_id),
                      lease_done_cb cb, void *arg);
/* Asynchronous; frees itself. */
void lease_table_close(struct lease_table *table);

void lease_mint(struct lease_table *table, const struct lease_mint_opts *opts, lease_mint_cb cb, void *arg);
/* Dead from now on; cb when that is on disk. count: leases of the sandbox that are still live.
 * A lease that ended before is fine. Leases minted from it live on: one borrower's release never breaks
 * another. */
void lease_release(struct lease_table *table, const struct lease *lease, lease_done_cb cb, void *arg);
/* The lease and all below it. count: how many this call ended. */
void lease_revoke(struct lease_table *table, const struct lease *lease, lease_done_cb cb, void *arg);
/* The sandbox is gone. */
void lease_forget_sandbox(struct lease_table *table, const char *sandbox_id);

const struct lease *lease_find(const struct lease_table *table, const char *sandbox_id, const char *lease_id);
const struct lease_group *lease_group_find(const struct lease_table *table, const char *sandbox_id);
uint32_t lease_live_count(const struct lease_table *table, const char *sandbox_id);
/* With the clock applied. */
enum lease_state lease_state_now(const struct lease *lease);
/* 0, or the error that tells its holder how it ended; with released_is_fine a released one passes. */
int lease_check_live(const struct lease *lease, bool released_is_fine, struct err *err);
/* True if `above` is the lease or one it came from. */
bool lease_descends(const struct lease *lease, const char *above_id);

void lease_watch_add(struct lease_table *table, struct lease_watch *watch, const struct lease *lease);
void lease_watch_remove(struct lease_watch *watch);
