/* Files, in chunks both ways. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/c/src/errors.h"
#include "clients/c/src/handle.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/file.pb-c.h"

#define CHUNK (256 * 1024)

/* Where an upload's bytes come from. */
struct source {
    int fd; /* -1: bytes */
    const uint8_t *bytes;
    uint64_t size, at;
};

static int local_error(struct sandlot_error *err, const char *path) {
    int status = errno == ENOENT ? 5 : errno == EACCES ? 7 : 13;
    return error_set(err, status, "LOCAL_FILE", "%s: %s", path, strerror(errno));
}

/* Bytes at the next position; 0 at the end, -1 on a read error. */
static ssize_t next_chunk(struct source *source, uint8_t *buffer, const uint8_t **ret) {
    uint64_t left = source->size - source->at;
    size_t want = left < CHUNK ? (size_t)left : CHUNK;
    if (source->fd < 0) {
        *ret = source->bytes + source->at;
        source->at += want;
        return (ssize_t)want;
    }
    ssize_t n;
    do
        n = read(source->fd, buffer, want);
    while (n < 0 && errno == EINTR);
    *ret = buffer;
    source->at += n > 0 ? (uint64_t)n : 0;
    return n;
}

static int send_target(struct rpc *rpc, const struct source *source, const void *remote, size_t remote_len,
                       const struct sandlot_transfer_opts *opts) {
    Sandlot__V1__UploadTarget target = SANDLOT__V1__UPLOAD_TARGET__INIT;
    Sandlot__V1__UploadRequest request = SANDLOT__V1__UPLOAD_REQUEST__INIT;
    target.path.data = (uint8_t *)(uintptr_t)remote;
    target.path.len = remote_len ? remote_len : strlen(remote);
    target.size_presence_case = SANDLOT__V1__UPLOAD_TARGET__SIZE_PRESENCE_SIZE;
    target.size = source->size;
    if (opts->has_mode) {
        target.mode_presence_case = SANDLOT__V1__UPLOAD_TARGET__MODE_PRESENCE_MODE;
        target.mode = opts->mode;
    }
    if (opts->new_mode) {
        target.new_mode_presence_case = SANDLOT__V1__UPLOAD_TARGET__NEW_MODE_PRESENCE_NEW_MODE;
        target.new_mode = opts->new_mode;
    }
    request.payload_case = SANDLOT__V1__UPLOAD_REQUEST__PAYLOAD_TARGET;
    request.target = &target;
    return rpc_send(rpc, &request.base);
}

/* 0: all sent, or the server has ended the call; -1: the source can't be read. */
static int send_chunks(struct rpc *rpc, struct source *source, const struct sandlot_transfer_opts *opts) {
    AUTO_FREE uint8_t *buffer = xcalloc(1, CHUNK);
    while (source->at < source->size) {
        Sandlot__V1__UploadRequest request = SANDLOT__V1__UPLOAD_REQUEST__INIT;
        const uint8_t *bytes;
        ssize_t n = next_chunk(source, buffer, &bytes);
        if (n < 0)
            return -1;
        if (n == 0)
            return 0; /* the file shrank: the server sees the wrong size */
        request.payload_case = SANDLOT__V1__UPLOAD_REQUEST__PAYLOAD_CHUNK;
        request.chunk.data = (uint8_t *)(uintptr_t)bytes;
        request.chunk.len = (size_t)n;
        if (!rpc_send(rpc, &request.base))
            return 0;
        if (opts->progress)
            opts->progress(opts->progress_arg, source->at, source->size);
    }
    return 0;
}

static int upload(struct sandlot_sandbox *sandbox, struct source *source, const char *name,
                  const void *remote, size_t remote_len, const struct sandlot_transfer_opts *opts,
                  struct sandlot_error *err) {
    static const struct sandlot_transfer_opts defaults;
    struct sandlot_error ignored;
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    if (!opts)
        opts = &defaults;
    struct rpc_opts rpc_opts =
        handle_rpc(sandbox, "/sandlot.v1.FileService/Upload", opts->timeout > 0 ? opts->timeout : -1);
    struct rpc *rpc = rpc_start(sandbox->client->channel, &rpc_opts, err);
    if (!rpc)
        return -1;
    if (send_target(rpc, source, remote, remote_len, opts) && send_chunks(rpc, source, opts) < 0) {
        local_error(err, name);
        rpc_cancel(rpc);
        rpc_end(rpc, &ignored);
        return -1;
    }
    rpc_half_close(rpc);
    rpc_receive(rpc, &sandlot__v1__upload_response__descriptor, &arena, &message, &ignored);
    return rpc_end(rpc, err);
}

int sandlot_upload_bytes(struct sandlot_sandbox *sandbox, const void *bytes, size_t len,
                         const void *remote_path, size_t remote_len, const struct sandlot_transfer_opts *opts,
                         struct sandlot_error *err) {
    struct source source = {.fd = -1, .bytes = bytes, .size = len};
    return upload(sandbox, &source, "", remote_path, remote_len, opts, err);
}

int sandlot_upload_file(struct sandlot_sandbox *sandbox, const char *local_path, const void *remote_path,
                        size_t remote_len, const struct sandlot_transfer_opts *opts,
                        struct sandlot_error *err) {
    struct stat st;
    AUTO_CLOSE int fd = open(local_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return local_error(err, local_path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, 9, "LOCAL_FILE", "%s is not a regular file", local_path);
    struct source source = {.fd = fd, .size = (uint64_t)st.st_size};
    return upload(sandbox, &source, local_path, remote_path, remote_len, opts, err);
}

/* ---- Download ---- */

/* Beside the target, so that the rename is atomic; removed unless it is renamed. */
struct sink {
    int fd;
    char *target;    /* NULL: written to as it is */
    char *temporary; /* NULL: has no name yet */
    uint64_t written, total;
    mode_t mode;
};

static void sink_fini(struct sink *sink) {
    if (sink->fd >= 0)
        close(sink->fd);
    if (sink->temporary)
        unlink(sink->temporary);
    free(sink->temporary);
    free(sink->target);
}

static int sink_write(struct sink *sink, const uint8_t *bytes, size_t len) {
    for (size_t at = 0; at < len;) {
        ssize_t n = write(sink->fd, bytes + at, len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        at += (size_t)n;
    }
    sink->written += len;
    return 0;
}

/* 0: the stream ended, the status says how; -1: *err is filled. */
static int receive_chunks(struct rpc *rpc, struct sink *sink, const char *local_path,
                          const struct sandlot_transfer_opts *opts, struct sandlot_error *err) {
    for (;;) {
        AUTO_ARENA struct arena *arena = NULL;
        const ProtobufCMessage *message;
        int rc = rpc_receive(rpc, &sandlot__v1__download_response__descriptor, &arena, &message, err);
        if (rc <= 0)
            return rc;
        const Sandlot__V1__DownloadResponse *response = (const void *)message;
        if (response->payload_case == SANDLOT__V1__DOWNLOAD_RESPONSE__PAYLOAD_INFO) {
            sink->total = response->info->size;
            sink->mode = (mode_t)(response->info->mode & 0777);
        } else if (response->payload_case == SANDLOT__V1__DOWNLOAD_RESPONSE__PAYLOAD_CHUNK) {
            if (sink_write(sink, response->chunk.data, response->chunk.len) < 0)
                return local_error(err, local_path);
            if (opts->progress)
                opts->progress(opts->progress_arg, sink->written, sink->total);
        }
    }
}

static int make_parents(const char *path, struct sandlot_error *err) {
    AUTO_FREE char *copy = xstrdup(path);
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0777) < 0 && errno != EEXIST)
            return local_error(err, copy);
        *slash = '/';
    }
    return 0;
}

/* A regular file is written without a name beside the target and gets it when complete; a killed process
 * leaves nothing. A device or FIFO is written to, never replaced. */
static int sink_open(struct sink *sink, const char *path, struct sandlot_error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        sink->fd = open(path, O_WRONLY | O_CLOEXEC);
        return sink->fd < 0 ? local_error(err, path) : 0;
    }
    char *resolved = realpath(path, NULL); /* a link stays a link */
    sink->target = resolved ? resolved : xstrdup(path);
    AUTO_FREE char *directory = xstrdup(sink->target);
    char *slash = strrchr(directory, '/');
    if (slash)
        slash[slash == directory] = '\0';
    sink->fd = open(slash ? directory : ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (sink->fd >= 0)
        return 0;
    sink->temporary = xasprintf("%s.sandlot-%d.XXXXXX", sink->target, (int)getpid());
    sink->fd = mkostemp(sink->temporary, O_CLOEXEC);
    if (sink->fd >= 0)
        return 0;
    free(sink->temporary);
    sink->temporary = NULL;
    return local_error(err, path);
}

static int sink_commit(struct sink *sink, struct sandlot_error *err) {
    if (!sink->target)
        return 0;
    if (!sink->temporary) {
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", sink->fd);
        sink->temporary = xasprintf("%s.sandlot-%d-%d", sink->target, (int)getpid(), sink->fd);
        unlink(sink->temporary);
        if (linkat(AT_FDCWD, self, AT_FDCWD, sink->temporary, AT_SYMLINK_FOLLOW) < 0)
            return local_error(err, sink->target);
    }
    if (fchmod(sink->fd, sink->mode) < 0 || close(take_fd(&sink->fd)) < 0 ||
        rename(sink->temporary, sink->target) < 0)
        return local_error(err, sink->target);
    free(sink->temporary);
    sink->temporary = NULL;
    return 0;
}

int sandlot_download_file(struct sandlot_sandbox *sandbox, const void *remote_path, size_t remote_len,
                          const char *local_path, const struct sandlot_transfer_opts *opts,
                          struct sandlot_error *err) {
    static const struct sandlot_transfer_opts defaults;
    struct sandlot_error ignored;
    Sandlot__V1__DownloadRequest request = SANDLOT__V1__DOWNLOAD_REQUEST__INIT;
    CLEANUP(sink_fini) struct sink sink = {.fd = -1, .total = UINT64_MAX, .mode = 0644};
    if (!opts)
        opts = &defaults;
    request.path.data = (uint8_t *)(uintptr_t)remote_path;
    request.path.len = remote_len ? remote_len : strlen(remote_path);
    if (make_parents(local_path, err) < 0)
        return -1;
    if (sink_open(&sink, local_path, err) < 0)
        return -1;
    struct rpc_opts rpc_opts =
        handle_rpc(sandbox, "/sandlot.v1.FileService/Download", opts->timeout > 0 ? opts->timeout : -1);
    struct rpc *rpc = rpc_start(sandbox->client->channel, &rpc_opts, err);
    if (!rpc)
        return -1;
    rpc_send(rpc, &request.base);
    rpc_half_close(rpc);
    if (receive_chunks(rpc, &sink, local_path, opts, err) < 0) {
        rpc_cancel(rpc);
        rpc_end(rpc, &ignored);
        return -1;
    }
    if (rpc_end(rpc, err) < 0)
        return -1;
    return sink_commit(&sink, err);
}
