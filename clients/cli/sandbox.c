/* create, destroy, get, ls, info. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/cli.h"

#define ENTRIES_MAX 256

enum {
    LONG_LABEL = 2000,
    LONG_PORT,
    LONG_MEMORY,
    LONG_PIDS,
    LONG_CPU,
    LONG_DISK,
    LONG_ROLLOUT,
    LONG_REQUEST_ID,
    LONG_IMAGE,
    LONG_TTL,
    LONG_WORKDIR,
    LONG_HOLDER
};

struct create_arguments {
    struct sandlot_create_opts opts;
    const char *env[ENTRIES_MAX + 1], *labels[ENTRIES_MAX + 1];
    uint32_t ports[64];
    size_t env_count, label_count;
    const char *out;
};

static int take_number(const char *option, const char *text, double max, double *ret) {
    char *end;
    *ret = strtod(text, &end);
    if (end != text && !*end && *ret > 0 && *ret <= max)
        return 0;
    usage_error("create", "%s: \"%s\" is not a number in range", option, text);
    return -1;
}

static int take_create_option(struct create_arguments *arguments, int letter, const char *value) {
    struct sandlot_create_opts *opts = &arguments->opts;
    double number = 0;
    int rc = 0;
    switch (letter) {
    case 'o': arguments->out = value; break;
    case 'e':
        if (arguments->env_count < ENTRIES_MAX)
            arguments->env[arguments->env_count++] = value;
        break;
    case LONG_LABEL:
        if (arguments->label_count < ENTRIES_MAX)
            arguments->labels[arguments->label_count++] = value;
        break;
    case LONG_PORT:
        rc = take_number("--port", value, 65535, &number);
        if (opts->port_count < 64)
            arguments->ports[opts->port_count++] = (uint32_t)number;
        break;
    case LONG_MEMORY:
        rc = take_number("--memory", value, 1e15, &number);
        opts->memory_bytes = (uint64_t)number;
        break;
    case LONG_PIDS:
        rc = take_number("--pids", value, 4e6, &number);
        opts->pids = (uint32_t)number;
        break;
    case LONG_CPU: rc = take_number("--cpu", value, 1024, &opts->cpu); break;
    case LONG_TTL: rc = parse_seconds("create", "--ttl", value, &opts->ttl); break;
    case LONG_DISK: opts->layer_on_disk = 1; break;
    case LONG_ROLLOUT: opts->rollout_id = value; break;
    case LONG_REQUEST_ID: opts->request_id = value; break;
    case LONG_IMAGE: opts->image = value; break;
    case LONG_WORKDIR: opts->workdir = value; break;
    case LONG_HOLDER: opts->holder = value; break;
    default: rc = -1; break;
    }
    return rc;
}

static int create_into(struct globals *globals, struct create_arguments *arguments) {
    struct sandlot_client *client;
    struct sandlot_sandbox *sandbox;
    struct sandlot_error err = {0}, ignored;
    if (open_client(globals, &client) < 0)
        return EXIT_SANDLOT;
    int code = 0;
    if (sandlot_create(client, &arguments->opts, &sandbox, &err) < 0) {
        code = report(&err);
    } else {
        if (write_file_atomically(arguments->out, sandlot_descriptor(sandbox)) < 0) {
            sandlot_destroy(sandbox, &ignored); /* nobody could ever end it */
            code = EXIT_SANDLOT;
        } else if (strcmp(arguments->out, "-") != 0) {
            if (globals->json)
                printf("{\"id\": \"%s\", \"scope\": \"owner\"}\n", sandlot_id(sandbox));
            else
                printf("%s\n", sandlot_id(sandbox));
        }
        sandlot_close(sandbox);
    }
    sandlot_client_close(client);
    return code;
}

int command_create(struct globals *globals, int argc, char **argv) {
    static const struct option_spec specs[] = {
        {'o', "output", true},
        {'e', "env", true},
        {LONG_LABEL, "label", true},
        {LONG_PORT, "port", true},
        {LONG_MEMORY, "memory", true},
        {LONG_PIDS, "pids", true},
        {LONG_CPU, "cpu", true},
        {LONG_DISK, "disk", false},
        {LONG_ROLLOUT, "rollout", true},
        {LONG_REQUEST_ID, "request-id", true},
        {LONG_IMAGE, "image", true},
        {LONG_TTL, "ttl", true},
        {LONG_WORKDIR, "workdir", true},
        {LONG_HOLDER, "holder", true},
        {0, NULL, false},
    };
    struct create_arguments arguments = {.out = NULL};
    int index = 1;
    const char *value;
    for (int letter; (letter = next_option(globals, specs, argc, argv, &index, &value)) != 0;)
        if (letter < 0 || take_create_option(&arguments, letter, value) < 0)
            return EXIT_SANDLOT;
    if (index < argc)
        return usage_error("create", "what is \"%s\"?", argv[index]);
    if (!arguments.out)
        return usage_error("create", "-o FILE is needed: without the descriptor nobody can use the sandbox");
    arguments.opts.env = arguments.env;
    arguments.opts.labels = arguments.labels;
    arguments.opts.ports = arguments.ports;
    return create_into(globals, &arguments);
}

/* ---- -s FILE and nothing else ---- */

static const struct option_spec only_sandbox[] = {{'s', "sandbox", true}, {0, NULL, false}};

/* The file, or NULL with the usage printed. */
static const char *take_sandbox(struct globals *globals, int argc, char **argv) {
    const char *file = NULL, *value;
    int index = 1;
    for (int letter; (letter = next_option(globals, only_sandbox, argc, argv, &index, &value)) != 0;) {
        if (letter < 0)
            return NULL;
        file = value;
    }
    if (index < argc || !file) {
        usage_error(argv[0], index < argc ? "what is \"%s\"?" : "-s FILE is needed%s",
                    index < argc ? argv[index] : "");
        return NULL;
    }
    return file;
}

static int do_destroy(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    (void)arg;
    return sandlot_destroy(sandbox, err);
}

int command_destroy(struct globals *globals, int argc, char **argv) {
    const char *file = take_sandbox(globals, argc, argv);
    return file ? with_sandbox(globals, file, do_destroy, NULL) : EXIT_SANDLOT;
}

static int do_release(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    const struct globals *globals = arg;
    uint32_t remaining;
    if (sandlot_release(sandbox, &remaining, err) < 0)
        return -1;
    if (globals->json)
        printf("{\"live_leases\": %u}\n", remaining);
    else
        printf("released; %u live lease%s\n", remaining, remaining == 1 ? " remains" : "s remain");
    return 0;
}

int command_release(struct globals *globals, int argc, char **argv) {
    const char *file = take_sandbox(globals, argc, argv);
    return file ? with_sandbox(globals, file, do_release, globals) : EXIT_SANDLOT;
}

/* ---- Showing ---- */

static void print_json(const struct sandlot_sandbox_info *info) {
    const struct {
        const char *key, *value;
    } texts[] = {{"id", info->id},
                 {"state", info->state},
                 {"provider", info->provider},
                 {"image", info->image},
                 {"workdir", info->workdir},
                 {"rollout_id", info->rollout_id},
                 {"last_error", info->last_error}};
    printf("{");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        printf("\"%s\": ", texts[i].key);
        json_string(texts[i].value);
        printf(", ");
    }
    printf("\"create_time\": ");
    json_time(info->create_time);
    printf(", \"expire_time\": ");
    json_time(info->expire_time);
    printf(", \"live_leases\": %u, \"teardown_pending\": %s, \"ports\": [", info->live_leases,
           info->teardown_pending ? "true" : "false");
    for (size_t i = 0; i < info->port_count; i++)
        printf("%s%u", i ? ", " : "", info->ports[i]);
    printf("], \"labels\": {");
    for (char **label = info->labels; *label; label++) {
        char *equals = strchr(*label, '=');
        *equals = '\0';
        printf("%s", label == info->labels ? "" : ", ");
        json_string(*label);
        printf(": ");
        json_string(equals + 1);
        *equals = '=';
    }
    printf("}, \"memory_bytes\": %llu, \"pids\": %u}", (unsigned long long)info->memory_bytes, info->pids);
}

static int do_get(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err) {
    const struct globals *globals = arg;
    struct sandlot_sandbox_info *info;
    char expires[32];
    if (sandlot_get(sandbox, &info, err) < 0)
        return -1;
    if (globals->json) {
        print_json(info);
        printf("\n");
    } else {
        format_time(info->expire_time, expires, sizeof expires);
        printf("id        %s\nstate     %s%s\nprovider  %s\nimage     %s\nworkdir   %s\nexpires   %s\n"
               "rollout   %s\nleases    %u live\nscope     %s\n",
               info->id, info->state, info->teardown_pending ? " (teardown pending)" : "", info->provider,
               info->image, info->workdir, expires, info->rollout_id, info->live_leases,
               sandlot_scope(sandbox));
        if (*info->last_error)
            printf("error     %s\n", info->last_error);
    }
    sandlot_sandbox_info_free(info);
    return 0;
}

int command_get(struct globals *globals, int argc, char **argv) {
    const char *file = take_sandbox(globals, argc, argv);
    return file ? with_sandbox(globals, file, do_get, globals) : EXIT_SANDLOT;
}

static const struct option_spec no_options[] = {{0, NULL, false}};

static int take_nothing(struct globals *globals, int argc, char **argv) {
    const char *value;
    int index = 1;
    if (next_option(globals, no_options, argc, argv, &index, &value) < 0)
        return -1;
    if (index < argc) {
        usage_error(argv[0], "what is \"%s\"?", argv[index]);
        return -1;
    }
    return 0;
}

static void print_list(const struct globals *globals, const struct sandlot_sandbox_list *list) {
    if (globals->json) {
        printf("[");
        for (size_t i = 0; i < list->count; i++) {
            printf("%s", i ? ",\n " : "");
            print_json(&list->items[i]);
        }
        printf("]\n");
        return;
    }
    printf("%-20s %-9s %-9s %-12s %6s  %s\n", "ID", "STATE", "PROVIDER", "IMAGE", "LEASES", "EXPIRES");
    for (size_t i = 0; i < list->count; i++) {
        const struct sandlot_sandbox_info *info = &list->items[i];
        char expires[32];
        format_time(info->expire_time, expires, sizeof expires);
        printf("%-20s %-9s %-9s %-12s %6u  %s\n", info->id, info->state, info->provider, info->image,
               info->live_leases, expires);
    }
}

int command_ls(struct globals *globals, int argc, char **argv) {
    struct sandlot_client *client;
    struct sandlot_sandbox_list *list;
    struct sandlot_error err = {0};
    int code = 0;
    if (take_nothing(globals, argc, argv) < 0 || open_client(globals, &client) < 0)
        return EXIT_SANDLOT;
    if (sandlot_list(client, &list, &err) < 0) {
        code = report(&err);
    } else {
        print_list(globals, list);
        sandlot_sandbox_list_free(list);
    }
    sandlot_client_close(client);
    return code;
}

static void print_strings(const char *title, char *const *strings) {
    for (; *strings; strings++)
        printf("%-11s %s\n", title, *strings);
}

static void json_strings(char *const *strings) {
    printf("[");
    for (char *const *at = strings; *at; at++) {
        printf("%s", at == strings ? "" : ", ");
        json_string(*at);
    }
    printf("]");
}

static void print_info_json(const struct sandlot_info *info) {
    printf("{\"version\": ");
    json_string(info->version);
    printf(", \"broker_id\": ");
    json_string(info->broker_id);
    printf(", \"serving\": %s, \"user\": ", info->serving ? "true" : "false");
    json_string(info->user);
    printf(", \"endpoints\": ");
    json_strings(info->endpoints);
    printf(
        ", \"sandboxes\": %u, \"max_sandboxes\": %u, \"default_ttl\": %g, \"max_ttl\": %g, \"providers\": [",
        info->sandboxes, info->max_sandboxes, info->default_ttl, info->max_ttl);
    for (size_t i = 0; i < info->provider_count; i++) {
        printf("%s{\"name\": ", i ? ", " : "");
        json_string(info->providers[i].name);
        printf(", \"images\": ");
        json_strings(info->providers[i].images);
        printf(", \"capabilities\": ");
        json_strings(info->providers[i].capabilities);
        printf(", \"notes\": ");
        json_strings(info->providers[i].notes);
        printf("}");
    }
    printf("]}\n");
}

static void print_info(const struct sandlot_info *info) {
    printf("broker      %s (%s)\nversion     %s\nuser        %s\nsandboxes   %u of %u\nttl         %g s, at "
           "most %g s\n",
           info->broker_id, info->serving ? "serving" : "not serving", info->version, info->user,
           info->sandboxes, info->max_sandboxes, info->default_ttl, info->max_ttl);
    print_strings("endpoint", info->endpoints);
    for (size_t i = 0; i < info->provider_count; i++) {
        printf("provider    %s\n", info->providers[i].name);
        print_strings("  image", info->providers[i].images);
        print_strings("  can", info->providers[i].capabilities);
        print_strings("  note", info->providers[i].notes);
    }
}

int command_info(struct globals *globals, int argc, char **argv) {
    struct sandlot_client *client;
    struct sandlot_info *info;
    struct sandlot_error err = {0};
    int code = 0;
    if (take_nothing(globals, argc, argv) < 0 || open_client(globals, &client) < 0)
        return EXIT_SANDLOT;
    if (sandlot_get_info(client, &info, &err) < 0) {
        code = report(&err);
    } else {
        if (globals->json)
            print_info_json(info);
        else
            print_info(info);
        sandlot_info_free(info);
    }
    sandlot_client_close(client);
    return code;
}
