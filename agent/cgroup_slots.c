#include "agent/cgroup_slots.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/xalloc.h"

struct cgroup_slot {
    unsigned number; /* its name */
    bool killed;
    int dir_fd, events_fd, kill_fd;
    SLIST_ENTRY(cgroup_slot) free_link;
};

struct cgroup_slots {
    int exec_fd; /* x/ */
    unsigned made;
    SLIST_HEAD(, cgroup_slot) free_slots;
};

struct cgroup_slots *cgroup_slots_create(int root_fd) {
    AUTO_CLOSE int owned = root_fd;
    if (mkdirat(owned, "x", 0755) < 0 && errno != EEXIST)
        return NULL;
    int exec_fd = openat(owned, "x", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (exec_fd < 0)
        return NULL;
    struct cgroup_slots *slots = xcalloc(1, sizeof *slots);
    slots->exec_fd = exec_fd;
    SLIST_INIT(&slots->free_slots);
    return slots;
}

static void slot_destroy(struct cgroup_slot *slot) {
    if (slot->dir_fd >= 0)
        close(slot->dir_fd);
    if (slot->events_fd >= 0)
        close(slot->events_fd);
    if (slot->kill_fd >= 0)
        close(slot->kill_fd);
    free(slot);
}

static struct cgroup_slot *slot_make(struct cgroup_slots *slots) {
    char name[16];
    snprintf(name, sizeof name, "%u", slots->made);
    if (mkdirat(slots->exec_fd, name, 0755) < 0 && errno != EEXIST)
        return NULL;
    struct cgroup_slot *slot = xcalloc(1, sizeof *slot);
    slot->events_fd = slot->kill_fd = -1;
    slot->dir_fd = openat(slots->exec_fd, name, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (slot->dir_fd >= 0) {
        slot->events_fd = openat(slot->dir_fd, "cgroup.events", O_RDONLY | O_CLOEXEC);
        slot->kill_fd = openat(slot->dir_fd, "cgroup.kill", O_WRONLY | O_CLOEXEC);
    }
    if (slot->events_fd < 0 || slot->kill_fd < 0) {
        slot_destroy(slot);
        return NULL;
    }
    slot->number = slots->made++;
    return slot;
}

struct cgroup_slot *cgroup_slot_take(struct cgroup_slots *slots) {
    struct cgroup_slot *slot = SLIST_FIRST(&slots->free_slots);
    if (!slot)
        return slot_make(slots);
    SLIST_REMOVE_HEAD(&slots->free_slots, free_link);
    return slot;
}

/* Linux 6.18 kills at once what is cloned into a cgroup that was ever killed (it compares the kill
 * counters of the parent's cgroup and the child's): such a slot is used up. */
void cgroup_slot_give_back(struct cgroup_slots *slots, struct cgroup_slot *slot) {
    if (!slot->killed) {
        SLIST_INSERT_HEAD(&slots->free_slots, slot, free_link);
        return;
    }
    char name[16];
    snprintf(name, sizeof name, "%u", slot->number);
    unlinkat(slots->exec_fd, name, AT_REMOVEDIR); /* or with the sandbox, if something dies in it still */
    slot_destroy(slot);
}

int cgroup_slot_fd(const struct cgroup_slot *slot) {
    return slot->dir_fd;
}

bool cgroup_slot_is_empty(const struct cgroup_slot *slot) {
    char text[128];
    ssize_t n = pread(slot->events_fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return false;
    text[n] = '\0';
    return strstr(text, "populated 0") != NULL;
}

void cgroup_slot_kill(struct cgroup_slot *slot) {
    slot->killed = true;
    ssize_t ignored = pwrite(slot->kill_fd, "1", 1, 0);
    (void)ignored; /* the caller looks whether it is empty */
}

size_t cgroup_slot_pids(const struct cgroup_slot *slot, pid_t *ret_pids, size_t max) {
    int fd = openat(slot->dir_fd, "cgroup.procs", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    AUTO_FILE FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return 0;
    }
    size_t count = 0;
    long pid;
    while (count < max && fscanf(file, "%ld", &pid) == 1)
        if (pid > 0)
            ret_pids[count++] = (pid_t)pid;
    return count;
}
