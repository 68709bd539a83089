/* serialize, connect, leases, revoke. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"

enum { LONG_SCOPE = 3000, LONG_TTL, LONG_HOLDER, LONG_OTHER_HOST };

struct lease_arguments {
    struct sandlot_serialize_opts opts;
    const char *file, *out, *holder, *word;
    const struct globals *globals;
};

static const struct option_spec specs[] = {
    {'s', "sandbox", true},  {'o', "output", true},         {LONG_SCOPE, "scope", true},
    {LONG_TTL, "ttl", true}, {LONG_HOLDER, "holder", true}, {LONG_OTHER_HOST, "other-host", false},
    {0, NULL, false},
};

/* Options and at most `words` plain words (0 or 1), in any order. */
static int parse(struct globals *globals, int argc, char **argv, int words, struct lease_arguments *ret) {
    int index = 1;
    const char *value;
    *ret = (struct lease_arguments){.globals = globals};
    while (index < argc) {
        int letter = next_option(globals, specs, argc, argv, &index, &value);
        switch (letter) {
        case 0:
            if (index < argc && (ret->word || words == 0)) {
                usage_error(argv[0], "what is \"%s\"?", argv[index]);
                return -1;
            }
            if (index < argc)
                ret->word = argv[index++];
            break;
        case 's': ret->file = value; break;
        case 'o': ret->out = value; break;
        case LONG_SCOPE: ret->opts.scope = value; break;
        case LONG_HOLDER: ret->opts.holder = ret->holder = value; break;
        case LONG_OTHER_HOST: ret->opts.for_other_host = 1; break;
        case LONG_TTL:
            if (parse_seconds(argv[0], "--ttl", value, &ret->opts.ttl) < 0)
                return -1;
            break;
        default: return -1;
        }
    }
    return 0;
}

/* ---- serialize ---- */

static int do_serialize(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    const struct lease_arguments *arguments = arg;
    char *json;
    if (sandlot_serialize(sandbox, &arguments->opts, &json, err) < 0)
        return -1;
    int rc = write_file_atomically(arguments->out, json);
    sandlot_string_free(json);
    if (rc < 0) {
        err->status = 13;
        snprintf(err->text, sizeof err->text, "the descriptor could not be stored; it expires unused");
    }
    return rc;
}

int command_serialize(struct globals *globals, int argc, char **argv) {
    struct lease_arguments arguments;
    if (parse(globals, argc, argv, 0, &arguments) < 0)
        return EXIT_SANDLOT;
    if (!arguments.file || !arguments.out)
        return usage_error("serialize", "-s FILE and -o FILE are needed");
    return with_sandbox(globals, arguments.file, do_serialize, &arguments);
}

/* ---- connect ---- */

int command_connect(struct globals *globals, int argc, char **argv) {
    struct lease_arguments arguments;
    struct sandlot_client *client = NULL;
    struct sandlot_sandbox *sandbox;
    struct sandlot_error err = {0};
    if (parse(globals, argc, argv, 1, &arguments) < 0)
        return EXIT_SANDLOT;
    if (!arguments.word || !arguments.out)
        return usage_error("connect", "the lent FILE and -o FILE are needed");
    char *json = read_file(arguments.word);
    if (!json)
        return EXIT_SANDLOT;
    int code = globals->address && open_client(globals, &client) < 0 ? EXIT_SANDLOT : 0;
    if (code == 0 && sandlot_connect(client, json, arguments.holder, &sandbox, &err) < 0) {
        code = report(&err);
    } else if (code == 0) {
        if (write_file_atomically(arguments.out, sandlot_descriptor(sandbox)) < 0) {
            sandlot_release(sandbox, NULL, &err);
            code = EXIT_SANDLOT;
        } else if (strcmp(arguments.out, "-") != 0) {
            printf(globals->json ? "{\"id\": \"%s\", \"scope\": \"%s\"}\n" : "%s (scope %s)\n",
                   sandlot_id(sandbox), sandlot_scope(sandbox));
        }
        sandlot_close(sandbox);
    }
    sandlot_client_close(client);
    free(json);
    return code;
}

/* ---- leases, revoke ---- */

static void print_lease_json(const struct sandlot_lease_info *lease) {
    const struct {
        const char *key, *value;
    } texts[] = {{"id", lease->id},     {"parent_id", lease->parent_id}, {"scope", lease->scope},
                 {"kind", lease->kind}, {"state", lease->state},         {"holder", lease->holder}};
    printf("{");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        printf("\"%s\": ", texts[i].key);
        json_string(texts[i].value);
        printf(", ");
    }
    printf("\"create_time\": ");
    json_time(lease->create_time);
    printf(", \"expire_time\": ");
    json_time(lease->expire_time);
    printf("}");
}

static int do_leases(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    const struct lease_arguments *arguments = arg;
    struct sandlot_lease_list *list;
    if (sandlot_leases(sandbox, &list, err) < 0)
        return -1;
    if (arguments->globals->json) {
        printf("[");
        for (size_t i = 0; i < list->count; i++) {
            printf("%s", i ? ",\n " : "");
            print_lease_json(&list->items[i]);
        }
        printf("]\n");
    } else {
        printf("%-20s %-8s %-10s %-8s %-20s %-20s %s\n", "ID", "SCOPE", "KIND", "STATE", "PARENT", "EXPIRES",
               "HOLDER");
        for (size_t i = 0; i < list->count; i++) {
            const struct sandlot_lease_info *lease = &list->items[i];
            char expires[32];
            format_time(lease->expire_time, expires, sizeof expires);
            printf("%-20s %-8s %-10s %-8s %-20s %-20s %s\n", lease->id, lease->scope, lease->kind,
                   lease->state, *lease->parent_id ? lease->parent_id : "-", expires, lease->holder);
        }
    }
    sandlot_lease_list_free(list);
    return 0;
}

int command_leases(struct globals *globals, int argc, char **argv) {
    struct lease_arguments arguments;
    if (parse(globals, argc, argv, 0, &arguments) < 0)
        return EXIT_SANDLOT;
    if (!arguments.file)
        return usage_error("leases", "-s FILE is needed");
    return with_sandbox(globals, arguments.file, do_leases, &arguments);
}

static int do_revoke(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    const struct lease_arguments *arguments = arg;
    uint32_t count;
    if (sandlot_revoke(sandbox, arguments->word, &count, err) < 0)
        return -1;
    if (arguments->globals->json)
        printf("{\"revoked\": %u}\n", count);
    else
        printf("revoked %u lease%s\n", count, count == 1 ? "" : "s");
    return 0;
}

int command_revoke(struct globals *globals, int argc, char **argv) {
    struct lease_arguments arguments;
    if (parse(globals, argc, argv, 1, &arguments) < 0)
        return EXIT_SANDLOT;
    if (!arguments.file || !arguments.word)
        return usage_error("revoke", "-s FILE and the LEASE's id are needed");
    return with_sandbox(globals, arguments.file, do_revoke, &arguments);
}
