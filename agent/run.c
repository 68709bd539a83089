#include "agent/run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <uthash.h>

#include "agent/cgroup_slots.h"
#include "agent/reaper.h"
#include "agent/spawn.h"
#include "agent/tree.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/sm.h"
#include "common/utf8.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define KILL_GRACE_MS 2000
#define DRAIN_GRACE_MS 250
#define TREE_POLL_MS 2
#define OUTPUT_MAX (4u * 1024 * 1024 - 64 * 1024) /* both streams together: one answer, one message */

#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/*
 *   RUNNING --exit--> DRAINING --streams at EOF, or grace over--> ENDING --tree gone--> DONE
 *      |                                                            ^
 *      +--timeout, kill: TERM / KILL to the tree; the exit follows--+
 *
 * The process and its two streams end on their own; DRAINING waits for their conjunction.
 */
enum run_state { RUN_RUNNING, RUN_DRAINING, RUN_ENDING, RUN_DONE, RUN_STATE_MAX };

static const char *const run_states[] = {"running", "draining", "ending", "done"};
static const uint32_t run_moves[] = {
    [RUN_RUNNING] = SM_TO(RUN_DRAINING),
    [RUN_DRAINING] = SM_TO(RUN_ENDING),
    [RUN_ENDING] = SM_TO(RUN_DONE),
    [RUN_DONE] = 0,
};
static const struct sm_conf run_conf = {
    .name = "run", .states = run_states, .moves = run_moves, .count = RUN_STATE_MAX};

struct run_stream {
    struct run *run;
    uv_poll_t poll;
    int fd;
    bool ended;
    struct buf kept;
    uint64_t total;
};

struct run_table {
    struct agent *agent;
    struct run *runs;
};

struct run {
    struct sm sm;
    struct run_table *table;
    char *exec_id;
    struct cgroup_slot *slot;
    struct tree tree;
    struct run_stream out, err;
    uv_timer_t limit_timer; /* the command's timeout, then the kill grace */
    uv_timer_t wait_timer;  /* drain grace, then looking for the end of the tree */
    unsigned open_handles;
    uint64_t started_us, ended_us;
    int status;
    struct rusage usage;
    int exec_error; /* errno of a failed exec, 0: none */
    char *program;
    bool timed_out, killed, held_open;
    run_done_cb cb;
    void *arg;
    UT_hash_handle hh;
};

struct run_table *run_table_create(struct agent *agent) {
    struct run_table *table = xcalloc(1, sizeof *table);
    table->agent = agent;
    return table;
}

static void run_tick(struct run *run);

/* ---- Answer ---- */

static void describe_exec_error(const struct run *run, char *text, size_t size) {
    const char *why = strerror(run->exec_error);
    if (run->exec_error == ENOENT || run->exec_error == ENOTDIR)
        snprintf(text, size, "%s: not found in the sandbox", run->program);
    else
        snprintf(text, size, "%s: can't be executed: %s", run->program, why);
}

static void answer(struct run *run) {
    Sandlot__Agent__V1__RunResponse response = SANDLOT__AGENT__V1__RUN_RESPONSE__INIT;
    char message[512] = "";
    if (run->exec_error)
        describe_exec_error(run, message, sizeof message);
    utf8_scrub(message);
    response.message = message;
    response.exit_code = WIFSIGNALED(run->status) ? 128 + WTERMSIG(run->status) : WEXITSTATUS(run->status);
    response.signal = WIFSIGNALED(run->status) ? WTERMSIG(run->status) : 0;
    response.timed_out = run->timed_out;
    response.killed = run->killed;
    response.output_held_open = run->held_open;
    response.stdout.data = run->out.kept.data;
    response.stdout.len = run->out.kept.len;
    response.stderr.data = run->err.kept.data;
    response.stderr.len = run->err.kept.len < OUTPUT_MAX - run->out.kept.len ? run->err.kept.len
                                                                             : OUTPUT_MAX - run->out.kept.len;
    response.stdout_total_bytes = run->out.total;
    response.stderr_total_bytes = run->err.total;
    response.duration_us = run->ended_us - run->started_us;
    response.cpu_time_us = (uint64_t)(run->usage.ru_utime.tv_sec + run->usage.ru_stime.tv_sec) * 1000000u +
                           (uint64_t)(run->usage.ru_utime.tv_usec + run->usage.ru_stime.tv_usec);
    response.peak_memory_bytes = (uint64_t)run->usage.ru_maxrss * 1024u;
    response.cgroup_kill = run->slot != NULL;
    run->cb(run->arg, &response);
}

static void on_handle_closed(uv_handle_t *handle) {
    struct run *run = handle->data;
    if (--run->open_handles > 0)
        return;
    buf_fini(&run->out.kept);
    buf_fini(&run->err.kept);
    free(run->exec_id);
    free(run->program);
    free(run);
}

static void stream_end(struct run_stream *stream) {
    if (stream->ended)
        return;
    stream->ended = true;
    uv_poll_stop(&stream->poll);
    close(stream->fd);
    uv_close((uv_handle_t *)&stream->poll, on_handle_closed);
}

static void finish(struct run *run) {
    sm_move(&run->sm, RUN_DONE);
    answer(run);
    struct agent *agent = run->table->agent;
    if (run->slot)
        cgroup_slot_give_back(agent->cgroups, run->slot);
    HASH_DEL(run->table->runs, run);
    uv_close((uv_handle_t *)&run->limit_timer, on_handle_closed);
    uv_close((uv_handle_t *)&run->wait_timer, on_handle_closed);
}

/* ---- Events ---- */

static void on_output(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    static char chunk[64 * 1024];
    struct run_stream *stream = CONTAINER_OF(poll, struct run_stream, poll);
    ssize_t n = read(stream->fd, chunk, sizeof chunk);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        stream_end(stream);
        run_tick(stream->run);
        return;
    }
    stream->total += (uint64_t)n;
    buf_append_some(&stream->kept, chunk, (size_t)n);
}

static void on_exit_status(void *arg, int status, const struct rusage *usage) {
    struct run *run = arg;
    run->status = status;
    run->usage = *usage;
    run->ended_us = clock_monotonic_us();
    sm_move(&run->sm, RUN_DRAINING);
    run_tick(run);
}

static void on_wait_timer(uv_timer_t *timer) {
    struct run *run = CONTAINER_OF(timer, struct run, wait_timer);
    if (run->sm.state == RUN_DRAINING)
        run->held_open = true;
    run_tick(run);
}

static void on_limit_timer(uv_timer_t *timer) {
    struct run *run = CONTAINER_OF(timer, struct run, limit_timer);
    if (run->timed_out || run->sm.state != RUN_RUNNING) {
        tree_signal(&run->tree, SIGKILL);
    } else {
        run->timed_out = true;
        tree_signal(&run->tree, SIGTERM);
        uv_timer_start(&run->limit_timer, on_limit_timer, KILL_GRACE_MS, 0);
    }
}

void run_kill(struct run *run) {
    run->killed = true;
    tree_signal(&run->tree, SIGKILL);
}

/* What the command left behind ends with it: at once after its own exit, within the kill grace if its
 * time was up. */
static void end_tree(struct run *run) {
    if (run->timed_out && !run->killed && uv_is_active((uv_handle_t *)&run->limit_timer))
        return;
    tree_signal(&run->tree, SIGKILL);
}

static void run_tick(struct run *run) {
    bool drained = run->out.ended && run->err.ended;
    switch (run->sm.state) {
    case RUN_RUNNING: return;
    case RUN_DRAINING:
        if (!drained && !run->held_open) {
            if (!uv_is_active((uv_handle_t *)&run->wait_timer))
                uv_timer_start(&run->wait_timer, on_wait_timer, DRAIN_GRACE_MS, 0);
            return;
        }
        stream_end(&run->out);
        stream_end(&run->err);
        uv_timer_stop(&run->wait_timer);
        sm_move(&run->sm, RUN_ENDING);
        __attribute__((fallthrough));
    case RUN_ENDING:
        if (tree_is_gone(&run->tree)) {
            finish(run);
            return;
        }
        end_tree(run);
        uv_timer_start(&run->wait_timer, on_wait_timer, TREE_POLL_MS, 0);
        return;
    default: return;
    }
}

/* ---- Start ---- */

struct environment {
    char **entries;
    size_t count;
    const char *path;
};

static void environment_free(struct environment *env) {
    for (size_t i = 0; i < env->count; i++)
        free(env->entries[i]);
    free(env->entries);
}

static void environment_set(struct environment *env, const char *name, size_t name_len, const char *value,
                            size_t value_len) {
    char *entry = xcalloc(1, name_len + value_len + 2);
    memcpy(entry, name, name_len);
    entry[name_len] = '=';
    if (value_len)
        memcpy(entry + name_len + 1, value, value_len);
    for (size_t i = 0; i < env->count; i++)
        if (strncmp(env->entries[i], entry, name_len + 1) == 0) {
            free(env->entries[i]);
            env->entries[i] = entry;
            return;
        }
    env->entries[env->count++] = entry;
}

static void environment_build(struct environment *env, const Sandlot__Agent__V1__RunRequest *request,
                              const struct user *user) {
    static const char default_path[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    env->entries = xcalloc(request->n_env + 5, sizeof *env->entries);
    environment_set(env, "PATH", 4, default_path, sizeof default_path - 1);
    environment_set(env, "HOME", 4, user->home, strlen(user->home));
    environment_set(env, "LANG", 4, "C.UTF-8", 7);
    for (size_t i = 0; i < request->n_env; i++)
        environment_set(env, (char *)request->env[i]->name.data, request->env[i]->name.len,
                        (char *)request->env[i]->value.data, request->env[i]->value.len);
    environment_set(env, "SANDLOT_EXEC", 12, request->exec_id, strlen(request->exec_id));
    env->path = env->entries[0] + 5;
}

/* Standard input as a file of its own: complete before the command starts, at EOF after it. */
static int make_stdin(const ProtobufCBinaryData *bytes) {
    if (bytes->len == 0)
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int fd = memfd_create("stdin", MFD_CLOEXEC);
    for (size_t at = 0; fd >= 0 && at < bytes->len;) {
        ssize_t n = write(fd, bytes->data + at, bytes->len - at);
        if (n < 0 && errno != EINTR)
            return -1;
        at += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0 && lseek(fd, 0, SEEK_SET) < 0)
        return -1;
    return take_fd(&fd);
}

static void stream_start(struct run *run, struct run_stream *stream, int fd, uint64_t max) {
    stream->run = run;
    stream->fd = fd;
    stream->poll.data = run;
    buf_init(&stream->kept, max < OUTPUT_MAX ? (size_t)max : OUTPUT_MAX);
    uv_poll_init(run->table->agent->loop, &stream->poll, fd);
    uv_poll_start(&stream->poll, UV_READABLE, on_output);
    run->open_handles++;
}

static void timer_init(struct run *run, uv_timer_t *timer) {
    uv_timer_init(run->table->agent->loop, timer);
    timer->data = run;
    run->open_handles++;
}

/* From here on nothing can fail: the process exists, so the run must be tracked to its end. */
static struct run *track(struct run_table *table, const Sandlot__Agent__V1__RunRequest *request,
                         struct cgroup_slot *slot, const struct spawn_result *spawned) {
    struct run *run = xcalloc(1, sizeof *run);
    run->table = table;
    run->exec_id = xstrdup(request->exec_id);
    run->program = xmemdup(request->argv[0].data, request->argv[0].len);
    run->exec_error = spawned->stage == SPAWN_EXEC ? spawned->error_number : 0;
    run->slot = slot;
    run->tree = (struct tree){.slot = slot, .leader = spawned->pid, .exec_id = run->exec_id};
    sm_init(&run->sm, &run_conf, RUN_RUNNING, run->exec_id);
    timer_init(run, &run->limit_timer);
    timer_init(run, &run->wait_timer);
    HASH_ADD_KEYPTR(hh, table->runs, run->exec_id, strlen(run->exec_id), run);
    reaper_watch(table->agent->reaper, spawned->pid, on_exit_status, run);
    close(spawned->pid_fd);
    return run;
}

static void on_abandoned_exit(void *arg, int status, const struct rusage *usage) {
    (void)arg;
    (void)status;
    (void)usage;
}

/* The child could not become the command: it is exiting; its status interests nobody. */
static int refuse(struct run_table *table, const Sandlot__Agent__V1__RunRequest *request,
                  const struct spawn_result *spawned, struct err *err) {
    if (spawned->stage != SPAWN_CLONE) {
        reaper_watch(table->agent->reaper, spawned->pid, on_abandoned_exit, NULL);
        close(spawned->pid_fd);
    }
    if (spawned->stage == SPAWN_CWD)
        return err_set(err, ERR_FAILED_PRECONDITION, REASON(CWD_NOT_FOUND), "working directory \"%.*s\": %s",
                       (int)request->cwd.len, (char *)request->cwd.data, strerror(spawned->error_number));
    err_set_errno(err, spawned->error_number, "the sandbox could not start a process%s",
                  spawned->stage == SPAWN_SETUP ? " as asked" : "");
    err->code = spawned->error_number == EAGAIN ? ERR_RESOURCE_EXHAUSTED : ERR_UNAVAILABLE;
    err->reason = REASON(SPAWN_FAILED);
    return -1;
}

static char **copy_argv(const Sandlot__Agent__V1__RunRequest *request) {
    char **argv = xcalloc(request->n_argv + 1, sizeof *argv);
    for (size_t i = 0; i < request->n_argv; i++)
        argv[i] = xmemdup(request->argv[i].data, request->argv[i].len);
    return argv;
}

static void free_argv(char ***argv) {
    for (char **arg = *argv; *arg; arg++)
        free(*arg);
    free(*argv);
}

int run_start(struct run_table *table, const Sandlot__Agent__V1__RunRequest *request, run_done_cb cb,
              void *arg, struct run **ret_run, struct err *err) {
    struct agent *agent = table->agent;
    struct user user;
    if (user_lookup(request->user, &user, err) < 0)
        return -1;
    CLEANUP(environment_free) struct environment env = {0};
    environment_build(&env, request, &user);
    CLEANUP(free_argv) char **argv = copy_argv(request);
    AUTO_FREE char *cwd = xmemdup(request->cwd.data, request->cwd.len);
    AUTO_CLOSE int in = make_stdin(&request->stdin);
    int out[2] = {-1, -1}, errors[2] = {-1, -1};
    int made = in < 0 || pipe2(out, O_CLOEXEC) < 0 || pipe2(errors, O_CLOEXEC) < 0 ? -1 : 0;
    AUTO_CLOSE int out_read = out[0];
    AUTO_CLOSE int out_write = out[1];
    AUTO_CLOSE int err_read = errors[0];
    AUTO_CLOSE int err_write = errors[1];
    if (made < 0)
        return err_set_errno(err, errno, "no pipe for the command");
    fcntl(out_read, F_SETFL, O_NONBLOCK);
    fcntl(err_read, F_SETFL, O_NONBLOCK);

    struct cgroup_slot *slot = agent->cgroups ? cgroup_slot_take(agent->cgroups) : NULL;
    struct spawn_opts opts = {
        .argv = argv,
        .envp = env.entries,
        .path = env.path,
        .cwd = cwd,
        .user = &user,
        .stdin_fd = in,
        .stdout_fd = out_write,
        .stderr_fd = err_write,
        .cgroup_fd = slot ? cgroup_slot_fd(slot) : -1,
        .seccomp_filter = agent->seccomp_filter,
        .seccomp_filter_len = agent->seccomp_filter_len,
    };
    struct spawn_result spawned;
    uint64_t started_us = clock_monotonic_us();
    spawn(&opts, &spawned);
    if (spawned.stage != SPAWN_OK && spawned.stage != SPAWN_EXEC) {
        if (slot)
            cgroup_slot_give_back(agent->cgroups, slot);
        return refuse(table, request, &spawned, err);
    }
    struct run *run = track(table, request, slot, &spawned);
    run->started_us = started_us;
    run->cb = cb;
    run->arg = arg;
    stream_start(run, &run->out, take_fd(&out_read), request->max_stdout_bytes);
    stream_start(run, &run->err, take_fd(&err_read), request->max_stderr_bytes);
    if (request->timeout_ms)
        uv_timer_start(&run->limit_timer, on_limit_timer, request->timeout_ms, 0);
    *ret_run = run;
    return 0;
}

void run_kill_by_id(struct run_table *table, const char *exec_id) {
    struct run *run = NULL;
    HASH_FIND_STR(table->runs, exec_id, run);
    if (run)
        run_kill(run);
}
