/* Checked state machines: a table of allowed moves, one place that moves and logs. An illegal move is
 * a bug and aborts: a broker that no longer knows its state must not go on owning sandboxes. */
#pragma once

#include <stdint.h>

struct sm_conf {
    const char *name; /* "sandbox" */
    const char *const *states;
    const uint32_t *moves; /* moves[from] = bits of allowed to-states */
    int count;
};

struct sm {
    const struct sm_conf *conf;
    int state;
    const char *id; /* for the log; borrowed, must outlive the machine */
};

#define SM_TO(state) (UINT32_C(1) << (state))

void sm_init(struct sm *sm, const struct sm_conf *conf, int state, const char *id);
void sm_move(struct sm *sm, int to);
const char *sm_state_name(const struct sm *sm);
