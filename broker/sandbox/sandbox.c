#include "broker/sandbox/sandbox.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"

#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

int sandbox_check_ready(const struct sandbox *sandbox, struct err *err) {
    switch ((enum sandbox_state)sandbox->sm.state) {
    case SANDBOX_RUNNING:
        if (clock_unix_ms() >= sandbox->expire_unix_ms)
            return err_set(err, ERR_NOT_FOUND, REASON(SANDBOX_EXPIRED), "sandbox %s has expired",
                           sandbox->id);
        if (!sandbox->link || !link_is_ready(sandbox->link))
            return err_set(err, ERR_UNAVAILABLE, REASON(SANDBOX_UNREACHABLE),
                           "sandbox %s can't be reached just now; try again", sandbox->id);
        return 0;
    case SANDBOX_RECORDING:
    case SANDBOX_STARTING:
    case SANDBOX_PREPARING:
        return err_set(err, ERR_FAILED_PRECONDITION, REASON(SANDBOX_NOT_READY),
                       "sandbox %s is still starting", sandbox->id);
    case SANDBOX_FAILED:
        return err_set(err, ERR_FAILED_PRECONDITION, REASON(SANDBOX_NOT_READY),
                       "sandbox %s is in state ERROR: %s", sandbox->id, sandbox->last_error);
    default:
        return err_set(err, ERR_NOT_FOUND,
                       sandbox->expired ? REASON(SANDBOX_EXPIRED) : REASON(SANDBOX_DESTROYED),
                       "sandbox %s %s", sandbox->id, sandbox->expired ? "has expired" : "is being destroyed");
    }
}

void sandbox_explain(const struct sandbox *sandbox, struct err *err) {
    if (err->reason == REASON(SANDBOX_UNREACHABLE) && clock_unix_ms() >= sandbox->expire_unix_ms)
        err_set(err, ERR_NOT_FOUND, REASON(SANDBOX_EXPIRED), "sandbox %s expired while this ran",
                sandbox->id);
}

void sandbox_add_op(struct sandbox *sandbox, struct sandbox_op *op) {
    LIST_INSERT_HEAD(&sandbox->ops, op, link);
}

void sandbox_remove_op(struct sandbox_op *op) {
    LIST_REMOVE(op, link);
}

char *sandbox_resolve_path(const struct sandbox *sandbox, const uint8_t *path, size_t len, size_t *ret_len) {
    if (len > 0 && path[0] == '/') {
        *ret_len = len;
        return xmemdup(path, len);
    }
    size_t base = strlen(sandbox->workdir);
    char *joined = xcalloc(1, base + len + 2);
    memcpy(joined, sandbox->workdir, base);
    if (len > 0) {
        joined[base++] = '/';
        memcpy(joined + base, path, len);
    }
    *ret_len = base + len;
    return joined;
}

Sandlot__V1__SandboxState sandbox_public_state(const struct sandbox *sandbox) {
    switch ((enum sandbox_state)sandbox->sm.state) {
    case SANDBOX_RECORDING:
    case SANDBOX_STARTING:
    case SANDBOX_PREPARING: return SANDLOT__V1__SANDBOX_STATE__SANDBOX_STATE_STARTING;
    case SANDBOX_RUNNING:
        return clock_unix_ms() < sandbox->expire_unix_ms ? SANDLOT__V1__SANDBOX_STATE__SANDBOX_STATE_RUNNING
                                                         : SANDLOT__V1__SANDBOX_STATE__SANDBOX_STATE_STOPPED;
    case SANDBOX_FAILED: return SANDLOT__V1__SANDBOX_STATE__SANDBOX_STATE_ERROR;
    default: return SANDLOT__V1__SANDBOX_STATE__SANDBOX_STATE_STOPPED;
    }
}
