/* sandlot-agent: PID 1 (or the entry point) of a sandbox. Serves the broker on an inherited socket:
 * runs commands, moves files, reaps orphans, ends the sandbox at its expiry. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "agent/agent.h"
#include "agent/cgroup_slots.h"
#include "agent/conn.h"
#include "agent/reaper.h"
#include "agent/run.h"
#include "agent/spawn.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"

#define FILTER_MAX (64 * 1024)
#define EXPIRY_GRACE_MS 500  /* a living broker ends the sandbox itself, and tells its callers why */
#define EXPIRY_LOOK_MS 60000 /* wall time may be set: look again at least this often */

struct options {
    const char *sandbox_id;
    int listen_fd, ready_fd, cgroup_fd, seccomp_fd;
    int64_t expire_unix_ms;
};

static int parse_options(int argc, char **argv, struct options *ret) {
    static const struct option known[] = {
        {"id", required_argument, NULL, 'i'},
        {"listen-fd", required_argument, NULL, 'l'},
        {"ready-fd", required_argument, NULL, 'r'},
        {"cgroup-fd", required_argument, NULL, 'c'},
        {"seccomp-fd", required_argument, NULL, 's'},
        {"expire-unix-ms", required_argument, NULL, 'e'},
        {0},
    };
    *ret = (struct options){.listen_fd = -1, .ready_fd = -1, .cgroup_fd = -1, .seccomp_fd = -1};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'i': ret->sandbox_id = optarg; break;
        case 'l': ret->listen_fd = atoi(optarg); break;
        case 'r': ret->ready_fd = atoi(optarg); break;
        case 'c': ret->cgroup_fd = atoi(optarg); break;
        case 's': ret->seccomp_fd = atoi(optarg); break;
        case 'e': ret->expire_unix_ms = strtoll(optarg, NULL, 10); break;
        default: return -1;
        }
    }
    return ret->sandbox_id && ret->listen_fd >= 0 ? 0 : -1;
}

static void on_expiry(uv_timer_t *timer) {
    struct agent *agent = CONTAINER_OF(timer, struct agent, expiry_timer);
    if (clock_unix_ms() >= agent->expire_unix_ms + EXPIRY_GRACE_MS)
        _exit(0); /* PID 1 takes the whole sandbox with it */
    agent_set_expiry(agent, agent->expire_unix_ms);
}

void agent_set_expiry(struct agent *agent, int64_t expire_unix_ms) {
    agent->expire_unix_ms = expire_unix_ms;
    if (expire_unix_ms == 0) {
        uv_timer_stop(&agent->expiry_timer);
        return;
    }
    int64_t left = expire_unix_ms + EXPIRY_GRACE_MS - clock_unix_ms();
    uint64_t wait = left < 0 ? 0 : left > EXPIRY_LOOK_MS ? EXPIRY_LOOK_MS : (uint64_t)left;
    uv_timer_start(&agent->expiry_timer, on_expiry, wait, 0);
}

static int load_filter(struct agent *agent, int fd) {
    static uint8_t filter[FILTER_MAX];
    AUTO_CLOSE int owned = fd;
    ssize_t n = pread(owned, filter, sizeof filter, 0);
    if (n <= 0 || n % 8 != 0 || n == (ssize_t)sizeof filter)
        return -1;
    agent->seccomp_filter = filter;
    agent->seccomp_filter_len = (size_t)n;
    return 0;
}

/* What we were started with must not reach a command: who holds the listening socket is the agent. */
static void keep_from_commands(const struct options *options) {
    const int fds[] = {options->listen_fd, options->ready_fd, options->cgroup_fd, options->seccomp_fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            fcntl(fds[i], F_SETFD, FD_CLOEXEC);
}

/* Nothing in the sandbox may trace us or read our memory. */
static void protect(void) {
#if !defined(SANDLOT_SANITIZED)
    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
    signal(SIGPIPE, SIG_IGN);
}

static int tell_ready(int fd) {
    AUTO_CLOSE int owned = fd;
    return owned < 0 || write(owned, "R", 1) == 1 ? 0 : -1;
}

int main(int argc, char **argv) {
    struct options options;
    if (parse_options(argc, argv, &options) < 0) {
        fprintf(stderr, "sandlot-agent is started by sandlotd, not by hand\n");
        return 2;
    }
    protect();
    keep_from_commands(&options);
    struct agent agent = {.loop = uv_default_loop(), .sandbox_id = options.sandbox_id};
    /* No handler but SIGCHLD's: then the kernel keeps every other signal from inside away from PID 1. */
    spawn_init();
    agent.reaper = reaper_create(agent.loop);
    agent.runs = run_table_create(&agent);
    uv_timer_init(agent.loop, &agent.expiry_timer);
    agent_set_expiry(&agent, options.expire_unix_ms);
    if (options.cgroup_fd >= 0)
        agent.cgroups = cgroup_slots_create(options.cgroup_fd);
    if (options.seccomp_fd >= 0 && load_filter(&agent, options.seccomp_fd) < 0) {
        log_error("agent", "the system call filter can't be read");
        return 1;
    }
    if (conn_listen(&agent, options.listen_fd) < 0 || tell_ready(options.ready_fd) < 0) {
        log_error("agent", "can't listen: %s", strerror(errno));
        return 1;
    }
    uv_run(agent.loop, UV_RUN_DEFAULT);
    return 0;
}
