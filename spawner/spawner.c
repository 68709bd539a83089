#include "spawner/spawner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"
#include "spawner/box.h"
#include "spawner/filter.h"
#include "spawner/protocol.h"

#define SLOTS_MAX 16384u
#define RESTART_FIRST_MS 50
#define RESTART_MAX_MS 5000
#define STABLE_MS 10000
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

struct outgoing {
    struct spawner_reply reply;
    int fd; /* -1: none */
    STAILQ_ENTRY(outgoing) link;
};

struct spawner {
    char broker_id[ID_MAX];
    int state_fd;
    struct image_set images;
    struct host_cgroups cgroups;
    struct box_host host;
    struct box *boxes;
    const char *notes[4];
    size_t note_count;

    int epoll_fd, signal_fd;
    int broker_fd; /* -1: the broker is being restarted */
    pid_t broker_pid;
    uint64_t broker_started_ms, restart_due_ms;
    unsigned restart_wait_ms;
    bool stopping;
    STAILQ_HEAD(, outgoing) outgoing;
};

/* epoll data: a pointer whose low bits say which fd of the thing it is. */
enum source { SOURCE_BROKER, SOURCE_SIGNAL, SOURCE_BOX_SYNC, SOURCE_BOX_EXIT };

static void watch(struct spawner *spawner, int fd, uint32_t events, const void *thing, enum source source) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)(uintptr_t)thing | source};
    if (epoll_ctl(spawner->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0)
        epoll_ctl(spawner->epoll_fd, EPOLL_CTL_MOD, fd, &event);
}

static void watch_box(struct spawner *spawner, struct box *box) {
    if (box->pid_fd >= 0)
        watch(spawner, box->pid_fd, EPOLLIN, box, SOURCE_BOX_EXIT);
    if (box->sync_fd >= 0)
        watch(spawner, box->sync_fd, EPOLLIN, box, SOURCE_BOX_SYNC);
}

/* ---- To the broker ---- */

static bool send_now(struct spawner *spawner, const struct outgoing *out) {
    struct iovec part = {(void *)(uintptr_t)&out->reply, sizeof out->reply};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (out->fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &out->fd, sizeof(int));
    }
    ssize_t n = sendmsg(spawner->broker_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return n >= 0 || errno != EAGAIN;
}

static void outgoing_destroy(struct outgoing *out) {
    if (out->fd >= 0)
        close(out->fd);
    free(out);
}

static void flush_outgoing(struct spawner *spawner) {
    while (!STAILQ_EMPTY(&spawner->outgoing)) {
        struct outgoing *out = STAILQ_FIRST(&spawner->outgoing);
        if (spawner->broker_fd >= 0 && !send_now(spawner, out))
            break;
        STAILQ_REMOVE_HEAD(&spawner->outgoing, link);
        outgoing_destroy(out);
    }
    if (spawner->broker_fd >= 0)
        watch(spawner, spawner->broker_fd,
              EPOLLIN | (STAILQ_EMPTY(&spawner->outgoing) ? 0 : (uint32_t)EPOLLOUT), spawner, SOURCE_BROKER);
}

static void reply(struct spawner *spawner, enum spawner_reply_kind kind, uint32_t seq, const char *id,
                  const struct err *err, int fd) {
    struct outgoing *out = xcalloc(1, sizeof *out);
    out->fd = fd;
    out->reply.kind = kind;
    out->reply.seq = seq;
    out->reply.fd_attached = fd >= 0;
    snprintf(out->reply.id, sizeof out->reply.id, "%s", id);
    if (err && err_is_set(err)) {
        out->reply.code = (int32_t)err->code;
        out->reply.reason = err->reason;
        snprintf(out->reply.text, sizeof out->reply.text, "%.*s", SPAWNER_TEXT_MAX - 1, err->text);
    }
    bool first = STAILQ_EMPTY(&spawner->outgoing);
    STAILQ_INSERT_TAIL(&spawner->outgoing, out, link);
    if (first)
        flush_outgoing(spawner);
}

static void reply_connected(struct spawner *spawner, struct box *box, uint32_t seq) {
    struct err err = {0};
    int fd = box_connect(box, &err);
    reply(spawner, SPAWNER_DONE, seq, box->id, &err, fd);
}

/* ---- Boxes ---- */

static void answer_destroys(struct spawner *spawner, struct box *box, const struct err *err) {
    for (size_t i = 0; i < box->destroy_count; i++)
        reply(spawner, SPAWNER_DONE, box->destroy_seqs[i], box->id, err, -1);
    box->destroy_count = 0;
}

/* After anything happened to a box: answer what is answerable now, drop it when it is gone. */
static void settle(struct spawner *spawner, struct box *box) {
    switch (box->sm.state) {
    case BOX_RUNNING:
        if (box->create_seq)
            reply_connected(spawner, box, box->create_seq);
        box->create_seq = 0;
        return;
    case BOX_FAILED:
        log_error("spawner", "id=%s %s", box->id, box->failure.text);
        if (box->create_seq)
            reply(spawner, SPAWNER_DONE, box->create_seq, box->id, &box->failure, -1);
        box->create_seq = 0;
        answer_destroys(spawner, box, &box->failure);
        return;
    case BOX_GONE:
        if (box->create_seq)
            reply(spawner, SPAWNER_DONE, box->create_seq, box->id, &box->failure, -1);
        answer_destroys(spawner, box, NULL);
        if (!box->asked_to_go && !box->create_seq)
            reply(spawner, SPAWNER_EXITED, 0, box->id, NULL, -1);
        HASH_DEL(spawner->boxes, box);
        box_destroy(box);
        return;
    default: return;
    }
}

static struct box *find_box(struct spawner *spawner, const char *id) {
    struct box *box = NULL;
    HASH_FIND_STR(spawner->boxes, id, box);
    return box;
}

static void do_create(struct spawner *spawner, struct spawner_request *request) {
    struct err err = {0};
    struct box *box;
    if (find_box(spawner, request->id)) {
        err_set(&err, ERR_ALREADY_EXISTS, REASON(INTERNAL), "sandbox %s exists", request->id);
    } else if (box_create(&spawner->host, request, &box, &err) == 0) {
        HASH_ADD_STR(spawner->boxes, id, box);
        watch_box(spawner, box);
        return;
    }
    if (err.reason == 0)
        err.reason = REASON(SANDBOX_CREATE_FAILED);
    if (err.code == ERR_INTERNAL)
        err.code = ERR_UNAVAILABLE;
    reply(spawner, SPAWNER_DONE, request->seq, request->id, &err, -1);
}

static void do_connect(struct spawner *spawner, const struct spawner_request *request) {
    struct err err = {0};
    struct box *box = find_box(spawner, request->id);
    if (box) {
        reply_connected(spawner, box, request->seq);
        return;
    }
    err_set(&err, ERR_NOT_FOUND, REASON(SANDBOX_NOT_FOUND), "no sandbox %s here", request->id);
    reply(spawner, SPAWNER_DONE, request->seq, request->id, &err, -1);
}

static void do_destroy(struct spawner *spawner, const struct spawner_request *request) {
    struct box *box = find_box(spawner, request->id);
    if (!box) {
        reply(spawner, SPAWNER_DONE, request->seq, request->id, NULL, -1);
        return;
    }
    size_t n = box->destroy_count + 1;
    uint32_t *seqs = realloc(box->destroy_seqs, n * sizeof *seqs);
    if (!seqs)
        abort();
    seqs[n - 1] = request->seq;
    box->destroy_seqs = seqs;
    box->destroy_count = n;
    box->asked_to_go = true;
    box_kill(box);
    settle(spawner, box);
}

static void do_list(struct spawner *spawner, const struct spawner_request *request) {
    struct box *box, *next;
    HASH_ITER (hh, spawner->boxes, box, next) {
        struct err err = {0};
        if (box->sm.state != BOX_RUNNING)
            err_set(&err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE), "%s", sm_state_name(&box->sm));
        reply(spawner, SPAWNER_ITEM, request->seq, box->id, &err, -1);
    }
    reply(spawner, SPAWNER_END, request->seq, "", NULL, -1);
}

/* The broker is the less trusted side: every field is checked before it is used. */
static bool request_is_sane(struct spawner_request *request) {
    request->id[sizeof request->id - 1] = '\0';
    request->image[sizeof request->image - 1] = '\0';
    if (request->kind == SPAWNER_LIST)
        return true;
    if (!id_is_valid("sb-", request->id))
        return false;
    return request->kind != SPAWNER_CREATE ||
           (request->layer_bytes > 0 && request->layer_bytes <= UINT64_C(1) << 50);
}

static void on_broker_readable(struct spawner *spawner) {
    struct spawner_request request;
    for (;;) {
        ssize_t n = recv(spawner->broker_fd, &request, sizeof request, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return; /* its death is seen by SIGCHLD */
        if (n != (ssize_t)sizeof request || !request_is_sane(&request)) {
            log_error("spawner", "refused a malformed request");
            continue;
        }
        switch (request.kind) {
        case SPAWNER_CREATE: do_create(spawner, &request); break;
        case SPAWNER_CONNECT: do_connect(spawner, &request); break;
        case SPAWNER_DESTROY: do_destroy(spawner, &request); break;
        case SPAWNER_LIST: do_list(spawner, &request); break;
        default: log_error("spawner", "refused a request of kind %u", request.kind);
        }
    }
}

/* ---- Start ---- */

static int open_below(int state_fd, const char *name, struct err *err) {
    if (mkdirat(state_fd, name, 0700) < 0 && errno != EEXIST)
        return err_set_errno(err, errno, "can't make %s in the state directory", name);
    int fd = openat(state_fd, name, O_DIRECTORY | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    return fd >= 0 ? fd : err_set_errno(err, errno, "%s in the state directory", name);
}

static int adopt_all(struct spawner *spawner, struct err *err) {
    int copy = openat(spawner->host.sandboxes_fd, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    if (!dir)
        return err_set_errno(err, errno, "sandboxes directory");
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct box *box;
        struct err ignored = {0};
        if (!id_is_valid("sb-", entry->d_name))
            continue;
        if (box_adopt(&spawner->host, entry->d_name, &box, &ignored) < 0) {
            log_error("spawner", "%s", ignored.text);
            continue;
        }
        HASH_ADD_STR(spawner->boxes, id, box);
        watch_box(spawner, box);
        settle(spawner, box);
    }
    closedir(dir);
    return 0;
}

static void take_notes(struct spawner *spawner) {
    if (!spawner->cgroups.unified[0])
        spawner->notes[spawner->note_count++] =
            "no cgroup v2 tree: the processes of a command are found by session, ancestry and marker "
            "when they are killed";
    if (!spawner->cgroups.v2_controllers[HOST_MEMORY] && !spawner->cgroups.v1[HOST_MEMORY][0])
        spawner->notes[spawner->note_count++] = "no memory controller: memory limits are not enforced";
    if (!spawner->cgroups.v2_controllers[HOST_PIDS] && !spawner->cgroups.v1[HOST_PIDS][0])
        spawner->notes[spawner->note_count++] = "no pids controller: process limits are not enforced";
    if (!spawner->images.images[0].idmapped)
        spawner->notes[spawner->note_count++] =
            "image host: the file system of / can't map users, its files belong to nobody inside and "
            "can't be changed";
}

struct spawner *spawner_create(const struct spawner_config *config, struct err *err) {
    struct spawner *spawner = xcalloc(1, sizeof *spawner);
    snprintf(spawner->broker_id, sizeof spawner->broker_id, "%s", config->broker_id);
    spawner->broker_fd = -1;
    STAILQ_INIT(&spawner->outgoing);
    struct box_host *host = &spawner->host;
    AUTO_CLOSE int images_fd = open_below(config->state_fd, "images", err);
    host->sandboxes_fd = images_fd < 0 ? -1 : open_below(config->state_fd, "sandboxes", err);
    if (host->sandboxes_fd < 0)
        return NULL;
    host->agent_fd = open(config->agent_path, O_RDONLY | O_CLOEXEC);
    if (host->agent_fd < 0) {
        err_set_errno(err, errno, "agent %s", config->agent_path);
        return NULL;
    }
    host->seccomp_fd = filter_create(err);
    if (host->seccomp_fd < 0 || image_set_create(config, &spawner->images, err) < 0)
        return NULL;
    spawner->state_fd = config->state_fd;
    host_cgroups_find(&spawner->cgroups, config->broker_id, config->state_fd);
    host->images = &spawner->images;
    host->cgroups = &spawner->cgroups;
    host->uid_base = config->uid_base;
    host->slot_count = (UINT32_MAX - config->uid_base) / 65536u;
    if (host->slot_count > SLOTS_MAX)
        host->slot_count = SLOTS_MAX;
    host->slots = xcalloc(host->slot_count, 1);
    spawner->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    host->epoll_fd = spawner->epoll_fd;
    take_notes(spawner);
    return adopt_all(spawner, err) < 0 ? NULL : spawner;
}

const char *const *spawner_notes(const struct spawner *spawner, size_t *ret_count) {
    *ret_count = spawner->note_count;
    return spawner->notes;
}

/* ---- The broker process ---- */

/* In the forked broker: it must hold nothing of what only the spawner may touch. */
static void forget(struct spawner *spawner) {
    struct box *box, *next;
    spawner->host.epoll_fd = -1; /* shared with the parent after a fork: must not be changed */
    HASH_ITER (hh, spawner->boxes, box, next) {
        HASH_DEL(spawner->boxes, box);
        box_destroy(box);
    }
    close(spawner->epoll_fd);
    close(spawner->signal_fd);
    close(spawner->host.sandboxes_fd);
    close(spawner->host.agent_fd);
    close(spawner->host.seccomp_fd);
    while (!STAILQ_EMPTY(&spawner->outgoing)) {
        struct outgoing *out = STAILQ_FIRST(&spawner->outgoing);
        STAILQ_REMOVE_HEAD(&spawner->outgoing, link);
        outgoing_destroy(out);
    }
    free(spawner->host.slots);
    image_set_fini(&spawner->images);
    free(spawner);
}

static void start_broker(struct spawner *spawner, int (*broker)(int spawner_fd, void *arg), void *arg) {
    int pair[2];
    spawner->restart_due_ms = 0;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
        log_error("spawner", "no socket pair for the broker: %s", strerror(errno));
        spawner->restart_due_ms = clock_monotonic_ms() + RESTART_MAX_MS;
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        close(pair[0]);
        forget(spawner);
        exit(broker(pair[1], arg));
    }
    close(pair[1]);
    if (pid < 0) {
        close(pair[0]);
        spawner->restart_due_ms = clock_monotonic_ms() + RESTART_MAX_MS;
        return;
    }
    spawner->broker_pid = pid;
    spawner->broker_fd = pair[0];
    spawner->broker_started_ms = clock_monotonic_ms();
    flush_outgoing(spawner);
}

/* True: the daemon ends, with *ret_code. */
static bool on_broker_death(struct spawner *spawner, int status, int *ret_code) {
    close(spawner->broker_fd);
    spawner->broker_fd = -1;
    spawner->broker_pid = 0;
    flush_outgoing(spawner); /* answers for a broker that is gone: dropped */
    struct box *box, *next;
    HASH_ITER (hh, spawner->boxes, box, next) {
        box->create_seq = 0;
        box->destroy_count = 0;
    }
    if (WIFEXITED(status) || spawner->stopping) {
        *ret_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        return true;
    }
    uint64_t now = clock_monotonic_ms();
    bool was_stable = now - spawner->broker_started_ms > STABLE_MS;
    unsigned wait = was_stable || !spawner->restart_wait_ms ? RESTART_FIRST_MS : spawner->restart_wait_ms * 2;
    spawner->restart_wait_ms = wait > RESTART_MAX_MS ? RESTART_MAX_MS : wait;
    spawner->restart_due_ms = now + spawner->restart_wait_ms;
    log_error("spawner", "the broker died of signal %d; starting it again in %u ms", WTERMSIG(status),
              spawner->restart_wait_ms);
    return false;
}

static bool on_signal(struct spawner *spawner, int *ret_code) {
    struct signalfd_siginfo info;
    bool over = false;
    while (read(spawner->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        spawner->stopping = true;
        if (spawner->broker_pid > 0)
            kill(spawner->broker_pid, SIGTERM);
        else
            over = true;
    }
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid == spawner->broker_pid) {
            over = on_broker_death(spawner, status, ret_code) || over;
            continue;
        }
        struct box *box, *next;
        HASH_ITER (hh, spawner->boxes, box, next)
            if (box->remover == pid) {
                box_on_removed(box, status);
                settle(spawner, box);
                break;
            }
    }
    return over;
}

static int next_timeout(const struct spawner *spawner) {
    uint64_t due = spawner->restart_due_ms;
    for (const struct box *box = spawner->boxes; box; box = box->hh.next)
        if (box->due_ms && (!due || box->due_ms < due))
            due = box->due_ms;
    uint64_t now = clock_monotonic_ms();
    return !due ? -1 : due <= now ? 0 : due - now > 60000 ? 60000 : (int)(due - now);
}

static void run_due(struct spawner *spawner) {
    uint64_t now = clock_monotonic_ms();
    struct box *box, *next;
    HASH_ITER (hh, spawner->boxes, box, next)
        if (box->due_ms && box->due_ms <= now) {
            box_on_due(box);
            settle(spawner, box);
        }
}

static bool handle_event(struct spawner *spawner, const struct epoll_event *event, int *ret_code) {
    struct box *box = (struct box *)(uintptr_t)(event->data.u64 & ~UINT64_C(7));
    switch ((enum source)(event->data.u64 & 7)) {
    case SOURCE_SIGNAL: return on_signal(spawner, ret_code);
    case SOURCE_BROKER:
        if (event->events & EPOLLOUT)
            flush_outgoing(spawner);
        if (spawner->broker_fd >= 0 && (event->events & EPOLLIN))
            on_broker_readable(spawner);
        return false;
    case SOURCE_BOX_SYNC: box_on_sync(box); break;
    case SOURCE_BOX_EXIT: box_on_exit(box); break;
    }
    settle(spawner, box);
    return false;
}

int spawner_run(struct spawner *spawner, int (*broker)(int spawner_fd, void *arg), void *arg) {
    sigset_t watched;
    sigemptyset(&watched);
    sigaddset(&watched, SIGCHLD);
    sigaddset(&watched, SIGTERM);
    sigaddset(&watched, SIGINT);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    signal(SIGPIPE, SIG_IGN);
    spawner->signal_fd = signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
    watch(spawner, spawner->signal_fd, EPOLLIN, spawner, SOURCE_SIGNAL);
    start_broker(spawner, broker, arg);
    int code = 1;
    for (;;) {
        /* One at a time: handling one event may free the box that a later one names. */
        struct epoll_event event;
        int n = epoll_wait(spawner->epoll_fd, &event, 1, next_timeout(spawner));
        if (n > 0 && handle_event(spawner, &event, &code))
            break;
        run_due(spawner);
        if (spawner->restart_due_ms && clock_monotonic_ms() >= spawner->restart_due_ms)
            start_broker(spawner, broker, arg);
    }
    if (!spawner->boxes)
        host_cgroups_remove(&spawner->cgroups, spawner->broker_id, spawner->state_fd);
    forget(spawner);
    return code;
}
