/* Copies of what a response holds. */
#pragma once

#include <stddef.h>

#include "google/protobuf/duration.pb-c.h"
#include "google/protobuf/timestamp.pb-c.h"

char **strings_copy(char *const *from, size_t count); /* NULL-terminated */
void strings_free(char **strings);
double timestamp_seconds(const Google__Protobuf__Timestamp *timestamp); /* NULL: 0 */
double duration_seconds(const Google__Protobuf__Duration *duration);    /* NULL: 0 */
void duration_set(Google__Protobuf__Duration *duration, double seconds);
