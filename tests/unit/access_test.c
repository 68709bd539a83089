/* Tokens, leases and the one decision, without a server. */
#include <sodium.h>
#include <stdlib.h>
#include <unistd.h>

#include "broker/access/authorize.h"
#include "broker/access/token.h"
#include "common/clock.h"
#include "sandlot/v1/errors.pb-c.h"
#include "tests/lib/suite.h"

#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

static struct keyring keyring = {
    .broker_id = "br-0123456789abcdef", .keys = {{.id = "k1"}, {.id = "k2"}}, .count = 2};
static uv_loop_t loop;
static struct store *store;
static struct lease_table *leases;
static char dir[] = "/tmp/sandlot-unit-XXXXXX";
static int gone; /* what check_sandbox answers */

/* ---- Tokens ---- */

static void test_token_round_trip_and_rotation(void) {
    char token[TOKEN_MAX], lease_id[ID_MAX], sandbox_id[ID_MAX];
    randombytes_buf(keyring.keys[0].secret, KEY_BYTES);
    randombytes_buf(keyring.keys[1].secret, KEY_BYTES);
    token_make(&keyring, "le-0123456789abcdef", "sb-fedcba9876543210", token);
    CU_ASSERT(strncmp(token, "sl1.k1.", 7) == 0);
    CU_ASSERT(token_verify(&keyring, token, strlen(token), lease_id, sandbox_id));
    CHECK_STR(lease_id, "le-0123456789abcdef");
    CHECK_STR(sandbox_id, "sb-fedcba9876543210");
    struct keyring rotated = keyring; /* k1 becomes the second key, and still verifies */
    rotated.keys[0] = keyring.keys[1];
    rotated.keys[1] = keyring.keys[0];
    CU_ASSERT(token_verify(&rotated, token, strlen(token), lease_id, sandbox_id));
    rotated.count = 1;
    CU_ASSERT(!token_verify(&rotated, token, strlen(token), lease_id, sandbox_id));
}

static void test_every_changed_byte_is_refused(void) {
    char token[TOKEN_MAX], changed[TOKEN_MAX], lease_id[ID_MAX], sandbox_id[ID_MAX];
    token_make(&keyring, "le-0123456789abcdef", "sb-fedcba9876543210", token);
    size_t len = strlen(token);
    for (size_t i = 0; i < len; i++) {
        strcpy(changed, token);
        changed[i] = changed[i] == 'A' ? 'B' : 'A';
        CU_ASSERT(!token_verify(&keyring, changed, len, lease_id, sandbox_id));
    }
    for (size_t cut = 0; cut < len; cut++)
        CU_ASSERT(!token_verify(&keyring, token, cut, lease_id, sandbox_id));
    CU_ASSERT(!token_verify(&keyring, "....", 4, lease_id, sandbox_id));
}

/* ---- Leases ---- */

static const struct lease *minted;

static void on_minted(void *arg, const struct lease *lease, const struct err *err) {
    (void)arg;
    CU_ASSERT_PTR_NULL(err);
    minted = lease;
    uv_stop(&loop);
}

static const struct lease *mint(const struct lease *parent, enum scope scope, enum lease_kind kind,
                                int64_t ttl_ms) {
    struct lease_mint_opts opts = {.parent = parent,
                                   .sandbox_id = "sb-fedcba9876543210",
                                   .rollout_id = "ro",
                                   .scope = scope,
                                   .kind = kind,
                                   .holder = "h",
                                   .expire_unix_ms = clock_unix_ms() + ttl_ms};
    minted = NULL;
    lease_mint(leases, &opts, on_minted, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    return minted;
}

static uint32_t counted;

static void on_count(void *arg, uint32_t count, const struct err *err) {
    (void)arg;
    CU_ASSERT_PTR_NULL(err);
    counted = count;
    uv_stop(&loop);
}

static int check_sandbox(void *arg, const char *sandbox_id, struct err *err) {
    (void)arg;
    (void)sandbox_id;
    return gone ? err_set(err, ERR_NOT_FOUND, REASON(SANDBOX_NOT_FOUND), "gone") : 0;
}

static int decide(const struct lease *lease, const struct access_need *need, const char *rollout,
                  struct err *err) {
    struct access access = {&keyring, leases, check_sandbox, NULL};
    struct identity identity = {.tenant = "uid:1"};
    struct access_claim claim = {.identity = &identity};
    struct grant grant;
    const struct lease *found;
    char token[TOKEN_MAX];
    if (lease) {
        token_make(&keyring, lease->id, "sb-fedcba9876543210", token);
        claim.token = token;
        claim.token_len = strlen(token);
    }
    claim.has_rollout = rollout != NULL;
    claim.rollout = rollout;
    claim.rollout_len = rollout ? strlen(rollout) : 0;
    *err = (struct err){0};
    return authorize(&access, need, &claim, &grant, &found, err);
}

static void test_decisions_in_their_order(void) {
    static const struct access_need
        operate = {.lease = true, .least = SCOPE_OPERATE},
        none = {.lease = false}, connect = {.lease = true, .least = SCOPE_OBSERVE, .takes_serialized = true},
        release = {.lease = true, .least = SCOPE_OBSERVE, .takes_serialized = true, .takes_ended = true};
    struct err err;
    const struct lease *owner = mint(NULL, SCOPE_OWNER, LEASE_CREATED, 60000);
    const struct lease *lent = mint(owner, SCOPE_OBSERVE, LEASE_SERIALIZED, 600000);
    const struct lease *connected = mint(lent, SCOPE_OBSERVE, LEASE_CONNECTED, 60000);
    CU_ASSERT(lent->expire_unix_ms <= owner->expire_unix_ms); /* LEASE-22 */
    CHECK_INT(decide(NULL, &none, NULL, &err), 0);
    CHECK_INT(decide(NULL, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_MISSING));
    CHECK_INT(decide(owner, &operate, NULL, &err), 0);
    CHECK_INT(decide(owner, &operate, "ro", &err), 0);
    CHECK_INT(decide(owner, &operate, "", &err), -1); /* G9: an empty binding matches nothing */
    CHECK_INT(err.reason, REASON(ROLLOUT_MISMATCH));
    CHECK_INT(decide(lent, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_NOT_CONNECTED));
    CHECK_INT(decide(lent, &connect, NULL, &err), 0);
    CHECK_INT(decide(connected, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(SCOPE_INSUFFICIENT));
    gone = 1;
    CHECK_INT(decide(connected, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(SANDBOX_NOT_FOUND)); /* before the scope */
    gone = 0;

    CHECK_INT(lease_live_count(leases, "sb-fedcba9876543210"), 3);
    lease_release(leases, lent, on_count, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_INT(counted, 2); /* the connection is somebody else's */
    CHECK_INT(decide(lent, &connect, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_RELEASED));
    CHECK_INT(decide(lent, &release, NULL, &err), 0); /* idempotent */
    CHECK_INT(decide(connected, &connect, NULL, &err), 0);
    lease_revoke(leases, lent, on_count, NULL); /* a revocation reaches below a released one */
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_INT(counted, 1);
    CHECK_INT(decide(connected, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_REVOKED));
    gone = 1;
    CHECK_INT(decide(connected, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_REVOKED)); /* a dead lease comes first */
    gone = 0;
    const struct lease *brief = mint(owner, SCOPE_OPERATE, LEASE_CONNECTED, -1);
    CHECK_INT(decide(brief, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_EXPIRED));
    struct lease unknown = {.id = "le-0000000000000000"};
    CHECK_INT(decide(&unknown, &operate, NULL, &err), -1);
    CHECK_INT(err.reason, REASON(LEASE_INVALID));
}

static bool exists(void *arg, const char *sandbox_id) {
    (void)sandbox_id;
    return arg != NULL;
}

static void on_closed(void *arg) {
    (void)arg;
}

static void reopen(void) {
    struct err err = {0};
    lease_table_close(leases);
    store_close(store, on_closed, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    store = store_open(&loop, dir, &err);
    leases = lease_table_create(&loop, store);
}

static void test_leases_are_found_again(void) {
    const struct lease_group *group = lease_group_find(leases, "sb-fedcba9876543210");
    const struct lease *first = TAILQ_FIRST(&group->leases);
    char owner_id[ID_MAX];
    strcpy(owner_id, first->id);
    reopen();
    lease_table_load(leases, exists, on_count, &loop);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_INT(counted, 4);
    CHECK_INT(lease_live_count(leases, "sb-fedcba9876543210"), 1);
    const struct lease *again = TAILQ_FIRST(&lease_group_find(leases, "sb-fedcba9876543210")->leases);
    CHECK_STR(again->id, owner_id); /* oldest first */
    reopen();
    lease_table_load(leases, exists, on_count, NULL); /* their sandbox is gone: dropped for good */
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_INT(counted, 0);
    reopen();
    lease_table_load(leases, exists, on_count, &loop);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_INT(counted, 0);
}

static void start(void) {
    struct err err = {0};
    CU_ASSERT_FATAL(sodium_init() >= 0 && mkdtemp(dir) != NULL);
    uv_loop_init(&loop);
    store = store_open(&loop, dir, &err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(store);
    leases = lease_table_create(&loop, store);
}

static void stop(void) {
    char command[64];
    lease_table_close(leases);
    store_close(store, on_closed, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    CHECK_INT(uv_loop_close(&loop), 0);
    snprintf(command, sizeof command, "rm -r %s", dir);
    CHECK_INT(system(command), 0);
}

static const struct test tests[] = {
    TEST(start),
    TEST(test_token_round_trip_and_rotation),
    TEST(test_every_changed_byte_is_refused),
    TEST(test_decisions_in_their_order),
    TEST(test_leases_are_found_again),
    TEST(stop),
};

SUITE("access", tests)
