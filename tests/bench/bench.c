/* Prints what Sandlot costs against what its parts cost bare, all from one run on one machine.
 * usage: sandlot_bench BUILD_DIR [get|exec|boxes|files] */
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clients/c/include/sandlot/sandlot.h"
#include "sandlot/v1/exec.pb-c.h"
#include "sandlot/v1/file.pb-c.h"
#include "sandlot/v1/sandbox.pb-c.h"
#include "tests/bench/load.h"

#define ROUNDS 3
#define BOXES 60
#define FILE_BYTES (256ull << 20)
#define CHUNK (256 * 1024)

extern char **environ;

struct bench {
    const char *build;
    char dir[64], socket[128], floor_socket[128], floor_file[128];
    pid_t daemon, floor;
    struct load *to_broker, *to_floor;
    struct sandlot_client *client;
    struct sandlot_sandbox *sandbox;
    char *token;
};

static void die(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static pid_t launch(char *const *argv, int ready_fd) {
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", 1, 0);
    if (ready_fd >= 0)
        posix_spawn_file_actions_adddup2(&actions, ready_fd, 30);
    if (posix_spawn(&pid, argv[0], &actions, NULL, argv, environ) != 0)
        die(argv[0]);
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

static void start(struct bench *bench) {
    char program[300], floor_program[300], state[128], address[160];
    int ready[2];
    char word[8];
    strcpy(bench->dir, "/tmp/sandlot-bench-XXXXXX");
    if (!mkdtemp(bench->dir) || pipe(ready) < 0)
        die("no directory");
    snprintf(bench->socket, sizeof bench->socket, "%s/s", bench->dir);
    snprintf(bench->floor_socket, sizeof bench->floor_socket, "%s/f", bench->dir);
    snprintf(bench->floor_file, sizeof bench->floor_file, "/dev/shm/sandlot-bench-%d", (int)getpid());
    snprintf(program, sizeof program, "%s/sandlotd", bench->build);
    snprintf(floor_program, sizeof floor_program, "%s/floor_server", bench->build);
    snprintf(state, sizeof state, "%s/state", bench->dir);
    snprintf(address, sizeof address, "unix:%s", bench->socket);
    char *argv[] = {program,         "--listen", address,      "--state-dir", state,
                    "--on-shutdown", "destroy",  "--ready-fd", "30",          NULL};
    bench->daemon = launch(argv, ready[1]);
    if (read(ready[0], word, 6) != 6)
        die("sandlotd does not come up");
    char *floor_argv[] = {floor_program, bench->floor_socket, bench->floor_file, NULL};
    bench->floor = launch(floor_argv, -1);
    while (access(bench->floor_socket, F_OK) < 0)
        usleep(1000);
    struct sandlot_client_opts opts = {.address = address};
    struct sandlot_error err = {0};
    char floor_address[160];
    snprintf(floor_address, sizeof floor_address, "unix:%s", bench->floor_socket);
    bench->to_broker = load_open(address);
    bench->to_floor = load_open(floor_address);
    struct sandlot_create_opts create = {.ttl = 3600, .layer_bytes = 1ull << 30, .memory_bytes = 4ull << 30};
    if (sandlot_client_open(&opts, &bench->client, &err) < 0 ||
        sandlot_create(bench->client, &create, &bench->sandbox, &err) < 0)
        die(err.text);
    bench->token = strstr(strdup(sandlot_descriptor(bench->sandbox)), "sl1.");
    *strchr(bench->token, '"') = '\0';
}

static void stop(struct bench *bench) {
    char command[200];
    sandlot_destroy(bench->sandbox, NULL);
    sandlot_close(bench->sandbox);
    sandlot_client_close(bench->client);
    load_close(bench->to_broker);
    load_close(bench->to_floor);
    kill(bench->daemon, SIGTERM);
    kill(bench->floor, SIGTERM);
    waitpid(bench->daemon, NULL, 0);
    waitpid(bench->floor, NULL, 0);
    snprintf(command, sizeof command, "rm -rf %s %s", bench->dir, bench->floor_file);
    if (system(command) != 0)
        die("can't clear up");
}

/* ---- Rows ---- */

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

struct spread {
    double low, median, high;
};

static struct spread spread_of(double *values) {
    qsort(values, ROUNDS, sizeof *values, compare);
    return (struct spread){values[0], values[ROUNDS / 2], values[ROUNDS - 1]};
}

/* better: which way is good, "higher" or "lower". */
static void row(const char *work, const char *unit, double *floor, double *ours, const char *target) {
    struct spread f = spread_of(floor), o = spread_of(ours);
    printf("| %-34s | %9.1f (%.1f-%.1f) %s | %9.1f (%.1f-%.1f) %s | %5.2f | %s |\n", work, f.median, f.low,
           f.high, unit, o.median, o.low, o.high, unit, o.median / f.median, target);
    fflush(stdout);
}

static void bench_get(struct bench *bench) {
    static const unsigned flights[] = {1, 16, 128};
    for (int i = 0; i < 3; i++) {
        double floor[ROUNDS], inline_[ROUNDS], ours[ROUNDS];
        char name[64];
        unsigned total = flights[i] == 1 ? 10000 : 40000;
        for (int round = 0; round < ROUNDS; round++) {
            floor[round] =
                load_unary(bench->to_floor, "/floor/Handed", bench->token, "", 0, flights[i], total).rate;
            inline_[round] =
                load_unary(bench->to_floor, "/floor/Inline", bench->token, "", 0, flights[i], total).rate;
            ours[round] = load_unary(bench->to_broker, "/sandlot.v1.SandboxService/GetSandbox", bench->token,
                                     "", 0, flights[i], total)
                              .rate;
        }
        snprintf(name, sizeof name, "GetSandbox, %u in flight", flights[i]);
        row(name, "/s", floor, ours, ">= 0.90");
        snprintf(name, sizeof name, "  (the inline echo, for comparison)");
        row(name, "/s", floor, inline_, "");
    }
}

static double bare_spawn_us(struct bench *bench) {
    const char *argv[] = {"/tmp/bare_spawn", "400", "/bin/true", NULL};
    struct sandlot_exec_opts opts = {.argv = argv, .timeout = 60};
    struct sandlot_exec_result *result;
    struct sandlot_error err = {0};
    if (sandlot_exec(bench->sandbox, &opts, &result, &err) < 0 || result->exit_code != 0)
        die("bare_spawn");
    double us = atof(result->stdout_data);
    sandlot_exec_result_free(result);
    return us;
}

static void bench_exec(struct bench *bench) {
    char helper[300];
    struct sandlot_transfer_opts mode = {.has_mode = 1, .mode = 0755};
    double floor_us[ROUNDS], ours_us[ROUNDS], floor_rate[ROUNDS], ours_rate[ROUNDS];
    uint8_t request[64];
    ProtobufCBinaryData true_path = {9, (uint8_t *)(uintptr_t) "/bin/true"};
    Sandlot__V1__Argv argv = SANDLOT__V1__ARGV__INIT;
    Sandlot__V1__ExecRequest exec = SANDLOT__V1__EXEC_REQUEST__INIT;
    argv.n_args = 1;
    argv.args = &true_path;
    exec.command_case = SANDLOT__V1__EXEC_REQUEST__COMMAND_ARGV;
    exec.argv = &argv;
    size_t len = sandlot__v1__exec_request__pack(&exec, request);
    snprintf(helper, sizeof helper, "%s/bare_spawn", bench->build);
    if (sandlot_upload_file(bench->sandbox, helper, "/tmp/bare_spawn", 0, &mode, NULL) < 0)
        die("can't upload bare_spawn");
    for (int round = 0; round < ROUNDS; round++) {
        double echo =
            load_unary(bench->to_floor, "/floor/Handed", bench->token, request, len, 1, 5000).p50_us;
        double spawn = bare_spawn_us(bench);
        floor_us[round] = echo + spawn;
        floor_rate[round] = 1e6 / spawn;
        ours_us[round] =
            load_unary(bench->to_broker, "/sandlot.v1.ExecService/Exec", bench->token, request, len, 1, 1500)
                .p50_us;
        ours_rate[round] =
            load_unary(bench->to_broker, "/sandlot.v1.ExecService/Exec", bench->token, request, len, 8, 3000)
                .rate;
    }
    row("Exec true, latency p50", "us", floor_us, ours_us, "<= 1.30");
    row("Exec true, 8 in flight, rate", "/s", floor_rate, ours_rate, ">= 0.80");
}

static void bare_box_us(struct bench *bench, double *ret_made, double *ret_ended) {
    char command[400];
    snprintf(command, sizeof command, "%s/bare_box %d", bench->build, BOXES);
    FILE *pipe = popen(command, "re");
    if (!pipe || fscanf(pipe, "%lf %lf", ret_made, ret_ended) != 2 || pclose(pipe) != 0)
        die("bare_box");
}

static void bench_boxes(struct bench *bench) {
    double floor_made[ROUNDS], floor_ended[ROUNDS], made[ROUNDS], ended[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        double all_made[BOXES], all_ended[BOXES];
        bare_box_us(bench, &floor_made[round], &floor_ended[round]);
        for (int i = 0; i < BOXES; i++) {
            struct sandlot_sandbox *sandbox;
            struct sandlot_error err = {0};
            double began = now_seconds();
            if (sandlot_create(bench->client, NULL, &sandbox, &err) < 0)
                die(err.text);
            all_made[i] = (now_seconds() - began) * 1e6;
            began = now_seconds();
            if (sandlot_destroy(sandbox, &err) < 0)
                die(err.text);
            all_ended[i] = (now_seconds() - began) * 1e6;
            sandlot_close(sandbox);
        }
        qsort(all_made, BOXES, sizeof *all_made, compare);
        qsort(all_ended, BOXES, sizeof *all_ended, compare);
        made[round] = all_made[BOXES / 2];
        ended[round] = all_ended[BOXES / 2];
    }
    row("create, cold", "us", floor_made, made, "<= 1.50");
    row("destroy", "us", floor_ended, ended, "<= 2.00");
}

static void bench_files(struct bench *bench) {
    static uint8_t chunk[CHUNK], packed[CHUNK + 64], target_bytes[64], path_bytes[64];
    Sandlot__V1__UploadTarget target = SANDLOT__V1__UPLOAD_TARGET__INIT;
    Sandlot__V1__UploadRequest first = SANDLOT__V1__UPLOAD_REQUEST__INIT,
                               part = SANDLOT__V1__UPLOAD_REQUEST__INIT;
    Sandlot__V1__DownloadRequest download = SANDLOT__V1__DOWNLOAD_REQUEST__INIT;
    double floor_up[ROUNDS], up[ROUNDS], floor_down[ROUNDS], down[ROUNDS];
    target.path.data = download.path.data = (uint8_t *)(uintptr_t) "/tmp/big";
    target.path.len = download.path.len = 8;
    first.payload_case = SANDLOT__V1__UPLOAD_REQUEST__PAYLOAD_TARGET;
    first.target = &target;
    part.payload_case = SANDLOT__V1__UPLOAD_REQUEST__PAYLOAD_CHUNK;
    part.chunk.data = chunk;
    part.chunk.len = sizeof chunk;
    size_t first_len = sandlot__v1__upload_request__pack(&first, target_bytes);
    size_t part_len = sandlot__v1__upload_request__pack(&part, packed);
    size_t download_len = sandlot__v1__download_request__pack(&download, path_bytes);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t bytes;
        double mib = (double)(FILE_BYTES >> 20);
        floor_up[round] = mib / load_upload(bench->to_floor, "/floor/Upload", NULL, target_bytes, first_len,
                                            packed, part_len, FILE_BYTES / CHUNK);
        up[round] = mib / load_upload(bench->to_broker, "/sandlot.v1.FileService/Upload", bench->token,
                                      target_bytes, first_len, packed, part_len, FILE_BYTES / CHUNK);
        floor_down[round] = mib / load_download(bench->to_floor, "/floor/Download", NULL, "", 0, &bytes);
        down[round] = mib / load_download(bench->to_broker, "/sandlot.v1.FileService/Download", bench->token,
                                          path_bytes, download_len, &bytes);
    }
    row("Upload, 256 MiB", "MiB/s", floor_up, up, ">= 0.60");
    row("Download, 256 MiB", "MiB/s", floor_down, down, ">= 0.60");
}

int main(int argc, char **argv) {
    struct bench bench = {.build = argc > 1 ? argv[1] : "build"};
    struct utsname machine;
    char date[32];
    time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    uname(&machine);
    if (geteuid() != 0)
        die("needs root, as the local provider does");
    start(&bench);
    printf("%s, Linux %s %s, %ld cores; median (lowest-highest) of %d rounds\n\n", date, machine.release,
           machine.machine, sysconf(_SC_NPROCESSORS_ONLN), ROUNDS);
    printf("| work | floor | Sandlot | ratio | target |\n|---|---|---|---|---|\n");
    const char *only = argc > 2 ? argv[2] : "";
    if (strstr("get", only))
        bench_get(&bench);
    if (strstr("exec", only))
        bench_exec(&bench);
    if (strstr("boxes", only))
        bench_boxes(&bench);
    if (strstr("files", only))
        bench_files(&bench);
    stop(&bench);
    return 0;
}
