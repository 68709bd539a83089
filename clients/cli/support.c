#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "clients/cli/cli.h"

#define DESCRIPTOR_MAX (64 * 1024)

/* Options without a letter get numbers that no character has. */
enum { LONG_ADDRESS = 1000, LONG_JSON };

/* ---- Arguments ---- */

static const struct option_spec global_specs[] = {
    {LONG_ADDRESS, "address", true}, {LONG_JSON, "json", false}, {0, NULL, false}};

static const struct option_spec *find_option(const struct option_spec *specs, const char *word) {
    size_t name_len = strcspn(word + 2, "=");
    for (; specs->letter; specs++) {
        if (word[1] != '-') {
            if (word[1] == specs->letter)
                return specs;
        } else if (specs->name && strlen(specs->name) == name_len &&
                   strncmp(specs->name, word + 2, name_len) == 0) {
            return specs;
        }
    }
    return NULL;
}

/* The value behind "=", glued to a letter, or the next word. */
static int take_value(const struct option_spec *spec, const char *word, int argc, char **argv, int *index,
                      const char **ret) {
    const char *glued = NULL;
    if (word[1] == '-')
        glued = word[2 + strcspn(word + 2, "=")] ? strchr(word, '=') + 1 : NULL;
    else if (word[2])
        glued = word + 2;
    *ret = glued;
    if (!spec->has_value)
        return glued ? -1 : 0;
    if (!glued) {
        if (*index >= argc)
            return -1;
        *ret = argv[(*index)++];
    }
    return 0;
}

int next_option(struct globals *globals, const struct option_spec *specs, int argc, char **argv, int *index,
                const char **ret_value) {
    while (*index < argc) {
        const char *word = argv[*index];
        if (word[0] != '-' || !word[1])
            return 0;
        (*index)++;
        if (strcmp(word, "--") == 0)
            return 0;
        const struct option_spec *spec = find_option(specs, word);
        bool global = !spec;
        if (!spec)
            spec = find_option(global_specs, word);
        if (!spec)
            return usage_error(argv[0], "unknown option %s", word), -1;
        if (take_value(spec, word, argc, argv, index, ret_value) < 0)
            return usage_error(argv[0], "%s %s", word, spec->has_value ? "needs a value" : "takes no value"),
                   -1;
        if (!global)
            return spec->letter;
        if (spec->letter == LONG_ADDRESS)
            globals->address = *ret_value;
        else
            globals->json = true;
    }
    return 0;
}

int usage_error(const char *command, const char *fmt, ...) {
    va_list ap;
    const struct command *found = find_command(command);
    fprintf(stderr, "sandlot %s: ", command);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (found)
        fprintf(stderr, "\nusage: sandlot %s %s\n", found->name, found->usage);
    else
        fprintf(stderr, "\n");
    return EXIT_SANDLOT;
}

int report(const struct sandlot_error *err) {
    fprintf(stderr, "sandlot: %s", sandlot_status_name(err->status));
    if (err->reason[0])
        fprintf(stderr, " (%s)", err->reason);
    fprintf(stderr, ": %s\n", err->text);
    return EXIT_SANDLOT;
}

int parse_seconds(const char *command, const char *option, const char *text, double *ret) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value <= 0) {
        usage_error(command, "%s is a number of seconds over 0, not \"%s\"", option, text);
        return -1;
    }
    *ret = value;
    return 0;
}

/* ---- Files ---- */

char *read_file(const char *path) {
    int fd = strcmp(path, "-") == 0 ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd >= 0 ? calloc(1, DESCRIPTOR_MAX + 1) : NULL;
    size_t len = 0;
    ssize_t n = -1;
    while (text && len < DESCRIPTOR_MAX && (n = read(fd, text + len, DESCRIPTOR_MAX - len)) > 0)
        len += (size_t)n;
    if (n < 0) {
        fprintf(stderr, "sandlot: %s: %s\n", path, strerror(errno));
        free(text);
        text = NULL;
    }
    if (fd > STDIN_FILENO)
        close(fd);
    return text;
}

static int write_into(const char *path, const char *text) {
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    int rc = fd >= 0 && dprintf(fd, "%s\n", text) > 0 ? 0 : -1;
    if (rc < 0)
        fprintf(stderr, "sandlot: can't write %s: %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

int write_file_atomically(const char *path, const char *text) {
    char temporary[4200], resolved[4096];
    struct stat st;
    if (strcmp(path, "-") == 0) {
        printf("%s\n", text);
        return 0;
    }
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return write_into(path, text); /* a device or a FIFO is written to, never replaced */
    if (realpath(path, resolved))
        path = resolved; /* a link stays a link */
    snprintf(temporary, sizeof temporary, "%s.XXXXXX", path);
    int fd = mkostemp(temporary, O_CLOEXEC); /* 0600 */
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    int rc = file ? 0 : -1;
    if (file && fprintf(file, "%s\n", text) < 0)
        rc = -1;
    if (file && fclose(file) != 0)
        rc = -1;
    if (rc == 0)
        rc = rename(temporary, path);
    if (rc < 0) {
        fprintf(stderr, "sandlot: can't write %s: %s\n", path, strerror(errno));
        if (fd >= 0)
            unlink(temporary);
    }
    return rc;
}

int open_client(const struct globals *globals, struct sandlot_client **ret) {
    struct sandlot_client_opts opts = {.address = globals->address};
    struct sandlot_error err = {0};
    if (sandlot_client_open(&opts, ret, &err) < 0) {
        report(&err);
        return -1;
    }
    return 0;
}

/* ---- Handles ---- */

static int connect_for_once(struct sandlot_client *client, const char *json, work_fn work, void *arg,
                            struct sandlot_error *err) {
    struct sandlot_sandbox *connected;
    struct sandlot_error ignored;
    if (sandlot_connect(client, json, NULL, &connected, err) < 0)
        return -1;
    int rc = work(connected, arg, err);
    sandlot_release(connected, NULL, &ignored);
    sandlot_close(connected);
    return rc;
}

int with_sandbox(const struct globals *globals, const char *file, work_fn work, void *arg) {
    struct sandlot_client *client = NULL;
    struct sandlot_sandbox *sandbox = NULL;
    struct sandlot_error err = {0};
    char *json = read_file(file);
    if (!json)
        return EXIT_SANDLOT;
    int rc = globals->address && open_client(globals, &client) < 0 ? -1 : 0;
    if (rc == 0)
        rc = sandlot_open(client, json, &sandbox, &err);
    if (rc == 0)
        rc = work(sandbox, arg, &err);
    if (rc < 0 && strcmp(err.reason, "LEASE_NOT_CONNECTED") == 0)
        rc = connect_for_once(client, json, work, arg, &err);
    if (rc < 0)
        report(&err);
    sandlot_close(sandbox);
    sandlot_client_close(client);
    free(json);
    return rc < 0 ? EXIT_SANDLOT : 0;
}

/* ---- Output ---- */

void json_string(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            printf("\\u%04x", *c);
        else
            putchar(*c);
    }
    putchar('"');
}

void format_time(double unix_time, char *buffer, size_t size) {
    time_t seconds = (time_t)unix_time;
    struct tm tm;
    gmtime_r(&seconds, &tm);
    strftime(buffer, size, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

void json_time(double unix_time) {
    char text[32];
    format_time(unix_time, text, sizeof text);
    json_string(text);
}
