#include "common/buf.h"

#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *buf, size_t max) {
    memset(buf, 0, sizeof *buf);
    buf->max = max;
}

void buf_fini(struct buf *buf) {
    free(buf->data);
    size_t max = buf->max;
    buf_init(buf, max);
}

int buf_reserve(struct buf *buf, size_t more) {
    if (more > buf->max || buf->len > buf->max - more)
        return -1;
    size_t need = buf->len + more;
    if (need <= buf->capacity)
        return 0;
    size_t capacity = buf->capacity ? buf->capacity : 256;
    while (capacity < need)
        capacity *= 2;
    if (capacity > buf->max)
        capacity = buf->max;
    uint8_t *grown = realloc(buf->data, capacity);
    if (!grown)
        return -1;
    buf->data = grown;
    buf->capacity = capacity;
    return 0;
}

int buf_append(struct buf *buf, const void *data, size_t len) {
    if (buf_reserve(buf, len) < 0)
        return -1;
    if (len)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    return 0;
}

size_t buf_append_some(struct buf *buf, const void *data, size_t len) {
    size_t room = buf->max > buf->len ? buf->max - buf->len : 0;
    size_t n = len < room ? len : room;
    return buf_append(buf, data, n) < 0 ? 0 : n;
}

void buf_consume(struct buf *buf, size_t len) {
    if (len >= buf->len) {
        buf->len = 0;
        return;
    }
    memmove(buf->data, buf->data + len, buf->len - len);
    buf->len -= len;
}
