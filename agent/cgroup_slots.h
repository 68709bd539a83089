/* A cgroup per running command, reused: making and removing one per command costs more than the
 * command. Slots are directories x/0, x/1, ... below the delegated directory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct cgroup_slots;
struct cgroup_slot;

/* root_fd: the sandbox's own cgroup directory; taken over. NULL if it cannot be used. */
struct cgroup_slots *cgroup_slots_create(int root_fd);

/* An empty slot, or NULL if the kernel gives none. */
struct cgroup_slot *cgroup_slot_take(struct cgroup_slots *slots);
/* The slot must be empty. */
void cgroup_slot_give_back(struct cgroup_slots *slots, struct cgroup_slot *slot);

int cgroup_slot_fd(const struct cgroup_slot *slot); /* the directory, for CLONE_INTO_CGROUP */
bool cgroup_slot_is_empty(const struct cgroup_slot *slot);
/* SIGKILL to all of it, atomically. */
void cgroup_slot_kill(struct cgroup_slot *slot);
/* Pids in it now; returns how many were stored. */
size_t cgroup_slot_pids(const struct cgroup_slot *slot, pid_t *ret_pids, size_t max);
