/* The store thread and its queue. Everything that is queued while a write is on its way to the disk
 * goes there together with the next one (group commit). */
#include "broker/store/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

#include "broker/store/database.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/mailbox.h"
#include "common/xalloc.h"

struct store_txn {
    struct write_op *ops;
    size_t count, capacity;
};

struct listed {
    char key[STORE_KEY_MAX];
    uint64_t revision;
    uint8_t *value;
    size_t len;
};

enum job_kind { JOB_COMMIT, JOB_LIST, JOB_STOP };

struct job {
    struct mail mail;
    enum job_kind kind;
    struct store *store;
    struct err err;
    STAILQ_ENTRY(job) link;
    /* JOB_COMMIT */
    struct store_txn *txn;
    enum store_durability durability;
    uint64_t revision;
    store_commit_cb commit_cb;
    /* JOB_LIST */
    char prefix[STORE_KEY_MAX];
    struct listed *items;
    size_t item_count, item_capacity;
    store_item_cb item_cb;
    store_list_cb list_cb;
    void *arg;
};

STAILQ_HEAD(job_list, job);

struct store {
    struct database *db; /* the store thread's */
    struct mailbox answers;
    pthread_t thread;
    pthread_mutex_t lock; /* the mailbox towards the store thread */
    pthread_cond_t wake;
    struct job_list jobs;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

/* ---- Transactions ---- */

struct store_txn *store_txn_create(void) {
    return xcalloc(1, sizeof(struct store_txn));
}

static struct write_op *add_op(struct store_txn *txn, const char *key, uint64_t if_revision) {
    if (txn->count == txn->capacity) {
        txn->capacity = txn->capacity ? txn->capacity * 2 : 4;
        txn->ops = realloc(txn->ops, txn->capacity * sizeof *txn->ops);
        if (!txn->ops)
            abort();
    }
    struct write_op *op = &txn->ops[txn->count++];
    *op = (struct write_op){.if_revision = if_revision};
    strncpy(op->key, key, sizeof op->key - 1);
    return op;
}

void store_txn_put(struct store_txn *txn, const char *key, uint64_t if_revision, const void *value,
                   size_t len) {
    struct write_op *op = add_op(txn, key, if_revision);
    op->value = xmemdup(value, len);
    op->len = len;
}

void store_txn_delete(struct store_txn *txn, const char *key, uint64_t if_revision) {
    add_op(txn, key, if_revision);
}

static void txn_destroy(struct store_txn *txn) {
    if (!txn)
        return;
    for (size_t i = 0; i < txn->count; i++)
        free(txn->ops[i].value);
    free(txn->ops);
    free(txn);
}

/* ---- The store thread ---- */

static void collect_item(void *arg, const char *key, uint64_t revision, const uint8_t *value, size_t len) {
    struct job *job = arg;
    if (job->item_count == job->item_capacity) {
        job->item_capacity = job->item_capacity ? job->item_capacity * 2 : 64;
        job->items = realloc(job->items, job->item_capacity * sizeof *job->items);
        if (!job->items)
            abort();
    }
    struct listed *item = &job->items[job->item_count++];
    *item = (struct listed){.revision = revision, .value = xmemdup(value, len), .len = len};
    strncpy(item->key, key, sizeof item->key - 1);
}

static void take_jobs(struct store *store, struct job_list *ret) {
    pthread_mutex_lock(&store->lock);
    while (STAILQ_EMPTY(&store->jobs))
        pthread_cond_wait(&store->wake, &store->lock);
    STAILQ_INIT(ret);
    STAILQ_CONCAT(ret, &store->jobs);
    pthread_mutex_unlock(&store->lock);
}

/* One write to the disk for the whole group; durable if one of them must be. */
static void commit_group(struct store *store, struct job_list *group) {
    enum store_durability durability = STORE_BOOT;
    struct err group_err = {0};
    struct job *job;
    STAILQ_FOREACH (job, group, link)
        if (job->durability == STORE_DISK)
            durability = STORE_DISK;
    if (database_begin(store->db, durability, &group_err) == 0) {
        STAILQ_FOREACH (job, group, link)
            database_apply(store->db, job->txn->ops, job->txn->count, &job->revision, &job->err);
        database_end(store->db, &group_err);
    }
    while (!STAILQ_EMPTY(group)) {
        job = STAILQ_FIRST(group);
        STAILQ_REMOVE_HEAD(group, link);
        if (err_is_set(&group_err))
            job->err = group_err;
        mailbox_push(&store->answers, &job->mail);
    }
}

static void *store_main(void *arg) {
    struct store *store = arg;
    for (;;) {
        struct job_list jobs, group;
        struct job *stop = NULL;
        take_jobs(store, &jobs);
        STAILQ_INIT(&group);
        while (!STAILQ_EMPTY(&jobs)) {
            struct job *job = STAILQ_FIRST(&jobs);
            STAILQ_REMOVE_HEAD(&jobs, link);
            if (job->kind == JOB_COMMIT) {
                STAILQ_INSERT_TAIL(&group, job, link);
                continue;
            }
            if (!STAILQ_EMPTY(&group))
                commit_group(store, &group);
            if (job->kind == JOB_STOP) {
                stop = job;
                break;
            }
            database_list(store->db, job->prefix, collect_item, job, &job->err);
            mailbox_push(&store->answers, &job->mail);
        }
        if (!STAILQ_EMPTY(&group))
            commit_group(store, &group);
        if (stop) {
            database_close(store->db);
            mailbox_push(&store->answers, &stop->mail);
            return NULL;
        }
    }
}

/* ---- The loop thread ---- */

static void on_closed(uv_handle_t *handle) {
    struct store *store = handle->data;
    void (*cb)(void *) = store->closed_cb;
    void *arg = store->closed_arg;
    pthread_mutex_destroy(&store->lock);
    pthread_cond_destroy(&store->wake);
    free(store);
    cb(arg);
}

static void deliver_stop(struct job *job) {
    struct store *store = job->store;
    pthread_join(store->thread, NULL);
    store->answers.async.data = store;
    uv_close((uv_handle_t *)&store->answers.async, on_closed);
}

static void deliver_list(struct job *job) {
    for (size_t i = 0; i < job->item_count; i++) {
        struct listed *item = &job->items[i];
        job->item_cb(job->arg, item->key, item->revision, item->value, item->len);
        free(item->value);
    }
    free(job->items);
    job->list_cb(job->arg, err_is_set(&job->err) ? &job->err : NULL);
}

static void deliver(struct mail *mail) {
    struct job *job = CONTAINER_OF(mail, struct job, mail);
    switch (job->kind) {
    case JOB_COMMIT:
        txn_destroy(job->txn);
        job->commit_cb(job->arg, job->revision, err_is_set(&job->err) ? &job->err : NULL);
        break;
    case JOB_LIST: deliver_list(job); break;
    case JOB_STOP: deliver_stop(job); break;
    }
    free(job);
}

static void submit(struct store *store, struct job *job) {
    job->mail.deliver = deliver;
    job->store = store;
    pthread_mutex_lock(&store->lock);
    STAILQ_INSERT_TAIL(&store->jobs, job, link);
    pthread_cond_signal(&store->wake);
    pthread_mutex_unlock(&store->lock);
}

void store_commit(struct store *store, struct store_txn *txn, enum store_durability durability,
                  store_commit_cb cb, void *arg) {
    struct job *job = xcalloc(1, sizeof *job);
    job->kind = JOB_COMMIT;
    job->txn = txn;
    job->durability = durability;
    job->commit_cb = cb;
    job->arg = arg;
    submit(store, job);
}

void store_list(struct store *store, const char *prefix, store_item_cb item, store_list_cb done, void *arg) {
    struct job *job = xcalloc(1, sizeof *job);
    job->kind = JOB_LIST;
    strncpy(job->prefix, prefix, sizeof job->prefix - 1);
    job->item_cb = item;
    job->list_cb = done;
    job->arg = arg;
    submit(store, job);
}

struct store *store_open(uv_loop_t *loop, const char *directory, struct err *err) {
    struct database *db = database_open(directory, err);
    if (!db)
        return NULL;
    struct store *store = xcalloc(1, sizeof *store);
    store->db = db;
    STAILQ_INIT(&store->jobs);
    pthread_mutex_init(&store->lock, NULL);
    pthread_cond_init(&store->wake, NULL);
    mailbox_init(&store->answers, loop);
    if (pthread_create(&store->thread, NULL, store_main, store) != 0)
        abort();
    return store;
}

void store_close(struct store *store, void (*cb)(void *arg), void *arg) {
    store->closed_cb = cb;
    store->closed_arg = arg;
    struct job *job = xcalloc(1, sizeof *job);
    job->kind = JOB_STOP;
    submit(store, job);
}
