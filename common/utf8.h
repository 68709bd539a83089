#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True if the bytes are well-formed UTF-8 (no surrogates, shortest forms) and hold no NUL. */
bool utf8_is_text(const uint8_t *data, size_t len);
/* Makes it so: what does not belong there becomes '?'. For text that holds somebody's bytes. */
void utf8_scrub(char *text);
