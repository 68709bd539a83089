/* The file `keys` of the state directory: this broker's identity and the keys that sign its lease
 * tokens. Made on the first start, mode 0600. The first key signs, all verify (two may, while one is
 * replaced). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/id.h"

#define KEY_BYTES 32
#define KEY_ID_MAX 16
#define KEYS_MAX 2

struct key {
    char id[KEY_ID_MAX]; /* 1..15 of [a-z0-9] */
    uint8_t secret[KEY_BYTES];
};

struct keyring {
    char broker_id[ID_MAX]; /* "br-..." */
    struct key keys[KEYS_MAX];
    size_t count;
};

int keyring_load_or_make(int state_fd, struct keyring *ret, struct err *err);
const struct key *keyring_find(const struct keyring *keyring, const char *key_id, size_t len);
