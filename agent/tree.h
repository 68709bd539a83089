/* The processes of one command, however they hide: by cgroup where there is one, else by session,
 * ancestry and the marker SANDLOT_EXEC in their environment. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

struct cgroup_slot;

struct tree {
    struct cgroup_slot *slot; /* NULL: best effort */
    pid_t leader;             /* also its session and process group */
    const char *exec_id;
};

bool tree_is_gone(const struct tree *tree);
void tree_signal(const struct tree *tree, int signal);
