/* Commands. */
#include <stdlib.h>
#include <string.h>

#include "clients/c/src/errors.h"
#include "clients/c/src/handle.h"
#include "clients/c/src/lists.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/exec.pb-c.h"

struct exec_request {
    Sandlot__V1__ExecRequest message;
    Sandlot__V1__Argv argv;
    Google__Protobuf__Duration timeout;
    Sandlot__V1__ExecRequest__EnvEntry *env;
};

static void set_bytes(ProtobufCBinaryData *bytes, const char *text) {
    bytes->data = (uint8_t *)(uintptr_t)text;
    bytes->len = strlen(text);
}

static int set_command(struct exec_request *request, const struct sandlot_exec_opts *opts,
                       struct sandlot_error *err) {
    if ((opts->argv != NULL) == (opts->shell != NULL))
        return error_set(err, 3, "INVALID_REQUEST", "give either argv or shell");
    if (opts->shell) {
        request->message.command_case = SANDLOT__V1__EXEC_REQUEST__COMMAND_SHELL;
        set_bytes(&request->message.shell, opts->shell);
        return 0;
    }
    size_t n = strings_count(opts->argv);
    sandlot__v1__argv__init(&request->argv);
    request->argv.args = xcalloc(n, sizeof *request->argv.args);
    request->argv.n_args = n;
    for (size_t i = 0; i < n; i++)
        set_bytes(&request->argv.args[i], opts->argv[i]);
    request->message.command_case = SANDLOT__V1__EXEC_REQUEST__COMMAND_ARGV;
    request->message.argv = &request->argv;
    return 0;
}

static int set_env(struct exec_request *request, const char *const *env, struct sandlot_error *err) {
    size_t n = strings_count(env);
    request->env = xcalloc(n, sizeof *request->env);
    request->message.env = xcalloc(n, sizeof *request->message.env);
    for (size_t i = 0; i < n; i++) {
        sandlot__v1__exec_request__env_entry__init(&request->env[i]);
        if (pair_split(env[i], &request->env[i].key, &request->env[i].value, err) < 0)
            return -1;
        request->message.env[request->message.n_env++] = &request->env[i];
    }
    return 0;
}

static int set_limit(struct exec_request *request, const struct sandlot_exec_opts *opts,
                     struct sandlot_error *err) {
    if (opts->timeout < 0) {
        request->message.limit_case = SANDLOT__V1__EXEC_REQUEST__LIMIT_NO_TIMEOUT;
        request->message.no_timeout = true;
    } else if (opts->timeout > 0) {
        if (!(opts->timeout < 1e12))
            return error_set(err, 3, "INVALID_REQUEST", "timeout must be a number of seconds");
        duration_set(&request->timeout, opts->timeout);
        request->message.limit_case = SANDLOT__V1__EXEC_REQUEST__LIMIT_TIMEOUT;
        request->message.timeout = &request->timeout;
    } else if (opts->timeout != 0) {
        return error_set(err, 3, "INVALID_REQUEST", "timeout is not a number");
    }
    return 0;
}

static void exec_request_fini(struct exec_request *request) {
    for (size_t i = 0; i < request->message.n_env; i++)
        free(request->env[i].key);
    free(request->env);
    free(request->message.env);
    free(request->argv.args);
}

static const char *type_text(Sandlot__V1__ExecErrorType type) {
    switch ((int)type) {
    case SANDLOT__V1__EXEC_ERROR_TYPE__EXEC_ERROR_TYPE_UNSPECIFIED: return NULL;
    case SANDLOT__V1__EXEC_ERROR_TYPE__EXEC_ERROR_TYPE_TIMEOUT: return "timeout";
    default: return "sandbox";
    }
}

static struct sandlot_exec_result *copy_result(const Sandlot__V1__ExecResponse *from) {
    struct sandlot_exec_result *result = xcalloc(1, sizeof *result);
    result->exec_id = xstrdup(from->exec_id);
    result->stdout_data = xmemdup(from->stdout.data, from->stdout.len);
    result->stdout_len = from->stdout.len;
    result->stderr_data = xmemdup(from->stderr.data, from->stderr.len);
    result->stderr_len = from->stderr.len;
    result->stdout_total = from->stdout_total_bytes;
    result->stderr_total = from->stderr_total_bytes;
    result->stdout_truncated = from->stdout_truncated;
    result->stderr_truncated = from->stderr_truncated;
    result->exit_code = from->exit_code;
    result->signal = from->signal;
    result->error_type = type_text(from->error_type);
    result->message = xstrdup(from->message);
    result->timed_out = from->timed_out;
    result->output_held_open = from->output_held_open;
    result->duration = duration_seconds(from->duration);
    result->cpu_time = duration_seconds(from->cpu_time);
    result->peak_memory = from->peak_memory_bytes;
    result->tree_kill_best_effort = from->tree_kill == SANDLOT__V1__TREE_KILL__TREE_KILL_BEST_EFFORT;
    return result;
}

int sandlot_exec(struct sandlot_sandbox *sandbox, const struct sandlot_exec_opts *opts,
                 struct sandlot_exec_result **ret, struct sandlot_error *err) {
    CLEANUP(exec_request_fini) struct exec_request request = {.env = NULL};
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    sandlot__v1__exec_request__init(&request.message);
    if (set_command(&request, opts, err) < 0 || set_env(&request, opts->env, err) < 0 ||
        set_limit(&request, opts, err) < 0)
        return -1;
    if (opts->cwd)
        set_bytes(&request.message.cwd, opts->cwd);
    if (opts->user)
        request.message.user = (char *)(uintptr_t)opts->user;
    request.message.stdin.data = (uint8_t *)(uintptr_t)opts->stdin_data;
    request.message.stdin.len = opts->stdin_len;
    request.message.max_stdout_bytes = opts->max_stdout;
    request.message.max_stderr_bytes = opts->max_stderr;
    /* The command's own limit ends it; without a wish the call has no deadline of its own. */
    struct rpc_opts rpc =
        handle_rpc(sandbox, "/sandlot.v1.ExecService/Exec", opts->call_timeout > 0 ? opts->call_timeout : -1);
    if (rpc_unary(sandbox->client->channel, &rpc, &request.message.base,
                  &sandlot__v1__exec_response__descriptor, &arena, &message, err) < 0)
        return -1;
    *ret = copy_result((const void *)message);
    return 0;
}

void sandlot_exec_result_free(struct sandlot_exec_result *result) {
    if (!result)
        return;
    free(result->exec_id);
    free(result->stdout_data);
    free(result->stderr_data);
    free(result->message);
    free(result);
}
