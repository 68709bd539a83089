#include "broker/access/keyring.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/xalloc.h"

#define FILE_MAX (64 * 1024)

static int parse_key(const cJSON *item, struct key *ret, struct err *err) {
    static const char *const known[] = {"id", "secret", NULL};
    const char *id = NULL, *secret = NULL;
    size_t len = 0;
    if (json_check_keys(item, "a key", known, err) < 0 || json_get_string(item, "id", &id, err) < 0 ||
        json_get_string(item, "secret", &secret, err) < 0)
        return -1;
    if (!id || !*id || strlen(id) >= KEY_ID_MAX ||
        strspn(id, "abcdefghijklmnopqrstuvwxyz0123456789") != strlen(id))
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "a key's id is 1 to 15 of a-z and 0-9");
    if (!secret || sodium_hex2bin(ret->secret, KEY_BYTES, secret, strlen(secret), NULL, &len, NULL) != 0 ||
        len != KEY_BYTES)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "key \"%s\": the secret is %d hex digits", id,
                       KEY_BYTES * 2);
    snprintf(ret->id, sizeof ret->id, "%s", id);
    return 0;
}

static int parse(const char *text, size_t len, struct keyring *ret, struct err *err) {
    static const char *const known[] = {"broker_id", "keys", NULL};
    CLEANUP(cleanup_cjson_p) cJSON *json = json_parse(text, len, err);
    const char *broker_id = NULL;
    const cJSON *keys = NULL;
    if (!json || json_check_keys(json, "keys", known, err) < 0 ||
        json_get_string(json, "broker_id", &broker_id, err) < 0 ||
        json_get_array(json, "keys", &keys, err) < 0)
        return -1;
    if (!broker_id || !id_is_valid("br-", broker_id))
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"broker_id\" is missing or malformed");
    snprintf(ret->broker_id, sizeof ret->broker_id, "%s", broker_id);
    ret->count = 0;
    const cJSON *item;
    cJSON_ArrayForEach (item, keys) {
        if (ret->count == KEYS_MAX)
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "at most %d keys", KEYS_MAX);
        if (parse_key(item, &ret->keys[ret->count], err) < 0)
            return -1;
        ret->count++;
    }
    return ret->count ? 0 : err_set(err, ERR_INVALID_ARGUMENT, 0, "no key in it");
}

static int make(int state_fd, struct keyring *ret, struct err *err) {
    memset(ret, 0, sizeof *ret);
    id_make("br-", ret->broker_id);
    snprintf(ret->keys[0].id, KEY_ID_MAX, "k1");
    randombytes_buf(ret->keys[0].secret, KEY_BYTES);
    ret->count = 1;
    char hex[KEY_BYTES * 2 + 1];
    sodium_bin2hex(hex, sizeof hex, ret->keys[0].secret, KEY_BYTES);
    AUTO_FREE char *text = xasprintf(
        "{\"broker_id\": \"%s\",\n \"keys\": [{\"id\": \"k1\", \"secret\": \"%s\"}]}\n", ret->broker_id, hex);
    unlinkat(state_fd, "keys.new", 0);
    AUTO_CLOSE int fd =
        openat(state_fd, "keys.new", O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    size_t len = strlen(text);
    if (fd < 0 || write(fd, text, len) != (ssize_t)len || fsync(fd) < 0 ||
        renameat(state_fd, "keys.new", state_fd, "keys") < 0)
        return err_set_errno(err, errno, "can't write the file keys in the state directory");
    return 0;
}

int keyring_load_or_make(int state_fd, struct keyring *ret, struct err *err) {
    AUTO_CLOSE int fd = openat(state_fd, "keys", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return make(state_fd, ret, err);
    if (fd < 0)
        return err_set_errno(err, errno, "file keys in the state directory");
    AUTO_FREE char *text = xcalloc(1, FILE_MAX);
    ssize_t n = read(fd, text, FILE_MAX - 1);
    if (n < 0)
        return err_set_errno(err, errno, "file keys in the state directory");
    if (parse(text, (size_t)n, ret, err) < 0)
        return err_wrap(err, "file keys in the state directory");
    return 0;
}

const struct key *keyring_find(const struct keyring *keyring, const char *key_id, size_t len) {
    for (size_t i = 0; i < keyring->count; i++)
        if (strlen(keyring->keys[i].id) == len && memcmp(keyring->keys[i].id, key_id, len) == 0)
            return &keyring->keys[i];
    return NULL;
}
