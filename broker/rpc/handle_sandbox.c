/* SandboxService. A creation whose caller goes away is undone, unless it can be asked for again by its
 * request_id. */
#include <stdlib.h>
#include <string.h>

#include "broker/rpc/call.h"
#include "broker/rpc/convert.h"
#include "broker/rpc/find.h"
#include "broker/rpc/handlers.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/errors.pb-c.h"
#include "sandlot/v1/sandbox.pb-c.h"

#define PAGE_DEFAULT 100
#define PAGE_MAX 1000
#define PAGE_BYTES_MAX (3u * 1024 * 1024)
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

/* ---- CreateSandbox ---- */

struct creation {
    struct call *call; /* NULL: the caller is gone */
    struct registry *registry;
    const struct rpc_context *context;
    char sandbox_id[ID_MAX];
    bool minting;
    bool repeatable; /* by its request_id */
    char *holder;
};

static void creation_free(struct creation *creation) {
    free(creation->holder);
    free(creation);
}

static void on_undone(void *arg, const struct err *err) {
    (void)arg;
    (void)err; /* a failed teardown is retried by the registry */
}

static void undo_creation(struct creation *creation) {
    struct sandbox *sandbox = registry_find(creation->registry, creation->sandbox_id);
    if (sandbox && !creation->repeatable)
        registry_destroy_sandbox(creation->registry, sandbox, on_undone, NULL);
}

static void on_owner_lease(void *arg, const struct lease *lease, const struct err *err) {
    struct creation *creation = arg;
    struct sandbox *sandbox = registry_find(creation->registry, creation->sandbox_id);
    struct err gone;
    if (!err && !sandbox) {
        err_set(&gone, ERR_NOT_FOUND, REASON(SANDBOX_DESTROYED), "the sandbox was destroyed");
        err = &gone;
    }
    if (!creation->call) {
        undo_creation(creation);
    } else if (err) {
        call_fail(creation->call, err);
        undo_creation(creation);
    } else {
        struct public_sandbox public_sandbox;
        struct public_lease public_lease;
        Sandlot__V1__CreateSandboxResponse response = SANDLOT__V1__CREATE_SANDBOX_RESPONSE__INIT;
        convert_sandbox(creation->context, sandbox, &public_sandbox);
        convert_lease(lease, &public_lease);
        AUTO_FREE char *descriptor = make_descriptor(creation->context, sandbox, lease);
        response.sandbox = &public_sandbox.message;
        response.lease = &public_lease.message;
        response.descriptor_json = descriptor;
        call_reply(creation->call, &response.base);
    }
    creation_free(creation);
}

static void on_sandbox_created(void *arg, const struct err *err) {
    struct creation *creation = arg;
    struct sandbox *sandbox = registry_find(creation->registry, creation->sandbox_id);
    struct err not_ready;
    if (!creation->call) {
        creation_free(creation);
        return;
    }
    if (!err && (!sandbox || sandbox_check_ready(sandbox, &not_ready) < 0)) {
        if (!sandbox)
            err_set(&not_ready, ERR_NOT_FOUND, REASON(SANDBOX_DESTROYED), "the sandbox was destroyed");
        err = &not_ready;
    }
    if (err) {
        call_fail(creation->call, err);
        creation_free(creation);
        return;
    }
    struct lease_mint_opts opts = {
        .sandbox_id = sandbox->id,
        .rollout_id = sandbox->rollout_id,
        .scope = SCOPE_OWNER,
        .kind = LEASE_CREATED,
        .holder = creation->holder,
        .expire_unix_ms = sandbox->expire_unix_ms,
    };
    creation->minting = true;
    lease_mint(creation->context->leases, &opts, on_owner_lease, creation);
}

static void on_create_cancelled(struct call *call) {
    struct creation *creation = call_state(call);
    creation->call = NULL;
    if (creation->minting)
        return; /* on_owner_lease undoes it */
    struct sandbox *sandbox = registry_find(creation->registry, creation->sandbox_id);
    if (sandbox && registry_abandon_create(creation->registry, sandbox, creation))
        creation_free(creation);
}

static const struct call_ops create_ops = {.cancelled = on_create_cancelled};

void handle_create_sandbox(struct call *call) {
    const Sandlot__V1__CreateSandboxRequest *request = (const void *)call_request(call);
    const struct rpc_context *context = call_context(call);
    struct creation *creation = xcalloc(1, sizeof *creation);
    struct sandbox *sandbox;
    struct err err = {0};
    creation->call = call;
    creation->registry = context->registry;
    creation->context = context;
    creation->holder = xstrdup(request->holder);
    creation->repeatable = *request->request_id != '\0';
    if (registry_create_sandbox(context->registry, &call_grant(call)->identity, request, on_sandbox_created,
                                creation, &sandbox, &err) < 0) {
        creation_free(creation);
        call_fail(call, &err);
        return;
    }
    memcpy(creation->sandbox_id, sandbox->id, sizeof creation->sandbox_id);
    call_set_ops(call, &create_ops, creation);
}

/* ---- GetSandbox, ListSandboxes ---- */

void handle_get_sandbox(struct call *call) {
    const Sandlot__V1__GetSandboxRequest *request = (const void *)call_request(call);
    struct sandbox *sandbox = find_leased_sandbox(call, request->sandbox_id);
    if (!sandbox)
        return;
    struct public_sandbox public_sandbox;
    Sandlot__V1__GetSandboxResponse response = SANDLOT__V1__GET_SANDBOX_RESPONSE__INIT;
    convert_sandbox(call_context(call), sandbox, &public_sandbox);
    response.sandbox = &public_sandbox.message;
    call_reply(call, &response.base);
}

void handle_list_sandboxes(struct call *call) {
    const Sandlot__V1__ListSandboxesRequest *request = (const void *)call_request(call);
    const struct rpc_context *context = call_context(call);
    const struct identity *identity = &call_grant(call)->identity;
    size_t page = request->page_size ? request->page_size : PAGE_DEFAULT;
    struct err err = {0};
    if (page > PAGE_MAX)
        err_violation(&err, REASON(INVALID_REQUEST), "page_size", "at most %d", PAGE_MAX);
    if (*request->page_token && !id_is_valid("sb-", request->page_token))
        err_violation(&err, REASON(INVALID_REQUEST), "page_token", "not one of this broker's");
    if (err_is_set(&err)) {
        call_fail(call, &err);
        return;
    }
    AUTO_FREE struct sandbox **found = xcalloc(page + 1, sizeof *found);
    size_t count = registry_list(context->registry, identity->admin ? NULL : identity->tenant,
                                 request->rollout_id, request->page_token, found, page + 1);
    bool more = count > page;
    count = more ? page : count;
    AUTO_FREE struct public_sandbox *sandboxes = xcalloc(count, sizeof *sandboxes);
    AUTO_FREE Sandlot__V1__Sandbox **list = xcalloc(count, sizeof *list);
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++) {
        convert_sandbox(context, found[i], &sandboxes[i]);
        list[i] = &sandboxes[i].message;
        bytes += sandlot__v1__sandbox__get_packed_size(list[i]) + 8;
        if (bytes > PAGE_BYTES_MAX) { /* a page is cut before it is no message any more */
            count = i;
            more = true;
        }
    }
    Sandlot__V1__ListSandboxesResponse response = SANDLOT__V1__LIST_SANDBOXES_RESPONSE__INIT;
    response.n_sandboxes = count;
    response.sandboxes = list;
    if (more)
        response.next_page_token = found[count - 1]->id;
    call_reply(call, &response.base);
}

/* ---- DestroySandbox ---- */

struct destruction {
    struct call *call; /* NULL: the caller is gone; the teardown goes on */
};

static void on_destroyed(void *arg, const struct err *err) {
    struct destruction *destruction = arg;
    struct call *call = destruction->call;
    free(destruction);
    if (!call)
        return;
    if (err) {
        call_fail(call, err);
        return;
    }
    Sandlot__V1__DestroySandboxResponse response = SANDLOT__V1__DESTROY_SANDBOX_RESPONSE__INIT;
    call_reply(call, &response.base);
}

static void on_destroy_cancelled(struct call *call) {
    struct destruction *destruction = call_state(call);
    destruction->call = NULL;
}

static const struct call_ops destroy_ops = {.cancelled = on_destroy_cancelled};

void handle_destroy_sandbox(struct call *call) {
    const Sandlot__V1__DestroySandboxRequest *request = (const void *)call_request(call);
    struct sandbox *sandbox = find_leased_sandbox(call, request->sandbox_id);
    if (!sandbox)
        return;
    struct destruction *destruction = xcalloc(1, sizeof *destruction);
    destruction->call = call;
    call_set_ops(call, &destroy_ops, destruction);
    registry_destroy_sandbox(call_context(call)->registry, sandbox, on_destroyed, destruction);
}
