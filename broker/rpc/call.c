#include "broker/rpc/call_internal.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <stdlib.h>
#include <string.h>

#include "broker/rpc/status.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define UNPACK_MAX (12u * 1024 * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

static const char *const call_states[] = {"arrived", "reading", "running", "ended", "cancelled"};
static const uint32_t call_moves[] = {
    [CALL_ARRIVED] = SM_TO(CALL_READING) | SM_TO(CALL_RUNNING) | SM_TO(CALL_ENDED) | SM_TO(CALL_CANCELLED),
    [CALL_READING] = SM_TO(CALL_RUNNING) | SM_TO(CALL_ENDED) | SM_TO(CALL_CANCELLED),
    [CALL_RUNNING] = SM_TO(CALL_ENDED) | SM_TO(CALL_CANCELLED),
    [CALL_ENDED] = 0,
    [CALL_CANCELLED] = 0,
};
static const struct sm_conf call_conf = {
    .name = "call", .states = call_states, .moves = call_moves, .count = CALL_STATE_MAX};

static void on_close(struct pump_tag *tag, bool ok);
static void on_read(struct pump_tag *tag, bool ok);
static void on_written(struct pump_tag *tag, bool ok);
static void on_status_sent(struct pump_tag *tag, bool ok);

struct call *call_create(struct server *server) {
    struct call *call = xcalloc(1, sizeof *call);
    call->server = server;
    call->close_tag.done = on_close;
    call->read_tag.done = on_read;
    call->write_tag.done = on_written;
    call->status_tag.done = on_status_sent;
    call->status_text = call->status_details = grpc_empty_slice();
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    sm_init(&call->sm, &call_conf, CALL_ARRIVED, "-");
    return call;
}

void call_destroy(struct call *call) {
    if (call->call)
        grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    if (call->received)
        grpc_byte_buffer_destroy(call->received);
    if (call->sending)
        grpc_byte_buffer_destroy(call->sending);
    grpc_slice_unref(call->status_text);
    grpc_slice_unref(call->status_details);
    arena_destroy(call->request_arena);
    free(call);
}

static bool is_over(const struct call *call) {
    return call->sm.state == CALL_ENDED || call->sm.state == CALL_CANCELLED;
}

static bool on_loop(const struct call *call) {
    return !call->method || !(call->method->flags & METHOD_INLINE);
}

static void free_if_over(struct call *call) {
    if (!is_over(call) || call->batches > 0)
        return;
    if (on_loop(call) && call->method)
        server_call_ended(call->server, call);
    call_destroy(call);
}

static void start_batch(struct call *call, const grpc_op *ops, size_t count, struct pump_tag *tag) {
    call->batches++;
    pump_tag_hand_over(tag);
    grpc_call_error rc = grpc_call_start_batch(call->call, ops, count, tag, NULL);
    if (rc != GRPC_CALL_OK) {
        log_error("rpc", "batch refused by gRPC: %s", grpc_call_error_to_string(rc));
        abort();
    }
}

/* ---- Sending ---- */

static grpc_byte_buffer *pack(const ProtobufCMessage *message) {
    size_t len = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(len);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static size_t add_initial(struct call *call, grpc_op *ops) {
    if (call->initial_sent)
        return 0;
    call->initial_sent = true;
    *ops = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

static size_t add_message(struct call *call, grpc_op *ops, const ProtobufCMessage *message) {
    if (call->sending)
        grpc_byte_buffer_destroy(call->sending);
    call->sending = pack(message);
    *ops = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops->data.send_message.send_message = call->sending;
    return 1;
}

/* The end of a call: the state first, then the status on its way, with the last message if any. */
static void send_status(struct call *call, const ProtobufCMessage *message, const struct err *err) {
    grpc_op ops[3];
    size_t n = add_initial(call, ops);
    if (message)
        n += add_message(call, &ops[n], message);
    grpc_op *status = &ops[n++];
    *status = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    status->data.send_status_from_server.status = err ? (grpc_status_code)err->code : GRPC_STATUS_OK;
    if (err) {
        call->status_text = grpc_slice_from_copied_string(err->text);
        call->status_details = status_details(err);
        call->trailing[0] = (grpc_metadata){.key = grpc_slice_from_static_string("grpc-status-details-bin"),
                                            .value = call->status_details};
        status->data.send_status_from_server.status_details = &call->status_text;
        status->data.send_status_from_server.trailing_metadata_count = 1;
        status->data.send_status_from_server.trailing_metadata = call->trailing;
    }
    sm_move(&call->sm, CALL_ENDED);
    lease_watch_remove(&call->watch);
    start_batch(call, ops, n, &call->status_tag);
}

void call_reply(struct call *call, const ProtobufCMessage *message) {
    send_status(call, message, NULL);
}

void call_finish(struct call *call) {
    send_status(call, NULL, NULL);
}

void call_fail(struct call *call, const struct err *err) {
    if (err->code == ERR_INTERNAL)
        log_error("rpc", "method=%s %s", call->method ? call->method->path : "?", err->text);
    send_status(call, NULL, err);
}

void call_send(struct call *call, const ProtobufCMessage *message) {
    grpc_op ops[2];
    size_t n = add_initial(call, ops);
    n += add_message(call, &ops[n], message);
    start_batch(call, ops, n, &call->write_tag);
}

static void on_written(struct pump_tag *tag, bool ok) {
    struct call *call = CONTAINER_OF(tag, struct call, write_tag);
    call->batches--;
    if (ok && !is_over(call) && call->ops && call->ops->sent)
        call->ops->sent(call);
    else
        free_if_over(call);
}

static void on_status_sent(struct pump_tag *tag, bool ok) {
    (void)ok; /* if it did not arrive, the client is gone */
    struct call *call = CONTAINER_OF(tag, struct call, status_tag);
    call->batches--;
    free_if_over(call);
}

/* ---- Reading ---- */

void call_read(struct call *call) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->received;
    start_batch(call, &op, 1, &call->read_tag);
}

/* Unpacks call->received and drops it. */
static const ProtobufCMessage *unpack_received(struct call *call, struct arena **ret_arena, struct err *err) {
    grpc_byte_buffer *buffer = call->received;
    const ProtobufCMessage *message;
    call->received = NULL;
    if (buffer->type == GRPC_BB_RAW && buffer->data.raw.compression == GRPC_COMPRESS_NONE &&
        buffer->data.raw.slice_buffer.count == 1) {
        const grpc_slice *slice = &buffer->data.raw.slice_buffer.slices[0];
        message = unpack(call->method->request, GRPC_SLICE_START_PTR(*slice), GRPC_SLICE_LENGTH(*slice),
                         UNPACK_MAX, REASON(MALFORMED_MESSAGE), ret_arena, err);
    } else {
        grpc_byte_buffer_reader reader;
        if (!grpc_byte_buffer_reader_init(&reader, buffer)) {
            err_set(err, ERR_INVALID_ARGUMENT, REASON(MALFORMED_MESSAGE),
                    "the message can't be decompressed");
            grpc_byte_buffer_destroy(buffer);
            return NULL;
        }
        grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
        message = unpack(call->method->request, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all), UNPACK_MAX,
                         REASON(MALFORMED_MESSAGE), ret_arena, err);
        grpc_slice_unref(all);
        grpc_byte_buffer_reader_destroy(&reader);
    }
    grpc_byte_buffer_destroy(buffer);
    return message;
}

static void on_request_read(struct call *call) {
    struct err err = {0};
    if (!call->received) {
        err_set(&err, ERR_INVALID_ARGUMENT, REASON(MALFORMED_MESSAGE), "the request message is missing");
        call_fail(call, &err);
        return;
    }
    call->request = unpack_received(call, &call->request_arena, &err);
    if (!call->request) {
        call_fail(call, &err);
        return;
    }
    /* While the request was on its way the lease may have ended, or gone with its sandbox. */
    if (call->method->need.lease &&
        !(call->lease = lease_find(server_context(call->server)->leases, call->grant.sandbox_id,
                                   call->grant.lease_id))) {
        err_set(&err, ERR_NOT_FOUND, REASON(SANDBOX_NOT_FOUND), "sandbox %s does not exist any more",
                call->grant.sandbox_id);
        call_fail(call, &err);
        return;
    }
    if (call->method->need.lease && lease_check_live(call->lease, call->method->need.takes_ended, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    sm_move(&call->sm, CALL_RUNNING);
    call->method->handle(call);
}

static void on_stream_read(struct call *call) {
    struct err err = {0};
    AUTO_ARENA struct arena *arena = NULL;
    if (!call->received) {
        call->ops->message(call, NULL);
        return;
    }
    const ProtobufCMessage *message = unpack_received(call, &arena, &err);
    if (message) {
        call->ops->message(call, message);
        return;
    }
    if (call->ops->cancelled)
        call->ops->cancelled(call); /* the handler's work ends; the client still gets its status */
    call_fail(call, &err);
}

static void on_read(struct pump_tag *tag, bool ok) {
    struct call *call = CONTAINER_OF(tag, struct call, read_tag);
    call->batches--;
    /* A cancel looks like a half-close here; which it is, the close event knows. */
    bool cut = !ok || (!call->received && grpc_call_failed_before_recv_message(call->call));
    if (is_over(call) || cut)
        free_if_over(call);
    else if (call->sm.state == CALL_READING)
        on_request_read(call);
    else
        on_stream_read(call);
}

/* ---- Beginning and end ---- */

static void cancel(struct call *call) {
    bool running = call->sm.state == CALL_RUNNING;
    sm_move(&call->sm, CALL_CANCELLED);
    lease_watch_remove(&call->watch);
    if (running && call->ops && call->ops->cancelled)
        call->ops->cancelled(call);
}

static void on_close(struct pump_tag *tag, bool ok) {
    (void)ok;
    struct call *call = CONTAINER_OF(tag, struct call, close_tag);
    call->batches--;
    if (!is_over(call))
        cancel(call);
    free_if_over(call);
}

static void on_lease_ended(struct lease_watch *watch, const struct err *err) {
    struct call *call = CONTAINER_OF(watch, struct call, watch);
    const struct access *access = &server_context(call->server)->access;
    struct err gone = {0};
    if (access->check_sandbox(access->arg, call->grant.sandbox_id, &gone) < 0)
        err = &gone; /* both were up at the same moment: the sandbox's end says more */
    if (call->sm.state == CALL_RUNNING && call->ops && call->ops->cancelled)
        call->ops->cancelled(call);
    call_fail(call, err);
}

static void find_metadata(const struct call *call, const char *key, const char **ret, size_t *ret_len) {
    for (size_t i = 0; i < call->metadata.count; i++)
        if (grpc_slice_str_cmp(call->metadata.metadata[i].key, key) == 0) {
            *ret = (const char *)GRPC_SLICE_START_PTR(call->metadata.metadata[i].value);
            *ret_len = GRPC_SLICE_LENGTH(call->metadata.metadata[i].value);
            return;
        }
    *ret = NULL;
    *ret_len = 0;
}

static int let_in(struct call *call, struct err *err) {
    const struct method *method = call->method;
    const struct rpc_context *context = server_context(call->server);
    struct identity identity;
    struct access_claim claim = {.identity = &identity};
    if (method->flags & METHOD_ANYBODY)
        return 0;
    server_identify(call->server, call->peer, &identity);
    if (!(method->flags & METHOD_ANYTIME) && !server_is_open(call->server)) {
        err_set(err, ERR_UNAVAILABLE, REASON(NOT_SERVING),
                "the broker is starting or shutting down; try again");
        err->retry_delay_ms = 500;
        return -1;
    }
    find_metadata(call, "sandlot-lease", &claim.token, &claim.token_len);
    find_metadata(call, "sandlot-rollout", &claim.rollout, &claim.rollout_len);
    claim.has_rollout = claim.rollout != NULL;
    if (authorize(&context->access, &method->need, &claim, &call->grant, &call->lease, err) < 0)
        return -1;
    if (call->lease && !(method->flags & METHOD_UNWATCHED)) {
        call->watch.ended = on_lease_ended;
        lease_watch_add(context->leases, &call->watch, call->lease);
    }
    return 0;
}

void call_begin(struct call *call, const struct err *refusal) {
    struct err err = {0};
    grpc_op op = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    bool inline_ = !on_loop(call) || refusal;
    struct pump_tag *tags[] = {&call->close_tag, &call->read_tag, &call->write_tag, &call->status_tag};
    for (size_t i = 0; i < ARRAY_LEN(tags); i++)
        tags[i]->on_pump_thread = inline_;
    op.data.recv_close_on_server.cancelled = &call->cancelled;
    start_batch(call, &op, 1, &call->close_tag);
    if (refusal) {
        call_fail(call, refusal);
        return;
    }
    if (on_loop(call))
        server_call_started(call->server, call);
    if (let_in(call, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    bool reads_first = call->method->kind == METHOD_UNARY || call->method->kind == METHOD_SERVER_STREAM;
    sm_move(&call->sm, reads_first ? CALL_READING : CALL_RUNNING);
    if (reads_first)
        call_read(call);
    else
        call->method->handle(call);
}

/* ---- Getters ---- */

void call_set_ops(struct call *call, const struct call_ops *ops, void *state) {
    call->ops = ops;
    call->state = state;
}

void *call_state(const struct call *call) {
    return call->state;
}

const struct rpc_context *call_context(const struct call *call) {
    return server_context(call->server);
}

const struct grant *call_grant(const struct call *call) {
    return &call->grant;
}

const struct lease *call_lease(const struct call *call) {
    return call->lease;
}

const ProtobufCMessage *call_request(const struct call *call) {
    return call->request;
}
