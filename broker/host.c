#include "broker/host.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/xalloc.h"

#define LOCK_WAIT_MS 5000
#define LOCK_LOOK_MS 20

static int make_directories(const char *path, mode_t mode, struct err *err) {
    AUTO_FREE char *copy = xstrdup(path);
    for (char *slash = strchr(copy + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            return err_set_errno(err, errno, "can't make %s", copy);
        *slash = '/';
    }
    if (mkdir(copy, mode) < 0 && errno != EEXIST)
        return err_set_errno(err, errno, "can't make %s", copy);
    return 0;
}

/* A lock file may have been removed by its last holder between our open and our lock. */
static bool is_current(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

/* Waits a bounded time; -1 with what holds it. */
static int take_lock(const char *path, const char *what, struct err *err) {
    uint64_t deadline = clock_monotonic_ms() + LOCK_WAIT_MS;
    for (;;) {
        AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return err_set_errno(err, errno, "can't open %s", path);
        if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
            if (is_current(fd, path))
                return take_fd(&fd);
            continue;
        }
        if (clock_monotonic_ms() >= deadline)
            return err_set(err, ERR_UNAVAILABLE, 0, "another broker uses %s (it holds %s)", what, path);
        struct timespec wait = {0, LOCK_LOOK_MS * 1000000L};
        nanosleep(&wait, NULL);
    }
}

int host_open_state(const struct config *config, int *ret_lock_fd, struct err *err) {
    if (make_directories(config->state_dir, 0700, err) < 0)
        return -1;
    AUTO_CLOSE int fd = open(config->state_dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fchmod(fd, 0700) < 0)
        return err_set_errno(err, errno, "state directory %s", config->state_dir);
    AUTO_FREE char *lock = xasprintf("%s/lock", config->state_dir);
    AUTO_FREE char *what = xasprintf("the state directory %s", config->state_dir);
    *ret_lock_fd = take_lock(lock, what, err);
    return *ret_lock_fd < 0 ? -1 : take_fd(&fd);
}

int host_listen_unix(const char *path, int *ret_lock_fd, struct err *err) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    AUTO_FREE char *directory = xstrdup(path);
    char *slash = strrchr(directory, '/');
    *slash = '\0';
    if (*directory && make_directories(directory, 0700, err) < 0)
        return -1;
    AUTO_FREE char *lock = xasprintf("%s.lock", path);
    AUTO_FREE char *what = xasprintf("the socket %s", path);
    AUTO_CLOSE int lock_fd = take_lock(lock, what, err);
    if (lock_fd < 0)
        return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_set_errno(err, errno, "socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return err_set(err, ERR_UNAVAILABLE, 0, "some other server answers on %s", path);
    unlink(path); /* left by one that was killed */
    mode_t before = umask(0177);
    int rc = bind(fd, (struct sockaddr *)&address, sizeof address);
    int bind_errno = errno;
    umask(before);
    if (rc < 0 || listen(fd, 512) < 0)
        return err_set_errno(err, rc < 0 ? bind_errno : errno, "can't listen on %s", path);
    *ret_lock_fd = take_fd(&lock_fd);
    return take_fd(&fd);
}

void host_unlink_unix(const char *path) {
    AUTO_FREE char *lock = xasprintf("%s.lock", path);
    unlink(path);
    unlink(lock);
}

int host_find_user(const char *name, struct host_user *ret, struct err *err) {
    if (geteuid() != 0) {
        *ret = (struct host_user){.uid = geteuid(), .gid = getegid()};
        snprintf(ret->name, sizeof ret->name, "uid %u", (unsigned)ret->uid);
        return 0;
    }
    const struct passwd *entry = getpwnam(name ? name : "sandlot");
    if (!entry && name)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "user: no user \"%s\" on this machine", name);
    *ret = (struct host_user){0};
    snprintf(ret->name, sizeof ret->name, "root without capabilities");
    if (!entry) {
        log_info("broker", "no system user \"sandlot\": the broker runs as root without capabilities");
    } else if (entry->pw_uid != 0) {
        ret->uid = entry->pw_uid;
        ret->gid = entry->pw_gid;
        snprintf(ret->name, sizeof ret->name, "%s", entry->pw_name);
    }
    return 0;
}

int host_make_own(const struct config *config, int state_fd, const struct host_user *user, struct err *err) {
    if (mkdirat(state_fd, "broker", 0700) < 0 && errno != EEXIST)
        return err_set_errno(err, errno, "can't make broker in the state directory");
    AUTO_CLOSE int own = openat(state_fd, "broker", O_DIRECTORY | O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (own < 0 || fchown(own, user->uid, user->gid) < 0 || fchmod(own, 0700) < 0)
        return err_set_errno(err, errno, "can't give %s/broker to %s", config->state_dir, user->name);
    static const char *const names[] = {"registry.db", "registry.db-wal", "registry.db-shm"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (fchownat(own, names[i], user->uid, user->gid, AT_SYMLINK_NOFOLLOW) < 0 && errno != ENOENT)
            return err_set_errno(err, errno, "can't give %s to %s", names[i], user->name);
    /* Another user may pass through to it, and see nothing else. */
    if (user->uid != geteuid() && fchmod(state_fd, 0711) < 0)
        return err_set_errno(err, errno, "state directory %s", config->state_dir);
    return 0;
}

/* While we still may: what is out of this set can't come back by any exec. */
static int drop_bounding_set(void) {
    for (int cap = 0; cap < 64; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL && errno != EPERM)
            return -1;
    return 0;
}

int host_become(const struct host_user *user, struct err *err) {
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}, {0}};
    if (drop_bounding_set() < 0)
        return err_set_errno(err, errno, "can't drop privileges");
    if (geteuid() == 0 && user->uid != 0 &&
        (setgroups(0, NULL) < 0 || setresgid(user->gid, user->gid, user->gid) < 0 ||
         setresuid(user->uid, user->uid, user->uid) < 0))
        return err_set_errno(err, errno, "can't become %s", user->name);
    if (syscall(SYS_capset, &header, none) < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return err_set_errno(err, errno, "can't drop privileges");
    return 0;
}
