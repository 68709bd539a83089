#include "broker/rpc/find.h"

#include <string.h>

#include "sandlot/v1/errors.pb-c.h"

#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

int check_sandbox_present(void *registry, const char *sandbox_id, struct err *err) {
    switch (registry_presence(registry, sandbox_id)) {
    case PRESENCE_LIVE: return 0;
    case PRESENCE_EXPIRED:
        return err_set(err, ERR_NOT_FOUND, REASON(SANDBOX_EXPIRED), "sandbox %s has expired", sandbox_id);
    case PRESENCE_DESTROYED:
    case PRESENCE_UNKNOWN: break;
    }
    return err_set(err, ERR_NOT_FOUND, REASON(SANDBOX_NOT_FOUND), "sandbox %s does not exist any more",
                   sandbox_id);
}

struct sandbox *find_leased_sandbox(struct call *call, const char *wanted_id) {
    struct err err;
    struct registry *registry = call_context(call)->registry;
    const struct grant *grant = call_grant(call);
    if (*wanted_id && strcmp(wanted_id, grant->sandbox_id) != 0) {
        err_set(&err, ERR_NOT_FOUND, REASON(SANDBOX_NOT_FOUND), "the lease is not for sandbox %.40s",
                wanted_id);
        call_fail(call, &err);
        return NULL;
    }
    if (check_sandbox_present(registry, grant->sandbox_id, &err) < 0) {
        call_fail(call, &err);
        return NULL;
    }
    struct sandbox *sandbox = registry_find(registry, grant->sandbox_id);
    return sandbox;
}
