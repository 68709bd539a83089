#include "agent/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/cgroup_slots.h"
#include "common/cleanup.h"

#define PIDS_MAX 4096
#define ROUNDS_MAX 16

static bool is_member(const pid_t *pids, size_t count, pid_t pid) {
    for (size_t i = 0; i < count; i++)
        if (pids[i] == pid)
            return true;
    return false;
}

static ssize_t read_proc(pid_t pid, const char *name, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    return n;
}

struct process {
    pid_t pid, parent, group, session;
    bool zombie;
};

static bool read_process(pid_t pid, struct process *ret) {
    char text[512];
    if (read_proc(pid, "stat", text, sizeof text) <= 0)
        return false;
    char *after_name = strrchr(text, ')'); /* names may hold ") S 1 (" */
    char state;
    int parent, group, session;
    if (!after_name || sscanf(after_name + 1, " %c %d %d %d", &state, &parent, &group, &session) != 4)
        return false;
    *ret = (struct process){pid, parent, group, session, state == 'Z' || state == 'X'};
    return true;
}

static bool has_marker(pid_t pid, const char *exec_id) {
    AUTO_FREE char *text = malloc(128 * 1024);
    char marker[64];
    int len = snprintf(marker, sizeof marker, "SANDLOT_EXEC=%s", exec_id);
    ssize_t n = text ? read_proc(pid, "environ", text, 128 * 1024) : -1;
    return n > 0 && memmem(text, (size_t)n, marker, (size_t)len) != NULL;
}

/* Without a cgroup: everything in the leader's session or group, descendants of those, and bearers of
 * the marker. */
static size_t scan_members(const struct tree *tree, pid_t *pids, size_t max) {
    DIR *dir = opendir("/proc");
    if (!dir)
        return 0;
    size_t count = 0;
    for (struct dirent *entry; (entry = readdir(dir)) && count < max;) {
        struct process process;
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (pid <= 1 || !read_process(pid, &process) || process.zombie)
            continue;
        if (process.session == tree->leader || process.group == tree->leader ||
            is_member(pids, count, process.parent) || has_marker(pid, tree->exec_id))
            pids[count++] = pid;
    }
    closedir(dir);
    return count;
}

static size_t members(const struct tree *tree, pid_t *pids, size_t max) {
    return tree->slot ? cgroup_slot_pids(tree->slot, pids, max) : scan_members(tree, pids, max);
}

bool tree_is_gone(const struct tree *tree) {
    if (tree->slot)
        return cgroup_slot_is_empty(tree->slot);
    pid_t pid;
    return scan_members(tree, &pid, 1) == 0;
}

/* A pid read from a list may name another process a moment later. So: open, look again whether it is
 * still a member, then signal what was opened. */
static size_t signal_members(const struct tree *tree, int signal) {
    AUTO_FREE pid_t *pids = calloc(PIDS_MAX, sizeof *pids);
    AUTO_FREE pid_t *again = calloc(PIDS_MAX, sizeof *again);
    AUTO_FREE int *fds = calloc(PIDS_MAX, sizeof *fds);
    if (!pids || !again || !fds)
        return 0;
    size_t count = members(tree, pids, PIDS_MAX);
    for (size_t i = 0; i < count; i++)
        fds[i] = (int)syscall(SYS_pidfd_open, pids[i], 0);
    size_t count_again = members(tree, again, PIDS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (fds[i] < 0)
            continue;
        if (is_member(again, count_again, pids[i]))
            syscall(SYS_pidfd_send_signal, fds[i], signal, NULL, 0);
        close(fds[i]);
    }
    return count;
}

void tree_signal(const struct tree *tree, int signal) {
    if (tree->slot && signal == SIGKILL) {
        cgroup_slot_kill(tree->slot);
        return;
    }
    /* Something that forks while it is killed needs more than one round. */
    for (int round = 0; round < (signal == SIGKILL ? ROUNDS_MAX : 1); round++)
        if (signal_members(tree, signal) == 0)
            return;
}
