/* One RPC on the server, from its arrival to its status. A call belongs to one thread: the loop's, or
 * the pump's for INLINE methods; all functions here are called there.
 *
 * A handler ends its call with exactly one of call_reply, call_fail, call_finish; unless the client
 * goes away, its deadline passes or its lease ends: then `cancelled` is called instead, once, and the
 * handler must not touch the call again. */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "broker/access/grant.h"
#include "broker/access/lease.h"
#include "broker/rpc/context.h"
#include "broker/rpc/method.h"
#include "common/err.h"

struct call;

struct call_ops {
    /* After call_read: a message, valid during the call, or NULL at the client's half-close. */
    void (*message)(struct call *call, const ProtobufCMessage *message);
    /* After call_send: the client's window took it; the next may be sent. */
    void (*sent)(struct call *call);
    /* Drop whatever works for this call. */
    void (*cancelled)(struct call *call);
};

void call_set_ops(struct call *call, const struct call_ops *ops, void *state);
void *call_state(const struct call *call);
const struct rpc_context *call_context(const struct call *call);
const struct grant *call_grant(const struct call *call);
/* Valid when the handler is called, not later: it may go with its sandbox. */
const struct lease *call_lease(const struct call *call);
/* UNARY and SERVER_STREAM: the request; valid until the call ends. */
const ProtobufCMessage *call_request(const struct call *call);

void call_reply(struct call *call, const ProtobufCMessage *message);
void call_fail(struct call *call, const struct err *err);
void call_finish(struct call *call); /* OK, no further message */

/* One at a time each. */
void call_read(struct call *call);
void call_send(struct call *call, const ProtobufCMessage *message);
