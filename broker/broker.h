/* The composition root: builds the modules in order, drains them in reverse. Wiring, no policy. */
#pragma once

#include "broker/access/keyring.h"
#include "broker/config.h"
#include "broker/rpc/server.h"

struct broker_opts {
    const struct config *config;
    const struct keyring *keyring;
    const struct server_listener *listeners;
    size_t listener_count;
    const char *const *notes; /* of the spawner; NULL-terminated */
    const char *user;
    unsigned uid;
    int ready_fd; /* -1, or gets "READY\n" when serving */
};

/* In the broker's own process, until SIGTERM or SIGINT. Returns the exit code. */
int broker_run(const struct broker_opts *opts, int spawner_fd);
