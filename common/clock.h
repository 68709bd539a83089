/* Two clocks: deadlines inside a process are monotonic, stored instants are wall time. */
#pragma once

#include <stdint.h>

uint64_t clock_monotonic_ms(void);
uint64_t clock_monotonic_us(void);
int64_t clock_unix_ms(void);

#define CLOCK_RFC3339_MAX 32
/* "2026-01-31T12:00:00.250Z"; buffer of CLOCK_RFC3339_MAX bytes. */
void clock_format_rfc3339(int64_t unix_ms, char *buffer);
