/* The FileDescriptorSet of everything public, embedded at build time. */
#pragma once

#include <stdint.h>

extern const uint8_t sandlot_descriptor_set[];
extern const uint8_t sandlot_descriptor_set_end[];
