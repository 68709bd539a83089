#include "common/utf8.h"

#include <string.h>

/* Bytes of the sequence at p, 0 if it is malformed. */
static size_t sequence(const uint8_t *p, size_t room) {
    uint8_t lead = p[0];
    if (lead < 0x80)
        return lead ? 1 : 0;
    size_t n = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4 || n > room)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (lead == 0xe0 && p[1] < 0xa0) || (lead == 0xf0 && p[1] < 0x90);
    bool surrogate = lead == 0xed && p[1] >= 0xa0;
    bool beyond = lead == 0xf4 && p[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : n;
}

void utf8_scrub(char *text) {
    size_t len = strlen(text);
    for (size_t at = 0; at < len;) {
        size_t n = sequence((const uint8_t *)text + at, len - at);
        if (!n)
            text[at] = '?';
        at += n ? n : 1;
    }
}

bool utf8_is_text(const uint8_t *data, size_t len) {
    for (size_t at = 0; at < len;) {
        size_t n = sequence(data + at, len - at);
        if (!n)
            return false;
        at += n;
    }
    return true;
}
