#include "broker/rpc/descriptors.h"

/* .incbin works the same in gcc and clang and keeps the bytes out of the source tree. */
__asm__(".section .rodata\n"
        ".global sandlot_descriptor_set\n"
        ".global sandlot_descriptor_set_end\n"
        ".balign 16\n"
        "sandlot_descriptor_set:\n"
        ".incbin \"" SANDLOT_DESCRIPTOR_SET "\"\n"
        "sandlot_descriptor_set_end:\n"
        ".byte 0\n"
        ".previous\n");
