/* The system call filter of every command in a local sandbox. */
#pragma once

#include "common/err.h"

/* A sealed in-memory file with the compiled BPF program; -1 on error. */
int filter_create(struct err *err);
