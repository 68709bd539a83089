#include "broker/access/lease.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/store/v1/records.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define PREFIX "lease/"
#define LEASES_MAX 4096 /* per sandbox, ended ones included */
#define DEPTH_MAX 64    /* of the chain from the creator's */
#define LOOK_MS 250     /* running calls end within a second of their lease */
#define RECORD_MEMORY_MAX (64u * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/* The public part first: lease.h hands out pointers to it. */
struct group {
    struct lease_group group;
    UT_hash_handle hh;
};

struct lease_table {
    struct store *store;
    struct group *groups; /* by sandbox id */
    uint64_t last_sequence;
    uv_timer_t look;
    LIST_HEAD(, lease_watch) watches;
};

/* ---- Look-up ---- */

static struct group *find_group(const struct lease_table *table, const char *sandbox_id) {
    struct group *group = NULL;
    HASH_FIND_STR(table->groups, sandbox_id, group);
    return group;
}

const struct lease_group *lease_group_find(const struct lease_table *table, const char *sandbox_id) {
    struct group *group = find_group(table, sandbox_id);
    return group ? &group->group : NULL;
}

static struct lease *find_in(const struct lease_group *group, const char *lease_id) {
    struct lease *lease;
    TAILQ_FOREACH (lease, &group->leases, link)
        if (strcmp(lease->id, lease_id) == 0)
            return lease;
    return NULL;
}

const struct lease *lease_find(const struct lease_table *table, const char *sandbox_id,
                               const char *lease_id) {
    const struct lease_group *group = lease_group_find(table, sandbox_id);
    return group ? find_in(group, lease_id) : NULL;
}

enum lease_state lease_state_now(const struct lease *lease) {
    if (lease->state == LEASE_LIVE && clock_unix_ms() >= lease->expire_unix_ms)
        return LEASE_EXPIRED;
    return lease->state;
}

uint32_t lease_live_count(const struct lease_table *table, const char *sandbox_id) {
    const struct lease_group *group = lease_group_find(table, sandbox_id);
    const struct lease *lease;
    uint32_t count = 0;
    if (group)
        TAILQ_FOREACH (lease, &group->leases, link)
            count += lease_state_now(lease) == LEASE_LIVE;
    return count;
}

bool lease_descends(const struct lease *lease, const char *above_id) {
    for (; lease; lease = lease->parent)
        if (strcmp(lease->id, above_id) == 0)
            return true;
    return false;
}

static struct group *get_group(struct lease_table *table, const char *sandbox_id, const char *rollout_id) {
    struct group *group = find_group(table, sandbox_id);
    if (group)
        return group;
    group = xcalloc(1, sizeof *group);
    snprintf(group->group.sandbox_id, sizeof group->group.sandbox_id, "%s", sandbox_id);
    snprintf(group->group.rollout_id, sizeof group->group.rollout_id, "%s", rollout_id);
    TAILQ_INIT(&group->group.leases);
    HASH_ADD_STR(table->groups, group.sandbox_id, group);
    return group;
}

/* ---- Records ---- */

static void record_key(const char *lease_id, char key[STORE_KEY_MAX]) {
    snprintf(key, STORE_KEY_MAX, PREFIX "%s", lease_id);
}

static void put_record(struct store_txn *txn, const struct lease *lease) {
    Sandlot__Store__V1__LeaseRecord record = SANDLOT__STORE__V1__LEASE_RECORD__INIT;
    char key[STORE_KEY_MAX];
    record.id = (char *)(uintptr_t)lease->id;
    record.parent_id = (char *)(uintptr_t)lease->parent_id;
    record.sandbox_id = lease->group->sandbox_id;
    record.scope = (Sandlot__V1__Scope)lease->scope;
    record.kind = (Sandlot__V1__Lease__Kind)lease->kind;
    record.state = (Sandlot__V1__Lease__State)lease->state;
    record.holder = (char *)(uintptr_t)lease->holder;
    record.rollout_id = lease->group->rollout_id;
    record.create_unix_ms = lease->create_unix_ms;
    record.expire_unix_ms = lease->expire_unix_ms;
    record.sequence = lease->sequence;
    size_t len = sandlot__store__v1__lease_record__get_packed_size(&record);
    AUTO_FREE uint8_t *bytes = xcalloc(1, len);
    sandlot__store__v1__lease_record__pack(&record, bytes);
    record_key(lease->id, key);
    store_txn_put(txn, key, STORE_ANY, bytes, len);
}

static void drop_lease(struct lease *lease) {
    TAILQ_REMOVE(&lease->group->leases, lease, link);
    lease->group->count--;
    if (lease->parent)
        lease->parent->children--;
    free(lease);
}

/* ---- Minting ---- */

struct mint {
    struct lease_table *table;
    char sandbox_id[ID_MAX], lease_id[ID_MAX];
    struct err refusal;
    lease_mint_cb cb;
    void *arg;
};

static void on_minted(void *arg, uint64_t revision, const struct err *err) {
    (void)revision;
    struct mint *mint = arg;
    struct group *group = find_group(mint->table, mint->sandbox_id);
    struct lease *lease = group ? find_in(&group->group, mint->lease_id) : NULL;
    struct err gone;
    if (err_is_set(&mint->refusal)) {
        err = &mint->refusal;
    } else if (!lease && !err) {
        err_set(&gone, ERR_NOT_FOUND, REASON(SANDBOX_DESTROYED), "sandbox %s was destroyed",
                mint->sandbox_id);
        err = &gone;
    }
    if (err && lease)
        drop_lease(lease);
    mint->cb(mint->arg, err ? NULL : lease, err);
    free(mint);
}

static void on_forgotten(void *arg, uint64_t revision, const struct err *err);

/* Room for one more: the oldest ended lease that minted none goes. */
static int make_room(struct lease_table *table, struct lease_group *group, struct err *err) {
    struct lease *lease;
    if (group->count < LEASES_MAX)
        return 0;
    TAILQ_FOREACH (lease, &group->leases, link)
        if (lease_state_now(lease) != LEASE_LIVE && lease->children == 0)
            break;
    if (!lease)
        return err_set(err, ERR_RESOURCE_EXHAUSTED, REASON(CAPACITY_EXHAUSTED),
                       "this sandbox has %d live leases; release some", LEASES_MAX);
    char key[STORE_KEY_MAX];
    struct store_txn *txn = store_txn_create();
    record_key(lease->id, key);
    store_txn_delete(txn, key, STORE_ANY);
    store_commit(table->store, txn, STORE_BOOT, on_forgotten, NULL);
    drop_lease(lease);
    return 0;
}

static void add_lease(struct group *group, struct lease *lease, struct lease *parent) {
    lease->group = &group->group;
    lease->parent = parent;
    lease->depth = parent ? parent->depth + 1 : 0;
    if (parent)
        parent->children++;
    group->group.count++;
}

void lease_mint(struct lease_table *table, const struct lease_mint_opts *opts, lease_mint_cb cb, void *arg) {
    const struct lease *parent = opts->parent;
    struct err err = {0};
    struct group *group = parent ? find_group(table, parent->group->sandbox_id)
                                 : get_group(table, opts->sandbox_id, opts->rollout_id);
    struct mint *mint = xcalloc(1, sizeof *mint);
    mint->table = table;
    memcpy(mint->sandbox_id, group->group.sandbox_id, sizeof mint->sandbox_id);
    mint->cb = cb;
    mint->arg = arg;
    if (parent && parent->depth >= DEPTH_MAX)
        err_set(&err, ERR_RESOURCE_EXHAUSTED, REASON(CAPACITY_EXHAUSTED),
                "this lease was lent on %d times already; ask nearer to the owner", DEPTH_MAX);
    if (err_is_set(&err) || make_room(table, &group->group, &err) < 0) {
        mint->refusal = err;
        store_commit(table->store, store_txn_create(), STORE_BOOT, on_minted, mint);
        return;
    }
    struct lease *lease = xcalloc(1, sizeof *lease);
    id_make("le-", lease->id);
    memcpy(mint->lease_id, lease->id, sizeof mint->lease_id);
    if (parent)
        memcpy(lease->parent_id, parent->id, sizeof lease->parent_id);
    lease->scope = opts->scope;
    lease->kind = opts->kind;
    lease->state = LEASE_LIVE;
    snprintf(lease->holder, sizeof lease->holder, "%s", opts->holder);
    lease->create_unix_ms = clock_unix_ms();
    lease->sequence = ++table->last_sequence;
    lease->expire_unix_ms = opts->expire_unix_ms;
    if (parent && parent->expire_unix_ms < lease->expire_unix_ms)
        lease->expire_unix_ms = parent->expire_unix_ms;
    add_lease(group, lease, (struct lease *)(uintptr_t)parent);
    TAILQ_INSERT_TAIL(&group->group.leases, lease, link);
    struct store_txn *txn = store_txn_create();
    put_record(txn, lease);
    store_commit(table->store, txn, STORE_BOOT, on_minted, mint);
}

/* ---- Ending ---- */

int lease_check_live(const struct lease *lease, bool released_is_fine, struct err *err) {
    switch (lease_state_now(lease)) {
    case LEASE_LIVE: return 0;
    case LEASE_RELEASED:
        if (released_is_fine)
            return 0;
        return err_set(err, ERR_UNAUTHENTICATED, REASON(LEASE_RELEASED),
                       "this lease was released; connect again from the lent descriptor");
    case LEASE_EXPIRED:
        return err_set(err, ERR_UNAUTHENTICATED, REASON(LEASE_EXPIRED),
                       "this lease has expired; ask the sandbox's owner for another");
    default:
        return err_set(err, ERR_UNAUTHENTICATED, REASON(LEASE_REVOKED),
                       "this lease was revoked; ask the sandbox's owner for another");
    }
}

static void end_watches(struct lease_table *table) {
    struct lease_watch *watch = LIST_FIRST(&table->watches);
    while (watch) {
        struct lease_watch *next = LIST_NEXT(watch, link);
        enum lease_state state = lease_state_now(watch->lease);
        if (state != LEASE_LIVE) {
            struct err err;
            lease_check_live(watch->lease, false, &err);
            lease_watch_remove(watch);
            watch->ended(watch, &err);
            next = LIST_FIRST(&table->watches); /* the callback may have removed others */
        }
        watch = next;
    }
}

/* The lease and what was minted from it; returns how many were live. */
static uint32_t end_tree(struct lease_group *group, const char *lease_id, enum lease_state state,
                         struct store_txn *txn) {
    uint32_t count = 0;
    struct lease *lease;
    TAILQ_FOREACH (lease, &group->leases, link) {
        if (lease->state != LEASE_LIVE || !lease_descends(lease, lease_id))
            continue;
        bool itself = strcmp(lease->id, lease_id) == 0;
        lease->state = itself ? state : LEASE_REVOKED;
        put_record(txn, lease);
        count++;
    }
    return count;
}

/* A release ends the lease alone: what was lent on from it is others'. */
static uint32_t end_one(struct lease *lease, struct store_txn *txn) {
    if (lease->state != LEASE_LIVE)
        return 0;
    lease->state = LEASE_RELEASED;
    put_record(txn, lease);
    return 1;
}

struct ending {
    struct lease_table *table;
    char sandbox_id[ID_MAX];
    bool count_live;
    uint32_t ended;
    lease_done_cb cb;
    void *arg;
};

static void on_ended(void *arg, uint64_t revision, const struct err *err) {
    (void)revision;
    struct ending *ending = arg;
    uint32_t count = ending->count_live ? lease_live_count(ending->table, ending->sandbox_id) : ending->ended;
    ending->cb(ending->arg, count, err);
    free(ending);
}

static void end_lease(struct lease_table *table, const struct lease *lease, enum lease_state state,
                      struct ending *ending) {
    struct store_txn *txn = store_txn_create();
    memcpy(ending->sandbox_id, lease->group->sandbox_id, sizeof ending->sandbox_id);
    ending->ended = state == LEASE_RELEASED ? end_one((struct lease *)(uintptr_t)lease, txn)
                                            : end_tree(lease->group, lease->id, state, txn);
    store_commit(table->store, txn, STORE_DISK, on_ended, ending);
    end_watches(table);
}

static struct ending *ending_new(struct lease_table *table, lease_done_cb cb, void *arg) {
    struct ending *ending = xcalloc(1, sizeof *ending);
    ending->table = table;
    ending->cb = cb;
    ending->arg = arg;
    return ending;
}

void lease_release(struct lease_table *table, const struct lease *lease, lease_done_cb cb, void *arg) {
    struct ending *ending = ending_new(table, cb, arg);
    ending->count_live = true;
    end_lease(table, lease, LEASE_RELEASED, ending);
}

void lease_revoke(struct lease_table *table, const struct lease *lease, lease_done_cb cb, void *arg) {
    end_lease(table, lease, LEASE_REVOKED, ending_new(table, cb, arg));
}

static void on_forgotten(void *arg, uint64_t revision, const struct err *err) {
    (void)arg;
    (void)revision;
    if (err) /* the next start deletes what has no sandbox */
        log_error("lease", "records of a gone sandbox can't be deleted: %s", err->text);
}

static void free_group(struct lease_table *table, struct group *group) {
    while (!TAILQ_EMPTY(&group->group.leases)) {
        struct lease *lease = TAILQ_FIRST(&group->group.leases);
        TAILQ_REMOVE(&group->group.leases, lease, link);
        free(lease);
    }
    HASH_DEL(table->groups, group);
    free(group);
}

void lease_forget_sandbox(struct lease_table *table, const char *sandbox_id) {
    struct group *group = find_group(table, sandbox_id);
    if (!group)
        return;
    struct store_txn *txn = store_txn_create();
    struct lease *lease;
    TAILQ_FOREACH (lease, &group->group.leases, link) {
        char key[STORE_KEY_MAX];
        record_key(lease->id, key);
        store_txn_delete(txn, key, STORE_ANY);
        lease->state = LEASE_REVOKED;
    }
    struct lease_watch *watch, *next;
    for (watch = LIST_FIRST(&table->watches); watch; watch = next) {
        next = LIST_NEXT(watch, link);
        if (watch->lease->group == &group->group)
            lease_watch_remove(watch); /* these calls end with their sandbox */
    }
    store_commit(table->store, txn, STORE_BOOT, on_forgotten, NULL);
    free_group(table, group);
}

/* ---- Watches ---- */

void lease_watch_add(struct lease_table *table, struct lease_watch *watch, const struct lease *lease) {
    watch->lease = lease;
    LIST_INSERT_HEAD(&table->watches, watch, link);
}

void lease_watch_remove(struct lease_watch *watch) {
    if (!watch->lease)
        return;
    LIST_REMOVE(watch, link);
    watch->lease = NULL;
}

static void on_look(uv_timer_t *timer) {
    end_watches(CONTAINER_OF(timer, struct lease_table, look));
}

/* ---- Life ---- */

struct lease_table *lease_table_create(uv_loop_t *loop, struct store *store) {
    struct lease_table *table = xcalloc(1, sizeof *table);
    table->store = store;
    LIST_INIT(&table->watches);
    uv_timer_init(loop, &table->look);
    uv_timer_start(&table->look, on_look, LOOK_MS, LOOK_MS);
    uv_unref((uv_handle_t *)&table->look);
    return table;
}

static void on_look_closed(uv_handle_t *handle) {
    struct lease_table *table = CONTAINER_OF((uv_timer_t *)handle, struct lease_table, look);
    struct group *group, *next;
    HASH_ITER (hh, table->groups, group, next)
        free_group(table, group);
    free(table);
}

void lease_table_close(struct lease_table *table) {
    if (table)
        uv_close((uv_handle_t *)&table->look, on_look_closed);
}

struct load {
    struct lease_table *table;
    bool (*exists)(void *arg, const char *sandbox_id);
    lease_done_cb cb;
    void *arg;
    struct store_txn *stale;
    uint32_t count;
};

static void on_record(void *arg, const char *key, uint64_t revision, const uint8_t *value, size_t len) {
    (void)revision;
    struct load *load = arg;
    struct err err = {0};
    AUTO_ARENA struct arena *arena = NULL;
    const Sandlot__Store__V1__LeaseRecord *record =
        (void *)unpack(&sandlot__store__v1__lease_record__descriptor, value, len, RECORD_MEMORY_MAX,
                       REASON(INTERNAL), &arena, &err);
    if (!record) {
        log_error("lease", "record %s can't be read and is left alone: %s", key, err.text);
        return;
    }
    if (!load->exists(load->arg, record->sandbox_id)) {
        store_txn_delete(load->stale, key, STORE_ANY);
        return;
    }
    struct group *group = get_group(load->table, record->sandbox_id, record->rollout_id);
    struct lease *lease = xcalloc(1, sizeof *lease);
    snprintf(lease->id, sizeof lease->id, "%s", record->id);
    snprintf(lease->parent_id, sizeof lease->parent_id, "%s", record->parent_id);
    snprintf(lease->holder, sizeof lease->holder, "%s", record->holder);
    lease->scope = (enum scope)record->scope;
    lease->kind = (enum lease_kind)record->kind;
    lease->state = (enum lease_state)record->state;
    lease->create_unix_ms = record->create_unix_ms;
    lease->expire_unix_ms = record->expire_unix_ms;
    lease->sequence = record->sequence;
    if (record->sequence > load->table->last_sequence)
        load->table->last_sequence = record->sequence;
    lease->group = &group->group;
    group->group.count++;
    /* Keys are random: keep the list by age. */
    struct lease *at;
    TAILQ_FOREACH (at, &group->group.leases, link)
        if (at->sequence > lease->sequence)
            break;
    if (at)
        TAILQ_INSERT_BEFORE(at, lease, link);
    else
        TAILQ_INSERT_TAIL(&group->group.leases, lease, link);
    load->count++;
}

/* Parents come before their children in the list. */
static void link_parents(struct lease_table *table) {
    for (struct group *group = table->groups; group; group = group->hh.next) {
        struct lease *lease;
        TAILQ_FOREACH (lease, &group->group.leases, link) {
            lease->parent = *lease->parent_id ? find_in(&group->group, lease->parent_id) : NULL;
            lease->depth = lease->parent ? lease->parent->depth + 1 : 0;
            if (lease->parent)
                lease->parent->children++;
        }
    }
}

static void on_listed(void *arg, const struct err *err) {
    struct load *load = arg;
    link_parents(load->table);
    store_commit(load->table->store, load->stale, STORE_BOOT, on_forgotten, NULL);
    load->cb(load->arg, load->count, err);
    free(load);
}

void lease_table_load(struct lease_table *table, bool (*exists)(void *arg, const char *sandbox_id),
                      lease_done_cb cb, void *arg) {
    struct load *load = xcalloc(1, sizeof *load);
    load->table = table;
    load->exists = exists;
    load->cb = cb;
    load->arg = arg;
    load->stale = store_txn_create();
    store_list(table->store, PREFIX, on_record, on_listed, load);
}
