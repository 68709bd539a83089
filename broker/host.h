/* What the daemon takes from its host before anything else runs: the state directory and its lock,
 * the listening sockets, the user to become. */
#pragma once

#include <sys/types.h>

#include "broker/config.h"

struct host_user {
    uid_t uid;
    gid_t gid;
    char name[64];
};

/* Makes it 0700, opens it, takes its lock (waits up to 5 s for a predecessor). Returns its fd. */
int host_open_state(const struct config *config, int *ret_lock_fd, struct err *err);
/* Binds and listens, mode 0600; refuses a path that a living server serves. Returns the fd. */
int host_listen_unix(const char *path, int *ret_lock_fd, struct err *err);
void host_unlink_unix(const char *path);
/* The configured user, the system user "sandlot", or root without capabilities. */
int host_find_user(const char *name, struct host_user *ret, struct err *err);
/* The broker's own directory in it, the only thing there that is not root's: whoever takes over the
 * broker must not be able to exchange what the spawner works with. */
int host_make_own(const struct config *config, int state_fd, const struct host_user *user, struct err *err);
/* For good. */
int host_become(const struct host_user *user, struct err *err);
