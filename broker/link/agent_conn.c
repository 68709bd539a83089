#include "broker/link/agent_conn.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/unpack.h"
#include "common/utf8.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define READ_CHUNK (64 * 1024)
#define UNPACK_MAX (12u * 1024 * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

struct agent_conn {
    uv_pipe_t pipe;
    const struct agent_conn_ops *ops;
    void *arg;
    struct buf in;
    bool reading, closing, dispatching, lost;
};

struct pending_write {
    uv_write_t req;
    uint8_t bytes[];
};

static void lose(struct agent_conn *conn, const char *why) {
    if (conn->closing || conn->lost)
        return;
    conn->lost = true;
    struct err err;
    err_set(&err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE), "the sandbox's agent %s", why);
    uv_read_stop((uv_stream_t *)&conn->pipe);
    conn->reading = false;
    conn->ops->lost(conn->arg, &err);
}

/* ---- Out ---- */

static void on_written(uv_write_t *req, int status) {
    struct agent_conn *conn = req->handle->data;
    free(CONTAINER_OF(req, struct pending_write, req));
    if (conn->closing)
        return;
    if (status < 0)
        lose(conn, "is gone");
    else if (conn->ops->drained && agent_conn_backlog(conn) == 0)
        conn->ops->drained(conn->arg);
}

static void submit(struct agent_conn *conn, struct pending_write *write, size_t len) {
    uv_buf_t part = uv_buf_init((char *)write->bytes, (unsigned)len);
    if (uv_write(&write->req, (uv_stream_t *)&conn->pipe, &part, 1, on_written) < 0) {
        free(write);
        lose(conn, "is gone");
    }
}

void agent_conn_send(struct agent_conn *conn, const struct frame *frame) {
    struct pending_write *write = xcalloc(1, sizeof *write + FRAME_HEADER + frame->len);
    frame_encode_header(write->bytes, frame);
    if (frame->len)
        memcpy(write->bytes + FRAME_HEADER, frame->payload, frame->len);
    submit(conn, write, FRAME_HEADER + frame->len);
}

void agent_conn_send_request(struct agent_conn *conn, uint32_t stream_id, uint8_t flags, const char *method,
                             const ProtobufCMessage *message) {
    Sandlot__Agent__V1__Request request = SANDLOT__AGENT__V1__REQUEST__INIT;
    request.method = (char *)(uintptr_t)method;
    request.payload.len = protobuf_c_message_get_packed_size(message);
    AUTO_FREE uint8_t *payload = xcalloc(1, request.payload.len);
    protobuf_c_message_pack(message, payload);
    request.payload.data = payload;
    size_t len = sandlot__agent__v1__request__get_packed_size(&request);
    struct pending_write *write = xcalloc(1, sizeof *write + FRAME_HEADER + len);
    struct frame frame = {
        .stream_id = stream_id, .type = FRAME_REQUEST, .flags = flags, .len = (uint32_t)len};
    frame_encode_header(write->bytes, &frame);
    sandlot__agent__v1__request__pack(&request, write->bytes + FRAME_HEADER);
    submit(conn, write, FRAME_HEADER + len);
}

size_t agent_conn_backlog(const struct agent_conn *conn) {
    return uv_stream_get_write_queue_size((const uv_stream_t *)&conn->pipe);
}

/* ---- In ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret) {
    (void)suggested;
    struct agent_conn *conn = handle->data;
    if (buf_reserve(&conn->in, READ_CHUNK) < 0) {
        *ret = uv_buf_init(NULL, 0);
        return;
    }
    *ret = uv_buf_init((char *)conn->in.data + conn->in.len, (unsigned)(conn->in.capacity - conn->in.len));
}

/* Frames that are there, until reading is paused or the connection ends. */
static void dispatch(struct agent_conn *conn) {
    size_t used = 0;
    conn->dispatching = true;
    while (conn->reading && !conn->closing) {
        struct frame frame;
        long taken = frame_decode(conn->in.data + used, conn->in.len - used, &frame);
        if (taken < 0)
            lose(conn, "sent what is no frame");
        if (taken <= 0)
            break;
        used += (size_t)taken;
        conn->ops->frame(conn->arg, &frame);
    }
    conn->dispatching = false;
    buf_consume(&conn->in, used);
    if (conn->in.len == 0)
        buf_fini(&conn->in);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *part) {
    (void)part;
    struct agent_conn *conn = stream->data;
    if (n < 0) {
        lose(conn, n == UV_ENOBUFS ? "sent a frame over the limit" : "closed the connection");
        return;
    }
    conn->in.len += (size_t)n;
    dispatch(conn);
}

void agent_conn_pause_reading(struct agent_conn *conn) {
    conn->reading = false;
    uv_read_stop((uv_stream_t *)&conn->pipe);
}

void agent_conn_resume_reading(struct agent_conn *conn) {
    if (conn->reading || conn->closing || conn->lost)
        return;
    conn->reading = true;
    if (!conn->dispatching)
        dispatch(conn);
    if (conn->reading && !conn->closing)
        uv_read_start((uv_stream_t *)&conn->pipe, on_alloc, on_read);
}

int agent_conn_parse_response(const struct frame *frame, const ProtobufCMessageDescriptor *type,
                              struct arena **ret_arena, ProtobufCMessage **ret, struct err *err) {
    AUTO_ARENA struct arena *envelope_arena = NULL;
    struct err parse = {0};
    const Sandlot__Agent__V1__Response *response =
        (void *)unpack(&sandlot__agent__v1__response__descriptor, frame->payload, frame->len, UNPACK_MAX,
                       REASON(SANDBOX_UNREACHABLE), &envelope_arena, &parse);
    if (response && response->code != 0) {
        bool known = response->code > 0 && response->code <= 16;
        return err_set(err, known ? (enum err_code)response->code : ERR_UNAVAILABLE, response->reason, "%s",
                       response->message);
    }
    if (response && type)
        *ret = unpack(type, response->payload.data, response->payload.len, UNPACK_MAX,
                      REASON(SANDBOX_UNREACHABLE), ret_arena, &parse);
    if (err_is_set(&parse))
        return err_set(err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE),
                       "the sandbox's agent answers nonsense");
    return 0;
}

/* ---- Life ---- */

struct agent_conn *agent_conn_create(uv_loop_t *loop, int fd, const struct agent_conn_ops *ops, void *arg) {
    struct agent_conn *conn = xcalloc(1, sizeof *conn);
    conn->ops = ops;
    conn->arg = arg;
    buf_init(&conn->in, FRAME_HEADER + FRAME_PAYLOAD_MAX + READ_CHUNK);
    uv_pipe_init(loop, &conn->pipe, 0);
    conn->pipe.data = conn;
    if (uv_pipe_open(&conn->pipe, fd) < 0)
        abort(); /* only for an fd that is no stream socket */
    conn->reading = true;
    uv_read_start((uv_stream_t *)&conn->pipe, on_alloc, on_read);
    return conn;
}

static void on_closed(uv_handle_t *handle) {
    struct agent_conn *conn = handle->data;
    buf_fini(&conn->in);
    free(conn);
}

void agent_conn_close(struct agent_conn *conn) {
    if (!conn || conn->closing)
        return;
    conn->closing = true;
    uv_close((uv_handle_t *)&conn->pipe, on_closed);
}
