/* One unary command of a sandbox: checked, sent to the agent, its outcome translated. Loop thread. */
#pragma once

#include "broker/sandbox/sandbox.h"
#include "sandlot/v1/exec.pb-c.h"

struct exec;

/* Exactly once, unless exec_abandon comes first. On success err is NULL and the response valid during
 * the callback. */
typedef void (*exec_done_cb)(void *arg, const Sandlot__V1__ExecResponse *response, const struct err *err);

/* The request is not kept. -1: nothing was started, cb is not called. */
int exec_start(struct sandbox *sandbox, const Sandlot__V1__ExecRequest *request, exec_done_cb cb, void *arg,
               struct exec **ret, struct err *err);
/* Nobody waits any more: the command's tree is killed at once. */
void exec_abandon(struct exec *exec);
