#include "clients/c/src/lists.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "clients/c/src/errors.h"
#include "common/xalloc.h"

char *text_or_empty(const char *text) {
    static char empty[] = "";
    return text ? (char *)(uintptr_t)text : empty;
}

size_t strings_count(const char *const *strings) {
    size_t n = 0;
    while (strings && strings[n])
        n++;
    return n;
}

int pair_split(const char *entry, char **ret_name, char **ret_value, struct sandlot_error *err) {
    const char *equals = strchr(entry, '=');
    if (!equals || equals == entry) /* its value may be a secret: not told */
        return error_set(err, 3, "INVALID_REQUEST", "an entry is not NAME=VALUE");
    *ret_name = xmemdup(entry, (size_t)(equals - entry));
    *ret_value = (char *)(uintptr_t)equals + 1;
    return 0;
}

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
