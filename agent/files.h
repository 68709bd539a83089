/* File work, in a helper process that serves one connection and then exits. It may block. Paths are
 * resolved inside the sandbox's root; an upload appears whole or not at all. */
#pragma once

#include <stdint.h>

/* In the forked child. Answers the Hello of stream_id, then serves until the connection ends. */
_Noreturn void files_serve(int connection_fd, uint32_t stream_id, const char *sandbox_id);
