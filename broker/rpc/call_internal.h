/* Between server.c, which lets calls in, and call.c, which carries them. */
#pragma once

#include <grpc/grpc.h>

#include "broker/rpc/call.h"
#include "broker/rpc/pump.h"
#include "common/mailbox.h"
#include "common/unpack.h"

struct server;

/*
 *  ARRIVED --authorized--> READING --request read--> RUNNING --status sent--> ENDED
 *     |  (streams go straight to RUNNING)  |             |
 *     +----refused------------------------+-------------+--> ENDED (status) or, by the client, CANCELLED
 *
 * The memory goes when the state is ENDED or CANCELLED and no batch is under way.
 */
enum call_state { CALL_ARRIVED, CALL_READING, CALL_RUNNING, CALL_ENDED, CALL_CANCELLED, CALL_STATE_MAX };

struct call {
    struct sm sm;
    struct server *server;
    const struct method *method; /* NULL: unknown */
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    char peer[64];
    struct mail arrival; /* from the pump to the loop */
    unsigned batches;    /* under way */
    bool initial_sent;

    struct pump_tag close_tag, read_tag, write_tag, status_tag;
    int cancelled;
    grpc_byte_buffer *received;
    grpc_byte_buffer *sending;
    grpc_slice status_text, status_details;
    grpc_metadata trailing[1];

    struct grant grant;
    const struct lease *lease;
    struct lease_watch watch;
    struct arena *request_arena;
    const ProtobufCMessage *request;
    const struct call_ops *ops;
    void *state;
    LIST_ENTRY(call) link; /* calls of the loop thread, for draining */
};

/* Takes the arrived call; on its own thread. refusal: NULL, or why it is turned away at once. */
void call_begin(struct call *call, const struct err *refusal);
struct call *call_create(struct server *server);
void call_destroy(struct call *call);

/* server.c */
const struct rpc_context *server_context(const struct server *server);
void server_identify(struct server *server, const char *peer, struct identity *ret);
bool server_is_open(const struct server *server);
void server_call_started(struct server *server, struct call *call);
void server_call_ended(struct server *server, struct call *call);
