#include "common/mailbox.h"

#include <stddef.h>

#include "common/cleanup.h"

static void drain(struct mailbox *box) {
    struct mail *taken = atomic_exchange_explicit(&box->head, NULL, memory_order_acquire);
    struct mail *in_order = NULL;
    while (taken) {
        struct mail *next = taken->next;
        taken->next = in_order;
        in_order = taken;
        taken = next;
    }
    while (in_order) {
        struct mail *mail = in_order;
        in_order = mail->next;
        mail->deliver(mail);
    }
}

static void on_async(uv_async_t *async) {
    drain(CONTAINER_OF(async, struct mailbox, async));
}

void mailbox_init(struct mailbox *box, uv_loop_t *loop) {
    atomic_init(&box->head, NULL);
    uv_async_init(loop, &box->async, on_async);
}

void mailbox_push(struct mailbox *box, struct mail *mail) {
    struct mail *head = atomic_load_explicit(&box->head, memory_order_relaxed);
    do
        mail->next = head;
    while (!atomic_compare_exchange_weak_explicit(&box->head, &head, mail, memory_order_release,
                                                  memory_order_relaxed));
    if (!head)
        uv_async_send(&box->async);
}

void mailbox_close(struct mailbox *box) {
    drain(box);
    if (!uv_is_closing((uv_handle_t *)&box->async))
        uv_close((uv_handle_t *)&box->async, NULL);
}
