#include "tests/bench/load.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct load {
    grpc_channel *channel;
    grpc_completion_queue *queue;
};

struct one {
    struct load *load;
    grpc_call *call;
    grpc_metadata metadata;
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *sent, *received;
    grpc_status_code status;
    grpc_slice text;
    double started;
};

double now_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

struct load *load_open(const char *address) {
    struct load *load = calloc(1, sizeof *load);
    grpc_init();
    load->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_channel_credentials *credentials = grpc_insecure_credentials_create();
    load->channel = grpc_channel_create(address, credentials, NULL);
    grpc_channel_credentials_release(credentials);
    return load;
}

void load_close(struct load *load) {
    grpc_channel_destroy(load->channel);
    grpc_completion_queue_shutdown(load->queue);
    while (grpc_completion_queue_next(load->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
           GRPC_QUEUE_SHUTDOWN) {
    }
    grpc_completion_queue_destroy(load->queue);
    free(load);
}

static grpc_byte_buffer *buffer_of(const void *bytes, size_t len) {
    grpc_slice slice = grpc_slice_from_copied_buffer(bytes, len);
    grpc_byte_buffer *buffer = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    return buffer;
}

static void begin(struct one *one, struct load *load, const char *method, const char *token) {
    memset(one, 0, sizeof *one);
    one->load = load;
    one->call = grpc_channel_create_call(load->channel, NULL, GRPC_PROPAGATE_DEFAULTS, load->queue,
                                         grpc_slice_from_static_string(method), NULL,
                                         gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    one->metadata.key = grpc_slice_from_static_string("sandlot-lease");
    one->metadata.value = grpc_slice_from_static_string(token ? token : "");
    grpc_metadata_array_init(&one->initial);
    grpc_metadata_array_init(&one->trailing);
}

static void end(struct one *one) {
    if (one->status != GRPC_STATUS_OK) {
        fprintf(stderr, "bench: a call failed: %.*s\n", (int)GRPC_SLICE_LENGTH(one->text),
                (const char *)GRPC_SLICE_START_PTR(one->text));
        exit(1);
    }
    grpc_call_unref(one->call);
    grpc_metadata_array_destroy(&one->initial);
    grpc_metadata_array_destroy(&one->trailing);
    grpc_slice_unref(one->text);
    if (one->sent)
        grpc_byte_buffer_destroy(one->sent);
    if (one->received)
        grpc_byte_buffer_destroy(one->received);
}

static size_t add_start(struct one *one, grpc_op *ops) {
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    ops[0].data.send_initial_metadata.count = GRPC_SLICE_LENGTH(one->metadata.value) ? 1 : 0;
    ops[0].data.send_initial_metadata.metadata = &one->metadata;
    return 1;
}

static size_t add_message(struct one *one, grpc_op *ops, const void *bytes, size_t len) {
    one->sent = buffer_of(bytes, len);
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[0].data.send_message.send_message = one->sent;
    return 1;
}

static size_t add_receive(struct one *one, grpc_op *ops) {
    ops[0] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE};
    ops[0].data.recv_message.recv_message = &one->received;
    return 1;
}

static size_t add_end(struct one *one, grpc_op *ops) {
    ops[0] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    ops[0].data.recv_initial_metadata.recv_initial_metadata = &one->initial;
    ops[1] = (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT};
    ops[1].data.recv_status_on_client.trailing_metadata = &one->trailing;
    ops[1].data.recv_status_on_client.status = &one->status;
    ops[1].data.recv_status_on_client.status_details = &one->text;
    return 2;
}

static void start(struct one *one, const grpc_op *ops, size_t count) {
    if (grpc_call_start_batch(one->call, ops, count, one, NULL) != GRPC_CALL_OK)
        abort();
}

static struct one *wait_one(struct load *load) {
    grpc_event event = grpc_completion_queue_next(load->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    return event.tag;
}

static void start_unary(struct one *one, struct load *load, const char *method, const char *token,
                        const void *request, size_t len) {
    grpc_op ops[6];
    begin(one, load, method, token);
    size_t n = add_start(one, ops);
    n += add_message(one, &ops[n], request, len);
    ops[n++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    n += add_receive(one, &ops[n]);
    n += add_end(one, &ops[n]);
    one->started = now_seconds();
    start(one, ops, n);
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

struct load_result load_unary(struct load *load, const char *method, const char *token, const void *request,
                              size_t len, unsigned in_flight, unsigned total) {
    struct one *ones = calloc(in_flight, sizeof *ones);
    double *latency = calloc(total, sizeof *latency), began = now_seconds();
    unsigned started = 0, done = 0;
    while (started < in_flight && started < total)
        start_unary(&ones[started++], load, method, token, request, len);
    while (done < total) {
        struct one *one = wait_one(load);
        latency[done++] = now_seconds() - one->started;
        end(one);
        if (started < total) {
            start_unary(one, load, method, token, request, len);
            started++;
        }
    }
    double took = now_seconds() - began;
    qsort(latency, total, sizeof *latency, compare);
    struct load_result result = {total / took, latency[total / 2] * 1e6,
                                 latency[total - 1 - total / 100] * 1e6};
    free(latency);
    free(ones);
    return result;
}

double load_upload(struct load *load, const char *method, const char *token, const void *first,
                   size_t first_len, const void *chunk, size_t chunk_len, uint64_t chunks) {
    struct one one;
    grpc_op ops[4];
    double began = now_seconds();
    begin(&one, load, method, token);
    size_t n = add_start(&one, ops);
    n += add_message(&one, &ops[n], first, first_len);
    start(&one, ops, n);
    wait_one(load);
    for (uint64_t i = 0; i < chunks; i++) {
        grpc_byte_buffer_destroy(one.sent);
        start(&one, ops, add_message(&one, ops, chunk, chunk_len));
        wait_one(load);
    }
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    n = 1 + add_receive(&one, &ops[1]);
    n += add_end(&one, &ops[n]);
    start(&one, ops, n);
    wait_one(load);
    end(&one);
    return now_seconds() - began;
}

double load_download(struct load *load, const char *method, const char *token, const void *request,
                     size_t len, uint64_t *ret_bytes) {
    struct one one;
    grpc_op ops[6];
    double began = now_seconds();
    *ret_bytes = 0;
    begin(&one, load, method, token);
    size_t n = add_start(&one, ops);
    n += add_message(&one, &ops[n], request, len);
    ops[n++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    ops[n] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA};
    ops[n++].data.recv_initial_metadata.recv_initial_metadata = &one.initial;
    start(&one, ops, n);
    wait_one(load);
    for (;;) {
        start(&one, ops, add_receive(&one, ops));
        wait_one(load);
        if (!one.received)
            break;
        *ret_bytes += grpc_byte_buffer_length(one.received);
        grpc_byte_buffer_destroy(one.received);
        one.received = NULL;
    }
    add_end(&one, ops);
    start(&one, &ops[1], 1); /* the initial metadata has been taken already */
    wait_one(load);
    end(&one);
    return now_seconds() - began;
}
