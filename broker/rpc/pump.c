#include "broker/rpc/pump.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "common/cleanup.h"
#include "common/xalloc.h"

struct pump {
    grpc_completion_queue *queue;
    struct mailbox to_loop;
    pthread_t thread;
    struct mail ended;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

static void deliver_tag(struct mail *mail) {
    struct pump_tag *tag = CONTAINER_OF(mail, struct pump_tag, mail);
    tag->done(tag, tag->ok);
}

static void on_closed(uv_handle_t *handle) {
    struct pump *pump = handle->data;
    void (*cb)(void *) = pump->closed_cb;
    void *arg = pump->closed_arg;
    grpc_completion_queue_destroy(pump->queue);
    free(pump);
    cb(arg);
}

static void deliver_ended(struct mail *mail) {
    struct pump *pump = CONTAINER_OF(mail, struct pump, ended);
    pthread_join(pump->thread, NULL);
    pump->to_loop.async.data = pump;
    uv_close((uv_handle_t *)&pump->to_loop.async, on_closed);
}

static void *pump_main(void *arg) {
    struct pump *pump = arg;
    for (;;) {
        grpc_event event = grpc_completion_queue_next(pump->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_QUEUE_SHUTDOWN)
            break;
        struct pump_tag *tag = event.tag;
        (void)atomic_load_explicit(&tag->handed, memory_order_acquire);
        if (tag->on_pump_thread) {
            tag->done(tag, event.success != 0);
            continue;
        }
        tag->ok = event.success != 0;
        tag->mail.deliver = deliver_tag;
        mailbox_push(&pump->to_loop, &tag->mail);
    }
    pump->ended.deliver = deliver_ended;
    mailbox_push(&pump->to_loop, &pump->ended);
    return NULL;
}

struct pump *pump_create(uv_loop_t *loop) {
    struct pump *pump = xcalloc(1, sizeof *pump);
    sigset_t all, before;
    pump->queue = grpc_completion_queue_create_for_next(NULL);
    mailbox_init(&pump->to_loop, loop);
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    if (pthread_create(&pump->thread, NULL, pump_main, pump) != 0)
        abort();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pump;
}

grpc_completion_queue *pump_queue(struct pump *pump) {
    return pump->queue;
}

void pump_to_loop(struct pump *pump, struct mail *mail) {
    mailbox_push(&pump->to_loop, mail);
}

void pump_close(struct pump *pump, void (*cb)(void *arg), void *arg) {
    pump->closed_cb = cb;
    pump->closed_arg = arg;
    grpc_completion_queue_shutdown(pump->queue);
}
