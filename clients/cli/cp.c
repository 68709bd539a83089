/* cp: one file in or out. The side that starts with ":" is the sandbox's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/cli/cli.h"

#define BAR_WIDTH 30

enum { LONG_MODE = 5000 };

struct copy_arguments {
    struct sandlot_transfer_opts opts;
    const char *file, *from, *to;
    int shown; /* per mille of the bar that is drawn; -1: none */
};

static void draw_bar(void *arg, uint64_t done, uint64_t total) {
    struct copy_arguments *arguments = arg;
    int now = total && total != UINT64_MAX ? (int)(done * 1000 / total) : 1000;
    if (now > 1000)
        now = 1000;
    if (now == arguments->shown)
        return;
    arguments->shown = now;
    int filled = now * BAR_WIDTH / 1000;
    fprintf(stderr, "\r[%.*s%*s] %3d %%  %.1f MiB", filled, "##############################",
            BAR_WIDTH - filled, "", now / 10, (double)done / 1048576.0);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "dir/" and existing directories take the file under its own name, as cp does. */
static char *local_target(const char *to, const char *remote) {
    struct stat st;
    size_t len = strlen(to) + strlen(remote) + 2;
    char *path = malloc(len);
    if (!path)
        abort();
    bool directory = to[strlen(to) - 1] == '/' || (stat(to, &st) == 0 && S_ISDIR(st.st_mode));
    snprintf(path, len, directory ? "%s/%s" : "%s", to, base_name(remote));
    return path;
}

static char *remote_target(const char *to, const char *local) {
    size_t len = strlen(to) + strlen(local) + 2;
    char *path = malloc(len);
    if (!path)
        abort();
    bool directory = !*to || to[strlen(to) - 1] == '/';
    snprintf(path, len, directory ? "%s%s" : "%s", to, base_name(local));
    return path;
}

static int do_copy(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    struct copy_arguments *arguments = arg;
    bool up = arguments->to[0] == ':';
    char *target = up ? remote_target(arguments->to + 1, arguments->from)
                      : local_target(arguments->to, arguments->from + 1);
    int rc = up ? sandlot_upload_file(sandbox, arguments->from, target, 0, &arguments->opts, err)
                : sandlot_download_file(sandbox, arguments->from + 1, 0, target, &arguments->opts, err);
    if (arguments->shown >= 0)
        fprintf(stderr, "\n");
    free(target);
    return rc;
}

static int parse_mode(const char *text, struct sandlot_transfer_opts *opts) {
    char *end;
    unsigned long mode = strtoul(text, &end, 8);
    if (end == text || *end || mode > 07777) {
        usage_error("cp", "--mode is octal, such as 0644, not \"%s\"", text);
        return -1;
    }
    opts->has_mode = 1;
    opts->mode = (uint32_t)mode;
    return 0;
}

/* Without --mode a new file gets the local one's permission bits, as with cp. */
static void take_local_mode(struct copy_arguments *arguments) {
    struct stat st;
    if (arguments->to[0] == ':' && stat(arguments->from, &st) == 0)
        arguments->opts.new_mode = st.st_mode & 0777;
}

int command_cp(struct globals *globals, int argc, char **argv) {
    static const struct option_spec specs[] = {
        {'s', "sandbox", true}, {LONG_MODE, "mode", true}, {0, NULL, false}};
    struct copy_arguments arguments = {.shown = -1};
    const char *words[2] = {NULL, NULL}, *value;
    int index = 1, count = 0;
    while (index < argc) {
        int letter = next_option(globals, specs, argc, argv, &index, &value);
        if (letter < 0 || (letter == LONG_MODE && parse_mode(value, &arguments.opts) < 0))
            return EXIT_SANDLOT;
        if (letter == 's')
            arguments.file = value;
        if (letter == 0 && index < argc) {
            if (count == 2)
                return usage_error("cp", "what is \"%s\"?", argv[index]);
            words[count++] = argv[index++];
        }
    }
    if (!arguments.file || count != 2)
        return usage_error("cp", "-s FILE, a source and a target are needed");
    if ((words[0][0] == ':') == (words[1][0] == ':') || !*words[0] || !*words[1])
        return usage_error("cp", "one side, and only one, starts with \":\" and is the sandbox's");
    arguments.from = words[0];
    arguments.to = words[1];
    take_local_mode(&arguments);
    if (isatty(STDERR_FILENO)) {
        arguments.opts.progress = draw_bar;
        arguments.opts.progress_arg = &arguments;
    }
    return with_sandbox(globals, arguments.file, do_copy, &arguments);
}
