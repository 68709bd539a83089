#include "agent/conn.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

#include "agent/files.h"
#include "agent/run.h"
#include "common/buf.h"
#include "common/cleanup.h"
#include "common/frame.h"
#include "common/log.h"
#include "common/unpack.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define PROTOCOL 1
#define REQUESTS_MAX 1024 /* running on one connection */
#define UNPACK_MAX (12u * 1024 * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

struct listener {
    struct agent *agent;
    uv_pipe_t pipe;
};

struct conn {
    struct agent *agent;
    uv_pipe_t pipe;
    struct buf in;
    bool greeted, closing, closed;
    unsigned running; /* calls that will still answer */
    LIST_HEAD(, call) calls;
};

/* One Run in progress. */
struct call {
    struct conn *conn;
    uint32_t stream_id;
    struct run *run;
    LIST_ENTRY(call) link;
};

/* ---- Writing ---- */

struct write {
    uv_write_t req;
    size_t len;
    uint8_t bytes[];
};

static void conn_close(struct conn *conn);

static void on_written(uv_write_t *req, int status) {
    struct write *write = CONTAINER_OF(req, struct write, req);
    struct conn *conn = req->handle->data;
    free(write);
    if (status < 0)
        conn_close(conn);
}

static void send_response(struct conn *conn, uint32_t stream_id,
                          const Sandlot__Agent__V1__Response *response) {
    if (conn->closing)
        return;
    size_t len = sandlot__agent__v1__response__get_packed_size(response);
    struct write *write = xcalloc(1, sizeof *write + FRAME_HEADER + len);
    struct frame frame = {.stream_id = stream_id, .type = FRAME_RESPONSE, .len = (uint32_t)len};
    frame_encode_header(write->bytes, &frame);
    sandlot__agent__v1__response__pack(response, write->bytes + FRAME_HEADER);
    uv_buf_t buf = uv_buf_init((char *)write->bytes, (unsigned)(FRAME_HEADER + len));
    if (uv_write(&write->req, (uv_stream_t *)&conn->pipe, &buf, 1, on_written) < 0) {
        free(write);
        conn_close(conn);
    }
}

static void send_error(struct conn *conn, uint32_t stream_id, const struct err *err) {
    Sandlot__Agent__V1__Response response = SANDLOT__AGENT__V1__RESPONSE__INIT;
    response.code = (int)err->code;
    response.reason = err->reason;
    response.message = (char *)(uintptr_t)err->text;
    send_response(conn, stream_id, &response);
}

static void send_message(struct conn *conn, uint32_t stream_id, const ProtobufCMessage *message) {
    Sandlot__Agent__V1__Response response = SANDLOT__AGENT__V1__RESPONSE__INIT;
    response.payload.len = protobuf_c_message_get_packed_size(message);
    AUTO_FREE uint8_t *payload = xcalloc(1, response.payload.len);
    response.payload.data = payload;
    protobuf_c_message_pack(message, payload);
    send_response(conn, stream_id, &response);
}

/* The handle is closed and no command is left that would answer. */
static void conn_free_if_over(struct conn *conn) {
    if (conn->closed && conn->running == 0)
        free(conn);
}

/* ---- Methods: decode, act, reply ---- */

static void on_run_done(void *arg, const Sandlot__Agent__V1__RunResponse *response) {
    struct call *call = arg;
    struct conn *conn = call->conn;
    send_message(conn, call->stream_id, &response->base);
    LIST_REMOVE(call, link);
    free(call);
    conn->running--;
    conn_free_if_over(conn);
}

static int check_run(const Sandlot__Agent__V1__RunRequest *request, struct err *err) {
    bool ok = request->n_argv > 0 && request->n_argv <= 4096 && request->cwd.len > 0;
    for (size_t i = 0; ok && i < request->n_argv; i++)
        ok = !memchr(request->argv[i].data ? request->argv[i].data : (uint8_t *)"", 0, request->argv[i].len);
    if (!ok)
        return err_set(err, ERR_INVALID_ARGUMENT, REASON(INVALID_REQUEST), "not a valid command");
    return 0;
}

static int do_run(struct conn *conn, uint32_t stream_id, const ProtobufCMessage *message, struct err *err) {
    const Sandlot__Agent__V1__RunRequest *request = (const void *)message;
    if (conn->running >= REQUESTS_MAX)
        return err_set(err, ERR_RESOURCE_EXHAUSTED, REASON(CAPACITY_EXHAUSTED), "%d commands run already",
                       REQUESTS_MAX);
    if (check_run(request, err) < 0)
        return -1;
    struct call *call = xcalloc(1, sizeof *call);
    call->conn = conn;
    call->stream_id = stream_id;
    if (run_start(conn->agent->runs, request, on_run_done, call, &call->run, err) < 0) {
        free(call);
        return -1;
    }
    LIST_INSERT_HEAD(&conn->calls, call, link);
    conn->running++;
    return 0;
}

static int do_kill(struct conn *conn, uint32_t stream_id, const ProtobufCMessage *message, struct err *err) {
    (void)err;
    const Sandlot__Agent__V1__KillRequest *request = (const void *)message;
    run_kill_by_id(conn->agent->runs, request->exec_id);
    Sandlot__Agent__V1__KillResponse response = SANDLOT__AGENT__V1__KILL_RESPONSE__INIT;
    send_message(conn, stream_id, &response.base);
    return 0;
}

static int do_set_expiry(struct conn *conn, uint32_t stream_id, const ProtobufCMessage *message,
                         struct err *err) {
    (void)err;
    const Sandlot__Agent__V1__SetExpiryRequest *request = (const void *)message;
    agent_set_expiry(conn->agent, request->expire_unix_ms);
    Sandlot__Agent__V1__SetExpiryResponse response = SANDLOT__AGENT__V1__SET_EXPIRY_RESPONSE__INIT;
    send_message(conn, stream_id, &response.base);
    return 0;
}

/* The connection goes to a process of its own, which may block on whatever the sandbox planted. */
static int hand_to_file_helper(struct conn *conn, uint32_t stream_id, struct err *err) {
    uv_os_fd_t fd;
    if (conn->in.len > 0 || uv_fileno((uv_handle_t *)&conn->pipe, &fd) < 0)
        return err_set(err, ERR_INVALID_ARGUMENT, REASON(MALFORMED_MESSAGE),
                       "a file connection waits for the answer to Hello");
    pid_t pid = fork();
    if (pid < 0)
        return err_set(err, ERR_RESOURCE_EXHAUSTED, REASON(SPAWN_FAILED), "no process for file work");
    if (pid == 0)
        files_serve(fd, stream_id, conn->agent->sandbox_id);
    conn_close(conn);
    return 0;
}

static int do_hello(struct conn *conn, uint32_t stream_id, const ProtobufCMessage *message, struct err *err) {
    const Sandlot__Agent__V1__HelloRequest *request = (const void *)message;
    if (request->protocol != PROTOCOL)
        return err_set(err, ERR_FAILED_PRECONDITION, REASON(INTERNAL),
                       "this agent speaks protocol %d, the broker %u", PROTOCOL, request->protocol);
    conn->greeted = true;
    if (request->role == SANDLOT__AGENT__V1__HELLO_REQUEST__ROLE__ROLE_FILES)
        return hand_to_file_helper(conn, stream_id, err);
    Sandlot__Agent__V1__HelloResponse response = SANDLOT__AGENT__V1__HELLO_RESPONSE__INIT;
    response.protocol = PROTOCOL;
    response.sandbox_id = (char *)(uintptr_t)conn->agent->sandbox_id;
    response.cgroup_per_exec = conn->agent->cgroups != NULL;
    send_message(conn, stream_id, &response.base);
    return 0;
}

static const struct method {
    const char *name;
    const ProtobufCMessageDescriptor *request;
    int (*handle)(struct conn *conn, uint32_t stream_id, const ProtobufCMessage *message, struct err *err);
} methods[] = {
    {"Hello", &sandlot__agent__v1__hello_request__descriptor, do_hello},
    {"Run", &sandlot__agent__v1__run_request__descriptor, do_run},
    {"Kill", &sandlot__agent__v1__kill_request__descriptor, do_kill},
    {"SetExpiry", &sandlot__agent__v1__set_expiry_request__descriptor, do_set_expiry},
};

static int dispatch(struct conn *conn, const struct frame *frame, struct err *err) {
    AUTO_ARENA struct arena *envelope_arena = NULL;
    const Sandlot__Agent__V1__Request *envelope =
        (void *)unpack(&sandlot__agent__v1__request__descriptor, frame->payload, frame->len, UNPACK_MAX,
                       REASON(MALFORMED_MESSAGE), &envelope_arena, err);
    if (!envelope)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
        const struct method *method = &methods[i];
        if (strcmp(method->name, envelope->method) != 0)
            continue;
        if (!conn->greeted && method->handle != do_hello)
            return err_set(err, ERR_FAILED_PRECONDITION, REASON(INTERNAL), "Hello comes first");
        AUTO_ARENA struct arena *arena = NULL;
        const ProtobufCMessage *message =
            unpack(method->request, envelope->payload.data, envelope->payload.len, UNPACK_MAX,
                   REASON(MALFORMED_MESSAGE), &arena, err);
        return message ? method->handle(conn, frame->stream_id, message, err) : -1;
    }
    return err_set(err, ERR_UNIMPLEMENTED, REASON(METHOD_UNKNOWN), "the agent has no method \"%s\"",
                   envelope->method);
}

/* ---- Reading, closing ---- */

static void on_conn_closed(uv_handle_t *handle) {
    struct conn *conn = handle->data;
    buf_fini(&conn->in);
    conn->closed = true;
    conn_free_if_over(conn);
}

/* Whoever asked is gone: nobody can collect these results, so the commands end. */
static void conn_close(struct conn *conn) {
    if (conn->closing)
        return;
    conn->closing = true;
    struct call *call;
    LIST_FOREACH (call, &conn->calls, link)
        run_kill(call->run);
    uv_close((uv_handle_t *)&conn->pipe, on_conn_closed);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *ret) {
    (void)suggested;
    struct conn *conn = handle->data;
    if (buf_reserve(&conn->in, 4096) < 0) {
        *ret = uv_buf_init(NULL, 0);
        return;
    }
    size_t room = conn->in.capacity - conn->in.len;
    *ret = uv_buf_init((char *)conn->in.data + conn->in.len, (unsigned)room);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
    (void)buf;
    struct conn *conn = stream->data;
    if (n < 0) {
        conn_close(conn);
        return;
    }
    conn->in.len += (size_t)n;
    size_t used = 0;
    while (!conn->closing) {
        struct frame frame;
        long taken = frame_decode(conn->in.data + used, conn->in.len - used, &frame);
        if (taken < 0 || (taken > 0 && frame.type != FRAME_REQUEST)) {
            log_error("agent", "the broker sent something that is no request frame");
            conn_close(conn);
            return;
        }
        if (taken == 0)
            break;
        used += (size_t)taken;
        bool last = used == conn->in.len;
        if (last)
            conn->in.len = 0; /* hand_to_file_helper looks at it */
        struct err err = {0};
        if (dispatch(conn, &frame, &err) < 0)
            send_error(conn, frame.stream_id, &err);
        if (last)
            used = 0;
        if (last)
            break;
    }
    buf_consume(&conn->in, used);
    if (conn->in.len == 0 && conn->in.capacity > 64 * 1024)
        buf_fini(&conn->in); /* a large request must not stay as idle memory */
}

static void on_connection(uv_stream_t *server, int status) {
    struct listener *listener = server->data;
    if (status < 0)
        return;
    struct conn *conn = xcalloc(1, sizeof *conn);
    conn->agent = listener->agent;
    buf_init(&conn->in, FRAME_HEADER + FRAME_PAYLOAD_MAX + 4096);
    LIST_INIT(&conn->calls);
    uv_pipe_init(listener->agent->loop, &conn->pipe, 0);
    conn->pipe.data = conn;
    if (uv_accept(server, (uv_stream_t *)&conn->pipe) < 0 ||
        uv_read_start((uv_stream_t *)&conn->pipe, on_alloc, on_read) < 0)
        conn_close(conn);
}

int conn_listen(struct agent *agent, int listen_fd) {
    struct listener *listener = xcalloc(1, sizeof *listener);
    listener->agent = agent;
    listener->pipe.data = listener;
    uv_pipe_init(agent->loop, &listener->pipe, 0);
    if (uv_pipe_open(&listener->pipe, listen_fd) < 0)
        return -1;
    return uv_listen((uv_stream_t *)&listener->pipe, 128, on_connection);
}
