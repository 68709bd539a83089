#include "broker/rpc/server.h"

#include <errno.h>
#include <fcntl.h>
#include <grpc/grpc.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/alloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker/rpc/call_internal.h"
#include "broker/rpc/health.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define ARMED 16
#define MESSAGE_MAX (4 * 1024 * 1024)
#define METADATA_MAX (16 * 1024)
#define STREAMS_MAX 8192
#define READ_AHEAD (64 * 1024)
#define MEMORY_QUOTA (512u * 1024 * 1024) /* of all connections' buffers */
#define ACCEPT_PAUSE_MS 100
#define PEER_FD_FIRST 1024
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/* Who is behind an accepted unix connection. gRPC names it "fd:N"; numbers are given out in rotation,
 * so that a call of a closed connection is not taken for one of its successor. */
struct peer {
    uid_t uid;
    bool known;
};

struct unix_listener {
    struct server *server;
    uv_poll_t poll;
    int fd;
};

struct armed {
    struct pump_tag tag;
    struct call *call;
};

struct server {
    uv_loop_t *loop;
    const struct rpc_context *context;
    struct pump *pump;
    grpc_server *grpc;
    grpc_server_credentials *peer_credentials;
    unsigned own_uid;
    bool open;
    struct peer *peers;
    int peer_count, first_peer_fd, next_peer_fd;
    struct unix_listener *unix_listeners;
    size_t unix_count;
    struct armed armed[ARMED];
    LIST_HEAD(, call) calls;
    uv_timer_t drain_timer, accept_timer;
    struct pump_tag shutdown_tag;
    unsigned open_handles;
    bool shut_down, pump_gone;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

/* ---- Calls come in: on the pump's thread ---- */

static void arm(struct server *server, struct armed *armed) {
    armed->call = call_create(server);
    grpc_completion_queue *queue = pump_queue(server->pump);
    pump_tag_hand_over(&armed->tag);
    grpc_call_error rc = grpc_server_request_call(server->grpc, &armed->call->call, &armed->call->details,
                                                  &armed->call->metadata, queue, queue, &armed->tag);
    if (rc != GRPC_CALL_OK) {
        call_destroy(armed->call);
        armed->call = NULL;
    }
}

static void deliver_arrival(struct mail *mail) {
    call_begin(CONTAINER_OF(mail, struct call, arrival), NULL);
}

static void refuse_unknown(struct call *call) {
    struct err err;
    char path[128];
    size_t len = GRPC_SLICE_LENGTH(call->details.method);
    snprintf(path, sizeof path, "%.*s", (int)(len < sizeof path ? len : sizeof path - 1),
             (const char *)GRPC_SLICE_START_PTR(call->details.method));
    err_set(&err, ERR_UNIMPLEMENTED, REASON(METHOD_UNKNOWN), "this broker has no method %s", path);
    call_begin(call, &err);
}

static void on_call(struct pump_tag *tag, bool ok) {
    struct armed *armed = CONTAINER_OF(tag, struct armed, tag);
    struct call *call = armed->call;
    struct server *server = call->server;
    if (!ok) { /* shutting down */
        armed->call = NULL;
        call_destroy(call);
        return;
    }
    arm(server, armed);
    char *peer = grpc_call_get_peer(call->call);
    snprintf(call->peer, sizeof call->peer, "%s", peer);
    gpr_free(peer);
    call->method = method_find((const char *)GRPC_SLICE_START_PTR(call->details.method),
                               GRPC_SLICE_LENGTH(call->details.method));
    if (!call->method) {
        refuse_unknown(call);
    } else if (call->method->flags & METHOD_INLINE) {
        call_begin(call, NULL);
    } else {
        call->arrival.deliver = deliver_arrival;
        pump_to_loop(server->pump, &call->arrival);
    }
}

/* ---- Peers ---- */

void server_identify(struct server *server, const char *peer, struct identity *ret) {
    *ret = (struct identity){0};
    if (strncmp(peer, "fd:", 3) == 0) {
        long fd = strtol(peer + 3, NULL, 10);
        if (fd < 0 || fd >= server->peer_count || !server->peers[fd].known)
            return;
        uid_t uid = server->peers[fd].uid;
        snprintf(ret->tenant, sizeof ret->tenant, "uid:%u", (unsigned)uid);
        ret->admin = uid == 0 || uid == server->own_uid;
    } else if (strncmp(peer, "ipv4:127.", 9) == 0 || strncmp(peer, "ipv6:%5B::1%5D", 14) == 0 ||
               strncmp(peer, "ipv6:[::1]", 10) == 0) {
        snprintf(ret->tenant, sizeof ret->tenant, "loopback");
    }
}

/* The same connection under a number that has not been used for long. */
static int rotate_fd(struct server *server, int fd) {
    AUTO_CLOSE int low = fd;
    if (server->next_peer_fd >= server->peer_count)
        server->next_peer_fd = server->first_peer_fd;
    int high = fcntl(low, F_DUPFD_CLOEXEC, server->next_peer_fd);
    if (high < 0)
        high = fcntl(low, F_DUPFD_CLOEXEC, server->first_peer_fd);
    if (high >= 0)
        server->next_peer_fd = high + 1;
    return high;
}

static void on_connection(uv_poll_t *poll, int status, int events);

static void on_accept_pause_over(uv_timer_t *timer) {
    struct server *server = timer->data;
    for (size_t i = 0; i < server->unix_count; i++)
        uv_poll_start(&server->unix_listeners[i].poll, UV_READABLE, on_connection);
}

/* Out of descriptors: the waiting connection would wake us again at once. */
static void pause_accepting(struct server *server) {
    for (size_t i = 0; i < server->unix_count; i++)
        uv_poll_stop(&server->unix_listeners[i].poll);
    uv_timer_start(&server->accept_timer, on_accept_pause_over, ACCEPT_PAUSE_MS, 0);
}

static void on_connection(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    struct unix_listener *listener = CONTAINER_OF(poll, struct unix_listener, poll);
    struct server *server = listener->server;
    for (;;) {
        struct ucred peer;
        socklen_t len = sizeof peer;
        int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                pause_accepting(server);
            return;
        }
        fd = rotate_fd(server, fd);
        if (fd < 0 || fd >= server->peer_count || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0) {
            log_warning("rpc", "a connection is refused: too many are open");
            if (fd >= 0)
                close(fd);
            continue;
        }
        server->peers[fd] = (struct peer){.uid = peer.uid, .known = true};
        grpc_server_add_channel_from_fd(server->grpc, fd, server->peer_credentials);
    }
}

/* ---- Start ---- */

static grpc_server *make_grpc_server(void) {
    static char bdp[] = GRPC_ARG_HTTP2_BDP_PROBE;
    struct {
        const char *key;
        int value;
    } settings[] = {
        {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, MESSAGE_MAX},
        {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, MESSAGE_MAX},
        {GRPC_ARG_MAX_METADATA_SIZE, METADATA_MAX},
        {GRPC_ARG_MAX_CONCURRENT_STREAMS, STREAMS_MAX},
        {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000},
        {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
        {GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0},
        {GRPC_ARG_ALLOW_REUSEPORT, 0},
        {bdp, 0},
        {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, READ_AHEAD},
        {GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1}, /* identity only: no bombs */
    };
    grpc_arg args[ARRAY_LEN(settings) + 1];
    for (size_t i = 0; i < ARRAY_LEN(settings); i++) {
        args[i].type = GRPC_ARG_INTEGER;
        args[i].key = (char *)(uintptr_t)settings[i].key;
        args[i].value.integer = settings[i].value;
    }
    grpc_resource_quota *quota = grpc_resource_quota_create("sandlot");
    grpc_resource_quota_resize(quota, MEMORY_QUOTA);
    grpc_arg *last = &args[ARRAY_LEN(settings)];
    last->type = GRPC_ARG_POINTER;
    last->key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA;
    last->value.pointer.p = quota;
    last->value.pointer.vtable = grpc_resource_quota_arg_vtable();
    grpc_channel_args all = {ARRAY_LEN(args), args};
    grpc_server *server = grpc_server_create(&all, NULL);
    grpc_resource_quota_unref(quota);
    return server;
}

static void make_peer_table(struct server *server) {
    struct rlimit limit = {1024, 1024};
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        getrlimit(RLIMIT_NOFILE, &limit);
    }
    server->peer_count = limit.rlim_cur > 65536 ? 65536 : (int)limit.rlim_cur;
    server->first_peer_fd = server->peer_count / 2 < PEER_FD_FIRST ? server->peer_count / 2 : PEER_FD_FIRST;
    server->next_peer_fd = server->first_peer_fd;
    server->peers = xcalloc((size_t)server->peer_count, sizeof *server->peers);
}

static int add_tcp(struct server *server, const char *address, struct err *err) {
    int port = grpc_server_add_http2_port(server->grpc, address, server->peer_credentials);
    if (port == 0)
        return err_set(err, ERR_UNAVAILABLE, 0, "can't listen on %s: is it in use?", address);
    return 0;
}

static void watch_unix(struct server *server, struct unix_listener *listener, int fd) {
    listener->server = server;
    listener->fd = fd;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    uv_poll_init(server->loop, &listener->poll, fd);
    uv_poll_start(&listener->poll, UV_READABLE, on_connection);
    listener->poll.data = server;
    server->open_handles++;
}

struct server *server_create(uv_loop_t *loop, const struct rpc_context *context,
                             const struct server_opts *opts, struct err *err) {
    struct server *server = xcalloc(1, sizeof *server);
    server->loop = loop;
    server->context = context;
    server->own_uid = opts->own_uid;
    LIST_INIT(&server->calls);
    make_peer_table(server);
    server->pump = pump_create(loop);
    server->grpc = make_grpc_server();
    server->peer_credentials = grpc_insecure_server_credentials_create();
    grpc_server_register_completion_queue(server->grpc, pump_queue(server->pump), NULL);
    for (size_t i = 0; i < opts->listener_count; i++)
        if (opts->listeners[i].unix_fd < 0 && add_tcp(server, opts->listeners[i].address, err) < 0)
            return NULL; /* the process ends */
    grpc_server_start(server->grpc);
    for (size_t i = 0; i < ARMED; i++) {
        server->armed[i].tag.done = on_call;
        server->armed[i].tag.on_pump_thread = true;
        arm(server, &server->armed[i]);
    }
    server->unix_listeners = xcalloc(opts->listener_count, sizeof *server->unix_listeners);
    for (size_t i = 0; i < opts->listener_count; i++)
        if (opts->listeners[i].unix_fd >= 0)
            watch_unix(server, &server->unix_listeners[server->unix_count++], opts->listeners[i].unix_fd);
    uv_timer_init(loop, &server->drain_timer);
    uv_timer_init(loop, &server->accept_timer);
    server->drain_timer.data = server->accept_timer.data = server;
    server->open_handles += 2;
    return server;
}

void server_open(struct server *server) {
    server->open = true;
    health_set_serving(server->context->health, true);
}

bool server_is_open(const struct server *server) {
    return server->open;
}

const struct rpc_context *server_context(const struct server *server) {
    return server->context;
}

void server_call_started(struct server *server, struct call *call) {
    LIST_INSERT_HEAD(&server->calls, call, link);
}

void server_call_ended(struct server *server, struct call *call) {
    (void)server;
    LIST_REMOVE(call, link);
}

/* ---- End ---- */

static void free_when_closed(struct server *server) {
    if (server->open_handles > 0 || !server->pump_gone)
        return;
    void (*cb)(void *) = server->closed_cb;
    void *arg = server->closed_arg;
    free(server->unix_listeners);
    free(server->peers);
    free(server);
    cb(arg);
}

static void on_handle_closed(uv_handle_t *handle) {
    struct server *server = handle->data;
    server->open_handles--;
    free_when_closed(server);
}

static void on_pump_closed(void *arg) {
    struct server *server = arg;
    server->pump_gone = true;
    free_when_closed(server);
}

/* All calls have ended at gRPC; ours may still have batches to hand back, which the queue delivers
 * before it reports its own end. */
static void on_shut_down(struct pump_tag *tag, bool ok) {
    (void)ok;
    struct server *server = CONTAINER_OF(tag, struct server, shutdown_tag);
    server->shut_down = true;
    grpc_server_destroy(server->grpc);
    grpc_server_credentials_release(server->peer_credentials);
    uv_timer_stop(&server->drain_timer);
    uv_close((uv_handle_t *)&server->drain_timer, on_handle_closed);
    pump_close(server->pump, on_pump_closed, server);
}

static void on_drain_over(uv_timer_t *timer) {
    struct server *server = timer->data;
    grpc_server_cancel_all_calls(server->grpc);
}

void server_close(struct server *server, uint64_t drain_ms, void (*cb)(void *arg), void *arg) {
    server->closed_cb = cb;
    server->closed_arg = arg;
    server->open = false;
    health_set_serving(server->context->health, false);
    for (size_t i = 0; i < server->unix_count; i++)
        uv_close((uv_handle_t *)&server->unix_listeners[i].poll, on_handle_closed);
    uv_close((uv_handle_t *)&server->accept_timer, on_handle_closed);
    server->shutdown_tag.done = on_shut_down;
    pump_tag_hand_over(&server->shutdown_tag);
    grpc_server_shutdown_and_notify(server->grpc, pump_queue(server->pump), &server->shutdown_tag);
    uv_timer_start(&server->drain_timer, on_drain_over, drain_ms, 0);
}
