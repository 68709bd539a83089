/* The registry on disk: keys, values, revisions. One thread writes, in groups; everything here is
 * called on the loop thread and answers there. No SQL above this line. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "common/err.h"

#define STORE_KEY_MAX 64

/* Revision conditions of a write. */
#define STORE_ANY UINT64_MAX /* whatever is there */
#define STORE_ABSENT 0       /* only if the key does not exist */

enum store_durability {
    STORE_BOOT, /* survives the process; may be lost with the machine (what it names dies then too) */
    STORE_DISK, /* survives the machine */
};

struct store;
struct store_txn;

/* Once per commit. On success *revision is that of every key written. ABORTED: a condition did not
 * hold, nothing was written. UNAVAILABLE: the disk failed. */
typedef void (*store_commit_cb)(void *arg, uint64_t revision, const struct err *err);
/* Once per key in order; the value is valid during the call. */
typedef void (*store_item_cb)(void *arg, const char *key, uint64_t revision, const uint8_t *value,
                              size_t len);
typedef void (*store_list_cb)(void *arg, const struct err *err);

/* Opens or makes registry.db in the directory. Blocks; call it before the loop runs. */
struct store *store_open(uv_loop_t *loop, const char *directory, struct err *err);
/* Writes what is queued, answers it, then cb. */
void store_close(struct store *store, void (*cb)(void *arg), void *arg);

struct store_txn *store_txn_create(void);
/* Copies key and value. */
void store_txn_put(struct store_txn *txn, const char *key, uint64_t if_revision, const void *value,
                   size_t len);
void store_txn_delete(struct store_txn *txn, const char *key, uint64_t if_revision);
/* Takes the transaction. */
void store_commit(struct store *store, struct store_txn *txn, enum store_durability durability,
                  store_commit_cb cb, void *arg);

/* All keys that start with the prefix, as of now; `done` comes last. */
void store_list(struct store *store, const char *prefix, store_item_cb item, store_list_cb done, void *arg);
