/* ExecService. A cancelled call, a lost connection and an ended lease all kill the command's tree. */
#include "broker/rpc/call.h"
#include "broker/rpc/find.h"
#include "broker/rpc/handlers.h"
#include "broker/sandbox/exec.h"

static void on_done(void *arg, const Sandlot__V1__ExecResponse *response, const struct err *err) {
    struct call *call = arg;
    if (err)
        call_fail(call, err);
    else
        call_reply(call, &response->base);
}

static void on_cancelled(struct call *call) {
    exec_abandon(call_state(call));
}

static const struct call_ops exec_ops = {.cancelled = on_cancelled};

void handle_exec(struct call *call) {
    const Sandlot__V1__ExecRequest *request = (const void *)call_request(call);
    struct sandbox *sandbox = find_leased_sandbox(call, "");
    struct exec *exec;
    struct err err = {0};
    if (!sandbox)
        return;
    if (exec_start(sandbox, request, on_done, call, &exec, &err) < 0)
        call_fail(call, &err);
    else
        call_set_ops(call, &exec_ops, exec);
}
