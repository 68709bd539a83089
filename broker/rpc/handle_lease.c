/* LeaseService: minting, connecting, giving back, revoking. */
#include <stdlib.h>
#include <string.h>

#include "broker/rpc/call.h"
#include "broker/rpc/convert.h"
#include "broker/rpc/find.h"
#include "broker/rpc/handlers.h"
#include "broker/sandbox/spec.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"
#include "sandlot/v1/lease.pb-c.h"

#define HOLDER_MAX 128
#define TTL_MAX_MS (UINT64_C(10) * 365 * 86400 * 1000)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/* A call that waits for the lease table or the store. */
struct pending {
    struct call *call; /* NULL: the caller is gone */
    const struct rpc_context *context;
    char sandbox_id[ID_MAX];
};

static void on_cancelled(struct call *call) {
    struct pending *pending = call_state(call);
    pending->call = NULL;
}

static const struct call_ops pending_ops = {.cancelled = on_cancelled};

static struct pending *wait_for(struct call *call) {
    struct pending *pending = xcalloc(1, sizeof *pending);
    pending->call = call;
    pending->context = call_context(call);
    memcpy(pending->sandbox_id, call_grant(call)->sandbox_id, sizeof pending->sandbox_id);
    call_set_ops(call, &pending_ops, pending);
    return pending;
}

static struct sandbox *still_there(const struct pending *pending, const struct err **err, struct err *gone) {
    struct sandbox *sandbox = registry_find(pending->context->registry, pending->sandbox_id);
    if (!*err && !sandbox) {
        err_set(gone, ERR_NOT_FOUND, REASON(SANDBOX_DESTROYED), "the sandbox was destroyed");
        *err = gone;
    }
    return sandbox;
}

static void check_holder(const char *holder, struct err *err) {
    if (strlen(holder) > HOLDER_MAX)
        err_violation(err, REASON(INVALID_REQUEST), "holder", "at most %d bytes", HOLDER_MAX);
}

/* ---- Serialize ---- */

static int64_t wanted_expiry(const Sandlot__V1__SerializeRequest *request, const struct lease *parent,
                             struct err *err) {
    uint64_t ms;
    int64_t now = clock_unix_ms();
    switch (request->expiration_case) {
    case SANDLOT__V1__SERIALIZE_REQUEST__EXPIRATION_TTL:
        if (spec_duration_ms(request->ttl, TTL_MAX_MS, &ms))
            return now + (int64_t)ms;
        err_violation(err, REASON(INVALID_REQUEST), "ttl", "must be over 0 s and at most 10 years");
        break;
    case SANDLOT__V1__SERIALIZE_REQUEST__EXPIRATION_EXPIRE_TIME:
        if (request->expire_time->seconds > now / 1000 &&
            request->expire_time->seconds < now / 1000 + (int64_t)(TTL_MAX_MS / 1000))
            return request->expire_time->seconds * 1000 + request->expire_time->nanos / 1000000;
        err_violation(err, REASON(INVALID_REQUEST), "expire_time", "must be in the future");
        break;
    default: break;
    }
    return parent->expire_unix_ms;
}

static enum scope wanted_scope(const Sandlot__V1__SerializeRequest *request, const struct lease *parent,
                               struct err *err) {
    switch ((int)request->scope) {
    case SANDLOT__V1__SCOPE__SCOPE_UNSPECIFIED:
        return parent->scope < SCOPE_OPERATE ? parent->scope : SCOPE_OPERATE;
    case SANDLOT__V1__SCOPE__SCOPE_OBSERVE:
    case SANDLOT__V1__SCOPE__SCOPE_OPERATE:
    case SANDLOT__V1__SCOPE__SCOPE_OWNER: return (enum scope)request->scope;
    default:
        err_violation(err, REASON(INVALID_REQUEST), "scope", "unknown scope %d", (int)request->scope);
        return SCOPE_NONE;
    }
}

/* An address that means something on another machine. */
static bool reaches_elsewhere(const char *endpoint) {
    static const char *const local[] = {"unix:", "127.", "localhost", "[::1]", "ipv4:127.", "ipv6:[::1]"};
    for (size_t i = 0; i < ARRAY_LEN(local); i++)
        if (strncmp(endpoint, local[i], strlen(local[i])) == 0)
            return false;
    return true;
}

static void check_endpoints(const struct rpc_context *context, bool for_other_host, struct err *err) {
    for (const char *const *endpoint = context->endpoints; *endpoint; endpoint++)
        if (!for_other_host || reaches_elsewhere(*endpoint))
            return;
    if (!err_is_set(err))
        err_set(err, ERR_FAILED_PRECONDITION, REASON(ENDPOINT_NOT_ADVERTISED),
                "this broker advertises no address that can be reached from another host; name one "
                "under \"advertise\" in its configuration");
}

static void on_serialized(void *arg, const struct lease *lease, const struct err *err) {
    struct pending *pending = arg;
    struct err gone;
    struct sandbox *sandbox = still_there(pending, &err, &gone);
    if (pending->call && err) {
        call_fail(pending->call, err);
    } else if (pending->call) {
        struct public_lease public_lease;
        Sandlot__V1__SerializeResponse response = SANDLOT__V1__SERIALIZE_RESPONSE__INIT;
        AUTO_FREE char *descriptor = make_descriptor(pending->context, sandbox, lease);
        convert_lease(lease, &public_lease);
        response.descriptor_json = descriptor;
        response.lease = &public_lease.message;
        call_reply(pending->call, &response.base);
    }
    free(pending);
}

void handle_serialize(struct call *call) {
    const Sandlot__V1__SerializeRequest *request = (const void *)call_request(call);
    const struct lease *parent = call_lease(call);
    struct err err = {0};
    struct sandbox *sandbox = find_leased_sandbox(call, "");
    if (!sandbox)
        return;
    struct lease_mint_opts opts = {.parent = parent, .kind = LEASE_SERIALIZED, .holder = request->holder};
    check_holder(request->holder, &err);
    opts.scope = wanted_scope(request, parent, &err);
    opts.expire_unix_ms = wanted_expiry(request, parent, &err);
    if (!err_is_set(&err) && opts.scope > parent->scope)
        err_set(&err, ERR_PERMISSION_DENIED, REASON(SCOPE_INSUFFICIENT),
                "a lease of scope %s can't mint one of scope %s", scope_text(parent->scope),
                scope_text(opts.scope));
    check_endpoints(call_context(call), request->for_other_host, &err);
    if (err_is_set(&err) || sandbox_check_ready(sandbox, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    lease_mint(call_context(call)->leases, &opts, on_serialized, wait_for(call));
}

/* ---- Connect ---- */

static void on_connected(void *arg, const struct lease *lease, const struct err *err) {
    struct pending *pending = arg;
    struct err gone;
    struct sandbox *sandbox = still_there(pending, &err, &gone);
    if (pending->call && err) {
        call_fail(pending->call, err);
    } else if (pending->call) {
        struct public_lease public_lease;
        struct public_sandbox public_sandbox;
        Sandlot__V1__ConnectResponse response = SANDLOT__V1__CONNECT_RESPONSE__INIT;
        AUTO_FREE char *descriptor = make_descriptor(pending->context, sandbox, lease);
        convert_lease(lease, &public_lease);
        convert_sandbox(pending->context, sandbox, &public_sandbox);
        response.descriptor_json = descriptor;
        response.lease = &public_lease.message;
        response.sandbox = &public_sandbox.message;
        call_reply(pending->call, &response.base);
    }
    free(pending);
}

void handle_connect(struct call *call) {
    const Sandlot__V1__ConnectRequest *request = (const void *)call_request(call);
    const struct lease *parent = call_lease(call);
    struct err err = {0};
    struct sandbox *sandbox = find_leased_sandbox(call, "");
    if (!sandbox)
        return;
    check_holder(request->holder, &err);
    if (err_is_set(&err) || sandbox_check_ready(sandbox, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    struct lease_mint_opts opts = {
        .parent = parent,
        .kind = LEASE_CONNECTED,
        .scope = parent->scope,
        .holder = *request->holder ? request->holder : parent->holder,
        .expire_unix_ms = parent->expire_unix_ms,
    };
    lease_mint(call_context(call)->leases, &opts, on_connected, wait_for(call));
}

/* ---- Release, RevokeLease ---- */

static void on_released(void *arg, uint32_t count, const struct err *err) {
    struct pending *pending = arg;
    if (pending->call && err) {
        call_fail(pending->call, err);
    } else if (pending->call) {
        Sandlot__V1__ReleaseResponse response = SANDLOT__V1__RELEASE_RESPONSE__INIT;
        response.live_leases = count;
        call_reply(pending->call, &response.base);
    }
    free(pending);
}

void handle_release(struct call *call) {
    lease_release(call_context(call)->leases, call_lease(call), on_released, wait_for(call));
}

static void on_revoked(void *arg, uint32_t count, const struct err *err) {
    struct pending *pending = arg;
    if (pending->call && err) {
        call_fail(pending->call, err);
    } else if (pending->call) {
        Sandlot__V1__RevokeLeaseResponse response = SANDLOT__V1__REVOKE_LEASE_RESPONSE__INIT;
        response.revoked = count;
        call_reply(pending->call, &response.base);
    }
    free(pending);
}

void handle_revoke_lease(struct call *call) {
    const Sandlot__V1__RevokeLeaseRequest *request = (const void *)call_request(call);
    struct lease_table *leases = call_context(call)->leases;
    const struct lease *own = call_lease(call);
    const struct lease *target = lease_find(leases, call_grant(call)->sandbox_id, request->lease_id);
    struct err err = {0};
    if (!id_is_valid("le-", request->lease_id))
        err_violation(&err, REASON(INVALID_REQUEST), "lease_id", "is not a lease id; ListLeases shows them");
    else if (!target)
        err_set(&err, ERR_NOT_FOUND, REASON(LEASE_NOT_FOUND), "this sandbox has no lease %s",
                request->lease_id);
    else if (target == own || !lease_descends(target, own->id))
        err_set(&err, ERR_PERMISSION_DENIED, REASON(LEASE_NOT_YOURS),
                "only leases minted from your own can be revoked; to give your own back, release it");
    if (err_is_set(&err)) {
        call_fail(call, &err);
        return;
    }
    lease_revoke(leases, target, on_revoked, wait_for(call));
}

/* ---- ListLeases ---- */

void handle_list_leases(struct call *call) {
    const struct lease_group *group = call_lease(call)->group;
    const struct lease *lease;
    size_t count = 0, i = 0;
    TAILQ_FOREACH (lease, &group->leases, link)
        count++;
    AUTO_FREE struct public_lease *leases = xcalloc(count, sizeof *leases);
    AUTO_FREE Sandlot__V1__Lease **list = xcalloc(count, sizeof *list);
    TAILQ_FOREACH (lease, &group->leases, link) {
        convert_lease(lease, &leases[i]);
        list[i] = &leases[i].message;
        i++;
    }
    Sandlot__V1__ListLeasesResponse response = SANDLOT__V1__LIST_LEASES_RESPONSE__INIT;
    response.n_leases = count;
    response.leases = list;
    call_reply(call, &response.base);
}
