#include "spawner/box_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"

void box_record_boot(struct box_record *record) {
    record->boot_id[0] = '\0';
    AUTO_FILE FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file && fgets(record->boot_id, sizeof record->boot_id, file))
        record->boot_id[strcspn(record->boot_id, "\n")] = '\0';
}

uint64_t process_start_time(pid_t pid) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    AUTO_FILE FILE *file = fopen(path, "re");
    if (!file || !fgets(text, sizeof text, file))
        return 0;
    char *at = strrchr(text, ')');
    unsigned long long start = 0;
    /* Field 22; the state after the name is field 3. */
    if (!at ||
        sscanf(at + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu",
               &start) != 1)
        return 0;
    return start;
}

int box_record_write(int dir_fd, const struct box_record *record, struct err *err) {
    AUTO_CLOSE int fd = openat(dir_fd, "box.new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char text[160];
    int len = snprintf(text, sizeof text, "%d %llu %u %d %s\n", (int)record->pid,
                       (unsigned long long)record->start_time, record->slot, record->layer_on_disk,
                       record->boot_id);
    if (fd < 0 || write(fd, text, (size_t)len) != len || renameat(dir_fd, "box.new", dir_fd, "box") < 0)
        return err_set_errno(err, errno, "can't record the sandbox");
    return 0;
}

bool box_record_read(int dir_fd, struct box_record *ret) {
    int fd = openat(dir_fd, "box", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    AUTO_FILE FILE *file = fdopen(fd, "r");
    struct box_record now;
    int pid, disk;
    unsigned long long start;
    if (!file || fscanf(file, "%d %llu %u %d %39s", &pid, &start, &ret->slot, &disk, ret->boot_id) != 5)
        return false;
    ret->pid = pid;
    ret->start_time = start;
    ret->layer_on_disk = disk != 0;
    box_record_boot(&now);
    return strcmp(now.boot_id, ret->boot_id) == 0;
}
