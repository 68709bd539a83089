#include "broker/access/token.h"

#include <sodium.h>
#include <stdio.h>
#include <string.h>

#define MAC_BYTES 32
#define PAYLOAD_MAX (2 * ID_MAX)
#define BASE64 sodium_base64_VARIANT_URLSAFE_NO_PADDING

static void compute_mac(const struct key *key, const char *text, size_t len, uint8_t mac[MAC_BYTES]) {
    crypto_generichash(mac, MAC_BYTES, (const uint8_t *)text, len, key->secret, KEY_BYTES);
}

void token_make(const struct keyring *keyring, const char *lease_id, const char *sandbox_id,
                char ret_token[TOKEN_MAX]) {
    const struct key *key = &keyring->keys[0];
    char payload[PAYLOAD_MAX], encoded[PAYLOAD_MAX * 2], mac_text[MAC_BYTES * 2];
    uint8_t mac[MAC_BYTES];
    int len = snprintf(payload, sizeof payload, "%s %s", lease_id, sandbox_id);
    sodium_bin2base64(encoded, sizeof encoded, (const uint8_t *)payload, (size_t)len, BASE64);
    int head = snprintf(ret_token, TOKEN_MAX, "sl1.%s.%s", key->id, encoded);
    compute_mac(key, ret_token, (size_t)head, mac);
    sodium_bin2base64(mac_text, sizeof mac_text, mac, sizeof mac, BASE64);
    snprintf(ret_token + head, TOKEN_MAX - (size_t)head, ".%s", mac_text);
}

/* The four parts; false if there are not four or the first is not ours. */
static bool split(const char *token, size_t len, const char *part[4], size_t part_len[4]) {
    size_t n = 0;
    const char *at = token, *end = token + len;
    while (n < 4) {
        const char *dot = memchr(at, '.', (size_t)(end - at));
        part[n] = at;
        part_len[n++] = (size_t)((dot ? dot : end) - at);
        if (!dot)
            break;
        at = dot + 1;
    }
    return n == 4 && part_len[0] == 3 && memcmp(part[0], "sl1", 3) == 0 && part[3] + part_len[3] == end;
}

static bool parse_payload(const char *text, size_t len, char lease_id[ID_MAX], char sandbox_id[ID_MAX]) {
    const char *space = memchr(text, ' ', len);
    if (!space)
        return false;
    size_t first = (size_t)(space - text), second = len - first - 1;
    if (first >= ID_MAX || second >= ID_MAX)
        return false;
    memcpy(lease_id, text, first);
    lease_id[first] = '\0';
    memcpy(sandbox_id, space + 1, second);
    sandbox_id[second] = '\0';
    return id_is_valid("le-", lease_id) && id_is_valid("sb-", sandbox_id);
}

bool token_verify(const struct keyring *keyring, const char *token, size_t len, char ret_lease_id[ID_MAX],
                  char ret_sandbox_id[ID_MAX]) {
    const char *part[4];
    size_t part_len[4], decoded;
    uint8_t expected[MAC_BYTES], given[MAC_BYTES];
    char payload[PAYLOAD_MAX];
    if (len >= TOKEN_MAX || !split(token, len, part, part_len))
        return false;
    const struct key *key = keyring_find(keyring, part[1], part_len[1]);
    if (!key ||
        sodium_base642bin(given, sizeof given, part[3], part_len[3], NULL, &decoded, NULL, BASE64) != 0 ||
        decoded != sizeof given)
        return false;
    compute_mac(key, token, (size_t)(part[3] - token) - 1, expected);
    if (sodium_memcmp(expected, given, sizeof given) != 0)
        return false;
    if (sodium_base642bin((uint8_t *)payload, sizeof payload, part[2], part_len[2], NULL, &decoded, NULL,
                          BASE64) != 0)
        return false;
    return parse_payload(payload, decoded, ret_lease_id, ret_sandbox_id);
}
