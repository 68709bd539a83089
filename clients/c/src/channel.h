/* One gRPC channel with the thread that takes its events. Calls may come from any thread. */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "common/unpack.h"
#include "sandlot/sandlot.h"

struct channel;

struct channel *channel_open(const char *address);
void channel_close(struct channel *channel);
const char *channel_address(const struct channel *channel);
/* -1 in a process that forked after channel_open. */
int channel_check_process(const struct channel *channel, struct sandlot_error *err);

struct rpc_opts {
    const char *method;  /* "/sandlot.v1.LeaseService/Connect" */
    const char *lease;   /* NULL: none is sent */
    const char *rollout; /* NULL: none is sent */
    double timeout;      /* seconds; <= 0: none */
};

/* A unary call. On success *ret (of response_type) lives in *ret_arena. */
int rpc_unary(struct channel *channel, const struct rpc_opts *opts, const ProtobufCMessage *request,
              const ProtobufCMessageDescriptor *response_type, struct arena **ret_arena,
              const ProtobufCMessage **ret, struct sandlot_error *err);

/* A streaming call, used by one thread. Every path ends with rpc_end. */
struct rpc;
struct rpc *rpc_start(struct channel *channel, const struct rpc_opts *opts, struct sandlot_error *err);
/* 1: sent (the window took it); 0: the server has ended the call, rpc_end says how. */
int rpc_send(struct rpc *rpc, const ProtobufCMessage *message);
int rpc_half_close(struct rpc *rpc);
/* 1: a message in *ret / *ret_arena; 0: no more, rpc_end says why; -1: not understood. */
int rpc_receive(struct rpc *rpc, const ProtobufCMessageDescriptor *type, struct arena **ret_arena,
                const ProtobufCMessage **ret, struct sandlot_error *err);
void rpc_cancel(struct rpc *rpc);
/* Waits for the status, frees. 0 if it was OK. */
int rpc_end(struct rpc *rpc, struct sandlot_error *err);
