#include "spawner/box.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"
#include "spawner/box_record.h"
#include "spawner/setup.h"
#include "spawner/userns.h"

#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

#define START_TIMEOUT_MS 10000
#define REMOVE_RETRY_MS 2
#define REMOVE_NAPS 10
#define REMOVE_NAP_US 20
#define REMOVE_TRIES_MAX 2500
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

static const char *const box_states[] = {"starting", "running", "killing", "removing", "failed", "gone"};
static const uint32_t box_moves[] = {
    [BOX_STARTING] = SM_TO(BOX_RUNNING) | SM_TO(BOX_KILLING),
    [BOX_RUNNING] = SM_TO(BOX_KILLING),
    [BOX_KILLING] = SM_TO(BOX_REMOVING),
    [BOX_REMOVING] = SM_TO(BOX_FAILED) | SM_TO(BOX_GONE),
    [BOX_FAILED] = SM_TO(BOX_KILLING),
    [BOX_GONE] = 0,
};
static const struct sm_conf box_conf = {
    .name = "box", .states = box_states, .moves = box_moves, .count = BOX_STATE_MAX};

static struct box *box_new(const struct box_host *host, const char *id, enum box_state state) {
    struct box *box = xcalloc(1, sizeof *box);
    snprintf(box->id, sizeof box->id, "%s", id);
    box->host = host;
    box->pid_fd = box->sync_fd = box->dir_fd = -1;
    sm_init(&box->sm, &box_conf, (int)state, box->id);
    return box;
}

/* Closing alone is not enough: a child that has not executed yet still holds a copy, and epoll would
 * go on naming this box. */
static void close_fd(const struct box *box, int *fd) {
    if (*fd >= 0) {
        epoll_ctl(box->host->epoll_fd, EPOLL_CTL_DEL, *fd, NULL);
        close(*fd);
    }
    *fd = -1;
}

void box_destroy(struct box *box) {
    if (!box)
        return;
    close_fd(box, &box->pid_fd);
    close_fd(box, &box->sync_fd);
    close_fd(box, &box->dir_fd);
    free(box->destroy_seqs);
    free(box);
}

/* ---- Creation ---- */

static int take_slot(const struct box_host *host, uint32_t *ret, struct err *err) {
    for (uint32_t i = 0; i < host->slot_count; i++)
        if (!host->slots[i]) {
            host->slots[i] = 1;
            *ret = i;
            return 0;
        }
    return err_set(err, ERR_RESOURCE_EXHAUSTED, REASON(CAPACITY_EXHAUSTED), "no range of user ids is free");
}

static uint32_t first_uid(const struct box *box) {
    return box->host->uid_base + box->slot * USERNS_RANGE;
}

static int make_directory(struct box *box, struct err *err) {
    int parent = box->host->sandboxes_fd;
    if (mkdirat(parent, box->id, 0700) < 0)
        return err_set_errno(err, errno, "can't make the sandbox's directory");
    box->dir_fd = openat(parent, box->id, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (box->dir_fd < 0)
        return err_set_errno(err, errno, "can't open the sandbox's directory");
    if (!box->layer_on_disk)
        return 0;
    uid_t owner = first_uid(box);
    if (mkdirat(box->dir_fd, "layer", 0755) < 0 || fchownat(box->dir_fd, "layer", owner, owner, 0) < 0)
        return err_set_errno(err, errno, "can't make the sandbox's layer");
    return 0;
}

static void socket_address(int dir_fd, struct sockaddr_un *ret) {
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(ret->sun_path, sizeof ret->sun_path, "/proc/self/fd/%d/s", dir_fd);
}

static int bind_socket(int dir_fd, struct err *err) {
    struct sockaddr_un address;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socket_address(dir_fd, &address);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return err_set_errno(err, errno, "can't bind the agent's socket");
    return take_fd(&fd);
}

/* Mounts of the image's directories, through the child's user namespace; then the disk layer. */
static int send_mounts(struct box *box, const struct image *image, struct err *err) {
    int fds[SETUP_FDS_MAX];
    size_t count = 0;
    AUTO_CLOSE int userns_fd = userns_of(box->pid, err);
    int rc = userns_fd < 0 ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < image->part_count; i++) {
        if (image->parts[i].link[0])
            continue;
        fds[count] = image_part_mount(image, &image->parts[i], userns_fd, err);
        rc = fds[count] < 0 ? -1 : 0;
        count += rc == 0;
    }
    if (rc == 0 && box->layer_on_disk) {
        struct mount_attr private = {.propagation = MS_PRIVATE};
        fds[count] = (int)syscall(SYS_open_tree, box->dir_fd, "layer", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (fds[count] >= 0)
            syscall(SYS_mount_setattr, fds[count], "", AT_EMPTY_PATH, &private, sizeof private);
        rc = fds[count] < 0 ? err_set_errno(err, errno, "the sandbox's layer") : 0;
        count += rc == 0;
    }
    if (rc == 0 && setup_send_go(box->sync_fd, fds, count) < 0)
        rc = err_set_errno(err, errno, "the new sandbox's first process is gone");
    for (size_t i = 0; i < count; i++)
        close(fds[i]);
    return rc;
}

static int clone_child(struct box *box, const struct setup *setup, struct err *err) {
    struct clone_args args = {
        .flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWNET |
                 CLONE_PIDFD,
        .pidfd = (uint64_t)(uintptr_t)&box->pid_fd,
        .exit_signal = SIGCHLD,
    };
    if (setup->cgroup->agent_fd >= 0) {
        args.flags |= (uint64_t)CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)setup->cgroup->agent_fd;
    }
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0)
        setup_child(setup);
    if (pid < 0)
        return err_set_errno(err, errno, "can't clone into new namespaces");
    box->pid = (pid_t)pid;
    box->start_time = process_start_time(box->pid);
    return 0;
}

static int record(const struct box *box, struct err *err) {
    struct box_record entry = {.pid = box->pid,
                               .start_time = box->start_time,
                               .slot = box->slot,
                               .layer_on_disk = box->layer_on_disk};
    box_record_boot(&entry);
    return box_record_write(box->dir_fd, &entry, err);
}

/* The record is written before the child may go on: from then on a restart finds it. */
static int launch(struct box *box, const struct spawner_request *request, const struct image *image,
                  const struct box_cgroup *cgroup, struct err *err) {
    int pair[2];
    AUTO_CLOSE int listen_fd = bind_socket(box->dir_fd, err);
    if (listen_fd < 0)
        return -1;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return err_set_errno(err, errno, "socket pair");
    box->sync_fd = pair[0];
    AUTO_CLOSE int child_fd = pair[1];
    struct setup setup = {
        .id = box->id,
        .image = image,
        .sync_fd = child_fd,
        .listen_fd = listen_fd,
        .agent_fd = box->host->agent_fd,
        .seccomp_fd = box->host->seccomp_fd,
        .cgroup = cgroup,
        .layer_on_disk = request->layer_on_disk,
        .layer_bytes = request->layer_bytes,
        .expire_unix_ms = request->expire_unix_ms,
    };
    if (clone_child(box, &setup, err) < 0 || userns_map(box->pid, first_uid(box), err) < 0 ||
        record(box, err) < 0)
        return -1;
    return send_mounts(box, image, err);
}

/* Undoes a creation that failed before the box was handed out. Nothing ran inside yet but the first
 * process, which waits or has just been told to go; it is killed and awaited here. */
static void undo(struct box *box) {
    if (box->pid > 0) {
        syscall(SYS_pidfd_send_signal, box->pid_fd, SIGKILL, NULL, 0);
        waitpid(box->pid, NULL, 0);
    }
    box_cgroup_remove(box->host->cgroups, box->id);
    if (box->dir_fd >= 0) {
        static const char *const names[] = {"s", "box", "box.new"};
        for (size_t i = 0; i < ARRAY_LEN(names); i++)
            unlinkat(box->dir_fd, names[i], 0);
        unlinkat(box->dir_fd, "layer", AT_REMOVEDIR);
        unlinkat(box->host->sandboxes_fd, box->id, AT_REMOVEDIR);
    }
    box->host->slots[box->slot] = 0;
    box_destroy(box);
}

int box_create(const struct box_host *host, const struct spawner_request *request, struct box **ret,
               struct err *err) {
    const struct image *image = image_find(host->images, request->image);
    if (!image)
        return err_set(err, ERR_INVALID_ARGUMENT, REASON(IMAGE_NOT_FOUND), "no image \"%s\"", request->image);
    struct box *box = box_new(host, request->id, BOX_STARTING);
    box->layer_on_disk = request->layer_on_disk;
    if (take_slot(host, &box->slot, err) < 0) {
        box_destroy(box);
        return -1;
    }
    struct cgroup_limits limits = {request->memory_bytes, request->pids, request->cpu_milli};
    CLEANUP(box_cgroup_close) struct box_cgroup cgroup = {-1, -1, {-1, -1, -1}};
    if (make_directory(box, err) < 0 ||
        box_cgroup_make(host->cgroups, box->id, &limits, first_uid(box), &cgroup, err) < 0 ||
        launch(box, request, image, &cgroup, err) < 0) {
        undo(box);
        return -1;
    }
    box->create_seq = request->seq;
    box->due_ms = clock_monotonic_ms() + START_TIMEOUT_MS;
    *ret = box;
    return 0;
}

/* ---- After a restart ---- */

static bool still_lives(struct box *box) {
    box->pid_fd = (int)syscall(SYS_pidfd_open, box->pid, 0);
    return box->pid_fd >= 0 && process_start_time(box->pid) == box->start_time;
}

int box_adopt(const struct box_host *host, const char *id, struct box **ret, struct err *err) {
    struct box *box = box_new(host, id, BOX_RUNNING);
    struct box_record entry = {0};
    *ret = NULL;
    box->dir_fd = openat(host->sandboxes_fd, id, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (box->dir_fd < 0) {
        box_destroy(box);
        return err_set_errno(err, errno, "sandbox directory %s", id);
    }
    bool known = box_record_read(box->dir_fd, &entry);
    box->pid = entry.pid;
    box->start_time = entry.start_time;
    box->layer_on_disk = known ? entry.layer_on_disk : faccessat(box->dir_fd, "layer", F_OK, 0) == 0;
    box->slot = entry.slot < host->slot_count ? entry.slot : 0;
    if (known && still_lives(box)) {
        host->slots[box->slot] = 1;
    } else {
        close_fd(box, &box->pid_fd);
        box->pid = 0;
        box->slot = UINT32_MAX;
        box_kill(box);
    }
    *ret = box;
    return 0;
}

/* ---- Life ---- */

int box_connect(const struct box *box, struct err *err) {
    struct sockaddr_un address;
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (box->sm.state != BOX_RUNNING)
        return err_set(err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE), "the sandbox is %s",
                       sm_state_name(&box->sm));
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    socket_address(box->dir_fd, &address);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        err_set_errno(err, errno, "the sandbox's agent does not accept");
        err->code = ERR_UNAVAILABLE;
        err->reason = REASON(SANDBOX_UNREACHABLE);
        return -1;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.pid != box->pid)
        return err_set(err, ERR_INTERNAL, REASON(SANDBOX_UNREACHABLE),
                       "somebody else answers on the agent's socket");
    return take_fd(&fd);
}

void box_on_sync(struct box *box) {
    char text[300];
    ssize_t n = recv(box->sync_fd, text, sizeof text - 1, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (box->sm.state != BOX_STARTING) {
        close_fd(box, &box->sync_fd);
        return;
    }
    if (n == 1 && text[0] == 'R') {
        close_fd(box, &box->sync_fd);
        box->due_ms = 0;
        sm_move(&box->sm, BOX_RUNNING);
        return;
    }
    text[n > 0 ? n : 0] = '\0';
    err_set(&box->failure, ERR_UNAVAILABLE, REASON(SANDBOX_CREATE_FAILED), "sandbox setup: %s",
            n > 0 ? text : "its first process ended");
    box_kill(box);
}

void box_kill(struct box *box) {
    bool was_failed = box->sm.state == BOX_FAILED;
    if (box->sm.state != BOX_STARTING && box->sm.state != BOX_RUNNING && !was_failed)
        return;
    sm_move(&box->sm, BOX_KILLING);
    box->due_ms = 0;
    box->tries = 0;
    box_cgroup_kill(box->host->cgroups, box->id);
    if (box->pid_fd >= 0)
        syscall(SYS_pidfd_send_signal, box->pid_fd, SIGKILL, NULL, 0);
    else
        box_on_exit(box);
}

/* In the working directory: unlinks what can be unlinked, removes what is empty. A directory with
 * something in it is entered (1), when there is none left it returns 0. No descriptor per level: the
 * depth is the sandbox's choice. */
static int sweep_directory(void) {
    DIR *dir = opendir(".");
    int entered = 0;
    for (struct dirent *entry; dir && !entered && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || unlink(name) == 0 || rmdir(name) == 0)
            continue;
        struct stat st;
        entered = lstat(name, &st) == 0 && S_ISDIR(st.st_mode) && chmod(name, 0700) == 0 && chdir(name) == 0;
    }
    if (dir)
        closedir(dir);
    return entered;
}

/* Nothing else runs in it any more, so ".." is where we came from. */
static void remove_layer(void) {
    size_t depth = 0;
    if (chdir("layer") < 0)
        return;
    for (;;) {
        if (sweep_directory()) {
            depth++;
            continue;
        }
        if (chdir("..") < 0 || depth == 0)
            break;
        depth--;
    }
    rmdir("layer");
}

static void end_removal(struct box *box) {
    static const char *const names[] = {"s", "box", "box.new"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        unlinkat(box->dir_fd, names[i], 0);
    if (unlinkat(box->host->sandboxes_fd, box->id, AT_REMOVEDIR) < 0 && errno != ENOENT) {
        err_set_errno(&box->failure, errno, "can't remove the sandbox's directory");
        box->failure.code = ERR_UNAVAILABLE;
        box->failure.reason = REASON(TEARDOWN_FAILED);
        sm_move(&box->sm, BOX_FAILED);
        return;
    }
    if (box->slot < box->host->slot_count)
        box->host->slots[box->slot] = 0;
    sm_move(&box->sm, BOX_GONE);
}

/* A disk layer may hold millions of files: deleting them must not stall the spawner. */
static void start_remover(struct box *box) {
    box->remover = fork();
    if (box->remover == 0) {
        /* It may live long: it must hold neither the daemon's locks nor the broker's socket. */
        if (fchdir(box->dir_fd) == 0 && syscall(SYS_close_range, 3, ~0u, 0) == 0)
            remove_layer();
        _exit(0);
    }
    if (box->remover < 0) {
        box->remover = 0;
        box->due_ms = clock_monotonic_ms() + 100;
    }
}

void box_on_removed(struct box *box, int status) {
    (void)status; /* end_removal sees what is left */
    box->remover = 0;
    end_removal(box);
}

/* The last processes leave their cgroup a moment after they are dead. */
static void try_removal(struct box *box) {
    box->due_ms = 0;
    int rc = box_cgroup_remove(box->host->cgroups, box->id);
    for (int nap = 0; rc < 0 && errno == EBUSY && box->tries == 0 && nap < REMOVE_NAPS; nap++) {
        usleep(REMOVE_NAP_US); /* mostly enough, and far below the timer's millisecond */
        rc = box_cgroup_remove(box->host->cgroups, box->id);
    }
    if (rc < 0) {
        if (++box->tries < REMOVE_TRIES_MAX) {
            box->due_ms = clock_monotonic_ms() + REMOVE_RETRY_MS;
            return;
        }
        err_set_errno(&box->failure, errno, "can't remove the sandbox's cgroup");
        box->failure.code = ERR_UNAVAILABLE;
        box->failure.reason = REASON(TEARDOWN_FAILED);
        sm_move(&box->sm, BOX_FAILED);
        return;
    }
    if (box->layer_on_disk)
        start_remover(box);
    else
        end_removal(box);
}

void box_on_exit(struct box *box) {
    if (box->sm.state == BOX_STARTING && !err_is_set(&box->failure))
        err_set(&box->failure, ERR_UNAVAILABLE, REASON(SANDBOX_CREATE_FAILED),
                "sandbox setup: its first process ended");
    if (box->sm.state == BOX_STARTING || box->sm.state == BOX_RUNNING)
        sm_move(&box->sm, BOX_KILLING);
    if (box->sm.state != BOX_KILLING)
        return;
    close_fd(box, &box->pid_fd);
    close_fd(box, &box->sync_fd);
    box_cgroup_kill(box->host->cgroups, box->id); /* whoever was moved out of the pid namespace */
    sm_move(&box->sm, BOX_REMOVING);
    try_removal(box);
}

void box_on_due(struct box *box) {
    box->due_ms = 0;
    if (box->sm.state == BOX_STARTING) {
        err_set(&box->failure, ERR_UNAVAILABLE, REASON(SANDBOX_CREATE_FAILED),
                "the sandbox's agent was not ready after %d s", START_TIMEOUT_MS / 1000);
        box_kill(box);
    } else if (box->sm.state == BOX_REMOVING && !box->remover) {
        try_removal(box);
    }
}
