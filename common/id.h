/* Ids: a prefix and 16 random characters (80 bits), e.g. "sb-3k7q...". Lower case, safe in paths. */
#pragma once

#include <stdbool.h>

#define ID_MAX 24 /* with the NUL */

void id_make(const char *prefix, char *ret_id);
/* True if text is prefix + 16 characters of our alphabet. */
bool id_is_valid(const char *prefix, const char *text);
