/* The sandbox a call's lease names. */
#pragma once

#include "broker/rpc/call.h"

/* NULL: the call has failed already. wanted_id: from the request, empty = any. */
struct sandbox *find_leased_sandbox(struct call *call, const char *wanted_id);
/* Fills an error for a sandbox that is gone; 0 if it is there. For the access check. */
int check_sandbox_present(void *registry, const char *sandbox_id, struct err *err);
