#include "agent/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "common/cleanup.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARE_MEMORY 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHARE_MEMORY 0
#endif
#endif
#ifndef SHARE_MEMORY
#define SHARE_MEMORY 1
#endif

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL
#endif

/* What is left to a command that runs as the sandbox's root: enough to manage files, users and low
 * ports, nothing that mounts, traces or configures the kernel. */
static const int kept_capabilities[] = {
    CAP_CHOWN,  CAP_DAC_OVERRIDE, CAP_FOWNER,  CAP_FSETID,           CAP_KILL,       CAP_SETGID,
    CAP_SETUID, CAP_SETPCAP,      CAP_SETFCAP, CAP_NET_BIND_SERVICE, CAP_SYS_CHROOT, CAP_NET_RAW,
};

#define COMMAND_NOFILE 1024

struct child {
    const struct spawn_opts *opts;
    struct spawn_result *shared; /* in memory that parent and child share */
    char candidate[4200];
};

static _Noreturn void child_fail(struct child *child, enum spawn_stage stage) {
    child->shared->error_number = errno;
    child->shared->stage = stage;
    _exit(stage == SPAWN_EXEC && (errno == ENOENT || errno == ENOTDIR) ? 127 : 126);
}

static int drop_capabilities(void) {
    uint64_t kept = 0;
    for (size_t i = 0; i < ARRAY_LEN(kept_capabilities); i++)
        kept |= UINT64_C(1) << kept_capabilities[i];
    for (int cap = 0; cap < 64; cap++)
        if (!(kept & UINT64_C(1) << cap) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno != EINVAL &&
            errno != EPERM)
            return -1;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2];
    if (syscall(SYS_capget, &header, data) < 0)
        return -1;
    for (int i = 0; i < 2; i++) {
        uint32_t mask = (uint32_t)(kept >> (32 * i));
        data[i].permitted &= mask;
        data[i].effective = data[i].permitted;
        data[i].inheritable = 0;
    }
    return (int)syscall(SYS_capset, &header, data);
}

/* The agent needs many descriptors; what a command gets is the usual. */
static void limit_descriptors(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur > COMMAND_NOFILE) {
        limit.rlim_cur = COMMAND_NOFILE;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static int become_user(const struct user *user) {
    if (syscall(SYS_setgroups, user->group_count, user->groups) < 0 && errno != EPERM)
        return -1;
    if (syscall(SYS_setresgid, user->gid, user->gid, user->gid) < 0)
        return -1;
    return (int)syscall(SYS_setresuid, user->uid, user->uid, user->uid);
}

static int install_filter(const struct spawn_opts *opts) {
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return -1;
    if (!opts->seccomp_filter)
        return 0;
    struct sock_fprog program = {
        .len = (unsigned short)(opts->seccomp_filter_len / sizeof(struct sock_filter)),
        .filter = (struct sock_filter *)(uintptr_t)opts->seccomp_filter,
    };
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

/* The sandbox's commands die of memory pressure before its agent does. */
static void raise_oom_score(void) {
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t ignored = write(fd, "500", 3);
    (void)ignored;
    close(fd);
}

static int move_fd(int from, int to) {
    return from == to ? fcntl(to, F_SETFD, 0) : dup2(from, to);
}

/* A file without "#!" and without a binary format is a shell script, as for every shell. */
static void exec_as_script(struct child *child, const char *file) {
    char *const *argv = child->opts->argv;
    size_t n = 0;
    while (argv[n])
        n++;
    char **shell = alloca((n + 2) * sizeof *shell);
    shell[0] = (char *)(uintptr_t) "/bin/sh";
    shell[1] = (char *)(uintptr_t)file;
    for (size_t i = 1; i <= n; i++)
        shell[i + 1] = argv[i];
    execve("/bin/sh", shell, child->opts->envp);
}

static void try_exec(struct child *child, const char *file) {
    execve(file, child->opts->argv, child->opts->envp);
    if (errno == ENOEXEC) {
        exec_as_script(child, file);
        errno = ENOEXEC;
    }
}

static void search_and_exec(struct child *child) {
    const char *name = child->opts->argv[0];
    if (strchr(name, '/')) {
        try_exec(child, name);
        return;
    }
    int worst = ENOENT;
    for (const char *at = child->opts->path; *name && at;) {
        const char *end = strchr(at, ':');
        int n = (int)(end ? (size_t)(end - at) : strlen(at));
        int len =
            snprintf(child->candidate, sizeof child->candidate, "%.*s%s%s", n, at, n ? "/" : "./", name);
        if (len > 0 && len < (int)sizeof child->candidate) {
            try_exec(child, child->candidate);
            if (errno != ENOENT && errno != ENOTDIR)
                worst = errno;
        }
        at = end ? end + 1 : NULL;
    }
    errno = worst;
}

static __attribute__((noinline)) _Noreturn void child_main(struct child *child) {
    const struct spawn_opts *opts = child->opts;
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    raise_oom_score();
    limit_descriptors();
    umask(022);
    if (setsid() < 0 || move_fd(opts->stdin_fd, 0) < 0 || move_fd(opts->stdout_fd, 1) < 0 ||
        move_fd(opts->stderr_fd, 2) < 0)
        child_fail(child, SPAWN_SETUP);
    /* As root: a user may be started in a directory that he cannot enter by himself. */
    if (chdir(opts->cwd) < 0)
        child_fail(child, SPAWN_CWD);
    if (become_user(opts->user) < 0 || drop_capabilities() < 0 || install_filter(opts) < 0 ||
        syscall(SYS_close_range, 3, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        child_fail(child, SPAWN_SETUP);
    search_and_exec(child);
    child_fail(child, SPAWN_EXEC);
}

/* clone3 by hand: a C library call would return twice through the same stack frame. */
static inline __attribute__((always_inline)) long raw_clone3(struct clone_args *args) {
#if defined(__x86_64__)
    long ret;
    __asm__ volatile("syscall"
                     : "=a"(ret)
                     : "0"((long)SYS_clone3), "D"(args), "S"(sizeof *args)
                     : "rcx", "r11", "memory");
    return ret;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = SYS_clone3;
    register long x0 __asm__("x0") = (long)args;
    register long x1 __asm__("x1") = sizeof *args;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x1), "r"(x8) : "memory");
    return x0;
#else
#error "unknown architecture: write raw_clone3 for it"
#endif
}

/*
 * While the child shares our memory we wait in the kernel for its exec, and something inside the sandbox
 * may stop it just then. A second thread, asleep in a read of a timer that is armed only during a spawn,
 * continues the child, and ends it if that does not help.
 */
#define WATCH_FIRST_MS 50
#define WATCH_EACH_MS 10
#define WATCH_KILL_TICKS 200 /* 2 s */
#define WATCH_STACK (64 * 1024)

static int watch_timer = -1;
static atomic_int watched_pid; /* written by the kernel: CLONE_PARENT_SETTID */
static atomic_uint watch_ticks;

static void *watch_children(void *arg) {
    (void)arg;
    for (;;) {
        uint64_t expired;
        ssize_t n = read(watch_timer, &expired, sizeof expired);
        int pid = atomic_load(&watched_pid);
        if (n != (ssize_t)sizeof expired || pid <= 0)
            continue;
        kill(pid, atomic_fetch_add(&watch_ticks, 1) < WATCH_KILL_TICKS ? SIGCONT : SIGKILL);
    }
    return NULL;
}

void spawn_init(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    watch_timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    if (watch_timer < 0)
        return;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, WATCH_STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&thread, &attributes, watch_children, NULL) != 0) {
        close(watch_timer);
        watch_timer = -1;
    }
    pthread_attr_destroy(&attributes);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static void watch_arm(bool on) {
    struct itimerspec spec = {{0}, {0}};
    if (on) {
        spec.it_value.tv_nsec = WATCH_FIRST_MS * 1000000L;
        spec.it_interval.tv_nsec = WATCH_EACH_MS * 1000000L;
        atomic_store(&watch_ticks, 0);
    } else {
        atomic_store(&watched_pid, 0);
    }
    if (watch_timer >= 0)
        timerfd_settime(watch_timer, 0, &spec, NULL);
}

static struct spawn_result *shared_result(void) {
    static struct spawn_result *page;
    if (!page) {
        page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            abort();
    }
    return page;
}

#if !SHARE_MEMORY
/* Without vfork semantics the parent waits for the exec, which closes the pipe, or for the report. */
static void wait_for_exec(int read_fd) {
    char byte;
    while (read(read_fd, &byte, 1) < 0 && errno == EINTR) {
    }
}
#endif

void spawn(const struct spawn_opts *opts, struct spawn_result *ret) {
    struct child child = {.opts = opts, .shared = shared_result()};
    *child.shared = (struct spawn_result){.stage = SPAWN_OK};
    int pid_fd = -1;
    struct clone_args args = {
        .flags = CLONE_PIDFD | CLONE_CLEAR_SIGHAND | CLONE_PARENT_SETTID,
        .parent_tid = (uint64_t)(uintptr_t)&watched_pid,
        .pidfd = (uint64_t)(uintptr_t)&pid_fd,
        .exit_signal = SIGCHLD,
    };
    if (opts->cgroup_fd >= 0) {
        args.flags |= (uint64_t)CLONE_INTO_CGROUP;
        args.cgroup = (unsigned)opts->cgroup_fd;
    }
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    watch_arm(true);
#if SHARE_MEMORY
    args.flags |= (uint64_t)(CLONE_VM | CLONE_VFORK);
    long pid = raw_clone3(&args);
    if (pid == 0)
        child_main(&child);
#else
    int exec_pipe[2];
    if (pipe2(exec_pipe, O_CLOEXEC) < 0)
        abort();
    long pid = raw_clone3(&args);
    if (pid == 0)
        child_main(&child);
    close(exec_pipe[1]);
    if (pid > 0)
        wait_for_exec(exec_pipe[0]);
    close(exec_pipe[0]);
#endif
    watch_arm(false);
    sigprocmask(SIG_SETMASK, &before, NULL);
    *ret = *child.shared;
    ret->pid = (pid_t)pid;
    ret->pid_fd = pid_fd;
    if (pid < 0) {
        ret->stage = SPAWN_CLONE;
        ret->error_number = (int)-pid;
        ret->pid_fd = -1;
    }
}
