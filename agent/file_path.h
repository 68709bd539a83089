/* Paths inside the sandbox. Nothing here leaves its root: every step is openat2 with IN_ROOT and
 * without magic links, so neither "..", nor links, nor /proc/N/fd lead out. */
#pragma once

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "common/err.h"

struct file_target {
    int parent_fd; /* O_PATH-free directory; -1 if not found */
    char name[256];
    bool exists; /* then st is the regular file that will be replaced */
    struct stat st;
};

/* Where an upload goes: follows links of the last component, makes missing parents.
 * Refuses directories and what is not a regular file. */
int file_target_find(const ProtobufCBinaryData *path, struct file_target *ret, struct err *err);
void file_target_fini(struct file_target *target);

/* Opens a regular file for reading without ever blocking on, or touching, anything else. */
int file_open_regular(const ProtobufCBinaryData *path, struct stat *ret_st, struct err *err);

/* Makes the directory and its parents; an existing one is fine. Returns an fd of it. */
int file_make_directory(const ProtobufCBinaryData *path, struct err *err);

/* errno as one of the FILE_ reasons. Returns -1. */
int file_error(struct err *err, int errnum, const char *what);
