#include "common/sm.h"

#include <stdlib.h>

#include "common/log.h"

void sm_init(struct sm *sm, const struct sm_conf *conf, int state, const char *id) {
    sm->conf = conf;
    sm->state = state;
    sm->id = id;
}

const char *sm_state_name(const struct sm *sm) {
    return sm->conf->states[sm->state];
}

void sm_move(struct sm *sm, int to) {
    const struct sm_conf *conf = sm->conf;
    if (to < 0 || to >= conf->count || !(conf->moves[sm->state] & SM_TO(to))) {
        log_error(conf->name, "illegal move id=%s from=%s to=%d", sm->id, sm_state_name(sm), to);
        abort();
    }
    log_debug(conf->name, "id=%s %s -> %s", sm->id, conf->states[sm->state], conf->states[to]);
    sm->state = to;
}
