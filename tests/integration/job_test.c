/* The whole job with three real processes: one creates and lends, a second works, a third verifies;
 * the broker is killed in the middle and nobody starts over. */
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

extern char **environ;

static struct fixture fixture;

/* ---- The other two processes: this program again, with a role ---- */

static char *read_descriptor(const char *path) {
    static char json[8192];
    FILE *file = fopen(path, "re");
    size_t n = file ? fread(json, 1, sizeof json - 1, file) : 0;
    if (file)
        fclose(file);
    json[n] = '\0';
    return json;
}

static int sh(struct sandlot_sandbox *sandbox, const char *command, char *ret, size_t size) {
    struct sandlot_exec_opts opts = {.shell = command, .timeout = 60};
    struct sandlot_exec_result *result = NULL;
    struct sandlot_error err = {0};
    if (sandlot_exec(sandbox, &opts, &result, &err) < 0) {
        fprintf(stderr, "worker: %s\n", err.text);
        return -1;
    }
    snprintf(ret, size, "%s", result->stdout_data);
    int code = result->exit_code;
    sandlot_exec_result_free(result);
    return code;
}

static int be_worker(const char *descriptor) {
    struct sandlot_sandbox *sandbox;
    struct sandlot_error err = {0};
    char output[256];
    if (sandlot_connect(NULL, read_descriptor(descriptor), "worker", &sandbox, &err) < 0)
        return 10;
    if (sandlot_destroy(sandbox, &err) == 0 || strcmp(err.reason, "SCOPE_INSUFFICIENT") != 0)
        return 11;
    if (sandlot_upload_bytes(sandbox, "6 * 7\n", 6, "task/input", 0, NULL, &err) < 0)
        return 12;
    if (sh(sandbox, "awk '{print $1 * $3}' task/input > task/output; cat task/output", output,
           sizeof output) != 0)
        return 13;
    if (strcmp(output, "42\n") != 0)
        return 14;
    if (sandlot_release(sandbox, NULL, &err) < 0)
        return 15;
    sandlot_close(sandbox);
    return 0;
}

static int be_verifier(const char *descriptor, const char *result_path) {
    struct sandlot_sandbox *sandbox;
    struct sandlot_error err = {0};
    if (sandlot_connect(NULL, read_descriptor(descriptor), "verifier", &sandbox, &err) < 0)
        return 20;
    if (sandlot_download_file(sandbox, "task/output", 0, result_path, NULL, &err) < 0)
        return 21;
    if (sandlot_upload_bytes(sandbox, "forged", 6, "task/output", 0, NULL, &err) == 0 || err.status != 7)
        return 22;
    if (sandlot_release(sandbox, NULL, &err) < 0)
        return 23;
    sandlot_close(sandbox);
    return 0;
}

/* ---- The creator ---- */

static int run_role(const char *role, const char *descriptor, const char *extra) {
    char self[4200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    char *argv[] = {self, (char *)(size_t)role, (char *)(size_t)descriptor, (char *)(size_t)extra, NULL};
    pid_t pid;
    int status = -1;
    CHECK_INT(posix_spawn(&pid, self, NULL, NULL, argv, environ), 0);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void lend(struct sandlot_sandbox *owner, const char *scope, const char *path) {
    struct sandlot_serialize_opts opts = {.scope = scope};
    char *json = NULL;
    CHECK_INT(sandlot_serialize(owner, &opts, &json, NULL), 0);
    FILE *file = fopen(path, "we");
    fputs(json, file);
    fclose(file);
    sandlot_string_free(json);
}

static void test_the_whole_job(void) {
    struct sandlot_client *client;
    char to_worker[300], to_verifier[300], result[300], text[64] = "";
    fixture_start(&fixture, NULL);
    fixture_client(&fixture, &client);
    snprintf(to_worker, sizeof to_worker, "%s/worker.json", fixture.dir);
    snprintf(to_verifier, sizeof to_verifier, "%s/verifier.json", fixture.dir);
    snprintf(result, sizeof result, "%s/result", fixture.dir);
    struct sandlot_sandbox *owner = fixture_create(client);
    lend(owner, "operate", to_worker);
    lend(owner, "observe", to_verifier);
    CHECK_INT(run_role("--worker", to_worker, ""), 0);

    fixture_kill_broker(&fixture);
    CU_ASSERT(fixture_wait_serving(&fixture));
    CHECK_INT(run_role("--verifier", to_verifier, result), 0);
    FILE *file = fopen(result, "re");
    CU_ASSERT(file && fgets(text, sizeof text, file));
    CHECK_STR(text, "42\n");
    if (file)
        fclose(file);

    fixture_kill_all(&fixture);
    fixture_launch(&fixture);
    CHECK_STR(fixture_sh_text(owner, "cat task/output"), "42");
    struct sandlot_sandbox_info *info = NULL;
    CHECK_INT(sandlot_get(owner, &info, NULL), 0);
    CHECK_INT(info ? info->live_leases : 0, 3); /* the creator's and the two lent ones */
    sandlot_sandbox_info_free(info);
    CHECK_INT(sandlot_destroy(owner, NULL), 0);
    sandlot_close(owner);
    sandlot_client_close(client);
    fixture_stop(&fixture);
}

static const struct test tests[] = {TEST(test_the_whole_job)};

int main(int argc, char **argv) {
    if (argc >= 3 && strcmp(argv[1], "--worker") == 0)
        return be_worker(argv[2]);
    if (argc >= 4 && strcmp(argv[1], "--verifier") == 0)
        return be_verifier(argv[2], argv[3]);
    return suite_run("job", tests, 1, argc, argv);
}
