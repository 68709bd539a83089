#include "spawner/host_cgroup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

#define CGROUP2_MAGIC 0x63677270

static const char *const controllers[HOST_CONTROLLER_MAX] = {"memory", "pids", "cpu"};

static int write_at(int dir_fd, const char *file, const char *text) {
    AUTO_CLOSE int fd = openat(dir_fd, file, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    return write(fd, text, strlen(text)) < 0 ? -1 : 0;
}

/* "N:names:path" of /proc/self/cgroup; names "" is the unified tree. */
static bool own_path(const char *names, char *ret, size_t size) {
    AUTO_FILE FILE *file = fopen("/proc/self/cgroup", "re");
    char line[1024];
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *first = strchr(line, ':');
        char *second = first ? strchr(first + 1, ':') : NULL;
        if (!second)
            continue;
        *second = '\0';
        char *list = first + 1;
        bool found = !*names && !*list;
        for (char *name; *names && (name = strsep(&list, ","));)
            found = found || strcmp(name, names) == 0;
        if (found)
            return snprintf(ret, size, "%s", strcmp(second + 1, "/") == 0 ? "" : second + 1) < (int)size;
    }
    return false;
}

static bool is_cgroup2(const char *path) {
    struct statfs fs;
    return statfs(path, &fs) == 0 && fs.f_type == CGROUP2_MAGIC;
}

static void switch_controllers(int fd, char sign) {
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++) {
        char text[32];
        snprintf(text, sizeof text, "%c%s", sign, controllers[c]);
        write_at(fd, "cgroup.subtree_control", text);
    }
}

static int open_leaf(const char *own, const char *broker_id) {
    char path[HOST_CGROUP_PATH_MAX + 32];
    snprintf(path, sizeof path, "%s/broker-%s", own, broker_id);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        return -1;
    return open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
}

/* On v2 a cgroup with controllers for its children may not hold processes itself (but for the root):
 * we move down. */
static void make_room(struct host_cgroups *ret, const char *own, bool is_root, const char *broker_id) {
    AUTO_CLOSE int own_fd = open(own, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (own_fd >= 0 && is_root) {
        switch_controllers(own_fd, '+');
        return;
    }
    AUTO_CLOSE int leaf = own_fd >= 0 ? open_leaf(own, broker_id) : -1;
    if (leaf < 0 || write_at(leaf, "cgroup.procs", "0") < 0)
        return;
    snprintf(ret->own, sizeof ret->own, "%s", own);
    switch_controllers(own_fd, '+');
}

static void move_back(const char *own, const char *broker_id) {
    char path[HOST_CGROUP_PATH_MAX + 32];
    AUTO_CLOSE int own_fd = open(own, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (own_fd < 0)
        return;
    switch_controllers(own_fd, '-');
    write_at(own_fd, "cgroup.procs", "0");
    snprintf(path, sizeof path, "%s/broker-%s", own, broker_id);
    rmdir(path);
}

static bool lists_controller(const char *directory, const char *name) {
    char path[HOST_CGROUP_PATH_MAX + 32], text[256];
    snprintf(path, sizeof path, "%s/cgroup.controllers", directory);
    AUTO_FILE FILE *file = fopen(path, "re");
    if (!file || !fgets(text, sizeof text, file))
        return false;
    text[strcspn(text, "\n")] = '\0';
    char *rest = text;
    for (char *word; (word = strsep(&rest, " "));)
        if (strcmp(word, name) == 0)
            return true;
    return false;
}

static bool has_controllers(const char *directory) {
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        if (lists_controller(directory, controllers[c]))
            return true;
    return false;
}

static void find_unified(struct host_cgroups *ret, const char *broker_id) {
    char own[256], base[320];
    const char *root = is_cgroup2("/sys/fs/cgroup")           ? "/sys/fs/cgroup"
                       : is_cgroup2("/sys/fs/cgroup/unified") ? "/sys/fs/cgroup/unified"
                                                              : NULL;
    if (!root || !own_path("", own, sizeof own))
        return;
    snprintf(base, sizeof base, "%s%s", root, own);
    if (has_controllers(base))
        make_room(ret, base, !*own, broker_id);
    if (!ret->unified[0])
        snprintf(ret->unified, sizeof ret->unified, "%s/sandlot-%s", base, broker_id);
    if (mkdir(ret->unified, 0755) < 0 && errno != EEXIST) {
        ret->unified[0] = '\0';
        return;
    }
    AUTO_CLOSE int fd = open(ret->unified, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    switch_controllers(fd, '+');
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        ret->v2_controllers[c] = lists_controller(ret->unified, controllers[c]);
}

static void find_v1(struct host_cgroups *ret, int c, const char *broker_id) {
    char own[256], root[64];
    snprintf(root, sizeof root, "/sys/fs/cgroup/%s", controllers[c]);
    if (ret->v2_controllers[c] || access(root, F_OK) < 0 || !own_path(controllers[c], own, sizeof own))
        return;
    char *path = ret->v1[c];
    if (path[0])
        return;
    snprintf(path, HOST_CGROUP_PATH_MAX, "%s%s/sandlot-%s", root, own, broker_id);
    if (mkdir(path, 0755) < 0 && errno != EEXIST)
        path[0] = '\0';
}

/* One path a line: unified, then the v1 controllers in their order; an empty line for none. */
static void recall(struct host_cgroups *ret, int state_fd) {
    int fd = openat(state_fd, "cgroups", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    AUTO_FILE FILE *file = fd >= 0 ? fdopen(fd, "r") : NULL;
    char line[HOST_CGROUP_PATH_MAX];
    for (int i = -1; file && i < HOST_CONTROLLER_MAX && fgets(line, sizeof line, file); i++) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '/' && access(line, F_OK) == 0)
            snprintf(i < 0 ? ret->unified : ret->v1[i], HOST_CGROUP_PATH_MAX, "%s", line);
    }
}

static void remember(const struct host_cgroups *cgroups, int state_fd) {
    int fd = openat(state_fd, "cgroups", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    AUTO_FILE FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "%s\n", cgroups->unified);
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        fprintf(file, "%s\n", cgroups->v1[c]);
}

void host_cgroups_find(struct host_cgroups *ret, const char *broker_id, int state_fd) {
    memset(ret, 0, sizeof *ret);
    recall(ret, state_fd);
    find_unified(ret, broker_id);
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        find_v1(ret, c, broker_id);
    remember(ret, state_fd);
}

void host_cgroups_remove(const struct host_cgroups *cgroups, const char *broker_id, int state_fd) {
    if (cgroups->unified[0])
        rmdir(cgroups->unified);
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        if (cgroups->v1[c][0])
            rmdir(cgroups->v1[c]);
    if (cgroups->own[0])
        move_back(cgroups->own, broker_id);
    unlinkat(state_fd, "cgroups", 0);
}

/* ---- One sandbox ---- */

static int open_box(const char *parent, const char *id, bool make) {
    char path[HOST_CGROUP_PATH_MAX + ID_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", parent, id);
    if (make && mkdir(path, 0755) < 0 && errno != EEXIST)
        return -1;
    return open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
}

static int set_limit(int fd, bool v1, int c, const struct cgroup_limits *limits) {
    char text[64];
    switch (c) {
    case HOST_MEMORY:
        if (!limits->memory_bytes)
            return 0;
        snprintf(text, sizeof text, "%llu", (unsigned long long)limits->memory_bytes);
        if (!v1)
            write_at(fd, "memory.swap.max", "0");
        return write_at(fd, v1 ? "memory.limit_in_bytes" : "memory.max", text);
    case HOST_PIDS:
        if (!limits->pids)
            return 0;
        snprintf(text, sizeof text, "%u", limits->pids);
        return write_at(fd, "pids.max", text);
    default:
        if (!limits->cpu_milli)
            return 0;
        if (v1) {
            snprintf(text, sizeof text, "%u", limits->cpu_milli * 100);
            return write_at(fd, "cpu.cfs_quota_us", text);
        }
        snprintf(text, sizeof text, "%u 100000", limits->cpu_milli * 100);
        return write_at(fd, "cpu.max", text);
    }
}

/* The agent may make cgroups below its own and move its commands there, no more. */
static int delegate(int box_fd, uid_t owner) {
    static const char *const files[] = {"cgroup.procs", "cgroup.threads", "cgroup.subtree_control"};
    if (fchown(box_fd, owner, owner) < 0)
        return -1;
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (fchownat(box_fd, files[i], owner, owner, 0) < 0 && errno != ENOENT)
            return -1;
    return 0;
}

static int make_unified(const struct host_cgroups *cgroups, const char *id, uid_t owner,
                        struct box_cgroup *ret) {
    ret->box_fd = open_box(cgroups->unified, id, true);
    if (ret->box_fd < 0 || delegate(ret->box_fd, owner) < 0 ||
        (mkdirat(ret->box_fd, "agent", 0755) < 0 && errno != EEXIST))
        return -1;
    ret->agent_fd = openat(ret->box_fd, "agent", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    return ret->agent_fd < 0 ? -1 : delegate(ret->agent_fd, owner);
}

int box_cgroup_make(const struct host_cgroups *cgroups, const char *id, const struct cgroup_limits *limits,
                    uid_t owner, struct box_cgroup *ret, struct err *err) {
    *ret = (struct box_cgroup){-1, -1, {-1, -1, -1}};
    if (cgroups->unified[0] && make_unified(cgroups, id, owner, ret) < 0)
        return err_set_errno(err, errno, "can't make the sandbox's cgroup");
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++) {
        if (cgroups->v2_controllers[c]) {
            if (set_limit(ret->box_fd, false, c, limits) < 0)
                return err_set_errno(err, errno, "can't set the %s limit", controllers[c]);
            continue;
        }
        if (!cgroups->v1[c][0])
            continue;
        AUTO_CLOSE int fd = open_box(cgroups->v1[c], id, true);
        if (fd < 0 || set_limit(fd, true, c, limits) < 0)
            return err_set_errno(err, errno, "can't set the %s limit", controllers[c]);
        ret->tasks_fds[c] = openat(fd, "tasks", O_WRONLY | O_CLOEXEC);
    }
    return 0;
}

void box_cgroup_close(struct box_cgroup *cgroup) {
    int *fds[] = {&cgroup->box_fd, &cgroup->agent_fd, &cgroup->tasks_fds[0], &cgroup->tasks_fds[1],
                  &cgroup->tasks_fds[2]};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        if (*fds[i] >= 0)
            close(*fds[i]);
        *fds[i] = -1;
    }
}

bool box_cgroup_kill(const struct host_cgroups *cgroups, const char *id) {
    if (!cgroups->unified[0])
        return false;
    AUTO_CLOSE int fd = open_box(cgroups->unified, id, false);
    return fd >= 0 && write_at(fd, "cgroup.kill", "1") == 0;
}

static int remove_children(int fd) {
    int copy = openat(fd, ".", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    DIR *dir = copy >= 0 ? fdopendir(copy) : NULL;
    if (!dir)
        return -1;
    int result = 0;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_type != DT_DIR || entry->d_name[0] == '.')
            continue;
        AUTO_CLOSE int child = openat(fd, entry->d_name, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
        if (child < 0 || remove_children(child) < 0 ||
            (unlinkat(fd, entry->d_name, AT_REMOVEDIR) < 0 && errno != ENOENT))
            result = -1;
    }
    closedir(dir);
    return result;
}

static int remove_box(const char *parent, const char *id) {
    AUTO_CLOSE int fd = open_box(parent, id, false);
    if (fd < 0)
        return errno == ENOENT ? 0 : -1;
    if (remove_children(fd) < 0)
        return -1;
    char path[HOST_CGROUP_PATH_MAX + ID_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", parent, id);
    return rmdir(path) < 0 && errno != ENOENT ? -1 : 0;
}

int box_cgroup_remove(const struct host_cgroups *cgroups, const char *id) {
    if (cgroups->unified[0] && remove_box(cgroups->unified, id) < 0)
        return -1;
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        if (cgroups->v1[c][0] && remove_box(cgroups->v1[c], id) < 0)
            return -1;
    return 0;
}
