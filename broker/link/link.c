#include "broker/link/link.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "broker/link/agent_conn.h"
#include "common/cleanup.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define HELLO_TIMEOUT_MS 5000
#define HELLO_STREAM 1
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

struct link_call {
    struct link *link;
    uint32_t stream_id;
    const ProtobufCMessageDescriptor *response_type;
    link_done_cb cb;
    void *arg;
    uv_timer_t timer;
    UT_hash_handle hh;
};

struct link {
    uv_loop_t *loop;
    struct agent_conn *conn;
    const struct link_ops *ops;
    void *arg;
    char *sandbox_id;
    bool ready, closing;
    uint32_t next_stream;
    struct link_call *calls;
};

static void on_timer_closed(uv_handle_t *handle) {
    free(CONTAINER_OF((uv_timer_t *)handle, struct link_call, timer));
}

static void complete(struct link_call *call, const ProtobufCMessage *response, const struct err *err) {
    HASH_DEL(call->link->calls, call);
    uv_close((uv_handle_t *)&call->timer, on_timer_closed);
    call->cb(call->arg, response, err);
}

static void complete_all(struct link *link, const struct err *err) {
    struct link_call *call, *next;
    HASH_ITER (hh, link->calls, call, next)
        complete(call, NULL, err);
}

static void on_frame(void *arg, const struct frame *frame) {
    struct link *link = arg;
    struct link_call *call = NULL;
    HASH_FIND(hh, link->calls, &frame->stream_id, sizeof frame->stream_id, call);
    if (!call || frame->type != FRAME_RESPONSE)
        return; /* an answer that came after its deadline */
    AUTO_ARENA struct arena *arena = NULL;
    ProtobufCMessage *response = NULL;
    struct err err = {0};
    if (agent_conn_parse_response(frame, call->response_type, &arena, &response, &err) < 0)
        complete(call, NULL, &err);
    else
        complete(call, response, NULL);
}

static void on_lost(void *arg, const struct err *err) {
    struct link *link = arg;
    struct link_call *call, *next;
    if (link->ready) {
        complete_all(link, err);
        if (!link->closing)
            link->ops->lost(link->arg, err);
        return;
    }
    /* Hello last: its completion may free the link. */
    HASH_ITER (hh, link->calls, call, next)
        if (call->stream_id != HELLO_STREAM)
            complete(call, NULL, err);
    if (link->calls)
        complete(link->calls, NULL, err);
}

static const struct agent_conn_ops conn_ops = {.frame = on_frame, .lost = on_lost};

static void on_timeout(uv_timer_t *timer) {
    struct link_call *call = CONTAINER_OF(timer, struct link_call, timer);
    struct err err;
    err_set(&err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE), "the sandbox's agent did not answer in time");
    complete(call, NULL, &err);
}

struct link_call *link_call(struct link *link, const char *method, const ProtobufCMessage *request,
                            const ProtobufCMessageDescriptor *response_type, uint64_t timeout_ms,
                            link_done_cb cb, void *arg) {
    struct link_call *call = xcalloc(1, sizeof *call);
    call->link = link;
    call->stream_id = link->next_stream;
    link->next_stream += 2;
    call->response_type = response_type;
    call->cb = cb;
    call->arg = arg;
    uv_timer_init(link->loop, &call->timer);
    if (timeout_ms)
        uv_timer_start(&call->timer, on_timeout, timeout_ms, 0);
    HASH_ADD(hh, link->calls, stream_id, sizeof call->stream_id, call);
    agent_conn_send_request(link->conn, call->stream_id, FRAME_REMOTE_CLOSED, method, request);
    return call;
}

static void on_hello(void *arg, const ProtobufCMessage *response, const struct err *err) {
    struct link *link = arg;
    const Sandlot__Agent__V1__HelloResponse *hello = (const void *)response;
    struct err mismatch;
    if (link->closing)
        return;
    if (!err && (hello->protocol != AGENT_PROTOCOL || strcmp(hello->sandbox_id, link->sandbox_id) != 0)) {
        err_set(&mismatch, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE),
                "the agent that answers is not this sandbox's");
        err = &mismatch;
    }
    link->ready = !err;
    link->ops->ready(link->arg, err);
}

struct link *link_create(uv_loop_t *loop, int fd, const char *sandbox_id, const struct link_ops *ops,
                         void *arg) {
    struct link *link = xcalloc(1, sizeof *link);
    link->loop = loop;
    link->ops = ops;
    link->arg = arg;
    link->sandbox_id = xstrdup(sandbox_id);
    link->next_stream = HELLO_STREAM;
    link->conn = agent_conn_create(loop, fd, &conn_ops, link);
    Sandlot__Agent__V1__HelloRequest hello = SANDLOT__AGENT__V1__HELLO_REQUEST__INIT;
    hello.protocol = AGENT_PROTOCOL;
    hello.role = SANDLOT__AGENT__V1__HELLO_REQUEST__ROLE__ROLE_CONTROL;
    link_call(link, "Hello", &hello.base, &sandlot__agent__v1__hello_response__descriptor, HELLO_TIMEOUT_MS,
              on_hello, link);
    return link;
}

void link_close(struct link *link) {
    if (!link || link->closing)
        return;
    struct err err;
    link->closing = true;
    err_set(&err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE), "the connection to the sandbox is closed");
    complete_all(link, &err);
    agent_conn_close(link->conn);
    free(link->sandbox_id);
    free(link);
}

bool link_is_ready(const struct link *link) {
    return link->ready;
}
