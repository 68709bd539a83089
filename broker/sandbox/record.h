/* A sandbox as the registry's record, and back. */
#pragma once

#include "broker/sandbox/sandbox.h"
#include "broker/store/store.h"
#include "sandlot/store/v1/records.pb-c.h"

#define RECORD_PREFIX "sandbox/"

void record_key(const char *sandbox_id, char key[STORE_KEY_MAX]);
/* malloc'd bytes. */
uint8_t *record_pack(const struct sandbox *sandbox, Sandlot__Store__V1__SandboxRecord__State state,
                     size_t *ret_len);
/* Fills what the record holds; the state is the caller's to judge. */
void record_restore(struct sandbox *sandbox, const Sandlot__Store__V1__SandboxRecord *record);
Sandlot__V1__CreateSandboxRequest *record_copy_spec(const Sandlot__V1__CreateSandboxRequest *spec);
