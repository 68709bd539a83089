#include "common/id.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define ID_RANDOM 16

/* 32 characters without those that people confuse. */
static const char alphabet[] = "0123456789abcdefghjkmnpqrstvwxyz";

void id_make(const char *prefix, char *ret_id) {
    uint8_t random[ID_RANDOM];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        abort();
    int n = snprintf(ret_id, ID_MAX - ID_RANDOM, "%s", prefix);
    for (int i = 0; i < ID_RANDOM; i++)
        ret_id[n + i] = alphabet[random[i] & 31];
    ret_id[n + ID_RANDOM] = '\0';
}

bool id_is_valid(const char *prefix, const char *text) {
    size_t n = strlen(prefix);
    if (strncmp(text, prefix, n) != 0 || strlen(text) != n + ID_RANDOM)
        return false;
    return strspn(text + n, alphabet) == ID_RANDOM;
}
