#include "common/unpack.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/utf8.h"
#include "common/xalloc.h"

#define ARENA_BLOCK 4096u

struct block {
    struct block *next;
    size_t used, size;
    max_align_t bytes[];
};

struct arena {
    ProtobufCAllocator allocator;
    struct block *blocks;
    size_t total, max;
};

static void *arena_alloc(void *data, size_t size) {
    struct arena *arena = data;
    size = (size + sizeof(max_align_t) - 1) & ~(sizeof(max_align_t) - 1);
    struct block *block = arena->blocks;
    if (!block || block->size - block->used < size) {
        size_t block_size = size > ARENA_BLOCK ? size : ARENA_BLOCK;
        if (block_size > arena->max - arena->total)
            return NULL;
        block = malloc(sizeof *block + block_size);
        if (!block)
            return NULL;
        *block = (struct block){.next = arena->blocks, .size = block_size};
        arena->blocks = block;
        arena->total += block_size;
    }
    void *p = (char *)block->bytes + block->used;
    block->used += size;
    return p;
}

static void arena_free(void *data, void *p) {
    (void)data;
    (void)p; /* all at once, in arena_destroy */
}

static struct arena *arena_create(size_t max) {
    struct arena *arena = xcalloc(1, sizeof *arena);
    arena->allocator = (ProtobufCAllocator){arena_alloc, arena_free, arena};
    arena->max = max;
    return arena;
}

void arena_destroy(struct arena *arena) {
    if (!arena)
        return;
    for (struct block *block = arena->blocks; block;) {
        struct block *next = block->next;
        free(block);
        block = next;
    }
    free(arena);
}

/* ---- Check of the wire bytes before they are unpacked ---- */

struct wire {
    const uint8_t *p, *end;
};

static bool wire_varint(struct wire *w, uint64_t *ret) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (w->p >= w->end)
            return false;
        uint8_t byte = *w->p++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            *ret = value;
            return true;
        }
    }
    return false;
}

static bool wire_skip(struct wire *w, uint64_t n) {
    if (n > (uint64_t)(w->end - w->p))
        return false;
    w->p += n;
    return true;
}

static int malformed(int reason, const ProtobufCMessageDescriptor *type, struct err *err) {
    return err_set(err, ERR_INVALID_ARGUMENT, reason, "the bytes are not a valid %s message", type->name);
}

static int check_message(const ProtobufCMessageDescriptor *type, struct wire w, unsigned depth, int reason,
                         struct err *err);

static int check_bytes(const ProtobufCFieldDescriptor *field, struct wire part, unsigned depth, int reason,
                       struct err *err) {
    if (!field)
        return 0;
    if (field->type == PROTOBUF_C_TYPE_MESSAGE)
        return check_message(field->descriptor, part, depth + 1, reason, err);
    if (field->type == PROTOBUF_C_TYPE_STRING && !utf8_is_text(part.p, (size_t)(part.end - part.p)))
        return err_violation(err, reason, field->name, "must be UTF-8 without NUL");
    return 0;
}

static int check_message(const ProtobufCMessageDescriptor *type, struct wire w, unsigned depth, int reason,
                         struct err *err) {
    if (depth > UNPACK_NESTING_MAX)
        return err_set(err, ERR_INVALID_ARGUMENT, reason, "messages are nested over %d deep",
                       UNPACK_NESTING_MAX);
    while (w.p < w.end) {
        uint64_t tag, n;
        if (!wire_varint(&w, &tag) || (tag >> 3) == 0 || (tag >> 3) > 0x1fffffff)
            return malformed(reason, type, err);
        bool ok;
        switch (tag & 7) {
        case 0: ok = wire_varint(&w, &n); break;
        case 1: ok = wire_skip(&w, 8); break;
        case 5: ok = wire_skip(&w, 4); break;
        case 2:
            ok = wire_varint(&w, &n) && n <= (uint64_t)(w.end - w.p);
            if (ok) {
                struct wire part = {w.p, w.p + n};
                w.p += n;
                const ProtobufCFieldDescriptor *field =
                    protobuf_c_message_descriptor_get_field(type, (unsigned)(tag >> 3));
                if (check_bytes(field, part, depth, reason, err) < 0)
                    return -1;
            }
            break;
        default: ok = false; /* groups */
        }
        if (!ok)
            return malformed(reason, type, err);
    }
    return 0;
}

ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len,
                         size_t memory_max, int reason, struct arena **ret_arena, struct err *err) {
    static const uint8_t nothing[1];
    struct wire w = {data ? data : nothing, (data ? data : nothing) + len};
    if (check_message(type, w, 0, reason, err) < 0)
        return NULL;
    struct arena *arena = arena_create(memory_max);
    ProtobufCMessage *message = protobuf_c_message_unpack(type, &arena->allocator, len, w.p);
    if (!message) {
        if (arena->total + ARENA_BLOCK > memory_max)
            err_set(err, ERR_INVALID_ARGUMENT, reason, "a %s message would need over %zu bytes of memory",
                    type->name, memory_max);
        else
            malformed(reason, type, err);
        arena_destroy(arena);
        return NULL;
    }
    *ret_arena = arena;
    return message;
}
