/* Small fixed internal allocations: running out of memory there ends the process. Sizes that a peer
 * chose never come here; they go through buf.h or unpack.h, which can refuse. */
#pragma once

#include <stddef.h>

void *xcalloc(size_t count, size_t size) __attribute__((malloc, returns_nonnull));
char *xstrdup(const char *s) __attribute__((malloc, returns_nonnull));
void *xmemdup(const void *p, size_t len) __attribute__((returns_nonnull)); /* len + 1, NUL-terminated */
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2), returns_nonnull));
