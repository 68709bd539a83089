/* Users and groups by the sandbox's own /etc/passwd and /etc/group. No NSS: the files are untrusted
 * text, read bounded and only when regular. */
#pragma once

#include <sys/types.h>

#include "common/err.h"

#define USER_GROUPS_MAX 64

struct user {
    uid_t uid;
    gid_t gid;
    gid_t groups[USER_GROUPS_MAX];
    size_t group_count;
    char home[256];
};

/* spec: "" (root), a name, a uid, or either with ":group". USER_NOT_FOUND if a name is unknown. */
int user_lookup(const char *spec, struct user *ret, struct err *err);
