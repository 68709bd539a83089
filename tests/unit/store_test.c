/* Keys, revisions, transactions, and what a restart finds. */
#include <stdlib.h>

#include "broker/store/store.h"
#include "tests/lib/suite.h"

static uv_loop_t loop;
static struct store *store;
static char dir[] = "/tmp/sandlot-unit-XXXXXX";
static uint64_t last_revision;
static int last_code, items;
static char listed[256];

static void on_commit(void *arg, uint64_t revision, const struct err *err) {
    (void)arg;
    last_revision = revision;
    last_code = err ? (int)err->code : 0;
    uv_stop(&loop);
}

static int commit(struct store_txn *txn, enum store_durability durability) {
    store_commit(store, txn, durability, on_commit, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    return last_code;
}

static int put(const char *key, uint64_t if_revision, const char *value) {
    struct store_txn *txn = store_txn_create();
    store_txn_put(txn, key, if_revision, value, strlen(value));
    return commit(txn, STORE_BOOT);
}

static void on_item(void *arg, const char *key, uint64_t revision, const uint8_t *value, size_t len) {
    (void)arg;
    (void)revision;
    snprintf(listed + strlen(listed), sizeof listed - strlen(listed), "%s=%.*s ", key, (int)len,
             (const char *)value);
    items++;
}

static void on_listed(void *arg, const struct err *err) {
    (void)arg;
    CU_ASSERT_PTR_NULL(err);
    uv_stop(&loop);
}

static const char *list(const char *prefix) {
    listed[0] = '\0';
    items = 0;
    store_list(store, prefix, on_item, on_listed, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    return listed;
}

static void test_conditions(void) {
    CHECK_INT(put("a/1", STORE_ABSENT, "one"), 0);
    uint64_t first = last_revision;
    CHECK_INT(put("a/1", STORE_ABSENT, "again"), ERR_ABORTED);
    CHECK_INT(put("a/1", first + 100, "again"), ERR_ABORTED);
    CHECK_INT(put("a/1", first, "two"), 0);
    CU_ASSERT(last_revision > first);
    CHECK_INT(put("a/1", STORE_ANY, "three"), 0);
    CHECK_INT(put("b/1", STORE_ABSENT, "other"), 0);
    CHECK_STR(list("a/"), "a/1=three ");
    CHECK_STR(list(""), "a/1=three b/1=other ");
}

static void test_a_transaction_is_all_or_nothing(void) {
    struct store_txn *txn = store_txn_create();
    store_txn_put(txn, "a/2", STORE_ABSENT, "x", 1);
    store_txn_delete(txn, "b/1", STORE_ANY);
    store_txn_put(txn, "a/1", STORE_ABSENT, "refused", 7);
    CHECK_INT(commit(txn, STORE_DISK), ERR_ABORTED);
    CHECK_STR(list(""), "a/1=three b/1=other ");
    txn = store_txn_create();
    store_txn_put(txn, "a/2", STORE_ABSENT, "x", 1);
    store_txn_delete(txn, "b/1", STORE_ANY);
    CHECK_INT(commit(txn, STORE_DISK), 0);
    CHECK_STR(list(""), "a/1=three a/2=x ");
}

static int answered;

static void on_many(void *arg, uint64_t revision, const struct err *err) {
    (void)arg;
    (void)revision;
    CU_ASSERT_PTR_NULL(err);
    if (++answered == 500)
        uv_stop(&loop);
}

static void test_many_at_once(void) {
    for (int i = 0; i < 500; i++) {
        char key[32];
        struct store_txn *txn = store_txn_create();
        snprintf(key, sizeof key, "many/%03d", i);
        store_txn_put(txn, key, STORE_ABSENT, "v", 1);
        store_commit(store, txn, i % 7 ? STORE_BOOT : STORE_DISK, on_many, NULL);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    list("many/");
    CHECK_INT(items, 500);
}

static void on_closed(void *arg) {
    (void)arg;
}

static void close_store(void) {
    store_close(store, on_closed, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
}

static void test_reopened(void) {
    struct err err = {0};
    close_store();
    store = store_open(&loop, dir, &err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(store);
    CHECK_STR(list("a/"), "a/1=three a/2=x ");
    uint64_t before = last_revision;
    CHECK_INT(put("a/3", STORE_ABSENT, "y"), 0);
    CU_ASSERT(last_revision > before);
}

static void test_unusable_file_is_an_error(void) {
    struct err err = {0};
    char path[64], command[256];
    snprintf(path, sizeof path, "%s/broken", dir);
    snprintf(command, sizeof command,
             "mkdir %s && echo this is no database at all, nowhere near > %s/registry.db", path, path);
    CHECK_INT(system(command), 0);
    CU_ASSERT_PTR_NULL(store_open(&loop, path, &err));
    CHECK_INT(err.code, ERR_UNAVAILABLE);
    CU_ASSERT_PTR_NULL(store_open(&loop, "/no/such/dir", &err));
}

static void start(void) {
    struct err err = {0};
    CU_ASSERT_FATAL(mkdtemp(dir) != NULL);
    uv_loop_init(&loop);
    store = store_open(&loop, dir, &err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(store);
}

static void stop(void) {
    char command[64];
    close_store();
    CHECK_INT(uv_loop_close(&loop), 0);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK_INT(system(command), 0);
}

static const struct test tests[] = {
    TEST(start),
    TEST(test_conditions),
    TEST(test_a_transaction_is_all_or_nothing),
    TEST(test_many_at_once),
    TEST(test_reopened),
    TEST(test_unusable_file_is_an_error),
    TEST(stop),
};

SUITE("store", tests)
