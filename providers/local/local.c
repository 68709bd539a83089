/* Turns provider calls into the spawner's messages and back. Replies are matched by seq; file
 * descriptors come with them (uv_pipe would not take pidfds, so recvmsg on a polled socket). */
#include "providers/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>
#include <uthash.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"
#include "spawner/protocol.h"

struct pending {
    uint32_t seq;
    provider_stream_cb stream_cb; /* one of the three */
    provider_done_cb done_cb;
    provider_list_cb list_cb;
    void *arg;
    UT_hash_handle hh;
};

struct unsent {
    struct spawner_request request;
    STAILQ_ENTRY(unsent) link;
};

struct local {
    struct provider provider;
    uv_poll_t poll;
    int fd;
    uint32_t next_seq;
    struct pending *pending;
    STAILQ_HEAD(, unsent) unsent;
    const char *const *images;
    const char *const *notes;
    const struct provider_events *events;
    void *arg;
    bool closing;
};

static void on_poll(uv_poll_t *poll, int status, int events);

/* ---- Requests ---- */

static void flush(struct local *local) {
    while (!STAILQ_EMPTY(&local->unsent)) {
        struct unsent *unsent = STAILQ_FIRST(&local->unsent);
        ssize_t n = send(local->fd, &unsent->request, sizeof unsent->request, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            break;
        STAILQ_REMOVE_HEAD(&local->unsent, link); /* another failure is seen as EOF */
        free(unsent);
    }
    uv_poll_start(&local->poll, UV_READABLE | (STAILQ_EMPTY(&local->unsent) ? 0 : UV_WRITABLE), on_poll);
}

static struct pending *submit(struct local *local, struct spawner_request *request, void *arg) {
    struct unsent *unsent = xcalloc(1, sizeof *unsent);
    struct pending *pending = xcalloc(1, sizeof *pending);
    pending->seq = request->seq = ++local->next_seq;
    pending->arg = arg;
    HASH_ADD(hh, local->pending, seq, sizeof pending->seq, pending);
    unsent->request = *request;
    STAILQ_INSERT_TAIL(&local->unsent, unsent, link);
    flush(local);
    return pending;
}

static void local_create_sandbox(struct provider *provider, const struct provider_spec *spec,
                                 provider_stream_cb cb, void *arg) {
    struct local *local = CONTAINER_OF(provider, struct local, provider);
    struct spawner_request request = {
        .kind = SPAWNER_CREATE,
        .layer_on_disk = spec->layer_on_disk,
        .layer_bytes = spec->layer_bytes,
        .memory_bytes = spec->memory_bytes,
        .pids = spec->pids,
        .cpu_milli = (uint32_t)(spec->cpu * 1000.0),
        .expire_unix_ms = spec->expire_unix_ms,
    };
    snprintf(request.id, sizeof request.id, "%s", spec->id);
    snprintf(request.image, sizeof request.image, "%s", spec->image);
    submit(local, &request, arg)->stream_cb = cb;
}

static void local_open_stream(struct provider *provider, const char *id, provider_stream_cb cb, void *arg) {
    struct local *local = CONTAINER_OF(provider, struct local, provider);
    struct spawner_request request = {.kind = SPAWNER_CONNECT};
    snprintf(request.id, sizeof request.id, "%s", id);
    submit(local, &request, arg)->stream_cb = cb;
}

static void local_destroy_sandbox(struct provider *provider, const char *id, provider_done_cb cb, void *arg) {
    struct local *local = CONTAINER_OF(provider, struct local, provider);
    struct spawner_request request = {.kind = SPAWNER_DESTROY};
    snprintf(request.id, sizeof request.id, "%s", id);
    submit(local, &request, arg)->done_cb = cb;
}

static void local_list_owned(struct provider *provider, provider_list_cb cb, void *arg) {
    struct local *local = CONTAINER_OF(provider, struct local, provider);
    struct spawner_request request = {.kind = SPAWNER_LIST};
    submit(local, &request, arg)->list_cb = cb;
}

/* ---- Replies ---- */

static void complete(struct local *local, struct pending *pending, int fd, const struct err *err) {
    HASH_DEL(local->pending, pending);
    if (pending->stream_cb)
        pending->stream_cb(pending->arg, fd, err);
    else if (pending->done_cb)
        pending->done_cb(pending->arg, err);
    else
        pending->list_cb(pending->arg, NULL, false, err);
    if (fd >= 0 && !pending->stream_cb)
        close(fd);
    free(pending);
}

static void on_reply(struct local *local, const struct spawner_reply *reply, int fd) {
    struct pending *pending = NULL;
    struct err err = {0};
    if (reply->code)
        err_set(&err, (enum err_code)reply->code, reply->reason, "%s", reply->text);
    if (reply->fd_attached && fd < 0)
        err_set(&err, ERR_UNAVAILABLE, SANDLOT__V1__ERROR_REASON__ERROR_REASON_SANDBOX_UNREACHABLE,
                "the broker has no descriptor left for the connection");
    const struct err *outcome = err_is_set(&err) ? &err : NULL;
    if (reply->kind == SPAWNER_EXITED) {
        local->events->exited(local->arg, reply->id);
        return;
    }
    HASH_FIND(hh, local->pending, &reply->seq, sizeof reply->seq, pending);
    if (!pending) {
        if (fd >= 0)
            close(fd);
        return;
    }
    if (reply->kind == SPAWNER_ITEM)
        pending->list_cb(pending->arg, reply->id, !outcome, NULL);
    else
        complete(local, pending, fd, outcome);
}

static void complete_all(struct local *local, enum err_code code, const char *why) {
    struct pending *pending, *next;
    struct err err;
    err_set(&err, code, SANDLOT__V1__ERROR_REASON__ERROR_REASON_NOT_SERVING, "%s", why);
    HASH_ITER (hh, local->pending, pending, next)
        complete(local, pending, -1, &err);
}

/* False: nothing more to read now. */
static bool receive_one(struct local *local) {
    struct spawner_reply reply;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {&reply, sizeof reply};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    ssize_t n = recvmsg(local->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EINTR;
    if (n == 0) {
        uv_poll_stop(&local->poll);
        log_error("local", "the spawner is gone");
        complete_all(local, ERR_UNAVAILABLE, "the spawner is gone");
        local->events->lost(local->arg);
        return false;
    }
    int fd = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    reply.id[sizeof reply.id - 1] = '\0';
    reply.text[sizeof reply.text - 1] = '\0';
    if (n == (ssize_t)sizeof reply)
        on_reply(local, &reply, fd);
    else if (fd >= 0)
        close(fd);
    return true;
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)status;
    struct local *local = CONTAINER_OF(poll, struct local, poll);
    if (events & UV_WRITABLE)
        flush(local);
    while (!local->closing && receive_one(local)) {
    }
}

/* ---- Life ---- */

static const char *const *local_images(struct provider *provider) {
    return CONTAINER_OF(provider, struct local, provider)->images;
}

static const char *const *local_notes(struct provider *provider) {
    return CONTAINER_OF(provider, struct local, provider)->notes;
}

static void on_poll_closed(uv_handle_t *handle) {
    struct local *local = CONTAINER_OF((uv_poll_t *)handle, struct local, poll);
    close(local->fd);
    free(local);
}

static void local_close(struct provider *provider) {
    struct local *local = CONTAINER_OF(provider, struct local, provider);
    local->closing = true;
    complete_all(local, ERR_CANCELLED, "the broker is shutting down");
    while (!STAILQ_EMPTY(&local->unsent)) {
        struct unsent *unsent = STAILQ_FIRST(&local->unsent);
        STAILQ_REMOVE_HEAD(&local->unsent, link);
        free(unsent);
    }
    uv_close((uv_handle_t *)&local->poll, on_poll_closed);
}

static const struct provider_ops local_ops = {
    .name = "local",
    .create = local_create_sandbox,
    .open_stream = local_open_stream,
    .destroy = local_destroy_sandbox,
    .list_owned = local_list_owned,
    .images = local_images,
    .notes = local_notes,
    .close = local_close,
};

struct provider *local_create(uv_loop_t *loop, int spawner_fd, const char *const *images,
                              const char *const *notes, const struct provider_events *events, void *arg) {
    struct local *local = xcalloc(1, sizeof *local);
    local->provider = (struct provider){.ops = &local_ops, .dies_with_boot = true};
    local->fd = spawner_fd;
    local->images = images;
    local->notes = notes;
    local->events = events;
    local->arg = arg;
    STAILQ_INIT(&local->unsent);
    uv_poll_init(loop, &local->poll, spawner_fd);
    uv_poll_start(&local->poll, UV_READABLE, on_poll);
    return &local->provider;
}
