/* Images of the local provider: "host" (an allow-list of the host's own root) and directories or
 * root file system tars from the configuration. A tar is unpacked once, below images/. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "common/err.h"
#include "spawner/spawner.h"

#define IMAGE_PARTS_MAX 8
#define IMAGE_LINK_MAX 64

/* One directory that becomes an overlay, or a link that is made, in the sandbox's root. */
struct image_part {
    const char *name;          /* "" is the root itself */
    int fd;                    /* of the directory; -1 for a link */
    char path[512];            /* on the host */
    char link[IMAGE_LINK_MAX]; /* not empty: a symbolic link with this text, no directory */
};

struct image {
    char name[64];
    bool host;
    /* The lower layers are idmapped to the sandbox's users. Where the file system can't, the host's
     * files belong to nobody inside. */
    bool idmapped;
    struct image_part parts[IMAGE_PARTS_MAX];
    size_t part_count;
};

struct image_set {
    struct image *images;
    size_t count;
};

int image_set_create(const struct spawner_config *config, struct image_set *ret, struct err *err);
void image_set_fini(struct image_set *set);
const struct image *image_find(const struct image_set *set, const char *name);

/* A detached, read-only mount of the part, idmapped through the user namespace if the image is.
 * Returns its fd. */
int image_part_mount(const struct image *image, const struct image_part *part, int userns_fd,
                     struct err *err);
