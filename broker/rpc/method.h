/* One row per RPC. What is not in the table does not exist. */
#pragma once

#include <protobuf-c/protobuf-c.h>

#include "broker/access/authorize.h"

struct call;

enum method_kind { METHOD_UNARY, METHOD_CLIENT_STREAM, METHOD_SERVER_STREAM, METHOD_BIDI };

enum method_flags {
    METHOD_INLINE = 1u << 0,    /* handled on the pump's thread: touches nothing of the loop's */
    METHOD_ANYTIME = 1u << 1,   /* also before SERVING and while draining */
    METHOD_ANYBODY = 1u << 2,   /* needs no identity: health, reflection */
    METHOD_UNWATCHED = 1u << 3, /* is not ended with its lease: it ends leases itself */
};

struct method {
    const char *path;
    enum method_kind kind;
    unsigned flags;
    struct access_need need;
    const ProtobufCMessageDescriptor *request;
    /* UNARY and SERVER_STREAM: the request has been read (call_request). Others: read with call_read. */
    void (*handle)(struct call *call);
};

/* NULL: unknown. */
const struct method *method_find(const char *path, size_t len);
