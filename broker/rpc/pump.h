/* The threading of the gRPC side, all of it: one thread takes events from the completion queue. An
 * event belongs to the thread its tag names: this one (for what needs no state) or the loop's, where
 * it arrives through a mailbox. A change of threading is a change of this file. */
#pragma once

#include <grpc/grpc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <uv.h>

#include "common/mailbox.h"

struct pump;

/* The tag of every batch. Embedded in its owner; one event at a time. */
struct pump_tag {
    void (*done)(struct pump_tag *tag, bool ok);
    bool on_pump_thread;
    /* pump's own */
    struct mail mail;
    bool ok;
    atomic_uint handed;
};

/* Before the tag goes to gRPC: what was written so far is seen by whoever gets its event. gRPC orders
 * the two as well, but neither the language nor a race detector can know that. */
static inline void pump_tag_hand_over(struct pump_tag *tag) {
    atomic_fetch_add_explicit(&tag->handed, 1, memory_order_release);
}

struct pump *pump_create(uv_loop_t *loop);
grpc_completion_queue *pump_queue(struct pump *pump);
/* From the pump's thread: runs the function on the loop thread, after what was sent there before. */
void pump_to_loop(struct pump *pump, struct mail *mail);
/* No batch may be started any more. Frees; then cb. Loop thread. */
void pump_close(struct pump *pump, void (*cb)(void *arg), void *arg);
