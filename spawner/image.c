#include "spawner/image.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "spawner/userns.h"

#define OVERLAY_MAGIC 0x794c7630

static const char *const host_parts[IMAGE_PARTS_MAX] = {"usr", "etc",   "bin",   "sbin",
                                                        "lib", "lib32", "lib64", "libx32"};

static void describe_host(struct image *image) {
    snprintf(image->name, sizeof image->name, "host");
    image->host = true;
    for (size_t i = 0; i < ARRAY_LEN(host_parts); i++) {
        struct image_part *part = &image->parts[image->part_count];
        struct stat st;
        snprintf(part->path, sizeof part->path, "/%s", host_parts[i]);
        if (lstat(part->path, &st) < 0)
            continue;
        part->name = host_parts[i];
        if (S_ISLNK(st.st_mode)) {
            ssize_t n = readlink(part->path, part->link, sizeof part->link - 1);
            if (n <= 0)
                continue;
            part->link[n] = '\0';
        } else if (!S_ISDIR(st.st_mode)) {
            continue;
        }
        image->part_count++;
    }
}

/* ---- Tar images ---- */

static int copy_data(struct archive *from, struct archive *to) {
    const void *bytes;
    size_t size;
    la_int64_t offset;
    int rc;
    while ((rc = archive_read_data_block(from, &bytes, &size, &offset)) == ARCHIVE_OK)
        if (archive_write_data_block(to, bytes, size, offset) < 0)
            return -1;
    return rc == ARCHIVE_EOF ? 0 : -1;
}

static int unpack_entries(struct archive *tar, struct archive *disk) {
    struct archive_entry *entry;
    int rc;
    while ((rc = archive_read_next_header(tar, &entry)) == ARCHIVE_OK || rc == ARCHIVE_WARN) {
        mode_t type = archive_entry_filetype(entry);
        if (type == AE_IFCHR || type == AE_IFBLK) /* the sandbox has devices of its own */
            continue;
        if (archive_write_header(disk, entry) < ARCHIVE_WARN || copy_data(tar, disk) < 0 ||
            archive_write_finish_entry(disk) < ARCHIVE_WARN)
            return -1;
    }
    return rc == ARCHIVE_EOF ? 0 : -1;
}

/* In the current directory. */
static int unpack_tar(const char *path, struct err *err) {
    struct archive *tar = archive_read_new();
    struct archive *disk = archive_write_disk_new();
    archive_read_support_format_tar(tar);
    archive_read_support_filter_all(tar);
    archive_write_disk_set_options(disk, ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_TIME |
                                             ARCHIVE_EXTRACT_XATTR | ARCHIVE_EXTRACT_SECURE_NODOTDOT |
                                             ARCHIVE_EXTRACT_SECURE_SYMLINKS |
                                             ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
    int rc = archive_read_open_filename(tar, path, 1 << 20) == ARCHIVE_OK ? 0 : -1;
    if (rc == 0)
        rc = unpack_entries(tar, disk);
    if (rc < 0) {
        const char *why = archive_error_string(tar) ? archive_error_string(tar) : archive_error_string(disk);
        err_set(err, ERR_INVALID_ARGUMENT, 0, "image tar %s: %s", path, why ? why : "unreadable");
    }
    archive_read_free(tar);
    archive_write_free(disk);
    return rc;
}

/* images/NAME-MTIME-SIZE: a changed tar becomes a new directory, sandboxes on the old one live on. */
static int unpack_image(const struct spawner_config *config, const struct image_config *image,
                        const struct stat *st, char *ret_path, size_t size, struct err *err) {
    char name[160], temporary[180];
    snprintf(name, sizeof name, "%s-%lld-%lld", image->name, (long long)st->st_mtime, (long long)st->st_size);
    snprintf(temporary, sizeof temporary, "%s.partial", name);
    snprintf(ret_path, size, "%s/images/%s", config->state_dir, name);
    if (access(ret_path, F_OK) == 0)
        return 0;
    AUTO_CLOSE int images = openat(config->state_fd, "images", O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    if (images < 0)
        return err_set_errno(err, errno, "%s/images", config->state_dir);
    log_info("spawner", "unpacking image %s from %s", image->name, image->path);
    AUTO_CLOSE int before = open(".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if ((mkdirat(images, temporary, 0755) < 0 && errno != EEXIST) || fchdir(images) < 0 ||
        chdir(temporary) < 0)
        return err_set_errno(err, errno, "%s/images/%s", config->state_dir, temporary);
    int rc = unpack_tar(image->path, err);
    if (fchdir(before) < 0)
        return err_set_errno(err, errno, "working directory");
    if (rc == 0 && renameat(images, temporary, images, name) < 0)
        rc = err_set_errno(err, errno, "%s", ret_path);
    return rc;
}

static int describe_configured(const struct spawner_config *config, const struct image_config *from,
                               struct image *image, struct err *err) {
    struct stat st;
    snprintf(image->name, sizeof image->name, "%s", from->name);
    struct image_part *part = &image->parts[0];
    part->name = "";
    image->part_count = 1;
    if (stat(from->path, &st) < 0)
        return err_set_errno(err, errno, "image \"%s\": %s", from->name, from->path);
    if (S_ISDIR(st.st_mode)) {
        snprintf(part->path, sizeof part->path, "%s", from->path);
        return 0;
    }
    if (unpack_image(config, from, &st, part->path, sizeof part->path, err) < 0)
        return err_wrap(err, "image \"%s\"", from->name);
    return 0;
}

/* ---- Idmapped mounts ---- */

int image_part_mount(const struct image *image, const struct image_part *part, int userns_fd,
                     struct err *err) {
    AUTO_CLOSE int fd =
        (int)syscall(SYS_open_tree, part->fd, "", AT_EMPTY_PATH | OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    if (fd < 0)
        return err_set_errno(err, errno, "image %s: %s", image->name, part->path);
    /* Private: on a host whose mounts are shared, ours would show up there. */
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV, .propagation = MS_PRIVATE};
    if (image->idmapped) {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = (uint64_t)(unsigned)userns_fd;
    }
    if (syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
        return err_set_errno(err, errno, "image %s: can't map users of %s", image->name, part->path);
    return take_fd(&fd);
}

/* Tries the mapping once. For the host image two overlays are stacked (see setup.c), which a host
 * that itself lives on an overlay does not allow. */
static bool can_idmap(struct image *image, int userns_fd) {
    image->idmapped = true;
    for (size_t i = 0; i < image->part_count; i++) {
        struct statfs fs;
        struct err ignored = {0};
        if (image->parts[i].link[0])
            continue;
        AUTO_CLOSE int fd = image_part_mount(image, &image->parts[i], userns_fd, &ignored);
        if (fd < 0 || (image->host && (statfs(image->parts[i].path, &fs) < 0 || fs.f_type == OVERLAY_MAGIC)))
            return false;
    }
    return true;
}

/* Held from the start: later nobody can put another directory in their place. */
static int open_parts(struct image *image, struct err *err) {
    for (size_t i = 0; i < image->part_count; i++) {
        struct image_part *part = &image->parts[i];
        part->fd = part->link[0] ? -1 : open(part->path, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (part->fd < 0 && !part->link[0])
            return err_set_errno(err, errno, "image \"%s\": %s", image->name, part->path);
    }
    return 0;
}

void image_set_fini(struct image_set *set) {
    for (size_t i = 0; i < set->count; i++)
        for (size_t k = 0; k < set->images[i].part_count; k++)
            if (set->images[i].parts[k].fd >= 0)
                close(set->images[i].parts[k].fd);
    free(set->images);
}

int image_set_create(const struct spawner_config *config, struct image_set *ret, struct err *err) {
    ret->count = config->image_count + 1;
    ret->images = xcalloc(ret->count, sizeof *ret->images);
    describe_host(&ret->images[0]);
    for (size_t i = 0; i < config->image_count; i++)
        if (describe_configured(config, &config->images[i], &ret->images[i + 1], err) < 0)
            return -1;
    for (size_t i = 0; i < ret->count; i++)
        if (open_parts(&ret->images[i], err) < 0)
            return -1;
    AUTO_CLOSE int userns_fd = userns_make(config->uid_base, err);
    if (userns_fd < 0)
        return -1;
    for (size_t i = 0; i < ret->count; i++) {
        struct image *image = &ret->images[i];
        image->idmapped = can_idmap(image, userns_fd);
        if (!image->idmapped && !image->host)
            return err_set(err, ERR_FAILED_PRECONDITION, 0,
                           "image \"%s\": the file system of %s can't map users (idmapped mounts)",
                           image->name, image->parts[0].path);
    }
    return 0;
}

const struct image *image_find(const struct image_set *set, const char *name) {
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->images[i].name, name) == 0)
            return &set->images[i];
    return NULL;
}
