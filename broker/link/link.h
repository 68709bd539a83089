/* The control connection to one agent: calls with deadlines, any number at a time. Owned by the loop
 * thread. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <uv.h>

#include "common/err.h"

struct link;
struct link_call;

/* Exactly once per call. On success err is NULL and the message valid during the callback. */
typedef void (*link_done_cb)(void *arg, const ProtobufCMessage *response, const struct err *err);

struct link_ops {
    /* Hello was answered (err NULL) or failed; once. */
    void (*ready)(void *arg, const struct err *err);
    /* The connection ended after it was ready; all calls have completed. Once. */
    void (*lost)(void *arg, const struct err *err);
};

/* Takes over the fd and says Hello. Ends as failed if the agent is not sandbox_id's. */
struct link *link_create(uv_loop_t *loop, int fd, const char *sandbox_id, const struct link_ops *ops,
                         void *arg);
/* Completes all calls with UNAVAILABLE, then no callback follows; frees itself. NULL is fine. */
void link_close(struct link *link);

/* timeout_ms 0: none. */
struct link_call *link_call(struct link *link, const char *method, const ProtobufCMessage *request,
                            const ProtobufCMessageDescriptor *response_type, uint64_t timeout_ms,
                            link_done_cb cb, void *arg);
/* Hello was answered. */
bool link_is_ready(const struct link *link);
