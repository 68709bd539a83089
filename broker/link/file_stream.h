/* One file operation on a connection of its own, served by a helper process of the agent. Back-pressure
 * is the connection's: the writer looks at the backlog, the reader pauses. Owned by the loop thread. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "common/err.h"

struct file_stream;

struct file_stream_ops {
    /* The helper has the request; data may be written. */
    void (*ready)(void *arg);
    /* The backlog of writes is empty. */
    void (*drained)(void *arg);
    /* A data frame; valid during the call. */
    void (*data)(void *arg, const uint8_t *bytes, size_t len);
    /* The last callback, exactly once unless file_stream_close comes first. err NULL: done, and
     * response is the answer's bytes. */
    void (*done)(void *arg, const uint8_t *response, size_t len, const struct err *err);
};

/* Takes over the fd. The request is copied. */
struct file_stream *file_stream_create(uv_loop_t *loop, int fd, const char *method,
                                       const ProtobufCMessage *request, const struct file_stream_ops *ops,
                                       void *arg);
/* Copies the bytes. last: the writer is finished and wants it committed. */
void file_stream_write(struct file_stream *stream, const uint8_t *bytes, size_t len, bool last);
size_t file_stream_backlog(const struct file_stream *stream);
void file_stream_pause(struct file_stream *stream);
void file_stream_resume(struct file_stream *stream);
/* Ends it; what was not committed is undone. No callback follows; frees itself. NULL is fine. */
void file_stream_close(struct file_stream *stream);
