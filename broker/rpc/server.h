/* The gRPC server: its listeners, its peers, calls coming in. Loop thread, but for what server.c says. */
#pragma once

#include <uv.h>

#include "broker/rpc/context.h"
#include "common/err.h"

struct server;

/* One place to listen: a bound and listening unix socket, or a TCP address. */
struct server_listener {
    int unix_fd;         /* -1: TCP; stays the caller's */
    const char *address; /* "HOST:PORT" of the TCP listener */
};

struct server_opts {
    const struct server_listener *listeners;
    size_t listener_count;
    unsigned own_uid; /* besides root, this user administers */
};

/* Listens at once; calls other than health, reflection and info are refused until server_open. */
struct server *server_create(uv_loop_t *loop, const struct rpc_context *context,
                             const struct server_opts *opts, struct err *err);
void server_open(struct server *server);
/* Refuses new calls, gives running ones drain_ms, then cancels them; frees; then cb. */
void server_close(struct server *server, uint64_t drain_ms, void (*cb)(void *arg), void *arg);
