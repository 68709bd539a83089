/* A real broker of the test's own, in a directory of its own; stopped by pid; nothing may be left. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "clients/c/include/sandlot/sandlot.h"

#define FIXTURE_PATH_MAX 256

struct fixture {
    char dir[64], socket[FIXTURE_PATH_MAX], address[FIXTURE_PATH_MAX + 8], config[FIXTURE_PATH_MAX];
    pid_t pid; /* sandlotd, the spawner */
    char broker_id[32];
    unsigned mounts_before;
};

/* config_json may be NULL. Ends the test program if the broker does not come up. */
void fixture_start(struct fixture *fixture, const char *config_json);
/* Makes the directory and starts nothing. */
void fixture_prepare(struct fixture *fixture, const char *config_json);
void fixture_launch(struct fixture *fixture);
/* The broker process alone; the spawner starts another. */
pid_t fixture_broker_pid(const struct fixture *fixture);
void fixture_kill_broker(const struct fixture *fixture);
/* Spawner and broker, as by a crash; sandboxes live on. */
void fixture_kill_all(struct fixture *fixture);
/* SIGTERM with the sandboxes destroyed; CU_FAILs for a bad exit code and for everything left over. */
void fixture_stop(struct fixture *fixture);

/* Until the broker serves, within a bound. */
bool fixture_wait_serving(const struct fixture *fixture);
void fixture_client(const struct fixture *fixture, struct sandlot_client **ret);
/* Asserts success. */
struct sandlot_sandbox *fixture_create(struct sandlot_client *client);
/* Runs `sandlot ARGS` by the shell with SANDLOT_ADDRESS set, in the fixture's directory. Returns the
 * exit code; output (stdout and stderr) goes to ret, up to size. */
int fixture_cli(const struct fixture *fixture, char *ret, size_t size, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* One shell command in the sandbox; asserts that it could be run. Free the result. */
struct sandlot_exec_result *fixture_sh(struct sandlot_sandbox *sandbox, const char *command);
/* What it printed, trimmed; static buffer. */
const char *fixture_sh_text(struct sandlot_sandbox *sandbox, const char *command);

/* Polls until the condition holds; false after the bound. */
bool wait_until(bool (*condition)(const void *arg), const void *arg, unsigned bound_ms);
/* Where the programs under test are. */
const char *build_dir(void);
