#include "broker/sandbox/transfer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/link/file_stream.h"
#include "broker/sandbox/registry_internal.h"
#include "common/cleanup.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define BACKLOG_MAX (512u * 1024) /* bytes on their way to the sandbox */
#define UNPACK_MAX (64u * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

struct transfer {
    struct sandbox_op op;
    struct sandbox *sandbox;
    uv_loop_t *loop;
    struct file_stream *stream; /* NULL while the connection is being opened */
    const char *method;
    union {
        Sandlot__Agent__V1__UploadOpen upload;
        Sandlot__Agent__V1__DownloadOpen download;
    } request;
    char *path;
    const struct transfer_ops *ops;
    void *arg;
    bool opening, over, wants_room, has_info;
};

static void free_if_over(struct transfer *transfer) {
    if (!transfer->over || transfer->opening)
        return;
    file_stream_close(transfer->stream);
    free(transfer->path);
    free(transfer);
}

/* Detaches it from the sandbox; it lives on only until a pending open has come back. */
static void end(struct transfer *transfer) {
    transfer->over = true;
    sandbox_remove_op(&transfer->op);
}

static void finish(struct transfer *transfer, uint64_t size, const struct err *err) {
    const struct transfer_ops *ops = transfer->ops;
    void *arg = transfer->arg;
    struct err told;
    if (err) {
        told = *err;
        sandbox_explain(transfer->sandbox, &told);
        err = &told;
    }
    end(transfer);
    ops->done(arg, size, err);
    free_if_over(transfer);
}

static void on_sandbox_end(struct sandbox_op *op, const struct err *err) {
    struct transfer *transfer = CONTAINER_OF(op, struct transfer, op);
    transfer->over = true;
    transfer->ops->done(transfer->arg, 0, err);
    free_if_over(transfer);
}

void transfer_abandon(struct transfer *transfer) {
    end(transfer);
    free_if_over(transfer);
}

/* ---- The stream's events ---- */

static void on_ready(void *arg) {
    struct transfer *transfer = arg;
    if (transfer->ops->writable)
        transfer->ops->writable(transfer->arg);
}

static void on_drained(void *arg) {
    struct transfer *transfer = arg;
    if (!transfer->wants_room)
        return;
    transfer->wants_room = false;
    transfer->ops->writable(transfer->arg);
}

static void deliver_info(struct transfer *transfer, const uint8_t *bytes, size_t len) {
    struct err err = {0};
    AUTO_ARENA struct arena *arena = NULL;
    const Sandlot__Agent__V1__DownloadInfo *from =
        (void *)unpack(&sandlot__agent__v1__download_info__descriptor, bytes, len, UNPACK_MAX,
                       REASON(SANDBOX_UNREACHABLE), &arena, &err);
    if (!from) {
        err.code = ERR_UNAVAILABLE;
        finish(transfer, 0, &err);
        return;
    }
    Sandlot__V1__FileInfo info = SANDLOT__V1__FILE_INFO__INIT;
    info.size = from->size;
    info.mode = from->mode;
    info.uid = from->uid;
    info.gid = from->gid;
    info.modify_time_unix_ns = from->modify_time_unix_ns;
    transfer->has_info = true;
    transfer->ops->received(transfer->arg, &info, NULL, 0);
}

static void on_data(void *arg, const uint8_t *bytes, size_t len) {
    struct transfer *transfer = arg;
    if (!transfer->ops->received)
        return;
    file_stream_pause(transfer->stream);
    if (transfer->has_info)
        transfer->ops->received(transfer->arg, NULL, bytes, len);
    else
        deliver_info(transfer, bytes, len);
}

static void on_done(void *arg, const uint8_t *response, size_t len, const struct err *err) {
    struct transfer *transfer = arg;
    struct err parse = {0};
    AUTO_ARENA struct arena *arena = NULL;
    const Sandlot__Agent__V1__UploadDone *done = NULL;
    if (!err)
        done = (void *)unpack(&sandlot__agent__v1__upload_done__descriptor, response, len, UNPACK_MAX,
                              REASON(SANDBOX_UNREACHABLE), &arena, &parse);
    if (!err && !done) {
        parse.code = ERR_UNAVAILABLE;
        err = &parse;
    }
    finish(transfer, done ? done->size : 0, err);
}

static const struct file_stream_ops stream_ops = {
    .ready = on_ready, .drained = on_drained, .data = on_data, .done = on_done};

/* ---- Start ---- */

static void on_stream(void *arg, int fd, const struct err *err) {
    struct transfer *transfer = arg;
    transfer->opening = false;
    if (transfer->over) {
        if (fd >= 0)
            close(fd);
        free_if_over(transfer);
    } else if (err) {
        finish(transfer, 0, err);
    } else {
        transfer->stream =
            file_stream_create(transfer->loop, fd, transfer->method,
                               (const ProtobufCMessage *)&transfer->request, &stream_ops, transfer);
    }
}

static int check_path(const ProtobufCBinaryData *path, struct err *err) {
    if (path->len == 0 || path->len >= 4096 || memchr(path->data, 0, path->len))
        return err_violation(err, REASON(INVALID_REQUEST), "path", "must be 1 to 4095 bytes without NUL");
    return 0;
}

static struct transfer *transfer_new(struct sandbox *sandbox, const char *method,
                                     const struct transfer_ops *ops, void *arg) {
    struct transfer *transfer = xcalloc(1, sizeof *transfer);
    transfer->op.end = on_sandbox_end;
    transfer->sandbox = sandbox;
    transfer->loop = sandbox->registry->loop;
    transfer->method = method;
    transfer->ops = ops;
    transfer->arg = arg;
    transfer->opening = true;
    sandbox_add_op(sandbox, &transfer->op);
    return transfer;
}

int transfer_upload(struct sandbox *sandbox, const Sandlot__V1__UploadTarget *target,
                    const struct transfer_ops *ops, void *arg, struct transfer **ret, struct err *err) {
    bool has_mode = target->mode_presence_case == SANDLOT__V1__UPLOAD_TARGET__MODE_PRESENCE_MODE;
    bool has_new_mode =
        target->new_mode_presence_case == SANDLOT__V1__UPLOAD_TARGET__NEW_MODE_PRESENCE_NEW_MODE;
    if ((has_mode && target->mode > 07777) || (has_new_mode && target->new_mode > 07777))
        err_violation(err, REASON(INVALID_REQUEST), "mode",
                      "permission bits are at most 07777 (4095); was a decimal meant as octal?");
    if (check_path(&target->path, err) < 0 || err_is_set(err) || sandbox_check_ready(sandbox, err) < 0)
        return -1;
    struct transfer *transfer = transfer_new(sandbox, "Upload", ops, arg);
    Sandlot__Agent__V1__UploadOpen *open = &transfer->request.upload;
    sandlot__agent__v1__upload_open__init(open);
    transfer->path = sandbox_resolve_path(sandbox, target->path.data, target->path.len, &open->path.len);
    open->path.data = (uint8_t *)transfer->path;
    if (has_mode) {
        open->mode_presence_case = SANDLOT__AGENT__V1__UPLOAD_OPEN__MODE_PRESENCE_MODE;
        open->mode = target->mode;
    }
    if (has_new_mode) {
        open->new_mode_presence_case = SANDLOT__AGENT__V1__UPLOAD_OPEN__NEW_MODE_PRESENCE_NEW_MODE;
        open->new_mode = target->new_mode;
    }
    if (target->size_presence_case == SANDLOT__V1__UPLOAD_TARGET__SIZE_PRESENCE_SIZE) {
        open->size_presence_case = SANDLOT__AGENT__V1__UPLOAD_OPEN__SIZE_PRESENCE_SIZE;
        open->size = target->size;
    }
    *ret = transfer;
    sandbox->provider->ops->open_stream(sandbox->provider, sandbox->id, on_stream, transfer);
    return 0;
}

int transfer_download(struct sandbox *sandbox, const Sandlot__V1__DownloadRequest *request,
                      const struct transfer_ops *ops, void *arg, struct transfer **ret, struct err *err) {
    if (check_path(&request->path, err) < 0 || sandbox_check_ready(sandbox, err) < 0)
        return -1;
    struct transfer *transfer = transfer_new(sandbox, "Download", ops, arg);
    Sandlot__Agent__V1__DownloadOpen *open = &transfer->request.download;
    sandlot__agent__v1__download_open__init(open);
    transfer->path = sandbox_resolve_path(sandbox, request->path.data, request->path.len, &open->path.len);
    open->path.data = (uint8_t *)transfer->path;
    *ret = transfer;
    sandbox->provider->ops->open_stream(sandbox->provider, sandbox->id, on_stream, transfer);
    return 0;
}

void transfer_write(struct transfer *transfer, const uint8_t *bytes, size_t len) {
    file_stream_write(transfer->stream, bytes, len, false);
    if (file_stream_backlog(transfer->stream) >= BACKLOG_MAX)
        transfer->wants_room = true;
    else
        transfer->ops->writable(transfer->arg);
}

void transfer_commit(struct transfer *transfer) {
    file_stream_write(transfer->stream, NULL, 0, true);
}

void transfer_resume(struct transfer *transfer) {
    file_stream_resume(transfer->stream);
}
