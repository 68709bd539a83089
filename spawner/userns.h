/* User namespaces with a range of 65,536 users of the host. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

#define USERNS_RANGE 65536u

/* Writes the maps of a child that was cloned with CLONE_NEWUSER. */
int userns_map(pid_t pid, uint32_t first_uid, struct err *err);
/* A user namespace with that range and no process in it. Returns its fd. */
int userns_make(uint32_t first_uid, struct err *err);
/* The one a process is in. */
int userns_of(pid_t pid, struct err *err);
