#include "agent/files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/file_path.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/frame.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define CHUNK (256 * 1024)
#define SIZELESS_MAX (16u * 1024 * 1024) /* of /proc, say: some never end */
#define UNPACK_MAX (64u * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

struct helper {
    int fd;
    struct buf in;
    size_t used; /* bytes of `in` that the last frame took */
};

/* ---- Blocking frames; a lost connection ends the process (what was unfinished undoes itself) ---- */

static int read_frame(struct helper *helper, struct frame *ret) {
    buf_consume(&helper->in, helper->used);
    helper->used = 0;
    for (;;) {
        long taken = frame_decode(helper->in.data, helper->in.len, ret);
        if (taken > 0) {
            helper->used = (size_t)taken;
            return 0;
        }
        if (taken < 0 || buf_reserve(&helper->in, CHUNK) < 0)
            return -1;
        ssize_t n = read(helper->fd, helper->in.data + helper->in.len, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        helper->in.len += (size_t)n;
    }
}

static int write_frame(const struct helper *helper, uint32_t stream_id, uint8_t type, const void *payload,
                       size_t len) {
    uint8_t header[FRAME_HEADER];
    struct frame frame = {.stream_id = stream_id, .type = type, .len = (uint32_t)len};
    frame_encode_header(header, &frame);
    struct iovec parts[2] = {{header, sizeof header}, {(void *)(uintptr_t)payload, len}};
    struct iovec *part = parts;
    int left = 2;
    while (left > 0) {
        ssize_t n = writev(helper->fd, part, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        while (left > 0 && (size_t)n >= part->iov_len) {
            n -= (ssize_t)part->iov_len;
            part++;
            left--;
        }
        if (left > 0) {
            part->iov_base = (char *)part->iov_base + n;
            part->iov_len -= (size_t)n;
        }
    }
    return 0;
}

static int write_packed(const struct helper *helper, uint32_t stream_id, uint8_t type,
                        const ProtobufCMessage *message) {
    size_t len = protobuf_c_message_get_packed_size(message);
    AUTO_FREE uint8_t *bytes = xcalloc(1, len);
    protobuf_c_message_pack(message, bytes);
    return write_frame(helper, stream_id, type, bytes, len);
}

static int respond(const struct helper *helper, uint32_t stream_id, const ProtobufCMessage *message,
                   const struct err *err) {
    Sandlot__Agent__V1__Response response = SANDLOT__AGENT__V1__RESPONSE__INIT;
    AUTO_FREE uint8_t *payload = NULL;
    if (err && err_is_set(err)) {
        response.code = (int)err->code;
        response.reason = err->reason;
        response.message = (char *)(uintptr_t)err->text;
    } else {
        response.payload.len = protobuf_c_message_get_packed_size(message);
        response.payload.data = payload = xcalloc(1, response.payload.len);
        protobuf_c_message_pack(message, payload);
    }
    return write_packed(helper, stream_id, FRAME_RESPONSE, &response.base);
}

/* ---- Upload ---- */

struct upload {
    struct file_target target;
    int fd;
    char temporary[64]; /* name beside the target; empty while the file has no name */
    uint64_t written, announced;
    bool has_size;
    mode_t mode; /* set last: writing clears the set-id bits */
};

static void upload_abandon(struct upload *upload) {
    if (upload->temporary[0])
        unlinkat(upload->target.parent_fd, upload->temporary, 0);
    if (upload->fd >= 0)
        close(upload->fd);
    file_target_fini(&upload->target);
}

static void temporary_name(char *name, size_t size) {
    static unsigned count;
    snprintf(name, size, ".sandlot-upload-%d-%u-%lx", (int)getpid(), count++,
             (unsigned long)(uintptr_t)name & 0xffff);
}

/* A file without a name cannot be left behind; where the file system has no such thing, a named one. */
static int open_temporary(struct upload *upload, struct err *err) {
    upload->fd = openat(upload->target.parent_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (upload->fd >= 0)
        return 0;
    temporary_name(upload->temporary, sizeof upload->temporary);
    upload->fd = openat(upload->target.parent_fd, upload->temporary,
                        O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
    if (upload->fd >= 0)
        return 0;
    int open_errno = errno;
    upload->temporary[0] = '\0';
    return file_error(err, open_errno, "can't create a file in that directory");
}

static int upload_open(struct upload *upload, const Sandlot__Agent__V1__UploadOpen *open, struct err *err) {
    *upload = (struct upload){.fd = -1, .target = {.parent_fd = -1}};
    upload->has_size = open->size_presence_case == SANDLOT__AGENT__V1__UPLOAD_OPEN__SIZE_PRESENCE_SIZE;
    upload->announced = upload->has_size ? open->size : 0;
    if (file_target_find(&open->path, &upload->target, err) < 0 || open_temporary(upload, err) < 0)
        return -1;
    upload->mode = 0644;
    if (open->new_mode_presence_case == SANDLOT__AGENT__V1__UPLOAD_OPEN__NEW_MODE_PRESENCE_NEW_MODE)
        upload->mode = open->new_mode & 07777;
    if (upload->target.exists) {
        upload->mode = upload->target.st.st_mode & 07777;
        if (fchown(upload->fd, upload->target.st.st_uid, upload->target.st.st_gid) < 0)
            return file_error(err, errno, "can't keep the owner of the file that is replaced");
    }
    if (open->mode_presence_case == SANDLOT__AGENT__V1__UPLOAD_OPEN__MODE_PRESENCE_MODE)
        upload->mode = open->mode & 07777;
    return 0;
}

static int upload_write(struct upload *upload, const struct frame *frame, struct err *err) {
    if (upload->has_size && frame->len > upload->announced - upload->written)
        return err_set(err, ERR_INVALID_ARGUMENT, REASON(FILE_SIZE_MISMATCH),
                       "more than the announced %llu bytes", (unsigned long long)upload->announced);
    for (uint32_t at = 0; at < frame->len;) {
        ssize_t n = write(upload->fd, frame->payload + at, frame->len - at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return file_error(err, errno, "write");
        at += (uint32_t)n;
    }
    upload->written += frame->len;
    return 0;
}

static int upload_commit(struct upload *upload, struct err *err) {
    if (upload->has_size && upload->written != upload->announced)
        return err_set(err, ERR_INVALID_ARGUMENT, REASON(FILE_SIZE_MISMATCH),
                       "%llu bytes came, %llu were announced", (unsigned long long)upload->written,
                       (unsigned long long)upload->announced);
    if (fchmod(upload->fd, upload->mode) < 0)
        return file_error(err, errno, "can't set the mode");
    if (!upload->temporary[0]) {
        char self[64];
        snprintf(self, sizeof self, "/proc/self/fd/%d", upload->fd);
        temporary_name(upload->temporary, sizeof upload->temporary);
        if (linkat(AT_FDCWD, self, upload->target.parent_fd, upload->temporary, AT_SYMLINK_FOLLOW) < 0) {
            int link_errno = errno;
            upload->temporary[0] = '\0';
            return file_error(err, link_errno, "can't give the file its name");
        }
    }
    if (renameat(upload->target.parent_fd, upload->temporary, upload->target.parent_fd, upload->target.name) <
        0)
        return file_error(err, errno, "can't put the file in its place");
    upload->temporary[0] = '\0';
    return 0;
}

/* Reads data frames to the end of the stream. A lost connection is -1 without an error. */
static int upload_receive(struct helper *helper, struct upload *upload, struct err *err) {
    for (;;) {
        struct frame frame;
        if (read_frame(helper, &frame) < 0 || frame.type != FRAME_DATA)
            return -1;
        if (upload_write(upload, &frame, err) < 0)
            return -1;
        if (frame.flags & FRAME_REMOTE_CLOSED)
            return upload_commit(upload, err);
    }
}

static int do_upload(struct helper *helper, uint32_t stream_id, const ProtobufCMessage *message) {
    struct err err = {0};
    CLEANUP(upload_abandon) struct upload upload;
    int outcome = upload_open(&upload, (const void *)message, &err);
    if (outcome == 0)
        outcome = upload_receive(helper, &upload, &err);
    if (outcome < 0 && !err_is_set(&err))
        return -1;
    Sandlot__Agent__V1__UploadDone done = SANDLOT__AGENT__V1__UPLOAD_DONE__INIT;
    done.size = upload.written;
    if (respond(helper, stream_id, &done.base, &err) < 0)
        return -1;
    return outcome; /* after a refusal unread data may follow: this connection is used up */
}

/* ---- Download ---- */

static int send_info(const struct helper *helper, uint32_t stream_id, const struct stat *st) {
    Sandlot__Agent__V1__DownloadInfo info = SANDLOT__AGENT__V1__DOWNLOAD_INFO__INIT;
    info.size = (uint64_t)st->st_size;
    info.mode = st->st_mode & 07777;
    info.uid = st->st_uid;
    info.gid = st->st_gid;
    info.modify_time_unix_ns = st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
    return write_packed(helper, stream_id, FRAME_DATA, &info.base);
}

/* Files of /proc say size 0 and have content: those are read to their end. */
static int send_content(const struct helper *helper, uint32_t stream_id, int fd, uint64_t size,
                        struct err *err) {
    AUTO_FREE uint8_t *chunk = xcalloc(1, CHUNK);
    uint64_t sent = 0;
    while (size == 0 || sent < size) {
        size_t want = size == 0 || size - sent > CHUNK ? CHUNK : (size_t)(size - sent);
        ssize_t n = read(fd, chunk, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return file_error(err, errno, "read");
        if (n == 0 && sent < size)
            return err_set(err, ERR_ABORTED, REASON(FILE_CHANGED),
                           "the file shrank to %llu bytes while it was read", (unsigned long long)sent);
        if (n == 0)
            return 0;
        if (size == 0 && sent + (uint64_t)n > SIZELESS_MAX)
            return err_set(err, ERR_FAILED_PRECONDITION, REASON(FILE_NOT_REGULAR),
                           "a file without a size that has over %u bytes", SIZELESS_MAX);
        if (write_frame(helper, stream_id, FRAME_DATA, chunk, (size_t)n) < 0)
            return -1;
        sent += (uint64_t)n;
    }
    return 0;
}

static int do_download(struct helper *helper, uint32_t stream_id, const ProtobufCMessage *message) {
    const Sandlot__Agent__V1__DownloadOpen *open = (const void *)message;
    struct err err = {0};
    struct stat st;
    AUTO_CLOSE int fd = file_open_regular(&open->path, &st, &err);
    if (fd >= 0) {
        if (send_info(helper, stream_id, &st) < 0)
            return -1;
        if (send_content(helper, stream_id, fd, (uint64_t)st.st_size, &err) < 0 && !err_is_set(&err))
            return -1;
    }
    Sandlot__Agent__V1__UploadDone done = SANDLOT__AGENT__V1__UPLOAD_DONE__INIT;
    return respond(helper, stream_id, &done.base, &err);
}

static int do_make_directory(struct helper *helper, uint32_t stream_id, const ProtobufCMessage *message) {
    const Sandlot__Agent__V1__MakeDirectoryRequest *request = (const void *)message;
    struct err err = {0};
    AUTO_CLOSE int fd = file_make_directory(&request->path, &err);
    Sandlot__Agent__V1__MakeDirectoryResponse response = SANDLOT__AGENT__V1__MAKE_DIRECTORY_RESPONSE__INIT;
    return respond(helper, stream_id, &response.base, &err);
}

/* ---- Serving ---- */

static const struct method {
    const char *name;
    const ProtobufCMessageDescriptor *request;
    int (*handle)(struct helper *helper, uint32_t stream_id, const ProtobufCMessage *message);
} methods[] = {
    {"Upload", &sandlot__agent__v1__upload_open__descriptor, do_upload},
    {"Download", &sandlot__agent__v1__download_open__descriptor, do_download},
    {"MakeDirectory", &sandlot__agent__v1__make_directory_request__descriptor, do_make_directory},
};

static int serve_one(struct helper *helper) {
    struct frame frame;
    if (read_frame(helper, &frame) < 0 || frame.type != FRAME_REQUEST)
        return -1;
    struct err err = {0};
    AUTO_ARENA struct arena *envelope_arena = NULL;
    const Sandlot__Agent__V1__Request *envelope =
        (void *)unpack(&sandlot__agent__v1__request__descriptor, frame.payload, frame.len, UNPACK_MAX,
                       REASON(MALFORMED_MESSAGE), &envelope_arena, &err);
    for (size_t i = 0; envelope && i < ARRAY_LEN(methods); i++) {
        if (strcmp(methods[i].name, envelope->method) != 0)
            continue;
        AUTO_ARENA struct arena *arena = NULL;
        const ProtobufCMessage *message =
            unpack(methods[i].request, envelope->payload.data, envelope->payload.len, UNPACK_MAX,
                   REASON(MALFORMED_MESSAGE), &arena, &err);
        if (message)
            return methods[i].handle(helper, frame.stream_id, message);
    }
    if (!err_is_set(&err))
        err_set(&err, ERR_UNIMPLEMENTED, REASON(METHOD_UNKNOWN), "not a file method");
    respond(helper, frame.stream_id, NULL, &err);
    return -1;
}

/* Everything but the connection and the log is closed: the agent's own fds must not live here. */
static int keep_only(int connection_fd) {
    int fd = 3;
    if (connection_fd != fd && dup2(connection_fd, fd) < 0)
        return -1;
    if (syscall(SYS_close_range, fd + 1, ~0u, 0) < 0 || fcntl(fd, F_SETFL, 0) < 0)
        return -1;
    return fd;
}

_Noreturn void files_serve(int connection_fd, uint32_t stream_id, const char *sandbox_id) {
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    struct helper helper = {.fd = keep_only(connection_fd)};
    if (helper.fd < 0)
        _exit(1);
    umask(022);
    buf_init(&helper.in, FRAME_HEADER + FRAME_PAYLOAD_MAX + CHUNK);
    Sandlot__Agent__V1__HelloResponse hello = SANDLOT__AGENT__V1__HELLO_RESPONSE__INIT;
    hello.protocol = 1;
    hello.sandbox_id = (char *)(uintptr_t)sandbox_id;
    if (respond(&helper, stream_id, &hello.base, NULL) == 0)
        while (serve_one(&helper) == 0) {
        }
    _exit(0);
}
