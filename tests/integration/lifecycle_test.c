/* From intent to confirmed teardown: restarts, expiry, capacity, images, a second broker, setup. */
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
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

static size_t count_sandboxes(void) {
    struct sandlot_sandbox_list *list = NULL;
    size_t count = sandlot_list(client, &list, NULL) == 0 ? list->count : 9999;
    sandlot_sandbox_list_free(list);
    return count;
}

/* Sandbox ids and their leases, before and after. */
static void check_survival(struct sandlot_sandbox *owner, struct sandlot_sandbox *borrower,
                           const char *mark) {
    CHECK_STR(fixture_sh_text(owner, "cat mark"), mark);
    CHECK_STR(fixture_sh_text(borrower, "cat mark"), mark);
    struct sandlot_lease_list *list = NULL;
    CHECK_INT(sandlot_leases(owner, &list, NULL), 0);
    CHECK_INT(list ? list->count : 0, 3);
    sandlot_lease_list_free(list);
}

static void test_killed_broker_finds_all_again(void) {
    struct sandlot_sandbox *owner = fixture_create(client), *borrower = NULL, *released = NULL;
    struct sandlot_error err = {0};
    char *json = NULL;
    CHECK_INT(sandlot_upload_bytes(owner, "kept", 4, "mark", 0, NULL, NULL), 0);
    CHECK_INT(sandlot_serialize(owner, NULL, &json, NULL), 0);
    CHECK_INT(sandlot_connect(client, json, "b", &borrower, NULL), 0);
    check_survival(owner, borrower, "kept");

    fixture_kill_broker(&fixture); /* the spawner starts another */
    CU_ASSERT(fixture_wait_serving(&fixture));
    check_survival(owner, borrower, "kept");

    fixture_kill_all(&fixture); /* the agents live on, without a parent of ours */
    fixture_launch(&fixture);
    check_survival(owner, borrower, "kept");

    CHECK_INT(sandlot_connect(client, json, "r", &released, NULL), 0);
    CHECK_INT(sandlot_release(released, NULL, NULL), 0);
    fixture_kill_all(&fixture);
    fixture_launch(&fixture);
    struct sandlot_sandbox_info *info = NULL;
    CHECK_INT(sandlot_get(released, &info, &err), -1); /* a release outlives a crash */
    CHECK_STR(err.reason, "LEASE_RELEASED");
    CHECK_INT(sandlot_destroy(owner, &err), 0);
    CHECK_INT(count_sandboxes(), 0);
    sandlot_string_free(json);
    sandlot_close(released);
    sandlot_close(borrower);
    sandlot_close(owner);
}

static void test_orderly_stop_keeps_by_default(void) {
    struct fixture keep;
    struct sandlot_client *own = NULL;
    fixture_start(&keep, NULL);
    fixture_client(&keep, &own);
    struct sandlot_sandbox *sandbox = fixture_create(own);
    char command[1200], output[256];
    /* A second life without --on-shutdown destroy. */
    kill(keep.pid, SIGTERM);
    waitpid(keep.pid, NULL, 0);
    CU_ASSERT(access(keep.socket, F_OK) < 0);
    fixture_launch(&keep);
    struct sandlot_error err = {0};
    struct sandlot_sandbox_info *info = NULL;
    CHECK_INT(sandlot_get(sandbox, &info, &err), -1); /* the fixture's broker destroys on shutdown */
    CHECK_INT(err.status, 5);
    sandlot_close(sandbox);
    fixture_kill_all(&keep);
    snprintf(
        command, sizeof command,
        "cd %s; %s/sandlotd --state-dir %s/state --listen %s >>log 2>&1 & pid=$!; for i in $(seq 500); do "
        "SANDLOT_ADDRESS=%s %s/sandlot create -o kept.json >/dev/null 2>&1 && break; sleep 0.02; done; "
        "kill $pid; wait $pid; echo $?",
        keep.dir, build_dir(), keep.dir, keep.address, keep.address, build_dir());
    FILE *pipe = popen(command, "re");
    output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
    pclose(pipe);
    CHECK_STR(output, "0\n");
    fixture_launch(&keep);
    CHECK_INT(fixture_cli(&keep, output, sizeof output, "exec -s kept.json -- echo kept"), 0);
    CHECK_STR(output, "kept\n");
    sandlot_client_close(own);
    fixture_stop(&keep);
}

static void test_expiry(void) {
    struct sandlot_create_opts opts = {.ttl = 2};
    struct sandlot_sandbox *brief = NULL;
    struct sandlot_error err = {0};
    struct sandlot_exec_result *result = NULL;
    struct sandlot_exec_opts exec = {.shell = "sleep 30", .timeout = 60};
    CHECK_INT(sandlot_create(client, &opts, &brief, NULL), 0);
    CHECK_INT(sandlot_exec(brief, &exec, &result, &err), -1); /* P13: typed, no hang */
    CHECK_INT(err.status, 5);
    CHECK_STR(err.reason, "SANDBOX_EXPIRED");
    CHECK_INT(sandlot_exec(brief, &exec, &result, &err), -1);
    CHECK_STR(err.reason, err.status == 16 ? "LEASE_EXPIRED" : "SANDBOX_EXPIRED");
    for (int i = 0; i < 1000 && count_sandboxes() > 0; i++)
        sleep_ms(5);
    CHECK_INT(count_sandboxes(), 0);
    sandlot_close(brief);

    opts.ttl = -1;
    CHECK_INT(sandlot_create(client, &opts, &brief, &err), -1);
    CHECK_INT(err.status, 3);
    opts.ttl = 1e9;
    CHECK_INT(sandlot_create(client, &opts, &brief, &err), -1);
    CHECK_INT(err.status, 3);
}

/* The agent ends its sandbox by itself when no broker lives; the next start clears up. */
static void test_expiry_without_a_broker(void) {
    struct sandlot_create_opts opts = {.ttl = 3};
    struct sandlot_sandbox *brief = NULL;
    char command[128];
    CHECK_INT(sandlot_create(client, &opts, &brief, NULL), 0);
    snprintf(command, sizeof command, "pgrep -f '[s]andlot-agent --id %s' >/dev/null", sandlot_id(brief));
    CHECK_INT(system(command), 0);
    fixture_kill_all(&fixture);
    for (int i = 0; i < 2000 && system(command) == 0; i++)
        sleep_ms(5);
    CU_ASSERT(system(command) != 0);
    fixture_launch(&fixture);
    CHECK_INT(count_sandboxes(), 0);
    sandlot_close(brief);
}

/* A killed first process: the status tells the truth, the owner can still clear up. */
static void test_dead_agent_is_an_error_state(void) {
    struct sandlot_sandbox *sandbox = fixture_create(client);
    struct sandlot_sandbox_info *info = NULL;
    struct sandlot_error err = {0};
    char command[128];
    snprintf(command, sizeof command, "pkill -9 -f '[s]andlot-agent --id %s'", sandlot_id(sandbox));
    CHECK_INT(system(command), 0);
    for (int i = 0; i < 1000; i++) {
        CHECK_INT(sandlot_get(sandbox, &info, NULL), 0);
        bool seen = info && strcmp(info->state, "error") == 0;
        sandlot_sandbox_info_free(info);
        if (seen)
            break;
        sleep_ms(5);
    }
    struct sandlot_exec_opts exec = {.shell = "true"};
    struct sandlot_exec_result *result = NULL;
    CHECK_INT(sandlot_exec(sandbox, &exec, &result, &err), -1);
    CHECK_STR(err.reason, "SANDBOX_NOT_READY");
    CHECK_INT(sandlot_destroy(sandbox, &err), 0);
    CHECK_INT(count_sandboxes(), 0);
    sandlot_close(sandbox);
}

/* P02: the same request_id is the same sandbox; a different request is refused. */
static void test_p02_request_id(void) {
    struct sandlot_create_opts opts = {.request_id = "req-1", .ttl = 60};
    struct sandlot_sandbox *first = NULL, *second = NULL;
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_create(client, &opts, &first, NULL), 0);
    CHECK_INT(sandlot_create(client, &opts, &second, NULL), 0);
    CHECK_STR(sandlot_id(second), sandlot_id(first));
    CHECK_INT(count_sandboxes(), 1);
    sandlot_close(second);
    opts.ttl = 61;
    CHECK_INT(sandlot_create(client, &opts, &second, &err), -1);
    CHECK_INT(err.status, 6);
    CHECK_STR(err.reason, "REQUEST_ID_REUSED");
    sandlot_destroy(first, NULL);
    sandlot_close(first);
}

/* LEASE-42: destroy with a command in flight ends it in a typed way. */
static void test_lease42_destroy_ends_calls_in_flight(void) {
    char output[2048], command[512];
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "create -o inflight.json"), 0);
    snprintf(command, sizeof command,
             "cd %s; PATH=%s:$PATH; (sandlot exec -s inflight.json -- sh -c 'touch up; sleep 100' "
             ">inflight.out 2>&1; echo $? >>inflight.out) &",
             fixture.dir, build_dir());
    CHECK_INT(system(command), 0);
    for (int i = 0; i < 1000; i++) {
        fixture_cli(&fixture, output, sizeof output, "exec -s inflight.json -- ls");
        if (strstr(output, "up"))
            break;
        sleep_ms(5);
    }
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "destroy -s inflight.json"), 0);
    for (int i = 0; i < 1000; i++) {
        fixture_cli(&fixture, output, sizeof output, "info >/dev/null; cat inflight.out");
        if (strstr(output, "125"))
            break;
        sleep_ms(5);
    }
    CU_ASSERT_PTR_NOT_NULL(strstr(output, "SANDBOX_DESTROYED"));
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "destroy -s inflight.json"), 0); /* idempotent */
}

/* FAC-09..12 */
static int failing_setup(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    (void)arg;
    CHECK_STR(fixture_sh_text(sandbox, "echo in setup"), "in setup");
    err->status = 9;
    snprintf(err->reason, sizeof err->reason, "MY_REASON");
    snprintf(err->text, sizeof err->text, "no good");
    return -1;
}

static int good_setup(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    return sandlot_upload_bytes(sandbox, arg, strlen(arg), "setup", 0, NULL, err);
}

static int slow_setup(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    (void)arg;
    struct sandlot_exec_opts opts = {.shell = "sleep 30", .timeout = 60};
    struct sandlot_exec_result *result = NULL;
    return sandlot_exec(sandbox, &opts, &result, err);
}

static void test_fac09_to_fac12_start_with_setup(void) {
    struct sandlot_sandbox *sandbox = NULL;
    struct sandlot_error err = {0};
    char text[] = "done";
    CHECK_INT(sandlot_start_with_setup(client, NULL, good_setup, text, 0, &sandbox, &err), 0);
    CHECK_STR(fixture_sh_text(sandbox, "cat setup"), "done");
    sandlot_destroy(sandbox, NULL);
    sandlot_close(sandbox);
    CHECK_INT(sandlot_start_with_setup(client, NULL, failing_setup, NULL, 0, &sandbox, &err), -1);
    CHECK_STR(err.reason, "MY_REASON");
    CHECK_INT(count_sandboxes(), 0); /* gone before the error was told */
    CHECK_INT(sandlot_start_with_setup(client, NULL, slow_setup, NULL, 0.3, &sandbox, &err), -1);
    CHECK_INT(err.status, 4);
    CHECK_INT(count_sandboxes(), 0);
}

static void test_second_broker_is_refused(void) {
    char command[1024], output[1024];
    static const char *const starts[] = {"--state-dir %s/state --listen unix:%s/other",
                                         "--state-dir %s/other --listen unix:%s/s"};
    for (size_t i = 0; i < 2; i++) {
        char arguments[400];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(arguments, sizeof arguments, starts[i], fixture.dir, fixture.dir);
#pragma GCC diagnostic pop
        snprintf(command, sizeof command, "%s/sandlotd %s 2>&1; echo code $?", build_dir(), arguments);
        FILE *pipe = popen(command, "re");
        output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
        pclose(pipe);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "another broker uses"));
        CU_ASSERT_PTR_NOT_NULL(strstr(output, "code 1"));
    }
    CHECK_INT(count_sandboxes(), 0); /* the first one is unharmed */
}

/* Images: a directory and a tar; capacity; a disk layer. */
static void test_images_and_capacity(void) {
    struct fixture own;
    struct sandlot_client *own_client = NULL;
    struct sandlot_error err = {0};
    char command[1024], config[1024], root[64] = "/tmp/sandlot-test-image-XXXXXX";
    CU_ASSERT_PTR_NOT_NULL_FATAL(mkdtemp(root));
    snprintf(command, sizeof command,
             "cd %s && mkdir -p r/bin r/etc r/var && cp /bin/busybox r/bin/ && for a in sh cat ls id echo "
             "pwd rm touch stat; do "
             "ln -s busybox r/bin/$a; done && echo 'root:x:0:0::/root:/bin/sh' > r/etc/passwd && echo secret "
             "> r/etc/own && "
             "chmod 600 r/etc/own && chmod 755 . && tar -C r -cf t.tar . && gzip -k t.tar",
             root);
    CU_ASSERT_FATAL(system(command) == 0);
    snprintf(config, sizeof config,
             "{\"images\": {\"dir\": \"%s/r\", \"tar\": \"%s/t.tar\", \"tgz\": \"%s/t.tar.gz\"}, \"limits\": "
             "{\"max_sandboxes\": 3}%s}",
             root, root, root, getenv("SANDLOT_PLAIN_AGENT") ? ", \"agent\": \"AGENT\"" : "");
    char *agent = strstr(config, "AGENT");
    if (agent)
        snprintf(agent, sizeof config - (size_t)(agent - config), "%s\"}", getenv("SANDLOT_PLAIN_AGENT"));
    fixture_start(&own, config);
    fixture_client(&own, &own_client);
    static const char *const images[] = {"dir", "tar", "tgz"};
    struct sandlot_sandbox *made[3] = {NULL, NULL, NULL};
    for (size_t i = 0; i < 3; i++) {
        struct sandlot_create_opts opts = {.image = images[i], .layer_on_disk = i == 1};
        CHECK_INT(sandlot_create(own_client, &opts, &made[i], &err), 0);
        if (!made[i]) {
            printf("\n    %s\n", err.text);
            continue;
        }
        /* Its root is root of its own files, and what it writes stays its own. */
        CHECK_STR(fixture_sh_text(made[i], "cat /etc/own; stat -c %u:%g /etc/own; echo x > /etc/own; cat "
                                           "/etc/own; rm /bin/id; touch /bin/new; ls /bin/id /bin/new"),
                  "secret\n0:0\nx\n/bin/new");
    }
    struct sandlot_sandbox *more = NULL;
    CHECK_INT(sandlot_create(own_client, NULL, &more, &err), -1);
    CHECK_INT(err.status, 8);
    CHECK_STR(err.reason, "CAPACITY_EXHAUSTED");
    CHECK_INT(sandlot_destroy(made[0], &err), 0);
    CHECK_INT(sandlot_create(own_client, NULL, &more, &err), 0);
    struct sandlot_create_opts unknown = {.image = "nosuch"};
    struct sandlot_sandbox *none = NULL;
    CHECK_INT(sandlot_create(own_client, &unknown, &none, &err), -1);
    CHECK_INT(err.status, 3);
    CHECK_STR(err.reason, "IMAGE_NOT_FOUND");
    for (size_t i = 0; i < 3; i++)
        sandlot_close(made[i]);
    sandlot_close(more);
    sandlot_client_close(own_client);
    snprintf(command, sizeof command, "test -e %s/r/bin/id && grep -q secret %s/r/etc/own", root, root);
    CHECK_INT(system(command), 0);
    fixture_stop(&own);
    snprintf(command, sizeof command, "rm -rf %s", root);
    CHECK_INT(system(command), 0);
}

/* Depth is the sandbox's choice: teardown must not depend on it. */
static void test_deep_directories_do_not_stop_teardown(void) {
    struct sandlot_create_opts opts = {.layer_on_disk = 1};
    struct sandlot_sandbox *deep = NULL;
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_create(client, &opts, &deep, &err), 0);
    sandlot_exec_result_free(fixture_sh(deep, "cd /root; i=0; while [ $i -lt 1500 ]; do mkdir d; cd d; touch "
                                              "f; i=$((i + 1)); done; chmod 0 /root/d/d/d"));
    CHECK_INT(sandlot_destroy(deep, &err), 0);
    CHECK_INT(count_sandboxes(), 0);
    sandlot_close(deep);
}

/* A record that can't be read is left alone, and so is what it stands for. */
static void test_unreadable_record_is_not_a_stray(void) {
    struct sandlot_sandbox *sandbox = fixture_create(client);
    char command[1024], keep[64];
    snprintf(keep, sizeof keep, "%s", sandlot_id(sandbox));
    fixture_kill_all(&fixture);
    snprintf(
        command, sizeof command,
        "/usr/bin/python3 -c \"import sqlite3; d = sqlite3.connect('%s/state/broker/registry.db'); "
        "d.execute('create table kept as select * from entry'); "
        "d.execute('update entry set value = ? where key = ?', (b'\\xff\\xff', 'sandbox/%s')); d.commit()\"",
        fixture.dir, keep);
    CHECK_INT(system(command), 0);
    fixture_launch(&fixture);
    snprintf(command, sizeof command, "pgrep -f '[s]andlot-agent --id %s' >/dev/null", keep);
    CHECK_INT(system(command), 0);
    fixture_kill_all(&fixture);
    snprintf(command, sizeof command,
             "/usr/bin/python3 -c \"import sqlite3; d = sqlite3.connect('%s/state/broker/registry.db'); "
             "d.execute('update entry set value = (select value from kept where kept.key = entry.key) where "
             "key like ?', "
             "('sandbox/%%',)); d.commit()\"",
             fixture.dir);
    CHECK_INT(system(command), 0);
    fixture_launch(&fixture);
    CHECK_STR(fixture_sh_text(sandbox, "echo alive"), "alive"); /* its leases were kept as well */
    CHECK_INT(sandlot_destroy(sandbox, NULL), 0);
    sandlot_close(sandbox);
}

/* The broker as a user of its own: no capability, and nothing of the state directory but its registry. */
static void test_broker_as_another_user(void) {
    struct fixture own;
    struct sandlot_client *own_client = NULL;
    char command[512];
    fixture_start(&own, "{\"user\": \"nobody\"}");
    fixture_client(&own, &own_client);
    struct sandlot_sandbox *sandbox = fixture_create(own_client);
    CHECK_STR(fixture_sh_text(sandbox, "id -u"), "0");
    snprintf(command, sizeof command,
             "grep -Eq '^Uid:.65534.65534.65534.65534' /proc/%d/status && ! grep -Eq "
             "'^Cap(Prm|Eff|Bnd):.*[1-9a-f]' /proc/%d/status",
             (int)fixture_broker_pid(&own), (int)fixture_broker_pid(&own));
    CHECK_INT(system(command), 0);
    snprintf(command, sizeof command,
             "cd / && setpriv --reuid 65534 --clear-groups sh -c 'test -w %s/state/broker/registry.db && ! "
             "ls %s/state && "
             "! cat %s/state/keys && ! ls %s/state/sandboxes && ! touch %s/state/x' 2>/dev/null",
             own.dir, own.dir, own.dir, own.dir, own.dir);
    CHECK_INT(system(command), 0);
    fixture_kill_broker(&own);
    CU_ASSERT(fixture_wait_serving(&own));
    CHECK_STR(fixture_sh_text(sandbox, "echo again"), "again");
    sandlot_destroy(sandbox, NULL);
    sandlot_close(sandbox);
    sandlot_client_close(own_client);
    fixture_stop(&own);
}

/* XC-24 */
static void test_xc24_handles_do_not_survive_a_fork(void) {
    struct sandlot_sandbox *sandbox = fixture_create(client);
    pid_t pid = fork();
    if (pid == 0) {
        struct sandlot_error err = {0};
        struct sandlot_sandbox_info *info;
        int refused = sandlot_get(sandbox, &info, &err) < 0 && strcmp(err.reason, "HANDLE_FORKED") == 0;
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    CHECK_INT(status, 0);
    CHECK_STR(fixture_sh_text(sandbox, "echo parent works"), "parent works");
    sandlot_destroy(sandbox, NULL);
    sandlot_close(sandbox);
}

static void test_config_check(void) {
    static const struct {
        const char *json, *says;
    } cases[] = {
        {"{}", "valid"},
        {"{\"listn\": []}", "\"listn\""},
        {"{\"ttl\": {\"default\": -1}}", "ttl"},
        {"{\"ttl\": {\"default\": 100, \"max\": 10}}", "above the maximum"},
        {"{\"advertise\": [\"0.0.0.0:7411\"]}", "wildcard"},
        {"{\"listen\": [{\"address\": \"127.0.0.1:7411\"}]}", "insecure"},
        {"{\"listen\": [{\"address\": \"10.0.0.1:7411\", \"insecure\": true}]}", "loopback"},
        {"{\"on_shutdown\": \"maybe\"}", "on_shutdown"},
        {"{\"images\": {\"host\": \"/x\"}}", "host"},
        {"{\"limits\": {\"max_sandboxes\": 1.5}}", "max_sandboxes"},
        {"{\"drain_timeout\": 1e400}", "drain_timeout"},
        {"{} x", "follows"},
        {"{", "JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char command[600], output[1024];
        snprintf(command, sizeof command, "%s/check.json", fixture.dir);
        FILE *file = fopen(command, "we");
        fputs(cases[i].json, file);
        fclose(file);
        snprintf(command, sizeof command, "%s/sandlotd --check-config --config %s/check.json 2>&1",
                 build_dir(), fixture.dir);
        FILE *pipe = popen(command, "re");
        output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
        CHECK_INT(pclose(pipe) == 0, i == 0);
        if (!strstr(output, cases[i].says))
            printf("\n    %s: %s", cases[i].json, output);
        CU_ASSERT_PTR_NOT_NULL(strstr(output, cases[i].says));
    }
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
    TEST(test_killed_broker_finds_all_again),
    TEST(test_orderly_stop_keeps_by_default),
    TEST(test_expiry),
    TEST(test_expiry_without_a_broker),
    TEST(test_dead_agent_is_an_error_state),
    TEST(test_p02_request_id),
    TEST(test_lease42_destroy_ends_calls_in_flight),
    TEST(test_fac09_to_fac12_start_with_setup),
    TEST(test_second_broker_is_refused),
    TEST(test_images_and_capacity),
    TEST(test_deep_directories_do_not_stop_teardown),
    TEST(test_unreadable_record_is_not_a_stray),
    TEST(test_broker_as_another_user),
    TEST(test_xc24_handles_do_not_survive_a_fork),
    TEST(test_config_check),
    TEST(stop),
};

SUITE("lifecycle", tests)
