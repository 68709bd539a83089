/* Unpacking protobuf from a peer: bounded memory (an arena with a cap), bounded nesting, and strings
 * that are UTF-8 without NUL, which protobuf-c itself does not check. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#define UNPACK_NESTING_MAX 16

struct arena; /* one message and its parts; freed at once */

/* Returns the message and, in *ret_arena, what keeps it alive: arena_destroy frees both.
 * NULL: *err is INVALID_ARGUMENT with `reason`. memory_max bounds the arena in bytes. */
ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len,
                         size_t memory_max, int reason, struct arena **ret_arena, struct err *err);

void arena_destroy(struct arena *arena); /* NULL is fine */

static inline void cleanup_arena_p(struct arena **arena) {
    arena_destroy(*arena);
}
#define AUTO_ARENA CLEANUP(cleanup_arena_p)
