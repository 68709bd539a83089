/* Sandboxes of Linux namespaces on this host, made by the spawner. */
#pragma once

#include <uv.h>

#include "providers/provider.h"

/* Takes over the broker's end of the spawner's socket pair. Names and notes are borrowed. */
struct provider *local_create(uv_loop_t *loop, int spawner_fd, const char *const *images,
                              const char *const *notes, const struct provider_events *events, void *arg);
