/* What stands behind the two opaque types. */
#pragma once

#include "clients/c/src/channel.h"
#include "clients/c/src/descriptor.h"

struct sandlot_client {
    struct channel *channel;
    double timeout;     /* <= 0: none */
    char broker_id[32]; /* of who answers there; empty: not asked yet */
};

struct sandlot_sandbox {
    struct sandlot_client *client;
    struct sandlot_client *own_client; /* opened for this handle; NULL: the caller's */
    char *descriptor_json;
    struct descriptor descriptor;
    int created;     /* by sandlot_create: to be destroyed, not released */
    double deadline; /* monotonic seconds that cut all calls; 0: none */
};

/* Of a call on the handle; timeout 0: the client's. */
struct rpc_opts handle_rpc(const struct sandlot_sandbox *sandbox, const char *method, double timeout);
double handle_cut_timeout(const struct sandlot_sandbox *sandbox, double timeout);
double monotonic_seconds(void);
/* Takes nothing; *ret owns copies. own_client is taken, also on failure. */
int handle_make(struct sandlot_client *client, struct sandlot_client *own_client, const char *json,
                struct sandlot_sandbox **ret, struct sandlot_error *err);
/* Asks who answers there, once. */
int client_check_broker(struct sandlot_client *client, const char *broker_id, struct sandlot_error *err);
/* Opens one to the first endpoint where that broker answers. */
int client_open_endpoints(const struct descriptor *descriptor, struct sandlot_client **ret,
                          struct sandlot_error *err);
