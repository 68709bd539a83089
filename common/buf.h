/* Growable bytes with a hard maximum, so that no peer decides how much memory we use. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len;
    size_t capacity;
    size_t max;
};

void buf_init(struct buf *buf, size_t max);
void buf_fini(struct buf *buf);
/* Room for `more` bytes at data + len. -1: over the maximum, or out of memory; nothing changed. */
int buf_reserve(struct buf *buf, size_t more);
int buf_append(struct buf *buf, const void *data, size_t len);
/* Appends what fits below the maximum and returns how much that was. */
size_t buf_append_some(struct buf *buf, const void *data, size_t len);
/* Drops bytes from the front. */
void buf_consume(struct buf *buf, size_t len);
