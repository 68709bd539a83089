/* A bare gRPC C-core client for measuring: one queue, calls in a loop, nothing of libsandlot in it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct load;

struct load_result {
    double rate;           /* calls a second */
    double p50_us, p99_us; /* latency of one call */
};

struct load *load_open(const char *address);
void load_close(struct load *load);
/* `total` unary calls, `in_flight` at a time; token may be NULL. Exits the process if one fails. */
struct load_result load_unary(struct load *load, const char *method, const char *token, const void *request,
                              size_t len, unsigned in_flight, unsigned total);
/* One client stream: first message, then chunks of `chunk` bytes to `bytes` in all. Seconds. */
double load_upload(struct load *load, const char *method, const char *token, const void *first,
                   size_t first_len, const void *chunk, size_t chunk_len, uint64_t chunks);
/* One server stream, read to its end. Seconds; *ret_bytes: of all messages. */
double load_download(struct load *load, const char *method, const char *token, const void *request,
                     size_t len, uint64_t *ret_bytes);
double now_seconds(void);
