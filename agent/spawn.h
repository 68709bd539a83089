/* Starts one process of the sandbox: its own session, its cgroup, its user, few capabilities, the
 * system call filter. Fast: the child shares our memory until it execs. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/users.h"

struct spawn_opts {
    char *const *argv;
    char *const *envp;
    const char *path; /* where argv[0] is looked up */
    const char *cwd;
    const struct user *user;
    int stdin_fd, stdout_fd, stderr_fd;
    int cgroup_fd; /* -1: stay in ours */
    const uint8_t *seccomp_filter;
    size_t seccomp_filter_len; /* bytes */
};

enum spawn_stage {
    SPAWN_OK,
    SPAWN_CLONE, /* no process could be made */
    SPAWN_SETUP, /* user, capabilities, filter */
    SPAWN_CWD,   /* the directory is missing or closed to the user */
    SPAWN_EXEC,  /* the program: error_number says why */
};

struct spawn_result {
    enum spawn_stage stage;
    int error_number;
    pid_t pid;  /* a child to be waited for unless stage is SPAWN_CLONE; exits by itself on failure */
    int pid_fd; /* close it; -1 if stage is SPAWN_CLONE */
};

/* Once, before the first spawn. */
void spawn_init(void);
void spawn(const struct spawn_opts *opts, struct spawn_result *ret);
