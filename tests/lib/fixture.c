#include "tests/lib/fixture.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/suite.h"

#define READY_BOUND_MS 60000 /* sanitizer builds on a busy machine */
#define GONE_BOUND_MS 10000

extern char **environ;

const char *build_dir(void) {
    static char dir[4096];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    dir[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(dir, '/');
    if (slash)
        *slash = '\0';
    return dir;
}

static void die(const char *what) {
    fprintf(stderr, "fixture: %s: %s\n", what, strerror(errno));
    exit(2);
}

static void nap(unsigned ms) {
    struct timespec wait = {ms / 1000, (long)(ms % 1000) * 1000000};
    nanosleep(&wait, NULL);
}

bool wait_until(bool (*condition)(const void *arg), const void *arg, unsigned bound_ms) {
    for (unsigned waited = 0; waited < bound_ms; waited += 5) {
        if (condition(arg))
            return true;
        nap(5);
    }
    return condition(arg);
}

static unsigned count_mounts(void) {
    FILE *file = fopen("/proc/self/mounts", "re");
    unsigned count = 0;
    char line[4096];
    while (file && fgets(line, sizeof line, file))
        count++;
    if (file)
        fclose(file);
    return count;
}

void fixture_prepare(struct fixture *fixture, const char *config_json) {
    memset(fixture, 0, sizeof *fixture);
    strcpy(fixture->dir, "/tmp/sandlot-test-XXXXXX");
    if (!mkdtemp(fixture->dir))
        die("mkdtemp");
    chmod(fixture->dir, 0711); /* a broker that is another user passes through */
    snprintf(fixture->socket, sizeof fixture->socket, "%s/s", fixture->dir);
    snprintf(fixture->address, sizeof fixture->address, "unix:%s", fixture->socket);
    snprintf(fixture->config, sizeof fixture->config, "%s/config.json", fixture->dir);
    FILE *file = fopen(fixture->config, "we");
    if (!file)
        die("config");
    fputs(config_json ? config_json : "{}", file);
    fclose(file);
    fixture->mounts_before = count_mounts();
}

void fixture_launch(struct fixture *fixture) {
    char program[4200], state[FIXTURE_PATH_MAX], ready_text[16], log[FIXTURE_PATH_MAX];
    int ready[2];
    snprintf(program, sizeof program, "%s/sandlotd", build_dir());
    snprintf(state, sizeof state, "%s/state", fixture->dir);
    snprintf(log, sizeof log, "%s/log", fixture->dir);
    if (pipe2(ready, O_CLOEXEC) < 0)
        die("pipe");
    snprintf(ready_text, sizeof ready_text, "%d", 30);
    /* Should this program crash, its broker ends with it. */
    char setpriv[] = "/usr/bin/setpriv";
    char *argv[] = {setpriv,         "--pdeathsig", "TERM",           program,       "--config",
                    fixture->config, "--listen",    fixture->address, "--state-dir", state,
                    "--on-shutdown", "destroy",     "--ready-fd",     ready_text,    NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ready[1], 30);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (posix_spawn(&fixture->pid, setpriv, &actions, NULL, argv, environ) != 0)
        die(program);
    posix_spawn_file_actions_destroy(&actions);
    close(ready[1]);
    struct pollfd poll_fd = {.fd = ready[0], .events = POLLIN};
    char word[8] = "";
    if (poll(&poll_fd, 1, READY_BOUND_MS) != 1 || read(ready[0], word, 6) != 6) {
        char command[FIXTURE_PATH_MAX + 8];
        snprintf(command, sizeof command, "cat %s", log);
        fprintf(stderr, "fixture: sandlotd is not ready; its log:\n");
        if (system(command) != 0)
            fprintf(stderr, "(none)\n");
        exit(2);
    }
    close(ready[0]);
}

static void learn_broker_id(struct fixture *fixture) {
    struct sandlot_client *client;
    struct sandlot_info *info;
    fixture_client(fixture, &client);
    if (sandlot_get_info(client, &info, NULL) == 0) {
        snprintf(fixture->broker_id, sizeof fixture->broker_id, "%s", info->broker_id);
        sandlot_info_free(info);
    }
    sandlot_client_close(client);
}

void fixture_start(struct fixture *fixture, const char *config_json) {
    fixture_prepare(fixture, config_json);
    fixture_launch(fixture);
    learn_broker_id(fixture);
}

pid_t fixture_broker_pid(const struct fixture *fixture) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)fixture->pid, (int)fixture->pid);
    FILE *file = fopen(path, "re");
    int pid, found = 0;
    while (file && !found && fscanf(file, "%d", &pid) == 1) {
        char comm_path[64], comm[32] = "";
        snprintf(comm_path, sizeof comm_path, "/proc/%d/comm", pid);
        FILE *comm_file = fopen(comm_path, "re");
        if (comm_file && fgets(comm, sizeof comm, comm_file) && strcmp(comm, "sandlotd\n") == 0)
            found = pid;
        if (comm_file)
            fclose(comm_file);
    }
    if (file)
        fclose(file);
    return found;
}

void fixture_kill_broker(const struct fixture *fixture) {
    pid_t pid = fixture_broker_pid(fixture);
    CU_ASSERT(pid > 0);
    if (pid > 0)
        kill(pid, SIGKILL);
}

static bool process_is_gone(const void *arg) {
    const pid_t *pid = arg;
    char path[64], text[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)*pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return true;
    const char *end = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
    fclose(file);
    return !end || end[2] == 'Z';
}

void fixture_kill_all(struct fixture *fixture) {
    pid_t broker = fixture_broker_pid(fixture);
    kill(fixture->pid, SIGKILL);
    waitpid(fixture->pid, NULL, 0);
    if (broker > 0) {
        kill(broker, SIGKILL);
        CU_ASSERT(wait_until(process_is_gone, &broker, GONE_BOUND_MS));
    }
    fixture->pid = 0;
}

/* ---- Nothing may be left ---- */

static bool no_agents(const void *arg) {
    const struct fixture *fixture = arg;
    DIR *dir = opendir("/proc");
    bool found = false;
    for (struct dirent *entry; dir && !found && (entry = readdir(dir));) {
        char path[300], text[1024] = "";
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9')
            continue;
        snprintf(path, sizeof path, "/proc/%s/cgroup", entry->d_name);
        FILE *file = fopen(path, "re");
        size_t n = file ? fread(text, 1, sizeof text - 1, file) : 0;
        text[n] = '\0';
        if (file)
            fclose(file);
        found = *fixture->broker_id && strstr(text, fixture->broker_id) != NULL;
    }
    if (dir)
        closedir(dir);
    return !found;
}

static bool no_cgroups(const void *arg) {
    const struct fixture *fixture = arg;
    glob_t found = {0};
    char pattern[128];
    static const char *const depths[] = {"/sys/fs/cgroup/*%s", "/sys/fs/cgroup/*/*%s",
                                         "/sys/fs/cgroup/*/*/*%s", "/sys/fs/cgroup/*/*/*/*%s"};
    size_t count = 0;
    for (size_t i = 0; i < sizeof depths / sizeof depths[0]; i++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(pattern, sizeof pattern, depths[i], fixture->broker_id);
#pragma GCC diagnostic pop
        if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0)
            count += found.gl_pathc;
        globfree(&found);
    }
    return count == 0;
}

static bool no_sandbox_dirs(const void *arg) {
    const struct fixture *fixture = arg;
    char path[FIXTURE_PATH_MAX];
    snprintf(path, sizeof path, "%s/state/sandboxes", fixture->dir);
    DIR *dir = opendir(path);
    size_t count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return count == 0;
}

static bool mounts_as_before(const void *arg) {
    const struct fixture *fixture = arg;
    return count_mounts() <= fixture->mounts_before;
}

static void check_log(const struct fixture *fixture) {
    static const char *const bad[] = {"AddressSanitizer", "LeakSanitizer", "ThreadSanitizer", "runtime error",
                                      "illegal move"};
    char path[FIXTURE_PATH_MAX], line[2048];
    snprintf(path, sizeof path, "%s/log", fixture->dir);
    FILE *file = fopen(path, "re");
    bool shown = false;
    while (file && fgets(line, sizeof line, file)) {
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
            if (strstr(line, bad[i]) && !shown) {
                printf("\n    the broker's log (%s) has: %s", path, line);
                shown = true;
            }
        if (shown)
            printf("    | %s", line);
    }
    if (file)
        fclose(file);
    CU_ASSERT(!shown);
}

static void check_nothing_left(const struct fixture *fixture) {
    CU_ASSERT(access(fixture->socket, F_OK) < 0);
    CU_ASSERT(wait_until(no_agents, fixture, GONE_BOUND_MS));
    CU_ASSERT(wait_until(no_cgroups, fixture, GONE_BOUND_MS));
    CU_ASSERT(no_sandbox_dirs(fixture));
    CU_ASSERT(wait_until(mounts_as_before, fixture, GONE_BOUND_MS));
}

void fixture_stop(struct fixture *fixture) {
    int status = -1;
    if (fixture->pid == 0)
        fixture_launch(fixture); /* killed by the test: somebody must clear up */
    kill(fixture->pid, SIGTERM);
    waitpid(fixture->pid, &status, 0);
    CHECK_INT(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status, 0);
    check_nothing_left(fixture);
    check_log(fixture);
    char command[FIXTURE_PATH_MAX];
    snprintf(command, sizeof command, "rm -rf '%s'", fixture->dir);
    if (system(command) != 0)
        CU_FAIL("the fixture's directory can't be removed");
}

/* ---- Talking to it ---- */

static bool is_serving(const void *arg) {
    const struct fixture *fixture = arg;
    struct sandlot_client *client;
    struct sandlot_info *info;
    bool serving = false;
    fixture_client(fixture, &client);
    if (sandlot_get_info(client, &info, NULL) == 0) {
        serving = info->serving != 0;
        sandlot_info_free(info);
    }
    sandlot_client_close(client);
    return serving;
}

bool fixture_wait_serving(const struct fixture *fixture) {
    return wait_until(is_serving, fixture, READY_BOUND_MS);
}

void fixture_client(const struct fixture *fixture, struct sandlot_client **ret) {
    struct sandlot_client_opts opts = {.address = fixture->address};
    if (sandlot_client_open(&opts, ret, NULL) < 0)
        die("client");
}

struct sandlot_sandbox *fixture_create(struct sandlot_client *client) {
    struct sandlot_sandbox *sandbox = NULL;
    struct sandlot_error err = {0};
    if (sandlot_create(client, NULL, &sandbox, &err) < 0) {
        fprintf(stderr, "fixture: create: %s\n", err.text);
        exit(2);
    }
    return sandbox;
}

int fixture_cli(const struct fixture *fixture, char *ret, size_t size, const char *fmt, ...) {
    char arguments[2048], command[8192];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(arguments, sizeof arguments, fmt, ap);
    va_end(ap);
    snprintf(command, sizeof command,
             "cd '%s' && SANDLOT_ADDRESS=%s PATH=%s:$PATH; export SANDLOT_ADDRESS; { sandlot %s\n} 2>&1",
             fixture->dir, fixture->address, build_dir(), arguments);
    FILE *pipe = popen(command, "re");
    size_t used = 0;
    if (!pipe)
        die("popen");
    for (size_t n; used < size - 1 && (n = fread(ret + used, 1, size - 1 - used, pipe)) > 0;)
        used += n;
    ret[used] = '\0';
    char rest[4096];
    while (fread(rest, 1, sizeof rest, pipe) > 0) {
    }
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

struct sandlot_exec_result *fixture_sh(struct sandlot_sandbox *sandbox, const char *command) {
    struct sandlot_exec_opts opts = {.shell = command, .timeout = 60};
    struct sandlot_exec_result *result = NULL;
    struct sandlot_error err = {0};
    if (sandlot_exec(sandbox, &opts, &result, &err) < 0) {
        printf("\n    \"%s\": %s\n", command, err.text);
        CU_FAIL_FATAL("a command could not be run");
    }
    return result;
}

const char *fixture_sh_text(struct sandlot_sandbox *sandbox, const char *command) {
    static char text[4096];
    struct sandlot_exec_result *result = fixture_sh(sandbox, command);
    snprintf(text, sizeof text, "%s", result->stdout_data);
    for (size_t len = strlen(text); len > 0 && (text[len - 1] == '\n' || text[len - 1] == ' ');)
        text[--len] = '\0';
    sandlot_exec_result_free(result);
    return text;
}
