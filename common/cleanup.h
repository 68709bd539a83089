/* Cleanup attributes for locals, and explicit hand-over on success. Never mixed with goto. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define CLEANUP(function) __attribute__((cleanup(function)))

static inline void cleanup_free_p(void *p) {
    free(*(void **)p);
}
static inline void cleanup_close_p(const int *fd) {
    if (*fd >= 0)
        close(*fd);
}
static inline void cleanup_file_p(FILE **f) {
    if (*f)
        fclose(*f);
}

#define AUTO_FREE CLEANUP(cleanup_free_p)
#define AUTO_CLOSE CLEANUP(cleanup_close_p) __attribute__((unused))
#define AUTO_FILE CLEANUP(cleanup_file_p)

static inline int take_fd(int *fd) {
    int taken = *fd;
    *fd = -1;
    return taken;
}

#define TAKE_PTR(p) \
    __extension__({ \
        __typeof__(p) t_ = (p); \
        (p) = NULL; \
        t_; \
    })

#define CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(void *)(ptr)-offsetof(type, member)))

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
