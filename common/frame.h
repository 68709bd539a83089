/* The ttrpc frame: 10-byte header {length u32, stream id u32, type u8, flags u8}, big endian, then
 * `length` bytes. Pure: no I/O, nothing allocated. proto/AGENT.md says how we use it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FRAME_HEADER 10u
#define FRAME_PAYLOAD_MAX (4u * 1024 * 1024)

enum frame_type { FRAME_REQUEST = 1, FRAME_RESPONSE = 2, FRAME_DATA = 3 };

#define FRAME_REMOTE_CLOSED 0x1u /* sender sends no more on this stream */
#define FRAME_REMOTE_OPEN 0x2u   /* sender will send data frames on this stream */
#define FRAME_NO_DATA 0x4u       /* data frame without a message */

struct frame {
    uint32_t stream_id;
    uint8_t type;
    uint8_t flags;
    uint32_t len;
    const uint8_t *payload; /* into the decoded bytes */
};

void frame_encode_header(uint8_t header[FRAME_HEADER], const struct frame *frame);

/* Looks at the front of data. Returns the bytes that the frame takes, 0 if more are needed, -1 if
 * they can't be a frame of ours: the connection must be closed. */
long frame_decode(const uint8_t *data, size_t len, struct frame *ret);
