/* What the agent was started with; built in main.c, read by everybody, changed by nobody but expiry. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct cgroup_slots;
struct reaper;
struct run_table;

struct agent {
    uv_loop_t *loop;
    const char *sandbox_id;
    int64_t expire_unix_ms; /* 0: none */
    uv_timer_t expiry_timer;
    const uint8_t *seccomp_filter; /* struct sock_filter array, NULL: none */
    size_t seccomp_filter_len;     /* bytes */
    struct cgroup_slots *cgroups;  /* NULL: no cgroup can be delegated here */
    struct reaper *reaper;
    struct run_table *runs;
};

/* Starts or moves the timer that ends the sandbox. */
void agent_set_expiry(struct agent *agent, int64_t expire_unix_ms);
