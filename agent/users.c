#include "agent/users.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "sandlot/v1/errors.pb-c.h"

#define FILE_MAX (1024 * 1024)
#define ID_LIMIT 65535u /* what a sandbox's user namespace maps */

/* The file's text, NUL-terminated; NULL if it is missing, not regular or too large. */
static char *read_text(const char *path) {
    /* O_NONBLOCK: a planted FIFO must not stall PID 1. */
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
        return NULL;
    AUTO_FREE char *text = malloc((size_t)st.st_size + 1);
    if (!text)
        return NULL;
    ssize_t n = pread(fd, text, (size_t)st.st_size, 0);
    if (n < 0)
        return NULL;
    text[n] = '\0';
    return TAKE_PTR(text);
}

static bool parse_id(const char *text, unsigned *ret) {
    char *end;
    errno = 0;
    unsigned long value = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || value > ID_LIMIT)
        return false;
    *ret = (unsigned)value;
    return true;
}

/* Splits a line of ':' fields in place. */
static size_t split(char *line, char **fields, size_t max) {
    size_t n = 0;
    for (char *rest = line; rest && n < max;)
        fields[n++] = strsep(&rest, ":");
    return n;
}

/* By name, or by uid when name is NULL. */
static bool find_passwd(const char *name, uid_t uid, struct user *user) {
    AUTO_FREE char *text = read_text("/etc/passwd");
    char *rest = text;
    for (char *line; text && (line = strsep(&rest, "\n"));) {
        char *f[7];
        unsigned id, group;
        if (split(line, f, 7) < 6 || !parse_id(f[2], &id) || !parse_id(f[3], &group))
            continue;
        if (name ? strcmp(f[0], name) != 0 : id != uid)
            continue;
        user->uid = id;
        user->gid = group;
        snprintf(user->home, sizeof user->home, "%s", f[5]);
        return true;
    }
    return false;
}

static bool member_of(char *members, const char *name) {
    for (char *member; (member = strsep(&members, ","));)
        if (strcmp(member, name) == 0)
            return true;
    return false;
}

/* Finds one group by name, or collects those that list user_name as a member. */
static bool scan_groups(const char *group_name, const char *user_name, struct user *user) {
    AUTO_FREE char *text = read_text("/etc/group");
    char *rest = text;
    for (char *line; text && (line = strsep(&rest, "\n"));) {
        char *f[4];
        unsigned id;
        if (split(line, f, 4) < 4 || !parse_id(f[2], &id))
            continue;
        if (group_name && strcmp(f[0], group_name) == 0) {
            user->gid = id;
            return true;
        }
        if (user_name && user->group_count < USER_GROUPS_MAX && member_of(f[3], user_name))
            user->groups[user->group_count++] = id;
    }
    return !group_name;
}

static int unknown(const char *what, const char *name, struct err *err) {
    return err_set(err, ERR_FAILED_PRECONDITION, SANDLOT__V1__ERROR_REASON__ERROR_REASON_USER_NOT_FOUND,
                   "the sandbox has no %s \"%s\"", what, name);
}

int user_lookup(const char *spec, struct user *ret, struct err *err) {
    struct user user = {.home = "/root"};
    char text[128];
    if (snprintf(text, sizeof text, "%s", spec) >= (int)sizeof text)
        return unknown("user", "(a name over 127 bytes)", err);
    char *group = strchr(text, ':');
    if (group)
        *group++ = '\0';
    if (text[0]) {
        unsigned id;
        bool numeric = parse_id(text, &id);
        if (!find_passwd(numeric ? NULL : text, numeric ? id : 0, &user)) {
            if (!numeric)
                return unknown("user", text, err);
            user = (struct user){.uid = id, .gid = id, .home = "/"};
        }
        if (!numeric)
            scan_groups(NULL, text, &user);
    }
    if (group) {
        unsigned id;
        if (parse_id(group, &id))
            user.gid = id;
        else if (!scan_groups(group, NULL, &user))
            return unknown("group", group, err);
    }
    *ret = user;
    return 0;
}
