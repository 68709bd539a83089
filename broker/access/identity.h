/* Who calls. Captured when the call arrives; never changes. */
#pragma once

#include <stdbool.h>

#define TENANT_MAX 64

struct identity {
    char tenant[TENANT_MAX]; /* "uid:1000", "loopback"; empty: the connection names nobody */
    bool admin;              /* root, or the broker's own user */
};
