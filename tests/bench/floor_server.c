/* What a C-core server can do at best with our threading: echo inline, echo handed over to a libuv
 * thread, a stream written to a file, a file read into a stream. usage: floor_server SOCKET FILE */
#include <fcntl.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "common/cleanup.h"
#include "common/mailbox.h"

#define ARMED 16
#define CHUNK (256 * 1024)

enum kind { INLINE, HANDED, UPLOAD, DOWNLOAD };

struct call {
    struct mail mail;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_byte_buffer *message;
    enum kind kind;
    int step, fd, cancelled;
    unsigned batches;
};

static grpc_server *server;
static grpc_completion_queue *queue;
static struct mailbox box;
static const char *file_path;

static void arm(void) {
    struct call *call = calloc(1, sizeof *call);
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    grpc_server_request_call(server, &call->call, &call->details, &call->metadata, queue, queue, call);
}

static void start(struct call *call, const grpc_op *ops, size_t count) {
    call->batches++;
    if (grpc_call_start_batch(call->call, ops, count, call, NULL) != GRPC_CALL_OK)
        abort();
}

static void start_read(struct call *call) {
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE};
    op.data.recv_message.recv_message = &call->message;
    start(call, &op, 1);
}

static void finish(struct call *call, bool with_message, bool with_initial) {
    grpc_op ops[4];
    size_t n = 0;
    if (with_initial)
        ops[n++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    if (with_message) {
        ops[n] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
        ops[n++].data.send_message.send_message = call->message;
    }
    ops[n] = (grpc_op){.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    ops[n++].data.send_status_from_server.status = GRPC_STATUS_OK;
    ops[n] = (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER};
    ops[n++].data.recv_close_on_server.cancelled = &call->cancelled;
    call->step = 99;
    start(call, ops, n);
}

static void send_part(struct call *call, bool first) {
    static __thread char part[CHUNK];
    ssize_t n = read(call->fd, part, sizeof part);
    if (n <= 0) {
        finish(call, false, first);
        return;
    }
    grpc_slice slice = grpc_slice_from_copied_buffer(part, (size_t)n);
    grpc_op ops[2];
    size_t count = 0;
    if (first)
        ops[count++] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    call->message = grpc_raw_byte_buffer_create(&slice, 1);
    grpc_slice_unref(slice);
    ops[count] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE};
    ops[count++].data.send_message.send_message = call->message;
    call->step = 2;
    start(call, ops, count);
}

static void write_part(struct call *call) {
    grpc_byte_buffer_reader reader;
    grpc_byte_buffer_reader_init(&reader, call->message);
    grpc_slice all = grpc_byte_buffer_reader_readall(&reader);
    ssize_t ignored = write(call->fd, GRPC_SLICE_START_PTR(all), GRPC_SLICE_LENGTH(all));
    (void)ignored;
    grpc_slice_unref(all);
    grpc_byte_buffer_reader_destroy(&reader);
    grpc_byte_buffer_destroy(call->message);
    call->message = NULL;
    start_read(call);
}

static void destroy(struct call *call) {
    if (call->message)
        grpc_byte_buffer_destroy(call->message);
    if (call->fd > 0)
        close(call->fd);
    grpc_call_unref(call->call);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    free(call);
}

static void advance(struct call *call) {
    if (call->step == 99) {
        destroy(call);
        return;
    }
    switch (call->kind) {
    case INLINE:
    case HANDED: finish(call, true, true); break;
    case UPLOAD:
        if (call->message) {
            write_part(call);
        } else {
            grpc_slice empty = grpc_empty_slice();
            call->message = grpc_raw_byte_buffer_create(&empty, 1);
            finish(call, true, true);
        }
        break;
    case DOWNLOAD:
        if (call->message)
            grpc_byte_buffer_destroy(call->message);
        call->message = NULL;
        send_part(call, call->step == 1);
        break;
    }
}

static void arrive(struct call *call) {
    call->step = 1;
    if (call->kind == UPLOAD)
        call->fd = open(file_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (call->kind == DOWNLOAD)
        call->fd = open(file_path, O_RDONLY | O_CLOEXEC);
    start_read(call);
}

static void deliver(struct mail *mail) {
    struct call *call = CONTAINER_OF(mail, struct call, mail);
    if (call->step == 0)
        arrive(call);
    else
        advance(call);
}

static void *pump(void *arg) {
    (void)arg;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        struct call *call = event.tag;
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        if (call->step == 0) {
            static const char *const paths[] = {"/floor/Inline", "/floor/Handed", "/floor/Upload",
                                                "/floor/Download"};
            arm();
            for (int i = 0; i < 4; i++)
                if (grpc_slice_str_cmp(call->details.method, paths[i]) == 0)
                    call->kind = (enum kind)i;
        }
        if (call->kind == INLINE) {
            deliver(&call->mail);
        } else {
            call->mail.deliver = deliver;
            mailbox_push(&box, &call->mail);
        }
    }
}

int main(int argc, char **argv) {
    uv_loop_t loop;
    pthread_t thread;
    char address[300];
    if (argc != 3)
        return 2;
    file_path = argv[2];
    snprintf(address, sizeof address, "unix:%s", argv[1]);
    uv_loop_init(&loop);
    mailbox_init(&box, &loop);
    grpc_init();
    queue = grpc_completion_queue_create_for_next(NULL);
    server = grpc_server_create(NULL, NULL);
    grpc_server_register_completion_queue(server, queue, NULL);
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();
    grpc_server_add_http2_port(server, address, credentials);
    grpc_server_start(server);
    for (int i = 0; i < ARMED; i++)
        arm();
    pthread_create(&thread, NULL, pump, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    return 0;
}
