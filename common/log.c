#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static atomic_int current_level = LOG_LEVEL_INFO;

void log_set_level(enum log_level level) {
    atomic_store(&current_level, (int)level);
}

enum log_level log_get_level(void) {
    return (enum log_level)atomic_load_explicit(&current_level, memory_order_relaxed);
}

void log_line(enum log_level level, const char *component, const char *fmt, ...) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    if (level > log_get_level())
        return;
    char line[1024];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t used = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    used += (size_t)snprintf(line + used, sizeof line - used, ".%03ldZ %s %s: ", now.tv_nsec / 1000000,
                             names[level], component);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line + used, sizeof line - used - 1, fmt, ap);
    va_end(ap);
    size_t room = sizeof line - used - 2;
    size_t len = used + (n < 0 ? 0 : (size_t)n > room ? room : (size_t)n);
    for (size_t i = used; i < len; i++) /* one event, one line, whatever a peer put into a name */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[len++] = '\n';
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, len);
    while (written < 0 && errno == EINTR);
}
