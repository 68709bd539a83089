/* The only place that waits for children. PID 1 inherits every orphan; the status of a child that
 * somebody watches goes to its watcher, all others are dropped. */
#pragma once

#include <sys/resource.h>
#include <sys/types.h>
#include <uv.h>

struct reaper;

/* status is that of wait4. Called once, on the loop. */
typedef void (*reaper_exit_cb)(void *arg, int status, const struct rusage *usage);

struct reaper *reaper_create(uv_loop_t *loop);
/* The pid must be an unreaped child of ours; call it before the loop runs again. */
void reaper_watch(struct reaper *reaper, pid_t pid, reaper_exit_cb cb, void *arg);
