/* The privileged process: parent of the broker, which it restarts, and of the local agents, which it
 * reaps. Single-threaded. Never parses client input, only protocol.h. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct image_config {
    const char *name;
    const char *path; /* a directory, or a tar of a root file system */
};

struct spawner_config {
    const char *broker_id;
    const char *agent_path;
    int state_fd; /* the state directory; sandboxes/ and images/ are made below it */
    const char *state_dir;
    const struct image_config *images; /* beside the built-in "host" */
    size_t image_count;
    uint32_t uid_base;
};

struct spawner;

/* Everything that lives as long as the daemon: images, cgroup parents, system call filter; finds the
 * sandboxes of a predecessor. NULL: *err says why. */
struct spawner *spawner_create(const struct spawner_config *config, struct err *err);

/* What this machine can't do, one text each; valid as long as the spawner. */
const char *const *spawner_notes(const struct spawner *spawner, size_t *ret_count);

/* Runs the broker function in a child with its end of the socket pair, restarts it when it dies of
 * anything but exit(0), and serves it. Returns the exit code for the whole daemon. */
int spawner_run(struct spawner *spawner, int (*broker)(int spawner_fd, void *arg), void *arg);
