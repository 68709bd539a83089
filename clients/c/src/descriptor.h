/* The JSON in which a sandbox travels. Unknown keys are ignored; another version is refused. */
#pragma once

#include "sandlot/sandlot.h"

struct descriptor {
    char *broker_id, *sandbox_id, *scope, *lease, *workdir, *rollout_id;
    char **endpoints; /* NULL-terminated */
};

int descriptor_parse(const char *json, struct descriptor *ret, struct sandlot_error *err);
void descriptor_fini(struct descriptor *descriptor);
