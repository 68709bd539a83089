/* The least that a sandbox of this kind needs: clone3 into namespaces, a tmpfs, an overlay, pivot_root, a
 * loopback, limits by cgroup v1 or v2 directories, a first process that says it is ready; and its end.
 * Prints the median microseconds of both. usage: bare_box COUNT */
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const hierarchies[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids",
                                          "/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
static const char *const limits[][2] = {
    {"memory.limit_in_bytes", "2147483648"}, {"pids.max", "1024"}, {"memory.max", "2147483648"}};

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void must(bool ok, const char *what) {
    if (ok)
        return;
    fprintf(stderr, "bare_box: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void write_text(const char *dir, const char *name, const char *text) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t ignored = write(fd, text, strlen(text));
        (void)ignored;
        close(fd);
    }
}

static void cgroup_path(char *path, size_t size, int i, int number) {
    snprintf(path, size, "%s/bare-box-%d-%d", hierarchies[i], (int)getpid(), number);
}

static void make_cgroups(int number) {
    for (int i = 0; i < 4; i++) {
        char path[200];
        cgroup_path(path, sizeof path, i, number);
        if (mkdir(path, 0755) < 0)
            continue;
        for (int k = 0; k < 3; k++)
            write_text(path, limits[k][0], limits[k][1]);
    }
}

static void child(int ready, const char *own_cgroups[4]) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    for (int i = 0; i < 4; i++)
        if (own_cgroups[i][0])
            write_text(own_cgroups[i], i < 2 ? "tasks" : "cgroup.procs", "0");
    must(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0, "private");
    must(mount("x", "/tmp", "tmpfs", 0, "size=1g") == 0 && chdir("/tmp") == 0, "tmpfs");
    must(mkdir("up", 0755) == 0 && mkdir("work", 0755) == 0 && mkdir("root", 0755) == 0, "mkdir");
    must(mount("x", "root", "overlay", 0, "lowerdir=/,upperdir=up,workdir=work") == 0, "overlay");
    must(mount("proc", "root/proc", "proc", 0, NULL) == 0, "proc");
    must(chdir("root") == 0 && syscall(SYS_pivot_root, ".", ".") == 0 && umount2(".", MNT_DETACH) == 0,
         "pivot");
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    must(ioctl(fd, SIOCSIFFLAGS, &request) == 0, "loopback");
    close(fd);
    must(write(ready, "R", 1) == 1, "ready");
    for (;;)
        pause();
}

static int compare(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

int main(int argc, char **argv) {
    int count = argc == 2 ? atoi(argv[1]) : 0;
    if (count < 1)
        return 2;
    double *made = calloc((size_t)count, sizeof *made), *ended = calloc((size_t)count, sizeof *ended);
    for (int n = 0; n < count; n++) {
        int pair[2], pid_fd = -1;
        char paths[4][200], byte;
        const char *own[4];
        double began = now_us();
        make_cgroups(n);
        for (int i = 0; i < 4; i++) {
            cgroup_path(paths[i], sizeof paths[i], i, n);
            own[i] = access(paths[i], F_OK) == 0 ? paths[i] : "";
        }
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
        struct clone_args args = {.flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC |
                                           CLONE_NEWUTS | CLONE_PIDFD,
                                  .pidfd = (uint64_t)(uintptr_t)&pid_fd,
                                  .exit_signal = SIGCHLD};
        long pid = syscall(SYS_clone3, &args, sizeof args);
        must(pid >= 0, "clone3");
        if (pid == 0)
            child(pair[1], own);
        close(pair[1]);
        must(read(pair[0], &byte, 1) == 1, "the child");
        made[n] = now_us() - began;
        began = now_us();
        syscall(SYS_pidfd_send_signal, pid_fd, SIGKILL, NULL, 0);
        waitpid((pid_t)pid, NULL, 0);
        for (int i = 0; i < 4; i++)
            while (own[i][0] && rmdir(own[i]) < 0 && errno == EBUSY) {
            }
        ended[n] = now_us() - began;
        close(pair[0]);
        close(pid_fd);
    }
    qsort(made, (size_t)count, sizeof *made, compare);
    qsort(ended, (size_t)count, sizeof *ended, compare);
    printf("%.1f %.1f\n", made[count / 2], ended[count / 2]);
    return 0;
}
