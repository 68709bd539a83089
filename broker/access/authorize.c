#include "broker/access/authorize.h"

#include <string.h>

#include "broker/access/token.h"
#include "sandlot/v1/errors.pb-c.h"

#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

static const char *scope_name(enum scope scope) {
    static const char *const names[] = {"none", "observe", "operate", "owner"};
    return names[scope];
}

static int find_lease(const struct access *access, const struct access_need *need,
                      const struct access_claim *claim, struct grant *grant, const struct lease **ret,
                      struct err *err) {
    if (claim->token_len == 0)
        return err_set(err, ERR_UNAUTHENTICATED, REASON(LEASE_MISSING),
                       "this method needs a lease: send the descriptor's token as metadata sandlot-lease");
    if (!token_verify(access->keyring, claim->token, claim->token_len, grant->lease_id, grant->sandbox_id))
        return err_set(err, ERR_UNAUTHENTICATED, REASON(LEASE_INVALID),
                       "the lease token is not one of this broker's");
    *ret = lease_find(access->leases, grant->sandbox_id, grant->lease_id);
    if (*ret && lease_check_live(*ret, need->takes_ended, err) < 0)
        return -1;
    if (access->check_sandbox(access->arg, grant->sandbox_id, err) < 0)
        return -1;
    if (!*ret)
        return err_set(err, ERR_UNAUTHENTICATED, REASON(LEASE_INVALID), "the lease is unknown");
    return 0;
}

static int check_rollout(const struct lease *lease, const struct access_claim *claim, struct err *err) {
    const char *bound = lease->group->rollout_id;
    if (!claim->has_rollout)
        return 0;
    if (claim->rollout_len != strlen(bound) || memcmp(claim->rollout, bound, claim->rollout_len) != 0)
        return err_set(err, ERR_PERMISSION_DENIED, REASON(ROLLOUT_MISMATCH),
                       "this sandbox belongs to another rollout");
    return 0;
}

int authorize(const struct access *access, const struct access_need *need, const struct access_claim *claim,
              struct grant *ret_grant, const struct lease **ret_lease, struct err *err) {
    *ret_grant = (struct grant){.identity = *claim->identity};
    *ret_lease = NULL;
    if (!*claim->identity->tenant)
        return err_set(err, ERR_UNAUTHENTICATED, REASON(IDENTITY_REQUIRED),
                       "this connection names no caller");
    if (!need->lease)
        return 0;
    const struct lease *lease = NULL;
    if (find_lease(access, need, claim, ret_grant, &lease, err) < 0 || check_rollout(lease, claim, err) < 0)
        return -1;
    ret_grant->scope = lease->scope;
    ret_grant->serialized = lease->kind == LEASE_SERIALIZED;
    if (ret_grant->serialized && !need->takes_serialized)
        return err_set(err, ERR_FAILED_PRECONDITION, REASON(LEASE_NOT_CONNECTED),
                       "this lease is for handing on: Connect first and use the lease it answers with");
    if (lease->scope < need->least)
        return err_set(err, ERR_PERMISSION_DENIED, REASON(SCOPE_INSUFFICIENT),
                       "this needs scope %s, the lease has %s", scope_name(need->least),
                       scope_name(lease->scope));
    *ret_lease = lease;
    return 0;
}
