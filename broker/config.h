/* The daemon's configuration: a JSON file, then the command line over it. Unknown keys are errors. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "broker/sandbox/registry.h"
#include "common/err.h"
#include "spawner/spawner.h"

#define CONFIG_LISTEN_MAX 8
#define CONFIG_IMAGES_MAX 32

struct listen_config {
    char *address; /* absolute path of a unix socket, or HOST:PORT */
    bool is_unix;
};

struct config {
    struct listen_config listen[CONFIG_LISTEN_MAX];
    size_t listen_count;
    char *advertise[CONFIG_LISTEN_MAX + 1]; /* NULL-terminated; empty: what is listened on */
    size_t advertise_count;
    char *state_dir;
    char *user;  /* NULL: the system user "sandlot" if there is one */
    char *agent; /* path of sandlot-agent; NULL: beside this program */
    struct image_config images[CONFIG_IMAGES_MAX];
    size_t image_count;
    struct registry_limits limits;
    double drain_timeout; /* seconds */
    bool destroy_on_shutdown;
    uint32_t uid_base;
};

void config_init(struct config *config); /* the defaults */
void config_fini(struct config *config);
int config_load(struct config *config, const char *path, struct err *err);
/* JSON text, for config_load and its tests. */
int config_parse(struct config *config, const char *text, size_t len, struct err *err);
/* "unix:/path", "/path" or "HOST:PORT,insecure". */
int config_add_listen(struct config *config, const char *text, struct err *err);
/* Fills what depends on who runs it: socket and state directory. */
int config_finish(struct config *config, struct err *err);
