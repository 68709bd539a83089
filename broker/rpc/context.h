/* What the handlers work on. Filled by the composition root, read on the loop thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "broker/access/authorize.h"
#include "broker/sandbox/registry.h"

struct health;
struct reflection;

struct rpc_context {
    struct registry *registry;
    struct lease_table *leases;
    const struct keyring *keyring;
    struct access access;
    struct health *health;
    const char *const *endpoints; /* advertised; NULL-terminated */
    const char *user;             /* the broker runs as */
};
