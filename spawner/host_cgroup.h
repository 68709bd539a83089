/* The host's cgroup hierarchies: where a sandbox's limits and its kill switch live. One unified tree
 * (cgroup v2, or the hybrid's without controllers) and up to four v1 controllers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"
#include "common/id.h"

enum host_cgroup_controller { HOST_MEMORY, HOST_PIDS, HOST_CPU, HOST_CONTROLLER_MAX };

#define HOST_CGROUP_PATH_MAX 512

struct host_cgroups {
    char unified[HOST_CGROUP_PATH_MAX]; /* directory of this daemon's sandboxes; empty: none */
    char v1[HOST_CONTROLLER_MAX][HOST_CGROUP_PATH_MAX];
    bool v2_controllers[HOST_CONTROLLER_MAX]; /* limits are set in the unified tree */
    char own[HOST_CGROUP_PATH_MAX];           /* where we were; empty unless we moved into a leaf below it */
};

struct cgroup_limits {
    uint64_t memory_bytes;
    uint32_t pids;
    uint32_t cpu_milli;
};

/* What one sandbox's first process needs to be born inside; fds are -1 where there is none. */
struct box_cgroup {
    int box_fd;                         /* directory of the sandbox in the unified tree */
    int agent_fd;                       /* its agent/ */
    int tasks_fds[HOST_CONTROLLER_MAX]; /* v1: write "0" from inside */
};

/* Finds and prepares them for sandboxes of this broker. Never fails: what is missing stays empty.
 * The places are remembered in the state directory: a daemon that is started again from another cgroup
 * must find those of the sandboxes it adopts. */
void host_cgroups_find(struct host_cgroups *ret, const char *broker_id, int state_fd);
/* Removes what host_cgroups_find made, if empty, and moves back. */
void host_cgroups_remove(const struct host_cgroups *cgroups, const char *broker_id, int state_fd);

int box_cgroup_make(const struct host_cgroups *cgroups, const char *id, const struct cgroup_limits *limits,
                    uid_t owner, struct box_cgroup *ret, struct err *err);
void box_cgroup_close(struct box_cgroup *cgroup);
/* SIGKILL to everything in it, at once. False: there is no such switch here. */
bool box_cgroup_kill(const struct host_cgroups *cgroups, const char *id);
/* 0: gone. -1, errno EBUSY: something still dies in it, try again. */
int box_cgroup_remove(const struct host_cgroups *cgroups, const char *id);
