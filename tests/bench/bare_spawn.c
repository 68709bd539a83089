/* Inside the sandbox: a small static parent that spawns and awaits the same command, one after the
 * other. Prints microseconds per command. usage: bare_spawn COUNT COMMAND */
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

int main(int argc, char **argv) {
    struct timespec before, after;
    int count = argc == 3 ? atoi(argv[1]) : 0;
    if (count < 1)
        return 2;
    char *child[] = {argv[2], NULL};
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (int i = 0; i < count; i++) {
        pid_t pid;
        if (posix_spawn(&pid, argv[2], NULL, NULL, child, environ) != 0 || waitpid(pid, NULL, 0) < 0)
            return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    double us = (double)(after.tv_sec - before.tv_sec) * 1e6 + (double)(after.tv_nsec - before.tv_nsec) / 1e3;
    printf("%.1f\n", us / count);
    return 0;
}
