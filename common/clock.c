#include "common/clock.h"

#include <stdio.h>
#include <time.h>

uint64_t clock_monotonic_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

uint64_t clock_monotonic_ms(void) {
    return clock_monotonic_us() / 1000u;
}

int64_t clock_unix_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void clock_format_rfc3339(int64_t unix_ms, char *buffer) {
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm tm;
    gmtime_r(&seconds, &tm);
    size_t used = strftime(buffer, CLOCK_RFC3339_MAX, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(buffer + used, CLOCK_RFC3339_MAX - used, ".%03dZ", (int)(unix_ms % 1000));
}
