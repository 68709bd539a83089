/* Files in and out: every byte, whole or not at all, never outside. */
#include <fcntl.h>
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
static struct sandlot_sandbox *sandbox;
static char local[FIXTURE_PATH_MAX], back[FIXTURE_PATH_MAX];

static void write_random(const char *path, size_t size) {
    FILE *out = fopen(path, "we");
    FILE *random = fopen("/dev/urandom", "re");
    char block[65536];
    for (size_t left = size; left > 0;) {
        size_t n = left < sizeof block ? left : sizeof block;
        CU_ASSERT_FATAL(fread(block, 1, n, random) == n && fwrite(block, 1, n, out) == n);
        left -= n;
    }
    fclose(random);
    fclose(out);
}

static int same_files(const char *a, const char *b) {
    char command[600];
    snprintf(command, sizeof command, "cmp -s '%s' '%s'", a, b);
    return system(command) == 0;
}

static struct sandlot_error upload_fails(const char *remote, size_t len) {
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_upload_bytes(sandbox, "x", 1, remote, len, NULL, &err), -1);
    return err;
}

static struct sandlot_error download_fails(const char *remote) {
    struct sandlot_error err = {0};
    unlink(back);
    CHECK_INT(sandlot_download_file(sandbox, remote, 0, back, NULL, &err), -1);
    CU_ASSERT(access(back, F_OK) < 0); /* FAC-35 */
    return err;
}

static void test_p50_sizes(void) {
    static const size_t sizes[] = {0,      1,      18 * 1024,     65535,   65536,        65537,
                                   262144, 262145, (4 << 20) - 1, 4 << 20, (4 << 20) + 1};
    struct sandlot_error err = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char command[64], sum[128], expected[600];
        write_random(local, sizes[i]);
        CHECK_INT(sandlot_upload_file(sandbox, local, "dir/sub/file", 0, NULL, &err), 0);
        snprintf(command, sizeof command, "sha256sum < dir/sub/file");
        snprintf(sum, sizeof sum, "%s", fixture_sh_text(sandbox, command));
        snprintf(expected, sizeof expected, "test \"$(sha256sum < '%s')\" = '%s'", local, sum);
        CU_ASSERT(system(expected) == 0);
        CHECK_INT(sandlot_download_file(sandbox, "dir/sub/file", 0, back, NULL, &err), 0);
        CU_ASSERT(same_files(local, back));
    }
}

static void test_g15_p55_names_are_bytes(void) {
    static const char *const names[] = {
        "with space", "\xc3\xbcml\xc3\xa4ut", "new\nline", "\xff\xfe raw", "-dash", "'quote\""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK_INT(sandlot_upload_bytes(sandbox, names[i], strlen(names[i]), names[i], 0, NULL, NULL), 0);
        CHECK_INT(sandlot_download_file(sandbox, names[i], 0, back, NULL, NULL), 0);
        const char *argv[] = {"cat", "--", names[i], NULL};
        struct sandlot_exec_opts opts = {.argv = argv, .timeout = 20};
        struct sandlot_exec_result *result = NULL;
        CHECK_INT(sandlot_exec(sandbox, &opts, &result, NULL), 0);
        CHECK_STR(result->stdout_data, names[i]);
        sandlot_exec_result_free(result);
    }
}

static void test_p53_paths_never_leave_the_sandbox(void) {
    char probe[64], inside[256];
    snprintf(probe, sizeof probe, "/tmp/sandlot-escape-%d", (int)getpid());
    snprintf(inside, sizeof inside, "../../../../..%s", probe);
    CHECK_INT(sandlot_upload_bytes(sandbox, "x", 1, inside, 0, NULL, NULL), 0);
    CU_ASSERT(access(probe, F_OK) < 0);
    snprintf(inside, sizeof inside, "cat %s", probe);
    CHECK_STR(fixture_sh_text(sandbox, inside), "x");

    /* Absolute links lead to the sandbox's own root. */
    snprintf(inside, sizeof inside,
             "ln -s /tmp abs; ln -s %s-link final; ln -s loop loop; mkfifo fifo; ln -s /proc/1/root up",
             probe);
    sandlot_exec_result_free(fixture_sh(sandbox, inside));
    CHECK_INT(sandlot_upload_bytes(sandbox, "through", 7, "abs/through-link", 0, NULL, NULL), 0);
    CHECK_STR(fixture_sh_text(sandbox, "cat /tmp/through-link"), "through");
    CHECK_INT(sandlot_upload_bytes(sandbox, "final", 5, "final", 0, NULL, NULL), 0);
    snprintf(inside, sizeof inside, "test -L final && cat %s-link", probe);
    CHECK_STR(fixture_sh_text(sandbox, inside), "final");
    CU_ASSERT(access("/tmp/through-link", F_OK) < 0);

    CHECK_INT(upload_fails("loop", 0).status, 3);
    CHECK_STR(upload_fails("up/tmp/x", 0).reason, "FILE_PATH_INVALID");
    CHECK_STR(upload_fails("fifo", 0).reason, "FILE_NOT_REGULAR");
    CHECK_STR(download_fails("fifo").reason, "FILE_NOT_REGULAR");
    CHECK_STR(download_fails("/proc/self/fd/0").reason, "FILE_PATH_INVALID");
    CHECK_STR(download_fails("/proc/1/fd/3").reason, "FILE_PATH_INVALID");
    CHECK_INT(upload_fails("", 0).status, 3);
    CHECK_INT(upload_fails("a\0b", 3).status, 3);
}

/* A directory that turns into a link while uploads go on: every byte stays inside. */
static void test_p53_link_swapped_while_uploading(void) {
    struct sandlot_exec_opts opts = {
        .shell = "mkdir -p /swap/real; (while :; do rm -rf /swap/d; mkdir /swap/d; rm -rf /swap/d; "
                 "ln -s /../../../../../../tmp /swap/d; done) & sleep 1",
        .timeout = 20};
    struct sandlot_exec_result *result = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        char output[256];
        fixture_cli(&fixture, output, sizeof output, "exec -s b.json -- sh -c '%s'", opts.shell);
        _exit(0);
    }
    for (int i = 0; i < 150; i++)
        sandlot_upload_bytes(sandbox, "x", 1, "/swap/d/sandlot-swap-probe", 0, NULL, NULL);
    waitpid(pid, NULL, 0);
    CU_ASSERT(access("/tmp/sandlot-swap-probe", F_OK) < 0);
    (void)result;
}

static void test_p55_errors_are_distinct(void) {
    sandlot_exec_result_free(fixture_sh(sandbox, "mkdir -p d; echo plain > plain"));
    CHECK_STR(download_fails("missing").reason, "FILE_NOT_FOUND");
    CHECK_INT(download_fails("missing").status, 5);
    CHECK_STR(download_fails("d").reason, "FILE_IS_DIRECTORY");
    CHECK_STR(upload_fails("d", 0).reason, "FILE_IS_DIRECTORY");
    CHECK_STR(upload_fails("plain/x", 0).reason, "FILE_NOT_DIRECTORY");
    CHECK_STR(upload_fails("/proc/x", 0).reason[0] ? "typed" : "", "typed");
    CHECK_STR(upload_fails("/sys/x", 0).reason, "FILE_PERMISSION");
}

static void test_modes(void) {
    struct sandlot_transfer_opts exact = {.has_mode = 1, .mode = 0640}, fresh = {.new_mode = 0755};
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_upload_bytes(sandbox, "1", 1, "m1", 0, NULL, NULL), 0);
    CHECK_INT(sandlot_upload_bytes(sandbox, "1", 1, "m2", 0, &exact, NULL), 0);
    CHECK_INT(sandlot_upload_bytes(sandbox, "1", 1, "m3", 0, &fresh, NULL), 0);
    sandlot_exec_result_free(fixture_sh(sandbox, "touch m4; chown 12:13 m4; chmod 4711 m4"));
    CHECK_INT(sandlot_upload_bytes(sandbox, "1", 1, "m4", 0, &fresh, NULL), 0);
    CHECK_STR(fixture_sh_text(sandbox, "stat -c '%a %u:%g' m1 m2 m3 m4"),
              "644 0:0\n640 0:0\n755 0:0\n4711 12:13");
    struct sandlot_transfer_opts decimal = {.has_mode = 1, .mode = 10644};
    CHECK_INT(sandlot_upload_bytes(sandbox, "1", 1, "m5", 0, &decimal, &err), -1);
    CHECK_INT(err.status, 3);
}

static void test_no_space(void) {
    struct sandlot_create_opts opts = {.layer_bytes = 2 << 20};
    struct sandlot_sandbox *small = NULL;
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_create(client, &opts, &small, NULL), 0);
    CHECK_INT(sandlot_upload_bytes(small, "old", 3, "f", 0, NULL, NULL), 0);
    write_random(local, 8 << 20);
    CHECK_INT(sandlot_upload_file(small, local, "f", 0, NULL, &err), -1);
    CHECK_STR(err.reason, "FILE_NO_SPACE");
    CHECK_STR(fixture_sh_text(small, "cat f; ls -A | grep -c sandlot-upload"), "old0");
    sandlot_destroy(small, NULL);
    sandlot_close(small);
}

/* A client that is killed half-way leaves neither file nor temporary file, and the old content stays. */
static void test_cut_upload_leaves_nothing(void) {
    CHECK_INT(sandlot_upload_bytes(sandbox, "old", 3, "cut/f", 0, NULL, NULL), 0);
    sandlot_exec_result_free(fixture_sh(sandbox, "rm -f /tmp/go"));
    char fifo[FIXTURE_PATH_MAX + 8], output[512];
    snprintf(fifo, sizeof fifo, "%s/big", fixture.dir);
    write_random(fifo, 200 << 20);
    for (int round = 0; round < 4; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            char program[4200];
            snprintf(program, sizeof program, "%s/sandlot", build_dir());
            if (chdir(fixture.dir) == 0)
                execl(program, "sandlot", "cp", "-s", "b.json", "big", ":cut/f", (char *)NULL);
            _exit(127);
        }
        struct timespec wait = {0, 20000000L * (round + 1)};
        nanosleep(&wait, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    for (int i = 0; i < 1000; i++) {
        snprintf(output, sizeof output, "%s", fixture_sh_text(sandbox, "pgrep -c sandlot-agent; ls -A cut"));
        if (strcmp(output, "1\nf") == 0)
            break;
        struct timespec wait = {0, 5000000};
        nanosleep(&wait, NULL);
    }
    CHECK_STR(fixture_sh_text(sandbox, "ls -A cut | tr '\\n' ' '; stat -c %s cut/f"), "f 3");
    unlink(fifo);
}

/* FAC-04: files of the create request. FAC-05: one that can't be placed undoes the creation. */
static void test_fac04_fac05_initial_files(void) {
    struct sandlot_file files[] = {
        {.path = "a.txt", .content = "A", .content_len = 1},
        {.path = "/opt/x/run.sh", .content = "#!/bin/sh\necho ran\n", .content_len = 19, .mode = 0755}};
    struct sandlot_create_opts opts = {.files = files, .file_count = 2, .workdir = "/work/here"};
    struct sandlot_sandbox *made = NULL;
    struct sandlot_error err = {0};
    CHECK_INT(sandlot_create(client, &opts, &made, NULL), 0);
    CHECK_STR(fixture_sh_text(made, "pwd; cat a.txt; /opt/x/run.sh"), "/work/here\nAran");
    sandlot_destroy(made, NULL);
    sandlot_close(made);

    struct sandlot_sandbox_list *before = NULL, *after = NULL;
    CHECK_INT(sandlot_list(client, &before, NULL), 0);
    files[1].path = "/proc/nothing/here";
    CHECK_INT(sandlot_create(client, &opts, &made, &err), -1);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "files[1]"));
    CHECK_INT(sandlot_list(client, &after, NULL), 0);
    CHECK_INT(after->count, before->count);
    sandlot_sandbox_list_free(before);
    sandlot_sandbox_list_free(after);
}

static void test_relative_to_the_workdir(void) {
    CHECK_INT(sandlot_upload_bytes(sandbox, "rel", 3, "rel/x", 0, NULL, NULL), 0);
    CHECK_STR(fixture_sh_text(sandbox, "cat /root/rel/x"), "rel");
}

static void start(void) {
    char output[256];
    fixture_start(&fixture, NULL);
    fixture_client(&fixture, &client);
    snprintf(local, sizeof local, "%s/local", fixture.dir);
    snprintf(back, sizeof back, "%s/back", fixture.dir);
    CHECK_INT(fixture_cli(&fixture, output, sizeof output, "create -o b.json"), 0);
    char path[FIXTURE_PATH_MAX], json[4096] = "";
    snprintf(path, sizeof path, "%s/b.json", fixture.dir);
    FILE *file = fopen(path, "re");
    json[fread(json, 1, sizeof json - 1, file)] = '\0';
    fclose(file);
    CHECK_INT(sandlot_open(client, json, &sandbox, NULL), 0);
}

static void stop(void) {
    sandlot_destroy(sandbox, NULL);
    sandlot_close(sandbox);
    sandlot_client_close(client);
    fixture_stop(&fixture);
}

static const struct test tests[] = {
    TEST(start),
    TEST(test_p50_sizes),
    TEST(test_g15_p55_names_are_bytes),
    TEST(test_p53_paths_never_leave_the_sandbox),
    TEST(test_p53_link_swapped_while_uploading),
    TEST(test_p55_errors_are_distinct),
    TEST(test_modes),
    TEST(test_no_space),
    TEST(test_cut_upload_leaves_nothing),
    TEST(test_fac04_fac05_initial_files),
    TEST(test_relative_to_the_workdir),
    TEST(stop),
};

SUITE("file", tests)
