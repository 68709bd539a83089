#include "broker/link/file_stream.h"

#include <stdlib.h>

#include "broker/link/agent_conn.h"
#include "common/cleanup.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define HELLO_STREAM 1
#define REQUEST_STREAM 3
#define UNPACK_MAX (64u * 1024)

struct file_stream {
    struct agent_conn *conn;
    const struct file_stream_ops *ops;
    void *arg;
    char *method;
    ProtobufCMessage *request; /* NULL once it is sent */
    bool done;
};

static void finish(struct file_stream *stream, const uint8_t *bytes, size_t len, const struct err *err) {
    if (stream->done)
        return;
    stream->done = true;
    stream->ops->done(stream->arg, bytes, len, err);
}

static void on_hello(struct file_stream *stream, const struct frame *frame) {
    struct err err = {0};
    if (agent_conn_parse_response(frame, NULL, NULL, NULL, &err) < 0) {
        finish(stream, NULL, 0, &err);
        return;
    }
    agent_conn_send_request(stream->conn, REQUEST_STREAM, FRAME_REMOTE_OPEN, stream->method, stream->request);
    protobuf_c_message_free_unpacked(stream->request, NULL);
    stream->request = NULL;
    if (stream->ops->ready)
        stream->ops->ready(stream->arg);
}

static void on_response(struct file_stream *stream, const struct frame *frame) {
    AUTO_ARENA struct arena *arena = NULL;
    struct err err = {0}, parse = {0};
    const Sandlot__Agent__V1__Response *response = NULL;
    if (agent_conn_parse_response(frame, NULL, NULL, NULL, &err) == 0)
        response = (void *)unpack(&sandlot__agent__v1__response__descriptor, frame->payload, frame->len,
                                  UNPACK_MAX, 0, &arena, &parse);
    if (response)
        finish(stream, response->payload.data, response->payload.len, NULL);
    else
        finish(stream, NULL, 0, err_is_set(&err) ? &err : &parse);
}

static void on_frame(void *arg, const struct frame *frame) {
    struct file_stream *stream = arg;
    if (stream->done)
        return;
    if (frame->type == FRAME_RESPONSE && frame->stream_id == HELLO_STREAM && stream->request)
        on_hello(stream, frame);
    else if (frame->type == FRAME_RESPONSE)
        on_response(stream, frame);
    else if (frame->type == FRAME_DATA && !stream->request && stream->ops->data)
        stream->ops->data(stream->arg, frame->payload, frame->len);
}

static void on_lost(void *arg, const struct err *err) {
    finish(arg, NULL, 0, err);
}

static void on_drained(void *arg) {
    struct file_stream *stream = arg;
    if (!stream->done && !stream->request && stream->ops->drained)
        stream->ops->drained(stream->arg);
}

static const struct agent_conn_ops conn_ops = {.frame = on_frame, .lost = on_lost, .drained = on_drained};

static ProtobufCMessage *copy_message(const ProtobufCMessage *message) {
    size_t len = protobuf_c_message_get_packed_size(message);
    AUTO_FREE uint8_t *bytes = xcalloc(1, len);
    protobuf_c_message_pack(message, bytes);
    ProtobufCMessage *copy = protobuf_c_message_unpack(message->descriptor, NULL, len, bytes);
    if (!copy)
        abort();
    return copy;
}

struct file_stream *file_stream_create(uv_loop_t *loop, int fd, const char *method,
                                       const ProtobufCMessage *request, const struct file_stream_ops *ops,
                                       void *arg) {
    struct file_stream *stream = xcalloc(1, sizeof *stream);
    stream->ops = ops;
    stream->arg = arg;
    stream->method = xstrdup(method);
    stream->request = copy_message(request);
    stream->conn = agent_conn_create(loop, fd, &conn_ops, stream);
    Sandlot__Agent__V1__HelloRequest hello = SANDLOT__AGENT__V1__HELLO_REQUEST__INIT;
    hello.protocol = AGENT_PROTOCOL;
    hello.role = SANDLOT__AGENT__V1__HELLO_REQUEST__ROLE__ROLE_FILES;
    agent_conn_send_request(stream->conn, HELLO_STREAM, FRAME_REMOTE_CLOSED, "Hello", &hello.base);
    return stream;
}

void file_stream_write(struct file_stream *stream, const uint8_t *bytes, size_t len, bool last) {
    struct frame frame = {.stream_id = REQUEST_STREAM,
                          .type = FRAME_DATA,
                          .len = (uint32_t)len,
                          .payload = bytes,
                          .flags = (uint8_t)((last ? FRAME_REMOTE_CLOSED : 0) | (len ? 0 : FRAME_NO_DATA))};
    agent_conn_send(stream->conn, &frame);
}

size_t file_stream_backlog(const struct file_stream *stream) {
    return agent_conn_backlog(stream->conn);
}

void file_stream_pause(struct file_stream *stream) {
    agent_conn_pause_reading(stream->conn);
}

void file_stream_resume(struct file_stream *stream) {
    agent_conn_resume_reading(stream->conn);
}

void file_stream_close(struct file_stream *stream) {
    if (!stream)
        return;
    agent_conn_close(stream->conn);
    if (stream->request)
        protobuf_c_message_free_unpacked(stream->request, NULL);
    free(stream->method);
    free(stream);
}
