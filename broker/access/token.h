/* Lease tokens: sl1.KEYID.PAYLOAD.MAC. The payload names the lease and its sandbox; the MAC is keyed
 * BLAKE2b over everything before it. A token says who it is, the lease's record what it may do. */
#pragma once

#include <stdbool.h>

#include "broker/access/keyring.h"

#define TOKEN_MAX 512

void token_make(const struct keyring *keyring, const char *lease_id, const char *sandbox_id,
                char ret_token[TOKEN_MAX]);
/* False: not a token of this broker. Compares in constant time. */
bool token_verify(const struct keyring *keyring, const char *token, size_t len, char ret_lease_id[ID_MAX],
                  char ret_sandbox_id[ID_MAX]);
