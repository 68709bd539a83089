#include "agent/file_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "sandlot/v1/errors.pb-c.h"

#define LINKS_MAX 40
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

int file_error(struct err *err, int errnum, const char *what) {
    static const struct {
        int errnum;
        enum err_code code;
        int reason;
    } known[] = {
        {ENOENT, ERR_NOT_FOUND, REASON(FILE_NOT_FOUND)},
        {EISDIR, ERR_FAILED_PRECONDITION, REASON(FILE_IS_DIRECTORY)},
        {ENOTDIR, ERR_FAILED_PRECONDITION, REASON(FILE_NOT_DIRECTORY)},
        {EACCES, ERR_PERMISSION_DENIED, REASON(FILE_PERMISSION)},
        {EPERM, ERR_PERMISSION_DENIED, REASON(FILE_PERMISSION)},
        {EROFS, ERR_PERMISSION_DENIED, REASON(FILE_PERMISSION)},
        {EOVERFLOW, ERR_PERMISSION_DENIED, REASON(FILE_PERMISSION)},
        {ENOSPC, ERR_RESOURCE_EXHAUSTED, REASON(FILE_NO_SPACE)},
        {EDQUOT, ERR_RESOURCE_EXHAUSTED, REASON(FILE_NO_SPACE)},
        {EFBIG, ERR_RESOURCE_EXHAUSTED, REASON(FILE_NO_SPACE)},
        {ELOOP, ERR_INVALID_ARGUMENT, REASON(FILE_PATH_INVALID)},
        {ENAMETOOLONG, ERR_INVALID_ARGUMENT, REASON(FILE_PATH_INVALID)},
        {EXDEV, ERR_INVALID_ARGUMENT, REASON(FILE_PATH_INVALID)},
        {ENXIO, ERR_FAILED_PRECONDITION, REASON(FILE_NOT_REGULAR)},
    };
    err_set_errno(err, errnum, "%s", what);
    err->reason = REASON(FILE_IO);
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (known[i].errnum == errnum) {
            err->code = known[i].code;
            err->reason = known[i].reason;
        }
    return -1;
}

/* Opens a path as seen from the sandbox's root. */
static int open_in_root(const char *path, uint64_t flags) {
    struct open_how how = {
        .flags = flags | O_CLOEXEC,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
    };
    AUTO_CLOSE int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        return -1;
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

static int copy_path(const ProtobufCBinaryData *path, char text[PATH_MAX], struct err *err) {
    if (path->len == 0 || path->len >= PATH_MAX || path->data[0] != '/' || memchr(path->data, 0, path->len))
        return err_set(err, ERR_INVALID_ARGUMENT, REASON(FILE_PATH_INVALID),
                       "a path is absolute, shorter than %d bytes, without NUL", PATH_MAX);
    memcpy(text, path->data, path->len);
    text[path->len] = '\0';
    return 0;
}

/* Opens the directory `path`, making what is missing of it. Several makers may race. */
static int open_or_make(char *path, struct err *err) {
    int fd = open_in_root(*path ? path : "/", O_RDONLY | O_DIRECTORY);
    if (fd >= 0)
        return fd;
    if (errno != ENOENT)
        return file_error(err, errno, "a directory of the path");
    for (char *slash = path + 1;; slash++) {
        slash += strcspn(slash, "/");
        char end = *slash;
        *slash = '\0';
        AUTO_CLOSE int prefix = open_in_root(path, O_PATH | O_DIRECTORY);
        if (prefix < 0 && errno == ENOENT) {
            char *last = strrchr(path, '/');
            *last = '\0';
            AUTO_CLOSE int above = open_in_root(*path ? path : "/", O_PATH | O_DIRECTORY);
            *last = '/';
            if (above < 0 || (mkdirat(above, last + 1, 0755) < 0 && errno != EEXIST))
                return file_error(err, errno, "can't make a directory of the path");
        } else if (prefix < 0) {
            return file_error(err, errno, "a directory of the path");
        }
        *slash = end;
        if (!end)
            break;
    }
    fd = open_in_root(path, O_RDONLY | O_DIRECTORY);
    return fd >= 0 ? fd : file_error(err, errno, "a directory of the path");
}

static void strip_slashes(char *path) {
    size_t len = strlen(path);
    while (len > 1 && path[len - 1] == '/')
        path[--len] = '\0';
}

/* Splits into the opened parent and the last name. */
static int open_parent(char *path, struct file_target *target, struct err *err) {
    char *slash = strrchr(path, '/');
    const char *name = slash + 1;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return file_error(err, EISDIR, "the path names a directory");
    if (strlen(name) >= sizeof target->name)
        return file_error(err, ENAMETOOLONG, "the file name");
    strcpy(target->name, name);
    *slash = '\0';
    target->parent_fd = open_or_make(path, err);
    *slash = '/';
    return target->parent_fd < 0 ? -1 : 0;
}

/* path := where the link points, seen from the link's directory. */
static int follow_link(const struct file_target *target, char path[PATH_MAX], struct err *err) {
    char link[PATH_MAX];
    ssize_t n = readlinkat(target->parent_fd, target->name, link, sizeof link - 1);
    if (n < 0)
        return file_error(err, errno, "readlink");
    link[n] = '\0';
    if (link[0] == '/') {
        memcpy(path, link, (size_t)n + 1);
        return 0;
    }
    size_t dir_len = (size_t)(strrchr(path, '/') - path) + 1;
    if (dir_len + (size_t)n >= PATH_MAX)
        return file_error(err, ENAMETOOLONG, "a link of the path");
    memcpy(path + dir_len, link, (size_t)n + 1);
    return 0;
}

int file_target_find(const ProtobufCBinaryData *path, struct file_target *ret, struct err *err) {
    char text[PATH_MAX];
    *ret = (struct file_target){.parent_fd = -1};
    if (copy_path(path, text, err) < 0)
        return -1;
    if (text[path->len - 1] == '/')
        return file_error(err, EISDIR, "the path names a directory");
    for (int links = 0; links < LINKS_MAX; links++) {
        strip_slashes(text);
        file_target_fini(ret);
        if (open_parent(text, ret, err) < 0)
            return -1;
        if (fstatat(ret->parent_fd, ret->name, &ret->st, AT_SYMLINK_NOFOLLOW) < 0) {
            ret->exists = false;
            return errno == ENOENT ? 0 : file_error(err, errno, "the target");
        }
        if (S_ISLNK(ret->st.st_mode)) {
            if (follow_link(ret, text, err) < 0)
                return -1;
            continue;
        }
        if (S_ISDIR(ret->st.st_mode))
            return file_error(err, EISDIR, "the target");
        if (!S_ISREG(ret->st.st_mode))
            return file_error(err, ENXIO, "the target is not a regular file");
        ret->exists = true;
        return 0;
    }
    return file_error(err, ELOOP, "the target");
}

void file_target_fini(struct file_target *target) {
    if (target->parent_fd >= 0)
        close(target->parent_fd);
    target->parent_fd = -1;
}

int file_open_regular(const ProtobufCBinaryData *path, struct stat *ret_st, struct err *err) {
    char text[PATH_MAX], self[64];
    if (copy_path(path, text, err) < 0)
        return -1;
    AUTO_CLOSE int handle = open_in_root(text, O_PATH);
    if (handle < 0)
        return file_error(err, errno, "open");
    if (fstat(handle, ret_st) < 0)
        return file_error(err, errno, "stat");
    if (S_ISDIR(ret_st->st_mode))
        return file_error(err, EISDIR, "open");
    if (!S_ISREG(ret_st->st_mode))
        return file_error(err, ENXIO, "not a regular file");
    snprintf(self, sizeof self, "/proc/self/fd/%d", handle);
    int fd = open(self, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    return fd >= 0 ? fd : file_error(err, errno, "open");
}

int file_make_directory(const ProtobufCBinaryData *path, struct err *err) {
    char text[PATH_MAX];
    if (copy_path(path, text, err) < 0)
        return -1;
    strip_slashes(text);
    return open_or_make(text, err);
}
