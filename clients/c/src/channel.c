#include "clients/c/src/channel.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/c/src/errors.h"
#include "common/cleanup.h"
#include "common/xalloc.h"

#define MESSAGE_MAX (4 * 1024 * 1024)
#define UNPACK_MAX (16u * 1024 * 1024)
#define METADATA_MAX 3

struct channel {
    grpc_channel *grpc;
    grpc_completion_queue *queue;
    pthread_t thread;
    pid_t owner; /* the process that opened it */
    char *address;
};

/* One batch that somebody waits for. */
struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool done, ok;
    atomic_bool handed;
};

/* ---- The channel ---- */

static void *take_events(void *arg) {
    struct channel *channel = arg;
    for (;;) {
        grpc_event event =
            grpc_completion_queue_next(channel->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        struct waiter *waiter = event.tag;
        (void)atomic_load_explicit(&waiter->handed, memory_order_acquire);
        pthread_mutex_lock(&waiter->lock);
        waiter->done = true;
        waiter->ok = event.success != 0;
        pthread_cond_signal(&waiter->wake);
        pthread_mutex_unlock(&waiter->lock);
    }
}

static grpc_channel *make_channel(const char *address) {
    static char receive[] = GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, pool[] = GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL;
    static char proxy[] = GRPC_ARG_ENABLE_HTTP_PROXY, retries[] = GRPC_ARG_ENABLE_RETRIES;
    static char backoff[] = GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS;
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = receive, .value.integer = MESSAGE_MAX},
        {.type = GRPC_ARG_INTEGER, .key = pool, .value.integer = 1},
        {.type = GRPC_ARG_INTEGER, .key = proxy, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = retries, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = backoff, .value.integer = 100},
    };
    grpc_channel_args all = {ARRAY_LEN(args), args};
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create(address, credentials, &all);
    grpc_channel_credentials_release(credentials);
    return channel;
}

struct channel *channel_open(const char *address) {
    struct channel *channel = xcalloc(1, sizeof *channel);
    sigset_t all, before;
    /* gRPC's threads must not take the program's signals. */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    grpc_init();
    channel->address = xstrdup(address);
    channel->owner = getpid();
    channel->queue = grpc_completion_queue_create_for_next(NULL);
    channel->grpc = make_channel(address);
    if (pthread_create(&channel->thread, NULL, take_events, channel) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return channel;
}

void channel_close(struct channel *channel) {
    if (!channel)
        return;
    if (channel->owner == getpid()) {
        grpc_channel_destroy(channel->grpc);
        grpc_completion_queue_shutdown(channel->queue);
        pthread_join(channel->thread, NULL);
        grpc_completion_queue_destroy(channel->queue);
        grpc_shutdown();
    } /* else: gRPC in a forked child must not be touched */
    free(channel->address);
    free(channel);
}

const char *channel_address(const struct channel *channel) {
    return channel->address;
}

int channel_check_process(const struct channel *channel, struct sandlot_error *err) {
    if (channel->owner == getpid())
        return 0;
    return error_set(err, 9, "HANDLE_FORKED",
                     "this handle belongs to process %d: a forked child connects from a descriptor instead",
                     (int)channel->owner);
}

/* ---- Batches ---- */

static void waiter_init(struct waiter *waiter) {
    waiter->done = waiter->ok = false;
    pthread_mutex_init(&waiter->lock, NULL);
    pthread_cond_init(&waiter->wake, NULL);
    /* The thread that takes the event has seen all of the above: gRPC orders the two, but neither the
     * language nor a race detector can know that. */
    atomic_store_explicit(&waiter->handed, true, memory_order_release);
}

static bool waiter_wait(struct waiter *waiter) {
    pthread_mutex_lock(&waiter->lock);
    while (!waiter->done)
        pthread_cond_wait(&waiter->wake, &waiter->lock);
    bool ok = waiter->ok;
    pthread_mutex_unlock(&waiter->lock);
    pthread_mutex_destroy(&waiter->lock);
    pthread_cond_destroy(&waiter->wake);
    return ok;
}

static void start(grpc_call *call, const grpc_op *ops, size_t count, struct waiter *waiter) {
    waiter_init(waiter);
    if (grpc_call_start_batch(call, ops, count, waiter, NULL) != GRPC_CALL_OK)
        abort(); /* a mistake in this file */
}

static bool run_batch(grpc_call *call, const grpc_op *ops, size_t count) {
    struct waiter waiter;
    start(call, ops, count, &waiter);
    return waiter_wait(&waiter);
}

struct rpc {
    struct channel *channel;
    grpc_call *call;
    grpc_metadata metadata[METADATA_MAX];
    size_t metadata_count;
    grpc_metadata_array initial, trailing;
    grpc_status_code status;
    grpc_slice status_text;
    struct waiter status_waiter;
};

static void add_metadata(struct rpc *rpc, const char *key, const char *value) {
    if (!value)
        return;
    grpc_metadata *entry = &rpc->metadata[rpc->metadata_count++];
    *entry = (grpc_metadata){.key = grpc_slice_from_static_string(key),
                             .value = grpc_slice_from_copied_string(value)};
}

static gpr_timespec deadline(double timeout) {
    if (timeout <= 0)
        return gpr_inf_future(GPR_CLOCK_REALTIME);
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                        gpr_time_from_micros((int64_t)(timeout * 1e6), GPR_TIMESPAN));
}

static struct rpc *rpc_new(struct channel *channel, const struct rpc_opts *opts) {
    struct rpc *rpc = xcalloc(1, sizeof *rpc);
    rpc->channel = channel;
    rpc->call = grpc_channel_create_call(channel->grpc, NULL, GRPC_PROPAGATE_DEFAULTS, channel->queue,
                                         grpc_slice_from_static_string(opts->method), NULL,
                                         deadline(opts->timeout), NULL);
    add_metadata(rpc, "sandlot-lease", opts->lease);
    add_metadata(rpc, "sandlot-rollout", opts->rollout);
    grpc_metadata_array_init(&rpc->initial);
    grpc_metadata_array_init(&rpc->trailing);
    rpc->status_text = grpc_empty_slice();
    return rpc;
}

static grpc_op op_initial(const struct rpc *rpc) {
    grpc_op op = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    op.data.send_initial_metadata.count = rpc->metadata_count;
    op.data.send_initial_metadata.metadata = (grpc_metadata *)(uintptr_t)rpc->metadata;
    return op;
}

static grpc_op op_recv_initial(struct rpc *rpc) {
    grpc_op op = {.op = GRPC_OP_RECV_INITIAL_METADATA};
    op.data.recv_initial_metadata.recv_initial_metadata = &rpc->initial;
    return op;
}

static grpc_op op_status(struct rpc *rpc) {
    grpc_op op = {.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    op.data.recv_status_on_client.trailing_metadata = &rpc->trailing;
    op.data.recv_status_on_client.status = &rpc->status;
    op.data.recv_status_on_client.status_details = &rpc->status_text;
    return op;
}

static grpc_byte_buffer *pack(const ProtobufCMessage *message) {
    size_t len = protobuf_c_message_get_packed_size(message);
    grpc_slice slice = grpc_slice_malloc(len);
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static int parse(grpc_byte_buffer *buffer, const ProtobufCMessageDescriptor *type, struct arena **ret_arena,
                 const ProtobufCMessage **ret, struct sandlot_error *err) {
    struct err parse_err = {0};
    grpc_byte_buffer_reader reader;
    if (!grpc_byte_buffer_reader_init(&reader, buffer))
        return error_set(err, 13, "", "the broker's answer can't be read");
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    *ret =
        unpack(type, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all), UNPACK_MAX, 0, ret_arena, &parse_err);
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    return *ret ? 0 : error_set(err, 13, "", "the broker's answer is malformed: %s", parse_err.text);
}

/* The status that came as an error of ours; names the address where there was no broker at all. */
static int take_status(const struct rpc *rpc, struct sandlot_error *err) {
    const uint8_t *details = NULL;
    size_t details_len = 0;
    if (rpc->status == GRPC_STATUS_OK)
        return 0;
    for (size_t i = 0; i < rpc->trailing.count; i++)
        if (grpc_slice_str_cmp(rpc->trailing.metadata[i].key, "grpc-status-details-bin") == 0) {
            details = GRPC_SLICE_START_PTR(rpc->trailing.metadata[i].value);
            details_len = GRPC_SLICE_LENGTH(rpc->trailing.metadata[i].value);
        }
    if (rpc->status == GRPC_STATUS_UNAVAILABLE && !details)
        return error_set(err, (int)rpc->status, "CANNOT_CONNECT",
                         "no broker answers at %s, or the connection to it was lost (%.*s)",
                         rpc->channel->address, (int)GRPC_SLICE_LENGTH(rpc->status_text),
                         (const char *)GRPC_SLICE_START_PTR(rpc->status_text));
    return error_from_status(err, (int)rpc->status, (const char *)GRPC_SLICE_START_PTR(rpc->status_text),
                             GRPC_SLICE_LENGTH(rpc->status_text), details, details_len);
}

static void rpc_free(struct rpc *rpc) {
    grpc_call_unref(rpc->call);
    for (size_t i = 0; i < rpc->metadata_count; i++)
        grpc_slice_unref(rpc->metadata[i].value);
    grpc_metadata_array_destroy(&rpc->initial);
    grpc_metadata_array_destroy(&rpc->trailing);
    grpc_slice_unref(rpc->status_text);
    free(rpc);
}

int rpc_unary(struct channel *channel, const struct rpc_opts *opts, const ProtobufCMessage *request,
              const ProtobufCMessageDescriptor *response_type, struct arena **ret_arena,
              const ProtobufCMessage **ret, struct sandlot_error *err) {
    if (channel_check_process(channel, err) < 0)
        return -1;
    struct rpc *rpc = rpc_new(channel, opts);
    grpc_byte_buffer *sent = pack(request), *received = NULL;
    grpc_op ops[6] = {
        op_initial(rpc),      {.op = GRPC_OP_SEND_MESSAGE}, {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT},
        op_recv_initial(rpc), {.op = GRPC_OP_RECV_MESSAGE}, op_status(rpc)};
    ops[1].data.send_message.send_message = sent;
    ops[4].data.recv_message.recv_message = &received;
    run_batch(rpc->call, ops, 6);
    int rc = take_status(rpc, err);
    if (rc == 0 && !received)
        rc = error_set(err, 13, "", "the broker answered without a message");
    if (rc == 0)
        rc = parse(received, response_type, ret_arena, ret, err);
    grpc_byte_buffer_destroy(sent);
    if (received)
        grpc_byte_buffer_destroy(received);
    rpc_free(rpc);
    return rc;
}

/* ---- Streams ---- */

struct rpc *rpc_start(struct channel *channel, const struct rpc_opts *opts, struct sandlot_error *err) {
    if (channel_check_process(channel, err) < 0)
        return NULL;
    struct rpc *rpc = rpc_new(channel, opts);
    grpc_op first[1] = {op_initial(rpc)};
    grpc_op last[2] = {op_recv_initial(rpc), op_status(rpc)};
    start(rpc->call, last, 2, &rpc->status_waiter);
    run_batch(rpc->call, first, 1); /* a failure shows in the status */
    return rpc;
}

int rpc_send(struct rpc *rpc, const ProtobufCMessage *message) {
    grpc_byte_buffer *buffer = pack(message);
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE};
    op.data.send_message.send_message = buffer;
    bool ok = run_batch(rpc->call, &op, 1);
    grpc_byte_buffer_destroy(buffer);
    return ok;
}

int rpc_half_close(struct rpc *rpc) {
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    return run_batch(rpc->call, &op, 1);
}

int rpc_receive(struct rpc *rpc, const ProtobufCMessageDescriptor *type, struct arena **ret_arena,
                const ProtobufCMessage **ret, struct sandlot_error *err) {
    grpc_byte_buffer *received = NULL;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &received;
    if (!run_batch(rpc->call, &op, 1) || !received)
        return 0;
    int rc = parse(received, type, ret_arena, ret, err);
    grpc_byte_buffer_destroy(received);
    return rc < 0 ? -1 : 1;
}

void rpc_cancel(struct rpc *rpc) {
    grpc_call_cancel(rpc->call, NULL);
}

int rpc_end(struct rpc *rpc, struct sandlot_error *err) {
    waiter_wait(&rpc->status_waiter);
    int rc = take_status(rpc, err);
    rpc_free(rpc);
    return rc;
}
