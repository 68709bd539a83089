#include "clients/c/src/lists.h"

#include <math.h>
#include <stdlib.h>

#include "common/xalloc.h"

char **strings_copy(char *const *from, size_t count) {
    char **copy = xcalloc(count + 1, sizeof *copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = xstrdup(from[i]);
    return copy;
}

void strings_free(char **strings) {
    for (char **at = strings; at && *at; at++)
        free(*at);
    free(strings);
}

double timestamp_seconds(const Google__Protobuf__Timestamp *timestamp) {
    return timestamp ? (double)timestamp->seconds + timestamp->nanos / 1e9 : 0;
}

double duration_seconds(const Google__Protobuf__Duration *duration) {
    return duration ? (double)duration->seconds + duration->nanos / 1e9 : 0;
}

void duration_set(Google__Protobuf__Duration *duration, double seconds) {
    google__protobuf__duration__init(duration);
    double whole = floor(seconds);
    duration->seconds = (int64_t)whole;
    duration->nanos = (int32_t)((seconds - whole) * 1e9);
}
