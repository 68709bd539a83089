/* SQLite behind the store: used by the store thread alone. */
#pragma once

#include "broker/store/store.h"

struct database;

struct write_op {
    char key[STORE_KEY_MAX];
    uint64_t if_revision;
    uint8_t *value; /* NULL: delete */
    size_t len;
};

struct database *database_open(const char *directory, struct err *err);
void database_close(struct database *db);

/* A group of transactions between begin and end is one write to the disk. */
int database_begin(struct database *db, enum store_durability durability, struct err *err);
int database_end(struct database *db, struct err *err);
/* Inside begin/end: all operations or none. */
int database_apply(struct database *db, const struct write_op *ops, size_t count, uint64_t *ret_revision,
                   struct err *err);
int database_list(struct database *db, const char *prefix, store_item_cb item, void *arg, struct err *err);
