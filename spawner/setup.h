/* The inside of a new sandbox, from clone to the agent's exec: runs in the child, in its own
 * namespaces, and reports one line of text over sync_fd if it fails. */
#pragma once

#include <stdint.h>

#include "spawner/host_cgroup.h"
#include "spawner/image.h"

#define SETUP_FDS_MAX (IMAGE_PARTS_MAX + 1)

struct setup {
    const char *id;
    const struct image *image;
    int sync_fd; /* SOCK_SEQPACKET: "go" with the mounts comes in, "R" or an error goes out */
    int listen_fd, agent_fd, seccomp_fd;
    const struct box_cgroup *cgroup;
    bool layer_on_disk;
    uint64_t layer_bytes;
    int64_t expire_unix_ms;
};

_Noreturn void setup_child(const struct setup *setup);

/* Parent: lets the child go on. fds: a mount for each directory part, then the disk layer if any. */
int setup_send_go(int sync_fd, const int *fds, size_t count);
