/* Copies of what a response holds. */
#pragma once

#include <stddef.h>

#include "google/protobuf/duration.pb-c.h"
#include "google/protobuf/timestamp.pb-c.h"
#include "sandlot/sandlot.h"

/* NULL as protobuf-c wants it: a string. */
char *text_or_empty(const char *text);
size_t strings_count(const char *const *strings); /* NULL: 0 */
/* Splits "NAME=value": the name is malloc'd, the value points into the entry. -1: it is no such thing. */
int pair_split(const char *entry, char **ret_name, char **ret_value, struct sandlot_error *err);
char **strings_copy(char *const *from, size_t count); /* NULL-terminated */
void strings_free(char **strings);
double timestamp_seconds(const Google__Protobuf__Timestamp *timestamp); /* NULL: 0 */
double duration_seconds(const Google__Protobuf__Duration *duration);    /* NULL: 0 */
void duration_set(Google__Protobuf__Duration *duration, double seconds);
