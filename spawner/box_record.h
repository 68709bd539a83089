/* sandboxes/ID/box: what the spawner must know of a sandbox after a restart of its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct box_record {
    pid_t pid;
    uint64_t start_time;
    uint32_t slot;
    bool layer_on_disk;
    char boot_id[40];
};

int box_record_write(int dir_fd, const struct box_record *record, struct err *err);
/* False: no record, or of another boot of this machine. */
bool box_record_read(int dir_fd, struct box_record *ret);
/* Fills boot_id. */
void box_record_boot(struct box_record *record);
/* Start time of a process; 0: there is no such process. */
uint64_t process_start_time(pid_t pid);
