#include "common/frame.h"

static void put_u32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 24);
    p[1] = (uint8_t)(v >> 16);
    p[2] = (uint8_t)(v >> 8);
    p[3] = (uint8_t)v;
}

static uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

void frame_encode_header(uint8_t header[FRAME_HEADER], const struct frame *frame) {
    put_u32(header, frame->len);
    put_u32(header + 4, frame->stream_id);
    header[8] = frame->type;
    header[9] = frame->flags;
}

long frame_decode(const uint8_t *data, size_t len, struct frame *ret) {
    if (len < FRAME_HEADER)
        return 0;
    struct frame frame = {
        .len = get_u32(data),
        .stream_id = get_u32(data + 4),
        .type = data[8],
        .flags = data[9],
        .payload = data + FRAME_HEADER,
    };
    if (frame.len > FRAME_PAYLOAD_MAX || frame.type < FRAME_REQUEST || frame.type > FRAME_DATA ||
        frame.stream_id == 0)
        return -1;
    if (len - FRAME_HEADER < frame.len)
        return 0;
    *ret = frame;
    return (long)(FRAME_HEADER + frame.len);
}
