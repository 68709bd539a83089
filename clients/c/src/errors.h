/* Filling struct sandlot_error. Each returns -1. */
#pragma once

#include "sandlot/sandlot.h"

int error_set(struct sandlot_error *err, int status, const char *reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* From a server's status and its grpc-status-details-bin (may be empty). */
int error_from_status(struct sandlot_error *err, int status, const char *text, size_t text_len,
                      const uint8_t *details, size_t details_len);
