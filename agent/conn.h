/* One connection from the broker. The first request must be Hello; its role decides what follows:
 * control requests answered here on the loop, or file work in a helper process of its own. */
#pragma once

#include "agent/agent.h"

/* Takes over the listening socket; serves until the process ends. -1: *err says why. */
int conn_listen(struct agent *agent, int listen_fd);
