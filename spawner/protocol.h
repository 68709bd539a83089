/* What broker and spawner say to each other over one SOCK_SEQPACKET pair: one struct a message, both
 * ends of the same build. The spawner believes no field: it checks each. Replies carry the request's
 * seq; an event has seq 0. A reply with `fd_attached` brings one descriptor (SCM_RIGHTS). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/id.h"

#define SPAWNER_IMAGE_MAX 64
#define SPAWNER_TEXT_MAX 320

enum spawner_request_kind {
    SPAWNER_CREATE = 1, /* answers when the agent listens, with a connection to it */
    SPAWNER_CONNECT,    /* a further connection to the agent */
    SPAWNER_DESTROY,    /* answers when nothing is left; fine when there is none */
    SPAWNER_LIST,       /* one ITEM for each sandbox, then END */
};

struct spawner_request {
    uint32_t kind;
    uint32_t seq;
    char id[ID_MAX];
    /* CREATE only: */
    char image[SPAWNER_IMAGE_MAX];
    bool layer_on_disk;
    uint64_t layer_bytes;
    uint64_t memory_bytes; /* 0: no limit */
    uint32_t pids;         /* 0: no limit */
    uint32_t cpu_milli;    /* thousandths of a core; 0: no limit */
    int64_t expire_unix_ms;
};

enum spawner_reply_kind {
    SPAWNER_DONE = 1, /* code 0, or the error */
    SPAWNER_ITEM,
    SPAWNER_END,
    SPAWNER_EXITED, /* event: this sandbox ended by itself and is cleaned up */
};

struct spawner_reply {
    uint32_t kind;
    uint32_t seq;
    int32_t code;   /* enum err_code */
    int32_t reason; /* sandlot.v1.ErrorReason */
    char id[ID_MAX];
    char text[SPAWNER_TEXT_MAX];
    bool fd_attached;
};
