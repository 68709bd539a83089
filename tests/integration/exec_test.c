/* Commands: bytes in, bytes out, exit codes, limits, and what is refused. */
#include <stdlib.h>
#include <time.h>

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static struct fixture fixture;
static struct sandlot_client *client;
static struct sandlot_sandbox *sandbox;

static struct sandlot_exec_result *run(const struct sandlot_exec_opts *opts) {
    struct sandlot_exec_result *result = NULL;
    struct sandlot_error err = {0};
    if (sandlot_exec(sandbox, opts, &result, &err) < 0) {
        printf("\n    %s\n", err.text);
        CU_FAIL_FATAL("exec");
    }
    return result;
}

static struct sandlot_error refuse(const struct sandlot_exec_opts *opts) {
    struct sandlot_exec_result *result = NULL;
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_exec(sandbox, opts, &result, &err), -1);
    return err;
}

static void test_streams_and_exit_code(void) {
    struct sandlot_exec_result *result = fixture_sh(sandbox, "echo out; echo err >&2; exit 7");
    CHECK_STR(result->stdout_data, "out\n");
    CHECK_STR(result->stderr_data, "err\n");
    CHECK_INT(result->exit_code, 7);
    CU_ASSERT_PTR_NULL(result->error_type);
    CU_ASSERT(result->duration > 0);
    sandlot_exec_result_free(result);
    result = fixture_sh(sandbox, "exit 125"); /* TYPE-11 */
    CHECK_INT(result->exit_code, 125);
    CU_ASSERT_PTR_NULL(result->error_type);
    sandlot_exec_result_free(result);
    result = fixture_sh(sandbox, "kill -TERM $$");
    CHECK_INT(result->exit_code, 143);
    CHECK_INT(result->signal, 15);
    sandlot_exec_result_free(result);
}

static void test_p27_stdin(void) {
    static const char binary[] = {0, 1, 2, (char)0xff};
    const char *cat[] = {"cat", NULL}, *wc[] = {"wc", "-c", NULL};
    struct sandlot_exec_opts opts = {.argv = cat, .timeout = 20};
    struct sandlot_exec_result *result = run(&opts); /* EOF at once */
    CHECK_INT(result->exit_code, 0);
    CHECK_INT(result->stdout_len, 0);
    sandlot_exec_result_free(result);
    opts.argv = wc;
    opts.stdin_data = binary;
    opts.stdin_len = sizeof binary;
    result = run(&opts);
    CHECK_STR(result->stdout_data, "4\n");
    sandlot_exec_result_free(result);
    opts.argv = cat;
    result = run(&opts);
    CHECK_INT(result->stdout_len, sizeof binary);
    CU_ASSERT(memcmp(result->stdout_data, binary, sizeof binary) == 0);
    sandlot_exec_result_free(result);

    char *large = malloc(1024 * 1024 + 1);
    memset(large, 'x', 1024 * 1024 + 1);
    opts.argv = wc;
    opts.stdin_data = large;
    opts.stdin_len = 1024 * 1024;
    result = run(&opts);
    CHECK_STR(result->stdout_data, "1048576\n");
    sandlot_exec_result_free(result);
    opts.stdin_len++;
    CHECK_INT(refuse(&opts).status, 3);
    free(large);
}

static void test_p28_arguments_are_byte_exact(void) {
    const char *argv[] = {"printf", "%s|",      "a b", "\"q'uo\\te\"", "line\nbreak", "$HOME `id` *",
                          "",       "\xff\xfe", NULL};
    struct sandlot_exec_opts opts = {.argv = argv, .timeout = 20};
    struct sandlot_exec_result *result = run(&opts);
    CHECK_STR(result->stdout_data, "a b|\"q'uo\\te\"|line\nbreak|$HOME `id` *||\xff\xfe|");
    sandlot_exec_result_free(result);
    CHECK_STR(fixture_sh_text(sandbox, "cat <<'X'\none \"two\" 'three'\n\n$four\nX\n"),
              "one \"two\" 'three'\n\n$four");
}

static void test_p29_missing_and_not_executable(void) {
    const char *missing[] = {"no-such-command", "x", NULL}, *plain[] = {"/etc/hostname", NULL};
    const char *nowhere[] = {"/no/such/file", NULL}, *directory[] = {"/etc", NULL};
    struct sandlot_exec_opts opts = {.argv = missing, .timeout = 20};
    struct sandlot_exec_result *result = run(&opts);
    CHECK_INT(result->exit_code, 127);
    CU_ASSERT_PTR_NOT_NULL(strstr(result->message, "no-such-command"));
    sandlot_exec_result_free(result);
    opts.argv = nowhere;
    result = run(&opts);
    CHECK_INT(result->exit_code, 127);
    sandlot_exec_result_free(result);
    opts.argv = plain;
    result = run(&opts);
    CHECK_INT(result->exit_code, 126);
    CU_ASSERT(strlen(result->message) > 0);
    sandlot_exec_result_free(result);
    opts.argv = directory;
    result = run(&opts);
    CHECK_INT(result->exit_code, 126);
    sandlot_exec_result_free(result);
    /* As a shell does: a script without #! runs. */
    CHECK_STR(fixture_sh_text(sandbox, "printf 'echo from $0' > /tmp/s; chmod 755 /tmp/s"), "");
    const char *script[] = {"/tmp/s", NULL};
    opts.argv = script;
    result = run(&opts);
    CHECK_STR(result->stdout_data, "from /tmp/s\n");
    sandlot_exec_result_free(result);
}

static void test_p30_missing_directory(void) {
    struct sandlot_exec_opts opts = {.shell = "pwd", .cwd = "/no/such", .timeout = 20};
    struct sandlot_error err = refuse(&opts);
    CHECK_INT(err.status, 9);
    CHECK_STR(err.reason, "CWD_NOT_FOUND");
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "/no/such"));
    opts.cwd = "/etc/hostname";
    CHECK_STR(refuse(&opts).reason, "CWD_NOT_FOUND");
    opts.cwd = "/usr";
    struct sandlot_exec_result *result = run(&opts);
    CHECK_STR(result->stdout_data, "/usr\n");
    sandlot_exec_result_free(result);
    CHECK_STR(fixture_sh_text(sandbox, "mkdir -p rel; pwd"), "/root"); /* FAC-15 */
    opts.cwd = "rel";
    result = run(&opts);
    CHECK_STR(result->stdout_data, "/root/rel\n");
    sandlot_exec_result_free(result);
}

static void test_p31_lines_are_kept(void) {
    struct sandlot_exec_result *result = fixture_sh(sandbox, "printf '\\n\\na\\n\\nb'");
    CHECK_STR(result->stdout_data, "\n\na\n\nb");
    sandlot_exec_result_free(result);
}

static void test_timeout_is_a_result_and_ends_the_tree(void) {
    struct sandlot_exec_opts opts = {
        .shell = "echo partial; setsid sleep 100 & (trap '' TERM; sleep 100) & sleep 100", .timeout = 0.3};
    struct sandlot_exec_result *result = run(&opts);
    CHECK_INT(result->timed_out, 1);
    CHECK_INT(result->exit_code, 125);
    CHECK_STR(result->error_type, "timeout");
    CHECK_STR(result->stdout_data, "partial\n");
    CHECK_INT(result->tree_kill_best_effort, 0);
    sandlot_exec_result_free(result);
    CHECK_STR(fixture_sh_text(sandbox, "pgrep -c -x sleep"), "0");
    opts = (struct sandlot_exec_opts){.shell = "true", .timeout = -1};
    sandlot_exec_result_free(run(&opts));
}

/* P20: a background child that holds the output never hangs the call. */
static void test_p20_background_child_holds_the_output(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    struct sandlot_exec_result *result = fixture_sh(sandbox, "sleep 600 & echo hi");
    clock_gettime(CLOCK_MONOTONIC, &after);
    CHECK_INT(result->exit_code, 0);
    CHECK_STR(result->stdout_data, "hi\n");
    CHECK_INT(result->output_held_open, 1);
    CU_ASSERT(after.tv_sec - before.tv_sec < 30);
    sandlot_exec_result_free(result);
    /* And the next command is not hit by what killed that one. */
    for (int i = 0; i < 5; i++) {
        sandlot_exec_result_free(fixture_sh(sandbox, "sleep 600 & echo hi"));
        CHECK_STR(fixture_sh_text(sandbox, "echo next"), "next");
    }
}

static void test_output_is_capped_and_counted(void) {
    struct sandlot_exec_opts opts = {.shell = "head -c 3000000 /dev/zero; head -c 10 /dev/zero >&2",
                                     .timeout = 60};
    struct sandlot_exec_result *result = run(&opts);
    CHECK_INT(result->stdout_len, 2 * 1024 * 1024);
    CHECK_INT(result->stdout_total, 3000000);
    CHECK_INT(result->stdout_truncated, 1);
    CHECK_INT(result->stderr_truncated, 0);
    CHECK_INT(result->exit_code, 0);
    sandlot_exec_result_free(result);
    opts.max_stdout = 5;
    result = run(&opts);
    CHECK_INT(result->stdout_len, 5);
    CHECK_INT(result->stdout_total, 3000000);
    sandlot_exec_result_free(result);
    /* Both at their caps still fit into one answer. */
    opts = (struct sandlot_exec_opts){.shell = "head -c 4000000 /dev/zero; head -c 4000000 /dev/zero >&2",
                                      .timeout = 60};
    result = run(&opts);
    CU_ASSERT(result->stdout_len + result->stderr_len <= 4 * 1024 * 1024 - 64 * 1024);
    CHECK_INT(result->stdout_len, 2 * 1024 * 1024);
    CHECK_INT(result->stderr_truncated, 1);
    CHECK_INT(result->stderr_total, 4000000);
    sandlot_exec_result_free(result);
}

static void test_environment(void) {
    const char *env[] = {"A=over", "B=new line\nhere", "EMPTY=", NULL};
    struct sandlot_exec_opts opts = {
        .shell = "echo \"$A|$B|$EMPTY|$LANG|$HOME|$PATH\"", .env = env, .timeout = 20};
    struct sandlot_exec_result *result = run(&opts);
    CHECK_STR(
        result->stdout_data,
        "over|new line\nhere||C.UTF-8|/root|/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n");
    sandlot_exec_result_free(result);
    const char *bad[] = {"SANDLOT_EXEC=x", NULL};
    opts.env = bad;
    CHECK_INT(refuse(&opts).status, 3);
}

static void test_users(void) {
    struct sandlot_exec_opts opts = {.shell = "id -u; id -g", .user = "nobody", .timeout = 20};
    struct sandlot_exec_result *result = run(&opts);
    CHECK_STR(result->stdout_data, "65534\n65534\n");
    sandlot_exec_result_free(result);
    opts.user = "1234:100";
    result = run(&opts);
    CHECK_STR(result->stdout_data, "1234\n100\n");
    sandlot_exec_result_free(result);
    opts.user = "nosuchuser";
    CHECK_STR(refuse(&opts).reason, "USER_NOT_FOUND");
    opts.user = "99999999";
    CHECK_STR(refuse(&opts).reason, "USER_NOT_FOUND");
}

static void test_bad_requests(void) {
    const char *empty[] = {NULL}, *nothing[] = {"", NULL};
    struct sandlot_exec_opts opts = {.argv = empty};
    CHECK_INT(refuse(&opts).status, 3);
    opts.argv = nothing;
    CHECK_INT(refuse(&opts).status, 3);
    opts = (struct sandlot_exec_opts){.shell = "true", .max_stdout = 1ull << 40};
    CHECK_STR(refuse(&opts).reason, "INVALID_REQUEST");
}

/* P80 and the walls around a command. */
static void test_p80_nothing_reaches_the_host(void) {
    char broker_alive[64];
    snprintf(broker_alive, sizeof broker_alive, "kill -0 %d", (int)fixture.pid);
    sandlot_exec_result_free(fixture_sh(
        sandbox,
        "kill -9 -1; pkill -9 -f python; pkill -9 -f sandlot; kill -9 1; kill -TERM 1; kill -INT 1; true"));
    CHECK_INT(system(broker_alive), 0);
    CHECK_STR(fixture_sh_text(sandbox, "echo alive"), "alive");
    CHECK_STR(fixture_sh_text(sandbox, "ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3"); /* 3 is ls's own */
    CHECK_STR(fixture_sh_text(sandbox, "cat /etc/shadow /etc/gshadow 2>&1 | grep -vc 'No such file'"), "0");
    CHECK_STR(fixture_sh_text(sandbox, "ls /root /home /tmp /var/tmp /srv | grep -v : | grep -c ."),
              "2"); /* ours */
    CHECK_STR(fixture_sh_text(
                  sandbox, "python3 -c 'import socket; socket.socket(40, 1)' 2>&1 | grep -c 'not supported'"),
              "1");
    CHECK_STR(fixture_sh_text(sandbox, "unshare -U true 2>/dev/null || echo no"), "no");
    CHECK_STR(fixture_sh_text(sandbox, "mount -t tmpfs x /mnt 2>/dev/null || echo no"), "no");
    CHECK_STR(fixture_sh_text(sandbox, "readlink /proc/1/root /proc/1/fd/3 /proc/1/exe || echo no"), "no");
    CHECK_STR(fixture_sh_text(sandbox, "head -c 1 /proc/1/mem 2>/dev/null || echo no"), "no");
    CHECK_STR(fixture_sh_text(sandbox, "echo 1 > /proc/sys/kernel/panic 2>/dev/null || echo no"), "no");
    CHECK_STR(fixture_sh_text(sandbox, "cat /sys/class/net/lo/operstate; ls /sys/class/net | wc -l"),
              "unknown\n1");
    CHECK_STR(fixture_sh_text(sandbox, "echo x > /usr/bin/new-file && cat /usr/bin/new-file"), "x");
    CU_ASSERT(system("test ! -e /usr/bin/new-file") == 0);
}

/* What only root may read on the host stays unreadable, also for root inside. */
static void test_host_files_closed_to_others_stay_closed(void) {
    char command[256], result[64];
    snprintf(command, sizeof command, "/etc/sandlot-test-%d", (int)fixture.pid);
    FILE *file = fopen(command, "we");
    CU_ASSERT_PTR_NOT_NULL_FATAL(file);
    fputs("secret", file);
    fclose(file);
    char inside[300];
    snprintf(inside, sizeof inside, "chmod 600 %s", command);
    CHECK_INT(system(inside), 0);
    snprintf(inside, sizeof inside, "cat %s 2>/dev/null || echo closed", command);
    snprintf(result, sizeof result, "%s", fixture_sh_text(sandbox, inside));
    CHECK_STR(result, "closed");
    remove(command);
}

/* Something inside stops every process it can, also those that are just being started. */
static void test_stopping_everything_does_not_hang_the_agent(void) {
    struct sandlot_sandbox *own = fixture_create(client);
    char command[1024], path[300], output[256];
    snprintf(path, sizeof path, "%s/stop.json", fixture.dir);
    FILE *file = fopen(path, "we");
    fputs(sandlot_descriptor(own), file);
    fclose(file);
    snprintf(
        command, sizeof command,
        "cd %s; PATH=%s:$PATH; (sandlot exec -s stop.json --timeout 4 -- python3 -c 'import os\n"
        "while 1:\n try: os.kill(-1, 19)\n except OSError: pass' >/dev/null 2>&1; echo $? > stop.code) &",
        fixture.dir, build_dir());
    CHECK_INT(system(command), 0);
    for (int i = 0; i < 6; i++) {
        struct sandlot_exec_opts opts = {.shell = "true", .timeout = 1, .call_timeout = 30};
        struct sandlot_exec_result *result = NULL;
        sandlot_exec(own, &opts, &result, NULL); /* may fail, must come back */
        sandlot_exec_result_free(result);
    }
    for (int i = 0;
         i < 4000 && fixture_cli(&fixture, output, sizeof output, "info >/dev/null; test -s stop.code") != 0;
         i++) {
        struct timespec wait = {0, 5000000};
        nanosleep(&wait, NULL);
    }
    fixture_cli(&fixture, output, sizeof output, "info >/dev/null; cat stop.code");
    CHECK_STR(output, "124\n");
    CHECK_STR(fixture_sh_text(own, "echo works"), "works");
    sandlot_destroy(own, NULL);
    sandlot_close(own);
}

static void test_limits(void) {
    struct sandlot_create_opts opts = {.memory_bytes = 64 << 20, .pids = 32, .layer_bytes = 8 << 20};
    struct sandlot_sandbox *small = NULL;
    CHECK_INT(sandlot_create(client, &opts, &small, NULL), 0);
    CHECK_STR(fixture_sh_text(small, "for i in $(seq 100); do sleep 5 & done 2>&1 | grep -c -i 'cannot fork' "
                                     "| grep -vx 0 | head -c 0; echo over"),
              "over");
    struct sandlot_exec_result *result = fixture_sh(small, "head -c 20000000 /dev/zero > big");
    CU_ASSERT(result->exit_code != 0);
    sandlot_exec_result_free(result);
    result = fixture_sh(small, "x=a; while :; do x=$x$x; done");
    CHECK_INT(result->signal, 9);
    sandlot_exec_result_free(result);
    CHECK_STR(fixture_sh_text(small, "echo survived"), "survived");
    sandlot_destroy(small, NULL);
    sandlot_close(small);
}

static void start(void) {
    fixture_start(&fixture, NULL);
    fixture_client(&fixture, &client);
    sandbox = fixture_create(client);
}

static void stop(void) {
    sandlot_destroy(sandbox, NULL);
    sandlot_close(sandbox);
    sandlot_client_close(client);
    fixture_stop(&fixture);
}

static const struct test tests[] = {
    TEST(start),
    TEST(test_streams_and_exit_code),
    TEST(test_p27_stdin),
    TEST(test_p28_arguments_are_byte_exact),
    TEST(test_p29_missing_and_not_executable),
    TEST(test_p30_missing_directory),
    TEST(test_p31_lines_are_kept),
    TEST(test_timeout_is_a_result_and_ends_the_tree),
    TEST(test_p20_background_child_holds_the_output),
    TEST(test_output_is_capped_and_counted),
    TEST(test_environment),
    TEST(test_users),
    TEST(test_bad_requests),
    TEST(test_p80_nothing_reaches_the_host),
    TEST(test_host_files_closed_to_others_stay_closed),
    TEST(test_stopping_everything_does_not_hang_the_agent),
    TEST(test_limits),
    TEST(stop),
};

SUITE("exec", tests)
