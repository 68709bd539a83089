/* Errors as gRPC clients read them: google.rpc.Status with one ErrorInfo and what else helps. */
#pragma once

#include <grpc/slice.h>

#include "common/err.h"

/* The value of grpc-status-details-bin; kept small (a few KiB fail with misleading statuses). */
grpc_slice status_details(const struct err *err);
