/* Where other threads meet the loop: a lock-free list of messages that many threads push to and the
 * loop thread drains. Wakes the loop only when the list was empty. */
#pragma once

#include <stdatomic.h>
#include <uv.h>

struct mail {
    struct mail *next;
    void (*deliver)(struct mail *mail); /* called on the loop thread, once; owns the mail */
};

struct mailbox {
    uv_async_t async;
    _Atomic(struct mail *) head;
};

void mailbox_init(struct mailbox *box, uv_loop_t *loop);
/* Any thread. The mail is delivered in push order. */
void mailbox_push(struct mailbox *box, struct mail *mail);
/* Loop thread; delivers what is there, then stops keeping the loop alive. No push may follow. */
void mailbox_close(struct mailbox *box);
