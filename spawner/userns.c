#include "spawner/userns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"

static int write_map(pid_t pid, const char *name, uint32_t first, struct err *err) {
    char path[64], text[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int len = snprintf(text, sizeof text, "0 %u %u\n", first, USERNS_RANGE);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, (size_t)len) != len)
        return err_set_errno(err, errno, "%s of a new user namespace", name);
    return 0;
}

int userns_map(pid_t pid, uint32_t first_uid, struct err *err) {
    if (write_map(pid, "uid_map", first_uid, err) < 0)
        return -1;
    return write_map(pid, "gid_map", first_uid, err);
}

int userns_of(pid_t pid, struct err *err) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/user", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd >= 0 ? fd : err_set_errno(err, errno, "%s", path);
}

int userns_make(uint32_t first_uid, struct err *err) {
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0)
        return err_set_errno(err, errno, "this kernel gives no user namespace");
    if (pid == 0)
        for (;;)
            pause();
    int fd = userns_map(pid, first_uid, err) < 0 ? -1 : userns_of(pid, err);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    return fd;
}
