/* grpc.health.v1. The serving flag is set on the loop thread and read on both. */
#pragma once

#include <stdbool.h>

struct health;

struct health *health_create(void);
void health_destroy(struct health *health);
/* Tells all watchers. Loop thread. */
void health_set_serving(struct health *health, bool serving);
bool health_is_serving(const struct health *health);
