#include "broker/sandbox/exec.h"

#include <stdlib.h>
#include <string.h>

#include "broker/sandbox/spec.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define DEFAULT_TIMEOUT_MS 180000u
#define TIMEOUT_MAX_MS (UINT64_C(10) * 365 * 86400 * 1000)
#define STDIN_MAX (1024u * 1024)
#define OUTPUT_DEFAULT (2u * 1024 * 1024)
#define OUTPUT_MAX (4u * 1024 * 1024 - 64 * 1024)
#define ARGS_MAX 4096
#define ARGS_BYTES_MAX (2u * 1024 * 1024) /* with stdin and both environments still one frame */
#define ENV_MAX 1024
#define NO_EXIT_CODE 125
#define KILL_TIMEOUT_MS 10000
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name
#define VIOLATION(err, field, ...) err_violation(err, REASON(INVALID_REQUEST), field, __VA_ARGS__)

struct exec {
    struct sandbox_op op;
    struct sandbox *sandbox; /* NULL once the sandbox has ended this */
    char id[ID_MAX];
    exec_done_cb cb; /* NULL: abandoned or answered */
    void *arg;
};

/* ---- What is allowed ---- */

static void check_command(const Sandlot__V1__ExecRequest *request, struct err *err) {
    size_t bytes = 0;
    switch (request->command_case) {
    case SANDLOT__V1__EXEC_REQUEST__COMMAND_ARGV:
        if (request->argv->n_args < 1 || request->argv->n_args > ARGS_MAX)
            VIOLATION(err, "argv", "must have 1 to %d entries", ARGS_MAX);
        else if (request->argv->args[0].len == 0)
            VIOLATION(err, "argv", "args[0] is empty");
        for (size_t i = 0; i < request->argv->n_args; i++)
            bytes += request->argv->args[i].len;
        if (bytes > ARGS_BYTES_MAX)
            VIOLATION(err, "argv", "at most %u bytes in all", ARGS_BYTES_MAX);
        for (size_t i = 0; i < request->argv->n_args; i++)
            if (request->argv->args[i].len &&
                memchr(request->argv->args[i].data, 0, request->argv->args[i].len))
                VIOLATION(err, "argv", "args[%zu] has a NUL byte", i);
        break;
    case SANDLOT__V1__EXEC_REQUEST__COMMAND_SHELL:
        if (request->shell.len == 0 || memchr(request->shell.data, 0, request->shell.len))
            VIOLATION(err, "shell", "must not be empty or have NUL bytes");
        if (request->shell.len > ARGS_BYTES_MAX)
            VIOLATION(err, "shell", "at most %u bytes; upload a script for more", ARGS_BYTES_MAX);
        break;
    default: VIOLATION(err, "command", "argv or shell is needed"); break;
    }
}

static int check(const Sandlot__V1__ExecRequest *request, uint64_t *ret_timeout_ms, struct err *err) {
    *ret_timeout_ms = DEFAULT_TIMEOUT_MS;
    check_command(request, err);
    if (request->cwd.len >= 4096 || (request->cwd.len && memchr(request->cwd.data, 0, request->cwd.len)))
        VIOLATION(err, "cwd", "must be below 4096 bytes, without NUL");
    if (request->n_env > ENV_MAX)
        VIOLATION(err, "env", "at most %d variables", ENV_MAX);
    size_t env_bytes = 0;
    for (size_t i = 0; i < request->n_env && i < ENV_MAX; i++) {
        const char *why;
        env_bytes += strlen(request->env[i]->key) + strlen(request->env[i]->value);
        if (!spec_env_is_valid(request->env[i]->key, request->env[i]->value, &why))
            VIOLATION(err, "env", "%s", why);
    }
    if (env_bytes > SPEC_ENV_BYTES_MAX)
        VIOLATION(err, "env", "at most %d bytes in all", SPEC_ENV_BYTES_MAX);
    if (strlen(request->user) > 127)
        VIOLATION(err, "user", "at most 127 bytes");
    if (request->stdin.len > STDIN_MAX)
        VIOLATION(err, "stdin", "at most %u bytes; upload a file for more", STDIN_MAX);
    if (request->limit_case == SANDLOT__V1__EXEC_REQUEST__LIMIT_NO_TIMEOUT) {
        *ret_timeout_ms = 0;
        if (!request->no_timeout)
            VIOLATION(err, "no_timeout", "is true or absent");
    } else if (request->limit_case == SANDLOT__V1__EXEC_REQUEST__LIMIT_TIMEOUT &&
               !spec_duration_ms(request->timeout, TIMEOUT_MAX_MS, ret_timeout_ms)) {
        VIOLATION(err, "timeout", "must be over 0 and at most 10 years");
    }
    if (request->max_stdout_bytes > OUTPUT_MAX)
        VIOLATION(err, "max_stdout_bytes", "at most %u", OUTPUT_MAX);
    if (request->max_stderr_bytes > OUTPUT_MAX)
        VIOLATION(err, "max_stderr_bytes", "at most %u", OUTPUT_MAX);
    return err_is_set(err) ? -1 : 0;
}

/* ---- To the agent ---- */

struct run_env {
    Sandlot__Agent__V1__EnvVar *vars;
    Sandlot__Agent__V1__EnvVar **list;
    size_t count;
};

static void add_env(struct run_env *env, const char *name, const char *value) {
    Sandlot__Agent__V1__EnvVar *var = &env->vars[env->count];
    sandlot__agent__v1__env_var__init(var);
    var->name.data = (uint8_t *)(uintptr_t)name;
    var->name.len = strlen(name);
    var->value.data = (uint8_t *)(uintptr_t)value;
    var->value.len = strlen(value);
    env->list[env->count++] = var;
}

static void build_env(struct run_env *env, const struct sandbox *sandbox,
                      const Sandlot__V1__ExecRequest *request) {
    size_t max = sandbox->spec->n_env + request->n_env;
    env->vars = xcalloc(max, sizeof *env->vars);
    env->list = xcalloc(max, sizeof *env->list);
    for (size_t i = 0; i < sandbox->spec->n_env; i++)
        add_env(env, sandbox->spec->env[i]->key, sandbox->spec->env[i]->value);
    for (size_t i = 0; i < request->n_env; i++)
        add_env(env, request->env[i]->key, request->env[i]->value);
}

static void free_env(struct run_env *env) {
    free(env->vars);
    free(env->list);
}

static void on_killed(void *arg, const ProtobufCMessage *response, const struct err *err) {
    (void)arg;
    (void)response;
    (void)err; /* a lost link ends the command as well */
}

static void send_kill(struct exec *exec) {
    if (!exec->sandbox || !exec->sandbox->link)
        return;
    Sandlot__Agent__V1__KillRequest request = SANDLOT__AGENT__V1__KILL_REQUEST__INIT;
    request.exec_id = exec->id;
    link_call(exec->sandbox->link, "Kill", &request.base, &sandlot__agent__v1__kill_response__descriptor,
              KILL_TIMEOUT_MS, on_killed, NULL);
}

/* ---- Back ---- */

static void describe_end(const Sandlot__Agent__V1__RunResponse *run, Sandlot__V1__ExecResponse *response) {
    static char timed_out[] = "the command's time was up; it and all it had started were ended";
    static char killed[] = "the command was killed because its caller went away";
    response->message = run->message;
    response->exit_code = run->exit_code;
    response->signal = run->signal;
    if (run->timed_out) {
        response->error_type = SANDLOT__V1__EXEC_ERROR_TYPE__EXEC_ERROR_TYPE_TIMEOUT;
        response->exit_code = NO_EXIT_CODE;
        response->message = timed_out;
    } else if (run->killed) {
        response->error_type = SANDLOT__V1__EXEC_ERROR_TYPE__EXEC_ERROR_TYPE_SANDBOX;
        response->exit_code = NO_EXIT_CODE;
        response->message = killed;
    }
}

static void set_duration(Google__Protobuf__Duration *duration, uint64_t us) {
    google__protobuf__duration__init(duration);
    duration->seconds = (int64_t)(us / 1000000);
    duration->nanos = (int32_t)(us % 1000000) * 1000;
}

static void answer(struct exec *exec, const Sandlot__Agent__V1__RunResponse *run) {
    Sandlot__V1__ExecResponse response = SANDLOT__V1__EXEC_RESPONSE__INIT;
    Google__Protobuf__Duration duration, cpu_time;
    set_duration(&duration, run->duration_us);
    set_duration(&cpu_time, run->cpu_time_us);
    describe_end(run, &response);
    response.exec_id = exec->id;
    response.stdout = run->stdout;
    response.stderr = run->stderr;
    response.timed_out = run->timed_out;
    response.output_held_open = run->output_held_open;
    response.stdout_truncated = run->stdout_total_bytes > run->stdout.len;
    response.stderr_truncated = run->stderr_total_bytes > run->stderr.len;
    response.stdout_total_bytes = run->stdout_total_bytes;
    response.stderr_total_bytes = run->stderr_total_bytes;
    response.duration = &duration;
    response.cpu_time = &cpu_time;
    response.peak_memory_bytes = run->peak_memory_bytes;
    response.tree_kill = run->cgroup_kill ? SANDLOT__V1__TREE_KILL__TREE_KILL_CGROUP
                                          : SANDLOT__V1__TREE_KILL__TREE_KILL_BEST_EFFORT;
    exec->cb(exec->arg, &response, NULL);
}

static void on_run_done(void *arg, const ProtobufCMessage *message, const struct err *err) {
    struct exec *exec = arg;
    if (exec->sandbox)
        sandbox_remove_op(&exec->op);
    if (exec->cb && err) {
        struct err told = *err;
        sandbox_explain(exec->sandbox, &told);
        exec->cb(exec->arg, NULL, &told);
    } else if (exec->cb) {
        answer(exec, (const void *)message);
    }
    free(exec);
}

/* The sandbox ends: the caller hears it now; the link's own completion frees. */
static void on_sandbox_end(struct sandbox_op *op, const struct err *err) {
    struct exec *exec = CONTAINER_OF(op, struct exec, op);
    exec_done_cb cb = exec->cb;
    exec->sandbox = NULL;
    exec->cb = NULL;
    if (cb)
        cb(exec->arg, NULL, err);
}

void exec_abandon(struct exec *exec) {
    exec->cb = NULL;
    send_kill(exec);
}

int exec_start(struct sandbox *sandbox, const Sandlot__V1__ExecRequest *request, exec_done_cb cb, void *arg,
               struct exec **ret, struct err *err) {
    static uint8_t shell[] = "/bin/sh", dash_c[] = "-c";
    uint64_t timeout_ms;
    if (check(request, &timeout_ms, err) < 0 || sandbox_check_ready(sandbox, err) < 0)
        return -1;
    struct exec *exec = xcalloc(1, sizeof *exec);
    id_make("ex-", exec->id);
    exec->sandbox = sandbox;
    exec->op.end = on_sandbox_end;
    exec->cb = cb;
    exec->arg = arg;
    sandbox_add_op(sandbox, &exec->op);

    ProtobufCBinaryData by_shell[3] = {{7, shell}, {2, dash_c}, request->shell};
    bool is_shell = request->command_case == SANDLOT__V1__EXEC_REQUEST__COMMAND_SHELL;
    size_t cwd_len;
    AUTO_FREE char *cwd = sandbox_resolve_path(sandbox, request->cwd.data, request->cwd.len, &cwd_len);
    CLEANUP(free_env) struct run_env env = {0};
    build_env(&env, sandbox, request);
    Sandlot__Agent__V1__RunRequest run = SANDLOT__AGENT__V1__RUN_REQUEST__INIT;
    run.exec_id = exec->id;
    run.n_argv = is_shell ? 3 : request->argv->n_args;
    run.argv = is_shell ? by_shell : request->argv->args;
    run.cwd.data = (uint8_t *)cwd;
    run.cwd.len = cwd_len;
    run.n_env = env.count;
    run.env = env.list;
    run.user = request->user;
    run.timeout_ms = timeout_ms;
    run.stdin = request->stdin;
    run.max_stdout_bytes = request->max_stdout_bytes ? request->max_stdout_bytes : OUTPUT_DEFAULT;
    run.max_stderr_bytes = request->max_stderr_bytes ? request->max_stderr_bytes : OUTPUT_DEFAULT;
    link_call(sandbox->link, "Run", &run.base, &sandlot__agent__v1__run_response__descriptor, 0, on_run_done,
              exec);
    *ret = exec;
    return 0;
}
