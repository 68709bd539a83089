/* What the subcommands share. The tool uses nothing of Sandlot but its public header. */
#pragma once

#include <stdbool.h>

#include "clients/c/include/sandlot/sandlot.h"

#define EXIT_TIMEOUT 124
#define EXIT_SANDLOT 125

struct globals {
    const char *address; /* NULL: default, or the descriptor's */
    bool json;
};

/* One subcommand; argv[0] is its name. Returns the exit code. */
typedef int (*command_fn)(struct globals *globals, int argc, char **argv);

struct command {
    const char *name;
    const char *usage; /* arguments; shown after "sandlot NAME" */
    const char *help;
    command_fn run;
};

const struct command *find_command(const char *name);

int command_create(struct globals *globals, int argc, char **argv);
int command_exec(struct globals *globals, int argc, char **argv);
int command_cp(struct globals *globals, int argc, char **argv);
int command_serialize(struct globals *globals, int argc, char **argv);
int command_connect(struct globals *globals, int argc, char **argv);
int command_release(struct globals *globals, int argc, char **argv);
int command_destroy(struct globals *globals, int argc, char **argv);
int command_ls(struct globals *globals, int argc, char **argv);
int command_get(struct globals *globals, int argc, char **argv);
int command_leases(struct globals *globals, int argc, char **argv);
int command_revoke(struct globals *globals, int argc, char **argv);
int command_info(struct globals *globals, int argc, char **argv);

/* ---- Arguments ---- */

/* A subcommand's options: "s:" style letters and long names; unknown ones end in usage_error. */
struct option_spec {
    int letter;
    const char *name;
    bool has_value;
};

/* Walks argv like getopt, globals included. Stops at "--" or, with stop_early, at the first word that
 * is no option. Returns the letter, 0 at the end (*index: first remaining word), -1 after an error. */
int next_option(struct globals *globals, const struct option_spec *specs, int argc, char **argv, int *index,
                const char **ret_value);
int usage_error(const char *command, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints the error; returns EXIT_SANDLOT. */
int report(const struct sandlot_error *err);
/* Seconds; -1 and a message if it is no number over 0. */
int parse_seconds(const char *command, const char *option, const char *text, double *ret);

/* ---- Files and handles ---- */

char *read_file(const char *path);                             /* malloc'd; NULL: message printed */
int write_file_atomically(const char *path, const char *text); /* mode 0600; -1: message printed */
/* A client for the address, or the default one. */
int open_client(const struct globals *globals, struct sandlot_client **ret);

/* A handle from a descriptor file. Work on it through `work`: if the file turns out to be a lent one
 * that was never connected, it is connected for this one command and released after it. */
typedef int (*work_fn)(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err);
/* Exit code: 0, or EXIT_SANDLOT with the error reported. */
int with_sandbox(const struct globals *globals, const char *file, work_fn work, void *arg);

/* ---- Output ---- */

void json_string(const char *text); /* quoted and escaped, to stdout */
void json_time(double unix_time);
void format_time(double unix_time, char *buffer, size_t size);
