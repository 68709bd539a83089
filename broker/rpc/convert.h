/* Internal state as public messages, and descriptors as JSON. */
#pragma once

#include "broker/access/lease.h"
#include "broker/rpc/context.h"
#include "google/protobuf/timestamp.pb-c.h"
#include "sandlot/v1/types.pb-c.h"

/* Messages with the parts they point at; valid as long as their source. */
struct public_sandbox {
    Sandlot__V1__Sandbox message;
    Google__Protobuf__Timestamp create_time, expire_time;
};

struct public_lease {
    Sandlot__V1__Lease message;
    Google__Protobuf__Timestamp create_time, expire_time;
};

void convert_sandbox(const struct rpc_context *context, const struct sandbox *sandbox,
                     struct public_sandbox *ret);
void convert_lease(const struct lease *lease, struct public_lease *ret);
/* The JSON that rebuilds the sandbox under this lease; malloc'd. */
char *make_descriptor(const struct rpc_context *context, const struct sandbox *sandbox,
                      const struct lease *lease);
const char *scope_text(enum scope scope);
