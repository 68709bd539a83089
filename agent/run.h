/* One command: started, its output collected up to a cap, its tree ended with it, answered once. */
#pragma once

#include "agent/agent.h"
#include "common/err.h"
#include "sandlot/agent/v1/agent.pb-c.h"

struct run;
struct run_table;

/* Exactly once per run_start that returned 0, on the loop; the response is valid during the call. */
typedef void (*run_done_cb)(void *arg, const Sandlot__Agent__V1__RunResponse *response);

struct run_table *run_table_create(struct agent *agent);

/* -1: nothing was started (USER_NOT_FOUND, CWD_NOT_FOUND, SPAWN_FAILED), cb is not called.
 * The request is not kept. ret_run is valid until cb. */
int run_start(struct run_table *table, const Sandlot__Agent__V1__RunRequest *request, run_done_cb cb,
              void *arg, struct run **ret_run, struct err *err);
/* Kills the command's tree at once; cb still comes, when the tree is gone. */
void run_kill(struct run *run);
void run_kill_by_id(struct run_table *table, const char *exec_id);
