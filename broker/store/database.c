#include "broker/store/database.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define SCHEMA_VERSION 1
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

enum statement { SELECT_REVISION, INSERT, DELETE, LIST, LAST_REVISION, STATEMENT_MAX };

static const char *const statements[STATEMENT_MAX] = {
    [SELECT_REVISION] = "SELECT revision FROM entry WHERE key = ?1",
    [INSERT] = "INSERT OR REPLACE INTO entry (key, revision, value) VALUES (?1, ?2, ?3)",
    [DELETE] = "DELETE FROM entry WHERE key = ?1",
    [LIST] = "SELECT key, revision, value FROM entry WHERE key >= ?1 AND key < ?2 ORDER BY key",
    [LAST_REVISION] = "SELECT coalesce(max(revision), 0) FROM entry",
};

struct database {
    sqlite3 *sqlite;
    sqlite3_stmt *prepared[STATEMENT_MAX];
    uint64_t revision;
    int synchronous; /* enum store_durability that is set now, or -1 */
};

static int failed(const struct database *db, const char *what, struct err *err) {
    return err_set(err, ERR_UNAVAILABLE, REASON(STORE_UNAVAILABLE), "registry: %s: %s", what,
                   sqlite3_errmsg(db->sqlite));
}

static int run(const struct database *db, const char *sql, struct err *err) {
    return sqlite3_exec(db->sqlite, sql, NULL, NULL, NULL) == SQLITE_OK ? 0 : failed(db, sql, err);
}

static int read_version(const struct database *db, int *ret, struct err *err) {
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(db->sqlite, "PRAGMA user_version", -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW) {
        sqlite3_finalize(statement);
        return failed(db, "can't be read", err);
    }
    *ret = sqlite3_column_int(statement, 0);
    sqlite3_finalize(statement);
    return 0;
}

static int prepare_schema(const struct database *db, struct err *err) {
    int version;
    if (run(db, "PRAGMA journal_mode = WAL", err) < 0 || read_version(db, &version, err) < 0)
        return -1;
    if (version > SCHEMA_VERSION)
        return err_set(err, ERR_FAILED_PRECONDITION, REASON(STORE_UNAVAILABLE),
                       "registry.db is of a newer Sandlot (schema %d, this one knows %d)", version,
                       SCHEMA_VERSION);
    if (version == SCHEMA_VERSION)
        return 0;
    return run(db,
               "BEGIN; CREATE TABLE entry (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, "
               "value BLOB NOT NULL) WITHOUT ROWID; PRAGMA user_version = 1; COMMIT",
               err);
}

static int prepare_statements(struct database *db, struct err *err) {
    for (int i = 0; i < STATEMENT_MAX; i++)
        if (sqlite3_prepare_v3(db->sqlite, statements[i], -1, SQLITE_PREPARE_PERSISTENT, &db->prepared[i],
                               NULL) != SQLITE_OK)
            return failed(db, "prepare", err);
    sqlite3_stmt *last = db->prepared[LAST_REVISION];
    if (sqlite3_step(last) != SQLITE_ROW)
        return failed(db, "can't be read", err);
    db->revision = (uint64_t)sqlite3_column_int64(last, 0);
    sqlite3_reset(last);
    return 0;
}

struct database *database_open(const char *directory, struct err *err) {
    AUTO_FREE char *path = xasprintf("%s/registry.db", directory);
    struct database *db = xcalloc(1, sizeof *db);
    db->synchronous = -1;
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    if (sqlite3_open_v2(path, &db->sqlite, flags, NULL) != SQLITE_OK) {
        err_set(err, ERR_UNAVAILABLE, REASON(STORE_UNAVAILABLE), "%s: %s", path,
                db->sqlite ? sqlite3_errmsg(db->sqlite) : "out of memory");
        database_close(db);
        return NULL;
    }
    if (prepare_schema(db, err) < 0 || prepare_statements(db, err) < 0) {
        database_close(db);
        return NULL;
    }
    return db;
}

void database_close(struct database *db) {
    if (!db)
        return;
    for (int i = 0; i < STATEMENT_MAX; i++)
        sqlite3_finalize(db->prepared[i]);
    sqlite3_close(db->sqlite);
    free(db);
}

int database_begin(struct database *db, enum store_durability durability, struct err *err) {
    if (db->synchronous != (int)durability &&
        run(db, durability == STORE_DISK ? "PRAGMA synchronous = FULL" : "PRAGMA synchronous = NORMAL", err) <
            0)
        return -1;
    db->synchronous = (int)durability;
    return run(db, "BEGIN IMMEDIATE", err);
}

int database_end(struct database *db, struct err *err) {
    if (run(db, "COMMIT", err) == 0)
        return 0;
    sqlite3_exec(db->sqlite, "ROLLBACK", NULL, NULL, NULL);
    return -1;
}

static int current_revision(struct database *db, const char *key, uint64_t *ret, struct err *err) {
    sqlite3_stmt *select = db->prepared[SELECT_REVISION];
    sqlite3_bind_text(select, 1, key, -1, SQLITE_STATIC);
    int rc = sqlite3_step(select);
    *ret = rc == SQLITE_ROW ? (uint64_t)sqlite3_column_int64(select, 0) : STORE_ABSENT;
    sqlite3_reset(select);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : failed(db, "read", err);
}

static int apply_one(struct database *db, const struct write_op *op, struct err *err) {
    uint64_t found;
    if (op->if_revision != STORE_ANY) {
        if (current_revision(db, op->key, &found, err) < 0)
            return -1;
        if (found != op->if_revision)
            return err_set(err, ERR_ABORTED, REASON(STORE_UNAVAILABLE), "registry: %s has changed meanwhile",
                           op->key);
    }
    sqlite3_stmt *statement = db->prepared[op->value ? INSERT : DELETE];
    sqlite3_bind_text(statement, 1, op->key, -1, SQLITE_STATIC);
    if (op->value) {
        sqlite3_bind_int64(statement, 2, (sqlite3_int64)db->revision);
        sqlite3_bind_blob64(statement, 3, op->value, op->len, SQLITE_STATIC);
    }
    int rc = sqlite3_step(statement);
    sqlite3_reset(statement);
    sqlite3_clear_bindings(statement);
    return rc == SQLITE_DONE ? 0 : failed(db, "write", err);
}

int database_apply(struct database *db, const struct write_op *ops, size_t count, uint64_t *ret_revision,
                   struct err *err) {
    if (run(db, "SAVEPOINT txn", err) < 0)
        return -1;
    db->revision++;
    for (size_t i = 0; i < count; i++)
        if (apply_one(db, &ops[i], err) < 0) {
            sqlite3_exec(db->sqlite, "ROLLBACK TO txn; RELEASE txn", NULL, NULL, NULL);
            return -1;
        }
    *ret_revision = db->revision;
    return run(db, "RELEASE txn", err);
}

int database_list(struct database *db, const char *prefix, store_item_cb item, void *arg, struct err *err) {
    sqlite3_stmt *list = db->prepared[LIST];
    AUTO_FREE char *end = xasprintf("%s\x7f", prefix);
    sqlite3_bind_text(list, 1, prefix, -1, SQLITE_STATIC);
    sqlite3_bind_text(list, 2, end, -1, SQLITE_STATIC);
    int rc;
    while ((rc = sqlite3_step(list)) == SQLITE_ROW)
        item(arg, (const char *)sqlite3_column_text(list, 0), (uint64_t)sqlite3_column_int64(list, 1),
             sqlite3_column_blob(list, 2), (size_t)sqlite3_column_bytes(list, 2));
    sqlite3_reset(list);
    return rc == SQLITE_DONE ? 0 : failed(db, "list", err);
}
