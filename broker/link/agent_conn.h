/* A framed connection to an agent: frames out with a known backlog, frames in one at a time.
 * Owned by the loop thread. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <uv.h>

#include "common/err.h"
#include "common/frame.h"

#define AGENT_PROTOCOL 1

struct agent_conn;

struct agent_conn_ops {
    /* The payload is valid during the call. */
    void (*frame)(void *arg, const struct frame *frame);
    /* Once: the connection ended by itself or because the agent broke the protocol. */
    void (*lost)(void *arg, const struct err *err);
    /* The backlog of writes went to zero; may be NULL. */
    void (*drained)(void *arg);
};

/* Takes over the connected, non-blocking fd. */
struct agent_conn *agent_conn_create(uv_loop_t *loop, int fd, const struct agent_conn_ops *ops, void *arg);
/* No callback follows; frees itself. NULL is fine. */
void agent_conn_close(struct agent_conn *conn);

/* Copies the payload. */
void agent_conn_send(struct agent_conn *conn, const struct frame *frame);
/* A request frame {method, message}. */
void agent_conn_send_request(struct agent_conn *conn, uint32_t stream_id, uint8_t flags, const char *method,
                             const ProtobufCMessage *message);
/* Bytes that the socket has not taken yet. */
size_t agent_conn_backlog(const struct agent_conn *conn);
void agent_conn_pause_reading(struct agent_conn *conn);
void agent_conn_resume_reading(struct agent_conn *conn);

/* The payload of a response frame as a message of `type`, kept by *ret_arena (NULL type: none).
 * -1: the agent's own error, or UNAVAILABLE if it cannot be understood. */
struct arena;
int agent_conn_parse_response(const struct frame *frame, const ProtobufCMessageDescriptor *type,
                              struct arena **ret_arena, ProtobufCMessage **ret, struct err *err);
