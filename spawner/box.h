/* One local sandbox as the spawner sees it: a process, its cgroup, its directory. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uthash.h>

#include "common/err.h"
#include "common/id.h"
#include "common/sm.h"
#include "spawner/host_cgroup.h"
#include "spawner/image.h"
#include "spawner/protocol.h"

/*
 *  STARTING --agent listens--> RUNNING --destroy, or the process ended--> KILLING
 *     +-- failed, timed out -----------------------------------------------^ |
 *                                              the process is gone           v
 *            FAILED <--(cgroup or directory cannot be removed)----------- REMOVING --> GONE
 *               +--destroy again--> KILLING
 */
enum box_state { BOX_STARTING, BOX_RUNNING, BOX_KILLING, BOX_REMOVING, BOX_FAILED, BOX_GONE, BOX_STATE_MAX };

/* What all boxes share; owned by the spawner. */
struct box_host {
    const struct image_set *images;
    const struct host_cgroups *cgroups;
    int sandboxes_fd, agent_fd, seccomp_fd;
    int epoll_fd; /* where pid_fd and sync_fd are watched */
    uint32_t uid_base;
    uint8_t *slots; /* 1 = this range of users is taken */
    uint32_t slot_count;
};

struct box {
    char id[ID_MAX];
    struct sm sm;
    const struct box_host *host;
    pid_t pid;
    uint64_t start_time; /* of the process, in kernel ticks since boot: tells pids apart */
    int pid_fd, sync_fd, dir_fd;
    uint32_t slot;
    bool layer_on_disk, asked_to_go;
    pid_t remover;   /* process that deletes a disk layer; 0: none */
    uint64_t due_ms; /* monotonic: start timeout, or next try to remove; 0: nothing due */
    unsigned tries;
    uint32_t create_seq; /* request to answer while STARTING */
    struct err failure;  /* why it did not start, or can't be removed */
    uint32_t *destroy_seqs;
    size_t destroy_count;
    UT_hash_handle hh;
};

/* The process exists when this returns 0; then watch pid_fd and sync_fd. */
int box_create(const struct box_host *host, const struct spawner_request *request, struct box **ret,
               struct err *err);
/* From the directory a predecessor left. 0 and NULL: nothing alive, and nothing left of it. */
int box_adopt(const struct box_host *host, const char *id, struct box **ret, struct err *err);
void box_destroy(struct box *box); /* frees; the sandbox lives on if it is RUNNING */

void box_on_sync(struct box *box);                /* sync_fd is readable */
void box_on_exit(struct box *box);                /* pid_fd is readable */
void box_on_due(struct box *box);                 /* due_ms has passed */
void box_on_removed(struct box *box, int status); /* its remover ended */
void box_kill(struct box *box);                   /* STARTING, RUNNING, FAILED -> KILLING */
/* A new connection to its agent; checks that the agent is who accepts. */
int box_connect(const struct box *box, struct err *err);
