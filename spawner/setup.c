#include "spawner/setup.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <linux/mount.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cleanup.h"

#define NOBODY 65534
#define AGENT_LISTEN_FD 3
#define AGENT_READY_FD 4
#define AGENT_CGROUP_FD 5
#define AGENT_SECCOMP_FD 6
#define FIRST_FREE_FD 7

static int sync_socket;

static _Noreturn void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static _Noreturn void fail(const char *fmt, ...) {
    char text[256];
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text - 64, fmt, ap);
    va_end(ap);
    size_t used = n < 0 ? 0 : (size_t)n < sizeof text - 64 ? (size_t)n : sizeof text - 65;
    int more = snprintf(text + used, sizeof text - used, ": %s", strerror(saved));
    ssize_t ignored = send(sync_socket, text, used + (size_t)(more > 0 ? more : 0), MSG_NOSIGNAL);
    (void)ignored;
    _exit(1);
}

/* ---- Handing over the mounts ---- */

int setup_send_go(int sync_fd, const int *fds, size_t count) {
    char go = 'G';
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * SETUP_FDS_MAX)];
    } control = {0};
    struct iovec part = {&go, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
    return sendmsg(sync_fd, &message, MSG_NOSIGNAL) == 1 ? 0 : -1;
}

static size_t receive_go(int fds[SETUP_FDS_MAX]) {
    char go;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * SETUP_FDS_MAX)];
    } control = {0};
    struct iovec part = {&go, 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.space,
                             .msg_controllen = sizeof control.space};
    if (recvmsg(sync_socket, &message, MSG_CMSG_CLOEXEC) != 1)
        _exit(1); /* the parent gave up */
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (!header || header->cmsg_type != SCM_RIGHTS)
        _exit(1);
    size_t bytes = header->cmsg_len - CMSG_LEN(0);
    memcpy(fds, CMSG_DATA(header), bytes);
    return bytes / sizeof(int);
}

/* ---- Small steps ---- */

static void make_dir(const char *path, mode_t mode) {
    if (mkdir(path, mode) < 0 && errno != EEXIST)
        fail("mkdir %s", path);
}

static void do_mount(const char *source, const char *target, const char *type, unsigned long flags,
                     const char *options) {
    if (mount(source, target, type, flags, options) < 0)
        fail("mount %s on %s", type ? type : source, target);
}

static void write_file(const char *path, const char *text) {
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        fail("write %s", path);
}

static void place(int mount_fd, const char *target) {
    make_dir(target, 0755);
    if (syscall(SYS_move_mount, mount_fd, "", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH) < 0)
        fail("move a layer to %s", target);
    close(mount_fd);
}

/* ---- The root ---- */

/* Everything is put together on a small tmpfs over a directory that every host has. */
static void enter_stage(void) {
    static const char *const places[] = {"/tmp", "/run", "/usr"};
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        fail("make mounts private");
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (mount("sandlot", places[i], "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=0755") == 0 &&
            chdir(places[i]) == 0)
            return;
    fail("no place to build the root");
}

static void mount_layer(const struct setup *setup, int disk_fd) {
    char options[64];
    if (setup->layer_on_disk) {
        place(disk_fd, "layer");
    } else {
        make_dir("layer", 0755);
        snprintf(options, sizeof options, "size=%llu,mode=0755", (unsigned long long)setup->layer_bytes);
        do_mount("sandlot", "layer", "tmpfs", MS_NODEV, options);
    }
    make_dir("layer/root", 0755);
    make_dir("layer/up", 0755);
    make_dir("layer/work", 0755);
    make_dir("root", 0755);
    make_dir("empty", 0755);
}

static void mount_overlay(const char *name, const char *lower, const char *target) {
    char options[512], up[64], work[64];
    snprintf(up, sizeof up, "layer/up/%s", name);
    snprintf(work, sizeof work, "layer/work/%s", name);
    make_dir(up, 0755);
    make_dir(work, 0755);
    snprintf(options, sizeof options, "lowerdir=%s,upperdir=%s,workdir=%s,userxattr", lower, up, work);
    do_mount("sandlot", target, "overlay", MS_NODEV, options);
}

/* The host's files belong to the sandbox's root inside, who could read even those that are closed to
 * others on the host. So they are reached through an overlay that was mounted by "nobody": the kernel
 * checks its rights too, at every access. */
static void mount_guard(const char *lower, const char *guard) {
    char options[256];
    make_dir(guard, 0755);
    snprintf(options, sizeof options, "lowerdir=%s:empty,userxattr", lower);
    setfsgid(NOBODY);
    setfsuid(NOBODY);
    do_mount("sandlot", guard, "overlay", MS_RDONLY | MS_NODEV, options);
    setfsuid(0);
    setfsgid(0);
}

/* Whiteouts in the upper layer: never visible, whatever their mode. */
static void hide_secrets(void) {
    static const char *const secrets[] = {
        "shadow",
        "shadow-",
        "gshadow",
        "gshadow-",
        "ssh/ssh_host_rsa_key",
        "ssh/ssh_host_dsa_key",
        "ssh/ssh_host_ecdsa_key",
        "ssh/ssh_host_ed25519_key",
        "sudoers",
        "krb5.keytab",
    };
    make_dir("layer/up/etc", 0755);
    make_dir("layer/up/etc/ssh", 0755);
    for (size_t i = 0; i < ARRAY_LEN(secrets); i++) {
        char path[128];
        snprintf(path, sizeof path, "layer/up/etc/%s", secrets[i]);
        if (mknod(path, S_IFCHR, 0) < 0)
            fail("hide /etc/%s", secrets[i]);
    }
}

static void make_host_tree(const struct setup *setup) {
    static const struct {
        const char *path;
        mode_t mode;
    } dirs[] = {
        {"root/root", 0700},      {"root/home", 0755},      {"root/tmp", 01777},     {"root/run", 0755},
        {"root/run/lock", 01777}, {"root/var", 0755},       {"root/var/tmp", 01777}, {"root/var/lib", 0755},
        {"root/var/log", 0755},   {"root/var/cache", 0755}, {"root/opt", 0755},      {"root/srv", 0755},
        {"root/mnt", 0755},       {"root/media", 0755},
    };
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        make_dir(dirs[i].path, dirs[i].mode);
    if (symlink("/run", "root/var/run") < 0 || symlink("/run/lock", "root/var/lock") < 0)
        fail("symlink in /var");
    char text[160];
    snprintf(text, sizeof text, "127.0.0.1\tlocalhost %s\n::1\tlocalhost\n", setup->id);
    write_file("layer/up/etc/hosts", text);
    snprintf(text, sizeof text, "%s\n", setup->id);
    write_file("layer/up/etc/hostname", text);
}

static void mount_host_image(const struct setup *setup, const int *fds) {
    do_mount("layer/root", "root", NULL, MS_BIND, NULL);
    hide_secrets();
    make_host_tree(setup);
    for (size_t i = 0; i < setup->image->part_count; i++) {
        const struct image_part *part = &setup->image->parts[i];
        char target[64], lower[64], guard[64];
        snprintf(target, sizeof target, "root/%s", part->name);
        if (part->link[0]) {
            if (symlink(part->link, target) < 0)
                fail("symlink %s", part->name);
            continue;
        }
        snprintf(lower, sizeof lower, "lower-%s", part->name);
        snprintf(guard, sizeof guard, "guard-%s", part->name);
        place(*fds++, lower);
        make_dir(target, 0755);
        if (setup->image->idmapped)
            mount_guard(lower, guard);
        mount_overlay(part->name, setup->image->idmapped ? guard : lower, target);
    }
}

static void mount_plain_image(const int *fds) {
    place(fds[0], "lower");
    mount_overlay("root", "lower", "root");
    static const struct {
        const char *path;
        mode_t mode;
    } dirs[] = {{"root/proc", 0555}, {"root/sys", 0555},  {"root/dev", 0755},
                {"root/tmp", 01777}, {"root/root", 0700}, {"root/run", 0755}};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        make_dir(dirs[i].path, dirs[i].mode);
}

/* ---- /dev, /proc, /sys ---- */

static void make_devices(void) {
    static const char *const nodes[] = {"null", "zero", "full", "random", "urandom", "tty"};
    static const char *const links[][2] = {
        {"/proc/self/fd", "root/dev/fd"},       {"/proc/self/fd/0", "root/dev/stdin"},
        {"/proc/self/fd/1", "root/dev/stdout"}, {"/proc/self/fd/2", "root/dev/stderr"},
        {"pts/ptmx", "root/dev/ptmx"},
    };
    make_dir("root/dev", 0755);
    do_mount("sandlot", "root/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=64k,mode=0755");
    for (size_t i = 0; i < ARRAY_LEN(nodes); i++) {
        char from[32], to[32];
        snprintf(from, sizeof from, "/dev/%s", nodes[i]);
        snprintf(to, sizeof to, "root/dev/%s", nodes[i]);
        write_file(to, "");
        do_mount(from, to, NULL, MS_BIND, NULL);
    }
    for (size_t i = 0; i < ARRAY_LEN(links); i++)
        if (symlink(links[i][0], links[i][1]) < 0)
            fail("symlink %s", links[i][1]);
    make_dir("root/dev/pts", 0755);
    make_dir("root/dev/shm", 01777);
    do_mount("devpts", "root/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
             "newinstance,ptmxmode=0666,mode=0620,gid=5");
    do_mount("sandlot", "root/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=64m");
}

/* Readable on the host by everybody, but nothing a sandbox should see. */
static void mask_kernel(void) {
    static const char *const files[] = {"root/proc/kcore",       "root/proc/keys",
                                        "root/proc/timer_list",  "root/proc/latency_stats",
                                        "root/proc/sched_debug", "root/proc/sysrq-trigger"};
    static const char *const dirs[] = {"root/proc/acpi", "root/proc/scsi", "root/sys/firmware"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (mount("/dev/null", files[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
            fail("mask %s", files[i]);
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        if (mount("empty", dirs[i], NULL, MS_BIND, NULL) < 0 && errno != ENOENT)
            fail("mask %s", dirs[i]);
    do_mount("root/proc/sys", "root/proc/sys", NULL, MS_BIND, NULL);
    do_mount(NULL, "root/proc/sys", NULL, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
             NULL);
}

static void mount_kernel(void) {
    make_dir("root/proc", 0555);
    make_dir("root/sys", 0555);
    do_mount("proc", "root/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    /* A host that hides parts of its own /sys allows no new one; then the sandbox has none. */
    if (mount("sysfs", "root/sys", "sysfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) < 0 &&
        errno != EPERM)
        fail("mount sysfs");
    mask_kernel();
}

static void enter_root(void) {
    if (chdir("root") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
        chdir("/") < 0)
        fail("enter the new root");
}

static void set_up_network(const char *id) {
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        fail("bring up loopback");
    if (sethostname(id, strlen(id)) < 0)
        fail("set the host name");
}

/* ---- The agent ---- */

static int arrange_fds(const struct setup *setup) {
    const int wanted[] = {setup->listen_fd, sync_socket, setup->cgroup->box_fd, setup->seccomp_fd};
    int high[4], agent = fcntl(setup->agent_fd, F_DUPFD_CLOEXEC, 64);
    int null = open("/dev/null", O_RDONLY);
    for (size_t i = 0; i < 4; i++)
        high[i] = wanted[i] >= 0 ? fcntl(wanted[i], F_DUPFD_CLOEXEC, 64) : -1;
    if (agent < 0 || null < 0 || dup2(null, 0) < 0)
        fail("arrange descriptors");
    for (size_t i = 0; i < 4; i++) {
        close(AGENT_LISTEN_FD + (int)i);
        if (high[i] >= 0 && dup2(high[i], AGENT_LISTEN_FD + (int)i) < 0)
            fail("arrange descriptors");
    }
    if (syscall(SYS_close_range, FIRST_FREE_FD, ~0u, CLOSE_RANGE_CLOEXEC) < 0)
        fail("close descriptors");
    return agent;
}

static _Noreturn void exec_agent(const struct setup *setup) {
    char expire[32];
    bool cgroup = setup->cgroup->box_fd >= 0;
    snprintf(expire, sizeof expire, "%lld", (long long)setup->expire_unix_ms);
    int agent = arrange_fds(setup);
    const char *argv[] = {"sandlot-agent",
                          "--id",
                          setup->id,
                          "--listen-fd",
                          "3",
                          "--ready-fd",
                          "4",
                          "--seccomp-fd",
                          "6",
                          "--expire-unix-ms",
                          expire,
                          cgroup ? "--cgroup-fd" : NULL,
                          "5",
                          NULL};
    const char *sanitizer = getenv("ASAN_OPTIONS");
    char option[256] = "";
    snprintf(option, sizeof option, "ASAN_OPTIONS=%s", sanitizer ? sanitizer : "");
    const char *envp[] = {sanitizer ? option : NULL, NULL};
    syscall(SYS_execveat, agent, "", argv, envp, AT_EMPTY_PATH);
    sync_socket = AGENT_READY_FD;
    fail("start the agent");
}

/* ---- In order ---- */

static void join_v1_cgroups(const struct box_cgroup *cgroup) {
    for (int c = 0; c < HOST_CONTROLLER_MAX; c++)
        if (cgroup->tasks_fds[c] >= 0 && write(cgroup->tasks_fds[c], "0", 1) != 1)
            fail("join a cgroup");
}

static void become_root(void) {
    if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, 0, 0, 0) < 0 ||
        syscall(SYS_setresuid, 0, 0, 0) < 0)
        fail("become the sandbox's root");
}

_Noreturn void setup_child(const struct setup *setup) {
    int fds[SETUP_FDS_MAX];
    sigset_t none;
    sync_socket = setup->sync_fd;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    umask(0);
    join_v1_cgroups(setup->cgroup);
    size_t count = receive_go(fds);
    become_root();
    enter_stage();
    mount_layer(setup, setup->layer_on_disk ? fds[count - 1] : -1);
    if (setup->image->host)
        mount_host_image(setup, fds);
    else
        mount_plain_image(fds);
    make_devices();
    mount_kernel();
    enter_root();
    set_up_network(setup->id);
    exec_agent(setup);
}
