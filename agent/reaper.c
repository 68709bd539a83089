#include "agent/reaper.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <uthash.h>

#include "common/cleanup.h"
#include "common/xalloc.h"

struct watch {
    pid_t pid;
    reaper_exit_cb cb;
    void *arg;
    UT_hash_handle hh;
};

struct reaper {
    uv_signal_t signal;
    struct watch *watches;
};

static void on_sigchld(uv_signal_t *signal, int signum) {
    (void)signum;
    struct reaper *reaper = CONTAINER_OF(signal, struct reaper, signal);
    for (;;) {
        int status;
        struct rusage usage;
        pid_t pid = wait4(-1, &status, WNOHANG, &usage);
        if (pid <= 0)
            return;
        struct watch *watch = NULL;
        HASH_FIND(hh, reaper->watches, &pid, sizeof pid, watch);
        if (!watch)
            continue;
        HASH_DEL(reaper->watches, watch);
        watch->cb(watch->arg, status, &usage);
        free(watch);
    }
}

struct reaper *reaper_create(uv_loop_t *loop) {
    struct reaper *reaper = xcalloc(1, sizeof *reaper);
    uv_signal_init(loop, &reaper->signal);
    uv_signal_start(&reaper->signal, on_sigchld, SIGCHLD);
    return reaper;
}

void reaper_watch(struct reaper *reaper, pid_t pid, reaper_exit_cb cb, void *arg) {
    struct watch *watch = xcalloc(1, sizeof *watch);
    watch->pid = pid;
    watch->cb = cb;
    watch->arg = arg;
    HASH_ADD(hh, reaper->watches, pid, sizeof watch->pid, watch);
}
