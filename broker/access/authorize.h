/* The one function that turns who calls, with which lease, for which method, into a grant or an
 * error. Default deny. Statuses come in the order: lease, sandbox, rollout, scope. */
#pragma once

#include "broker/access/grant.h"
#include "broker/access/keyring.h"
#include "broker/access/lease.h"

/* What a method asks for; from its row of the method table. */
struct access_need {
    bool lease; /* else an identity is enough */
    enum scope least;
    bool takes_serialized; /* Connect and Release */
    bool takes_ended;      /* Release: also a lease that is released already */
};

/* What the call brought; borrowed. Empty: absent. */
struct access_claim {
    const struct identity *identity;
    const char *token;
    size_t token_len;
    bool has_rollout;
    const char *rollout;
    size_t rollout_len;
};

struct access {
    const struct keyring *keyring;
    const struct lease_table *leases;
    /* 0, or the error for a sandbox that is gone. */
    int (*check_sandbox)(void *arg, const char *sandbox_id, struct err *err);
    void *arg;
};

/* *ret_lease is NULL when no lease was needed. */
int authorize(const struct access *access, const struct access_need *need, const struct access_claim *claim,
              struct grant *ret_grant, const struct lease **ret_lease, struct err *err);
