#include "broker/sandbox/record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "common/xalloc.h"

void record_key(const char *sandbox_id, char key[STORE_KEY_MAX]) {
    snprintf(key, STORE_KEY_MAX, RECORD_PREFIX "%s", sandbox_id);
}

uint8_t *record_pack(const struct sandbox *sandbox, Sandlot__Store__V1__SandboxRecord__State state,
                     size_t *ret_len) {
    Sandlot__Store__V1__SandboxRecord record = SANDLOT__STORE__V1__SANDBOX_RECORD__INIT;
    Sandlot__V1__CreateSandboxRequest spec = *sandbox->spec;
    spec.n_files = 0; /* they are in the sandbox, or their creation will be undone */
    spec.files = NULL;
    record.id = (char *)(uintptr_t)sandbox->id;
    record.state = state;
    record.tenant = (char *)(uintptr_t)sandbox->tenant;
    record.provider = (char *)(uintptr_t)sandbox->provider->ops->name;
    record.create_unix_ms = sandbox->create_unix_ms;
    record.expire_unix_ms = sandbox->expire_unix_ms;
    record.rollout_id = sandbox->rollout_id;
    record.request_id = sandbox->request_id;
    record.request_hash.data = (uint8_t *)(uintptr_t)sandbox->request_hash;
    record.request_hash.len = sizeof sandbox->request_hash;
    record.spec = &spec;
    record.last_error = (char *)(uintptr_t)sandbox->last_error;
    record.expired = sandbox->expired;
    *ret_len = sandlot__store__v1__sandbox_record__get_packed_size(&record);
    uint8_t *bytes = xcalloc(1, *ret_len);
    sandlot__store__v1__sandbox_record__pack(&record, bytes);
    return bytes;
}

Sandlot__V1__CreateSandboxRequest *record_copy_spec(const Sandlot__V1__CreateSandboxRequest *spec) {
    size_t len = sandlot__v1__create_sandbox_request__get_packed_size(spec);
    AUTO_FREE uint8_t *bytes = xcalloc(1, len);
    sandlot__v1__create_sandbox_request__pack(spec, bytes);
    Sandlot__V1__CreateSandboxRequest *copy = sandlot__v1__create_sandbox_request__unpack(NULL, len, bytes);
    if (!copy)
        abort();
    return copy;
}

void record_restore(struct sandbox *sandbox, const Sandlot__Store__V1__SandboxRecord *record) {
    snprintf(sandbox->tenant, sizeof sandbox->tenant, "%s", record->tenant);
    snprintf(sandbox->last_error, sizeof sandbox->last_error, "%s", record->last_error);
    sandbox->create_unix_ms = record->create_unix_ms;
    sandbox->expire_unix_ms = record->expire_unix_ms;
    sandbox->rollout_id = xstrdup(record->rollout_id);
    sandbox->request_id = xstrdup(record->request_id);
    if (record->request_hash.len == sizeof sandbox->request_hash)
        memcpy(sandbox->request_hash, record->request_hash.data, sizeof sandbox->request_hash);
    sandbox->spec = record_copy_spec(record->spec);
    sandbox->workdir = xstrdup(record->spec->workdir);
    sandbox->expired = record->expired;
}
