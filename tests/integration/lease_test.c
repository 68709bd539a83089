/* Lending: who may do what, for how long, and who may take it back. Names carry the ids of the cases
 * and spec items they show. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static struct fixture fixture;
static struct sandlot_client *client;

static void sleep_ms(long ms) {
    struct timespec wait = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&wait, NULL);
}

static struct sandlot_sandbox *lend(struct sandlot_sandbox *from, const char *scope, const char *holder) {
    struct sandlot_serialize_opts opts = {.scope = scope, .holder = holder};
    struct sandlot_sandbox *borrowed = NULL;
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(from, &opts, &json, &err), 0);
    CHECK_INT(sandlot_connect(NULL, json, holder, &borrowed, &err), 0);
    sandlot_string_free(json);
    CU_ASSERT_PTR_NOT_NULL_FATAL(borrowed);
    return borrowed;
}

static const char *state_of(struct sandlot_sandbox *sandbox) {
    static char state[32];
    struct sandlot_sandbox_info *info = NULL;
    if (sandlot_get(sandbox, &info, NULL) < 0)
        return "unreachable";
    snprintf(state, sizeof state, "%s", info->state);
    sandlot_sandbox_info_free(info);
    return state;
}

static uint32_t live_leases(struct sandlot_sandbox *owner) {
    struct sandlot_sandbox_info *info = NULL;
    CHECK_INT(sandlot_get(owner, &info, NULL), 0);
    uint32_t count = info ? info->live_leases : 0;
    sandlot_sandbox_info_free(info);
    return count;
}

/* The id of the newest lease with that holder. */
static void lease_id_of(struct sandlot_sandbox *owner, const char *holder, const char *kind, char *ret) {
    struct sandlot_lease_list *list = NULL;
    ret[0] = '\0';
    CHECK_INT(sandlot_leases(owner, &list, NULL), 0);
    for (size_t i = 0; list && i < list->count; i++)
        if (strcmp(list->items[i].holder, holder) == 0 && strcmp(list->items[i].kind, kind) == 0)
            strcpy(ret, list->items[i].id);
    sandlot_lease_list_free(list);
}

/* Spec 13.1, G1, LEASE-17, LEASE-23. */
static void test_g1_spec13_1_operate_never_becomes_owner(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_sandbox *borrower = lend(owner, "operate", "B");
    struct sandlot_serialize_opts as_owner = {.scope = "owner"};
    struct sandlot_error err = {0};
    char *json = NULL, lease_id[32];
    CHECK_INT(sandlot_serialize(borrower, &as_owner, &json, &err), -1);
    CHECK_INT(err.status, 7);
    CHECK_STR(err.reason, "SCOPE_INSUFFICIENT");
    CHECK_INT(sandlot_destroy(borrower, &err), -1);
    CHECK_INT(err.status, 7);
    CHECK_STR(state_of(owner), "running");

    struct sandlot_sandbox *grandchild = lend(borrower, "operate", "C");
    CHECK_STR(fixture_sh_text(grandchild, "echo works"), "works");
    lease_id_of(owner, "B", "connected", lease_id);
    uint32_t ended = 0;
    CHECK_INT(sandlot_revoke(owner, lease_id, &ended, &err), 0);
    CHECK_INT(ended, 3); /* B's, what B serialized, and C's */
    struct sandlot_sandbox_info *info = NULL;
    CHECK_INT(sandlot_get(grandchild, &info, &err), -1);
    CHECK_INT(err.status, 16);
    CHECK_STR(err.reason, "LEASE_REVOKED");
    CHECK_INT(sandlot_get(borrower, &info, &err), -1);
    CHECK_STR(err.reason, "LEASE_REVOKED");
    CHECK_STR(state_of(owner), "running");
    sandlot_close(grandchild);
    sandlot_close(borrower);
    CHECK_INT(sandlot_destroy(owner, &err), 0);
    sandlot_close(owner);
}

/* Spec 13.2, SER-16, FAC-65. */
static void test_spec13_2_serialize_without_scope_keeps_teardown(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_sandbox *borrower = lend(owner, NULL, "B");
    struct sandlot_error err = {0};
    CHECK_STR(sandlot_scope(borrower), "operate");
    CHECK_INT(sandlot_stop(borrower, &err), 0);
    CHECK_STR(fixture_sh_text(owner, "echo still here"), "still here");
    sandlot_close(borrower);
    CHECK_INT(sandlot_stop(owner, &err), 0);
    sandlot_close(owner);
}

/* Spec 13.3, G2, LEASE-20, LEASE-44. */
static void test_g2_spec13_3_release_counts_once_and_kills_the_token(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_sandbox *borrower = lend(owner, "operate", "B"), *thief = NULL;
    struct sandlot_error err = {0};
    uint32_t remaining = 0;
    CHECK_INT(sandlot_open(NULL, sandlot_descriptor(borrower), &thief, &err), 0);
    CHECK_INT(live_leases(owner), 3);
    CHECK_INT(sandlot_release(borrower, &remaining, &err), 0);
    CHECK_INT(remaining, 2);
    CHECK_INT(sandlot_release(borrower, &remaining, &err), 0);
    CHECK_INT(remaining, 2);
    CHECK_INT(live_leases(owner), 2);
    struct sandlot_exec_opts exec = {.shell = "true"};
    struct sandlot_exec_result *result = NULL;
    CHECK_INT(sandlot_exec(thief, &exec, &result, &err), -1);
    CHECK_INT(err.status, 16);
    CHECK_STR(err.reason, "LEASE_RELEASED");
    CHECK_STR(state_of(owner), "running");
    sandlot_close(thief);
    sandlot_close(borrower);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* SER-21: one descriptor, several connections; one's release harms nobody. */
static void test_ser21_each_connection_has_its_own_lease(void) {
    struct sandlot_sandbox *owner = fixture_create(client), *a = NULL, *b = NULL;
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, NULL, &json, NULL), 0);
    CHECK_INT(sandlot_connect(NULL, json, "a", &a, NULL), 0);
    CHECK_INT(sandlot_connect(NULL, json, "b", &b, NULL), 0);
    CHECK_INT(sandlot_release(a, NULL, NULL), 0);
    CHECK_STR(fixture_sh_text(b, "echo b"), "b");
    sandlot_string_free(json);
    sandlot_close(a);
    sandlot_close(b);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* The lent file's own release stops new connections and ends none. */
static void test_release_of_the_lent_lease_ends_no_connection(void) {
    struct sandlot_sandbox *owner = fixture_create(client), *a = NULL, *lent = NULL, *late = NULL;
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, NULL, &json, NULL), 0);
    CHECK_INT(sandlot_connect(NULL, json, "a", &a, NULL), 0);
    CHECK_INT(sandlot_open(NULL, json, &lent, NULL), 0);
    CHECK_INT(sandlot_release(lent, NULL, NULL), 0);
    CHECK_STR(fixture_sh_text(a, "echo a"), "a");
    CHECK_INT(sandlot_connect(NULL, json, "late", &late, NULL), -1);
    sandlot_string_free(json);
    sandlot_close(lent);
    sandlot_close(a);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* G3, LEASE-22: a ttl is honoured, capped by the parent's, echoed as expire_time. */
static void test_g3_ttl_of_a_lease_is_honoured(void) {
    struct sandlot_sandbox *owner = fixture_create(client), *late = NULL;
    struct sandlot_serialize_opts brief = {.ttl = 1.5, .holder = "brief"},
                                  endless = {.ttl = 3e7, .holder = "long"};
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, &endless, &json, NULL), 0);
    sandlot_string_free(json);
    CHECK_INT(sandlot_serialize(owner, &brief, &json, NULL), 0);
    CHECK_INT(sandlot_connect(NULL, json, "brief-connection", &late, &err), 0);
    struct sandlot_lease_list *list = NULL;
    CHECK_INT(sandlot_leases(owner, &list, NULL), 0);
    for (size_t i = 1; list && i < list->count; i++) {
        CU_ASSERT(list->items[i].expire_time <= list->items[0].expire_time);
        if (strncmp(list->items[i].holder, "brief", 5) == 0)
            CU_ASSERT(list->items[i].expire_time - list->items[i].create_time < 2);
    }
    sandlot_lease_list_free(list);
    sleep_ms(1600);
    struct sandlot_sandbox_info *info = NULL;
    CHECK_INT(sandlot_get(late, &info, &err), -1);
    CHECK_INT(err.status, 16);
    CHECK_STR(err.reason, "LEASE_EXPIRED");
    struct sandlot_sandbox *again = NULL;
    CHECK_INT(sandlot_connect(NULL, json, NULL, &again, &err), -1);
    CHECK_STR(err.reason, "LEASE_EXPIRED");
    struct sandlot_serialize_opts zero = {.ttl = -1};
    char *none = NULL;
    CHECK_INT(sandlot_serialize(owner, &zero, &none, &err), -1);
    CHECK_INT(err.status, 3);
    sandlot_string_free(json);
    sandlot_close(late);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* G9, LEASE-28: no two sandboxes share an empty rollout. */
static void test_g9_rollout_is_never_empty(void) {
    struct sandlot_sandbox *a = fixture_create(client), *b = fixture_create(client);
    struct sandlot_sandbox_info *info_a = NULL, *info_b = NULL;
    CHECK_INT(sandlot_get(a, &info_a, NULL), 0);
    CHECK_INT(sandlot_get(b, &info_b, NULL), 0);
    CU_ASSERT(strlen(info_a->rollout_id) > 0);
    CU_ASSERT(strcmp(info_a->rollout_id, info_b->rollout_id) != 0);
    sandlot_sandbox_info_free(info_a);
    sandlot_sandbox_info_free(info_b);
    sandlot_destroy(a, NULL);
    sandlot_destroy(b, NULL);
    sandlot_close(a);
    sandlot_close(b);
}

/* G12, SER-13, SER-19: connect asks; auth, gone and unreachable are three answers. */
static void test_g12_connect_validates(void) {
    struct sandlot_sandbox *owner = fixture_create(client), *other = NULL;
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, NULL, &json, NULL), 0);

    char *forged = strdup(json);
    char *token = strstr(forged, "sl1.");
    char *mac = strrchr(strtok(token, "\""), '.') + 1; /* cuts at the token's end */
    (void)mac;
    free(forged);
    forged = strdup(json);
    char *at = strstr(forged, "sl1.k1.") + 7;
    *at = *at == 'b' ? 'c' : 'b';
    CHECK_INT(sandlot_connect(NULL, forged, NULL, &other, &err), -1);
    CHECK_INT(err.status, 16);
    CHECK_STR(err.reason, "LEASE_INVALID");
    free(forged);

    char *elsewhere = strdup(json);
    char *id = strstr(elsewhere, "br-");
    id[3] = id[3] == '0' ? '1' : '0';
    CHECK_INT(sandlot_connect(NULL, elsewhere, NULL, &other, &err), -1);
    CHECK_STR(err.reason, "BROKER_MISMATCH");
    free(elsewhere);

    CHECK_INT(sandlot_destroy(owner, &err), 0);
    CHECK_INT(sandlot_connect(NULL, json, NULL, &other, &err), -1);
    CHECK_INT(err.status, 5);
    CHECK_STR(err.reason, "SANDBOX_NOT_FOUND");

    struct sandlot_client_opts nowhere = {.address = "unix:/nonexistent/socket"};
    struct sandlot_client *dead = NULL;
    CHECK_INT(sandlot_client_open(&nowhere, &dead, NULL), 0);
    CHECK_INT(sandlot_connect(dead, json, NULL, &other, &err), -1);
    CHECK_INT(err.status, 14);
    CHECK_STR(err.reason, "CANNOT_CONNECT");
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/nonexistent/socket"));
    sandlot_client_close(dead);
    sandlot_string_free(json);
    sandlot_close(owner);
}

static void test_a_lent_lease_only_connects_and_releases(void) {
    struct sandlot_sandbox *owner = fixture_create(client), *lent = NULL;
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, NULL, &json, NULL), 0);
    CHECK_INT(sandlot_open(NULL, json, &lent, NULL), 0);
    struct sandlot_exec_opts exec = {.shell = "true"};
    struct sandlot_exec_result *result = NULL;
    CHECK_INT(sandlot_exec(lent, &exec, &result, &err), -1);
    CHECK_INT(err.status, 9);
    CHECK_STR(err.reason, "LEASE_NOT_CONNECTED");
    CHECK_INT(sandlot_release(lent, NULL, &err), 0);
    struct sandlot_sandbox *late = NULL;
    CHECK_INT(sandlot_connect(NULL, json, NULL, &late, &err), -1);
    CHECK_STR(err.reason, "LEASE_RELEASED");
    sandlot_string_free(json);
    sandlot_close(lent);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

static void test_observe_looks_and_downloads_only(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_sandbox *observer = lend(owner, "observe", "O");
    struct sandlot_error err = {0};
    CHECK_STR(state_of(observer), "running");
    CHECK_INT(sandlot_upload_bytes(owner, "x", 1, "f", 0, NULL, NULL), 0);
    CHECK_INT(sandlot_download_file(observer, "f", 0, "/tmp/sandlot-test-observed", NULL, &err), 0);
    unlink("/tmp/sandlot-test-observed");
    CHECK_INT(sandlot_upload_bytes(observer, "y", 1, "f", 0, NULL, &err), -1);
    CHECK_INT(err.status, 7);
    struct sandlot_exec_opts exec = {.shell = "true"};
    struct sandlot_exec_result *result = NULL;
    CHECK_INT(sandlot_exec(observer, &exec, &result, &err), -1);
    CHECK_STR(err.reason, "SCOPE_INSUFFICIENT");
    struct sandlot_serialize_opts up = {.scope = "operate"};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(observer, &up, &json, &err), -1);
    CHECK_INT(err.status, 7);
    CHECK_INT(sandlot_serialize(observer, NULL, &json, &err), 0);
    sandlot_string_free(json);
    sandlot_close(observer);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* LEASE-18 */
static void test_unknown_scope_is_a_bad_argument(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_serialize_opts opts = {.scope = "root"};
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, &opts, &json, &err), -1);
    CHECK_INT(err.status, 3);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* LEASE-21: a running call ends within a second of the revocation. */
static void test_lease21_revocation_ends_running_calls(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_sandbox *borrower = lend(owner, "operate", "B");
    char command[256], lease_id[32], output[4096];
    lease_id_of(owner, "B", "connected", lease_id);
    snprintf(command, sizeof command, "%s/b.json", fixture.dir);
    FILE *file = fopen(command, "we");
    fputs(sandlot_descriptor(borrower), file);
    fclose(file);
    /* The exec runs in another process; it is revoked once its command is there. */
    struct timespec before, after;
    snprintf(output, sizeof output,
             "cd %s; PATH=%s:$PATH; sandlot exec -s b.json -- sh -c 'touch started; sleep 60' >out 2>&1; "
             "echo $? >code",
             fixture.dir, build_dir());
    char background[5000];
    snprintf(background, sizeof background, "(%s) &", output);
    CHECK_INT(system(background), 0);
    for (int i = 0; i < 2000 && strcmp(fixture_sh_text(owner, "ls started 2>/dev/null"), "started") != 0; i++)
        sleep_ms(5);
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK_INT(sandlot_revoke(owner, lease_id, NULL, NULL), 0);
    snprintf(command, sizeof command, "%s/code", fixture.dir);
    for (int i = 0; i < 2000 && access(command, F_OK) < 0; i++)
        sleep_ms(5);
    clock_gettime(CLOCK_MONOTONIC, &after);
    CU_ASSERT(after.tv_sec - before.tv_sec <= 2);
    fixture_cli(&fixture, output, sizeof output, "info >/dev/null; cat out code");
    CU_ASSERT_PTR_NOT_NULL(strstr(output, "LEASE_REVOKED"));
    CU_ASSERT_PTR_NOT_NULL(strstr(output, "125"));
    for (int i = 0; i < 2000 && strcmp(fixture_sh_text(owner, "pgrep -c -x sleep"), "0") != 0; i++)
        sleep_ms(5);
    CHECK_STR(fixture_sh_text(owner, "pgrep -c -x sleep"), "0");
    sandlot_close(borrower);
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

static void test_revoke_reaches_only_below(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_sandbox *second = lend(owner, "owner", "second");
    struct sandlot_error err = {0};
    char creator[32] = "", own[32];
    struct sandlot_lease_list *list = NULL;
    CHECK_INT(sandlot_leases(second, &list, NULL), 0);
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].kind, "created") == 0)
            strcpy(creator, list->items[i].id);
    sandlot_lease_list_free(list);
    lease_id_of(owner, "second", "connected", own);
    CHECK_INT(sandlot_revoke(second, creator, NULL, &err), -1);
    CHECK_STR(err.reason, "LEASE_NOT_YOURS");
    CHECK_INT(sandlot_revoke(second, own, NULL, &err), -1);
    CHECK_STR(err.reason, "LEASE_NOT_YOURS");
    CHECK_INT(sandlot_revoke(owner, "le-0000000000000000", NULL, &err), -1);
    CHECK_STR(err.reason, "LEASE_NOT_FOUND");
    CHECK_INT(sandlot_revoke(owner, "nonsense", NULL, &err), -1);
    CHECK_INT(err.status, 3);
    CHECK_INT(sandlot_destroy(second, &err), 0); /* owner is owner */
    sandlot_close(second);
    sandlot_close(owner);
}

/* LEASE-40, SER-07: a descriptor holds its own token and nothing of the provider; lists show none. */
static void test_lease40_tokens_stay_secret(void) {
    char output[8192], path[300];
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "create -o secret.json"), 0);
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "--json leases -s secret.json"), 0);
    CU_ASSERT_PTR_NULL(strstr(output, "sl1."));
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "info >/dev/null; stat -c %%a secret.json"), 0);
    CHECK_STR(output, "600\n");
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "destroy -s secret.json"), 0);
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "get -s secret.json"), 125);
    CU_ASSERT_PTR_NULL(strstr(output, "sl1."));
    snprintf(path, sizeof path, "grep -c 'sl1\\.' %s/log", fixture.dir);
    CU_ASSERT(system(path) != 0);
}

/* SER-18, G7's rule for now: no address, no descriptor for elsewhere. */
static void test_ser18_other_host_needs_an_address(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_serialize_opts opts = {.for_other_host = 1};
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, &opts, &json, &err), -1);
    CHECK_STR(err.reason, "ENDPOINT_NOT_ADVERTISED");
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "advertise"));
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

/* FAC-58 */
static void test_fac58_the_creator_does_not_release(void) {
    struct sandlot_sandbox *owner = fixture_create(client);
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_release(owner, NULL, &err), -1);
    CHECK_INT(err.status, 9);
    CHECK_STR(state_of(owner), "running");
    sandlot_destroy(owner, NULL);
    sandlot_close(owner);
}

static void start(void) {
    fixture_start(&fixture, NULL);
    fixture_client(&fixture, &client);
}

static void stop(void) {
    sandlot_client_close(client);
    fixture_stop(&fixture);
}

static const struct test tests[] = {
    TEST(start),
    TEST(test_g1_spec13_1_operate_never_becomes_owner),
    TEST(test_spec13_2_serialize_without_scope_keeps_teardown),
    TEST(test_g2_spec13_3_release_counts_once_and_kills_the_token),
    TEST(test_ser21_each_connection_has_its_own_lease),
    TEST(test_release_of_the_lent_lease_ends_no_connection),
    TEST(test_g3_ttl_of_a_lease_is_honoured),
    TEST(test_g9_rollout_is_never_empty),
    TEST(test_g12_connect_validates),
    TEST(test_a_lent_lease_only_connects_and_releases),
    TEST(test_observe_looks_and_downloads_only),
    TEST(test_unknown_scope_is_a_bad_argument),
    TEST(test_lease21_revocation_ends_running_calls),
    TEST(test_revoke_reaches_only_below),
    TEST(test_lease40_tokens_stay_secret),
    TEST(test_ser18_other_host_needs_an_address),
    TEST(test_fac58_the_creator_does_not_release),
    TEST(stop),
};

SUITE("lease", tests)
