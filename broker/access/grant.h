/* What a call may do: the outcome of authorization. Handed down with the call; lower layers look at
 * it but never make one. */
#pragma once

#include <stdbool.h>

#include "broker/access/identity.h"
#include "common/id.h"
#include "common/sm.h"

/* The numbers are those of sandlot.v1.Scope. */
enum scope { SCOPE_NONE = 0, SCOPE_OBSERVE = 1, SCOPE_OPERATE = 2, SCOPE_OWNER = 3 };

struct grant {
    struct identity identity;
    enum scope scope;      /* SCOPE_NONE: no lease was needed */
    char lease_id[ID_MAX]; /* empty with SCOPE_NONE */
    char sandbox_id[ID_MAX];
    bool serialized; /* the lease is in a lent descriptor: it only connects and releases */
};
