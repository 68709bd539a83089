/* sandlot: the command line. Exit codes: the command's own for exec; 124 its time was up; 125 an error
 * of Sandlot or of the usage; 126, 127 and 128+N as a shell has them. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "clients/cli/cli.h"

static const struct command commands[] = {
    {"create",
     "[--image I] [--ttl S] [--workdir D] [-e K=V]... [--label K=V]... [--port P]... "
     "[--memory BYTES] [--pids N] [--cpu C] [--disk] [--rollout R] [--request-id ID] -o FILE",
     "make a sandbox; FILE gets the owner's descriptor", command_create},
    {"exec", "-s FILE [-w DIR] [-e K=V]... [-u USER] [--timeout S] [-i] -- CMD ARG...", "run a command in it",
     command_exec},
    {"cp", "-s FILE [--mode OCTAL] LOCAL :REMOTE  |  -s FILE :REMOTE LOCAL", "copy a file in or out",
     command_cp},
    {"serialize", "-s FILE [--scope observe|operate|owner] [--ttl S] [--holder NAME] [--other-host] -o FILE",
     "mint a lease to lend", command_serialize},
    {"connect", "LENT [--holder NAME] -o FILE", "turn a lent descriptor into one of your own",
     command_connect},
    {"release", "-s FILE", "give your lease back", command_release},
    {"destroy", "-s FILE", "end the sandbox (owner)", command_destroy},
    {"ls", "", "list your sandboxes", command_ls},
    {"get", "-s FILE", "show the sandbox", command_get},
    {"leases", "-s FILE", "list the sandbox's leases (owner)", command_leases},
    {"revoke", "-s FILE LEASE", "end a lease and all minted from it (owner)", command_revoke},
    {"info", "", "show the broker", command_info},
};

#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

const struct command *find_command(const char *name) {
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_help(FILE *out) {
    fprintf(out, "usage: sandlot [--address ADDRESS] [--json] COMMAND ...\n\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-10s %s\n             %s\n", commands[i].name, commands[i].usage, commands[i].help);
    fprintf(out, "\nADDRESS is unix:/PATH or HOST:PORT; else $SANDLOT_ADDRESS, else the default socket.\n"
                 "FILE may be - for standard input or output.\n");
}

int main(int argc, char **argv) {
    static const struct option_spec specs[] = {
        {'h', "help", false}, {'V', "version", false}, {0, NULL, false}};
    struct globals globals = {0};
    int index = 1;
    const char *value;
    signal(SIGPIPE, SIG_IGN);
    argv[0] = (char *)(size_t) "";
    for (int letter; (letter = next_option(&globals, specs, argc, argv, &index, &value)) != 0;) {
        if (letter < 0)
            return EXIT_SANDLOT;
        if (letter == 'V')
            printf("sandlot %s\n", sandlot_version());
        else
            print_help(stdout);
        return 0;
    }
    if (index >= argc) {
        print_help(stderr);
        return EXIT_SANDLOT;
    }
    const struct command *command = find_command(argv[index]);
    if (!command) {
        fprintf(stderr, "sandlot: no command \"%s\"; sandlot --help lists them\n", argv[index]);
        return EXIT_SANDLOT;
    }
    int code = command->run(&globals, argc - index, argv + index);
    if (fflush(stdout) != 0 && code == 0) {
        fprintf(stderr, "sandlot: can't write the output\n");
        code = EXIT_SANDLOT;
    }
    return code;
}
