/* exec: the command's output, then its exit code. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/cli/cli.h"

#define ENV_MAX 1024
#define STDIN_MAX (1024 * 1024)

enum { LONG_TIMEOUT = 4000 };

struct exec_arguments {
    struct sandlot_exec_opts opts;
    const char *file;
    const char *env[ENV_MAX + 1];
    size_t env_count;
    bool read_stdin;
    const struct globals *globals;
    int exit_code;
};

static int write_all(FILE *out, const char *bytes, size_t len) {
    return len && fwrite(bytes, 1, len, out) != len ? -1 : fflush(out);
}

static void print_result_json(const struct sandlot_exec_result *result) {
    printf("{\"exec_id\": ");
    json_string(result->exec_id);
    printf(", \"exit_code\": %d, \"signal\": %d, \"error_type\": ", result->exit_code, result->signal);
    if (result->error_type)
        json_string(result->error_type);
    else
        printf("null");
    printf(", \"message\": ");
    json_string(result->message);
    printf(
        ", \"timed_out\": %s, \"output_held_open\": %s, \"stdout_truncated\": %s, \"stderr_truncated\": %s",
        result->timed_out ? "true" : "false", result->output_held_open ? "true" : "false",
        result->stdout_truncated ? "true" : "false", result->stderr_truncated ? "true" : "false");
    printf(", \"stdout_total_bytes\": %llu, \"stderr_total_bytes\": %llu, \"duration\": %.6f",
           (unsigned long long)result->stdout_total, (unsigned long long)result->stderr_total,
           result->duration);
    printf(", \"stdout\": ");
    json_string(result->stdout_data);
    printf(", \"stderr\": ");
    json_string(result->stderr_data);
    printf("}\n");
}

static void print_cut(const char *name, uint64_t total, size_t shown) {
    fprintf(stderr, "sandlot: %s was cut: %zu of %llu bytes are shown\n", name, shown,
            (unsigned long long)total);
}

static void print_result(const struct sandlot_exec_result *result) {
    if (write_all(stdout, result->stdout_data, result->stdout_len) < 0)
        fprintf(stderr, "sandlot: can't write the output: %s\n", strerror(errno));
    write_all(stderr, result->stderr_data, result->stderr_len);
    if (result->stdout_truncated)
        print_cut("stdout", result->stdout_total, result->stdout_len);
    if (result->stderr_truncated)
        print_cut("stderr", result->stderr_total, result->stderr_len);
    if (*result->message)
        fprintf(stderr, "sandlot: %s\n", result->message);
}

static int do_exec(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    struct exec_arguments *arguments = arg;
    struct sandlot_exec_result *result;
    if (sandlot_exec(sandbox, &arguments->opts, &result, err) < 0)
        return -1;
    if (arguments->globals->json)
        print_result_json(result);
    else
        print_result(result);
    arguments->exit_code = result->timed_out ? EXIT_TIMEOUT : result->exit_code;
    sandlot_exec_result_free(result);
    return 0;
}

/* NULL: too much, or unreadable; told. */
static char *read_stdin(size_t *ret_len) {
    char *bytes = malloc(STDIN_MAX + 1);
    size_t len = 0;
    ssize_t n = 0;
    while (bytes && len <= STDIN_MAX && (n = read(STDIN_FILENO, bytes + len, STDIN_MAX + 1 - len)) > 0)
        len += (size_t)n;
    if (!bytes || n < 0 || len > STDIN_MAX) {
        fprintf(stderr, len > STDIN_MAX ? "sandlot: standard input is over 1 MiB; copy a file instead\n"
                                        : "sandlot: can't read standard input\n");
        free(bytes);
        return NULL;
    }
    *ret_len = len;
    return bytes;
}

static int take_option(struct exec_arguments *arguments, int letter, const char *value) {
    switch (letter) {
    case 's': arguments->file = value; return 0;
    case 'w': arguments->opts.cwd = value; return 0;
    case 'u': arguments->opts.user = value; return 0;
    case 'i': arguments->read_stdin = true; return 0;
    case 'e':
        if (arguments->env_count < ENV_MAX)
            arguments->env[arguments->env_count++] = value;
        return 0;
    case LONG_TIMEOUT: return parse_seconds("exec", "--timeout", value, &arguments->opts.timeout);
    default: return -1;
    }
}

int command_exec(struct globals *globals, int argc, char **argv) {
    static const struct option_spec specs[] = {
        {'s', "sandbox", true},      {'w', "workdir", true},          {'u', "user", true}, {'e', "env", true},
        {'i', "interactive", false}, {LONG_TIMEOUT, "timeout", true}, {0, NULL, false},
    };
    struct exec_arguments arguments = {.opts = {.timeout = -1}, .globals = globals};
    int index = 1;
    const char *value;
    for (int letter; (letter = next_option(globals, specs, argc, argv, &index, &value)) != 0;)
        if (letter < 0 || take_option(&arguments, letter, value) < 0)
            return EXIT_SANDLOT;
    if (!arguments.file || index >= argc)
        return usage_error("exec", "-s FILE and a command are needed");
    arguments.opts.argv = (const char *const *)(argv + index);
    arguments.opts.env = arguments.env;
    char *input = NULL;
    if (arguments.read_stdin) {
        input = read_stdin(&arguments.opts.stdin_len);
        if (!input)
            return EXIT_SANDLOT;
        arguments.opts.stdin_data = input;
    }
    int code = with_sandbox(globals, arguments.file, do_exec, &arguments);
    free(input);
    return code ? code : arguments.exit_code;
}
