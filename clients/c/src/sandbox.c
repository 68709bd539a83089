/* Making, looking at and ending sandboxes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/c/src/errors.h"
#include "clients/c/src/handle.h"
#include "clients/c/src/lists.h"
#include "common/cleanup.h"
#include "common/xalloc.h"
#include "sandlot/v1/sandbox.pb-c.h"

#define NOT_FOUND 5
#define DEADLINE_EXCEEDED 4
#define PAGE_SIZE 500

/* ---- Create ---- */

/* Everything a request points at. */
struct create_request {
    Sandlot__V1__CreateSandboxRequest message;
    Sandlot__V1__Resources resources;
    Google__Protobuf__Duration ttl;
    Sandlot__V1__CreateSandboxRequest__EnvEntry *env;
    Sandlot__V1__CreateSandboxRequest__LabelsEntry *labels;
    Sandlot__V1__InitialFile *files;
};

static int add_env(struct create_request *request, const char *const *env, struct sandlot_error *err) {
    size_t n = strings_count(env);
    request->env = xcalloc(n, sizeof *request->env);
    request->message.env = xcalloc(n, sizeof *request->message.env);
    for (size_t i = 0; i < n; i++) {
        sandlot__v1__create_sandbox_request__env_entry__init(&request->env[i]);
        if (pair_split(env[i], &request->env[i].key, &request->env[i].value, err) < 0)
            return -1;
        request->message.env[request->message.n_env++] = &request->env[i];
    }
    return 0;
}

static int add_labels(struct create_request *request, const char *const *labels, struct sandlot_error *err) {
    size_t n = strings_count(labels);
    request->labels = xcalloc(n, sizeof *request->labels);
    request->message.labels = xcalloc(n, sizeof *request->message.labels);
    for (size_t i = 0; i < n; i++) {
        sandlot__v1__create_sandbox_request__labels_entry__init(&request->labels[i]);
        if (pair_split(labels[i], &request->labels[i].key, &request->labels[i].value, err) < 0)
            return -1;
        request->message.labels[request->message.n_labels++] = &request->labels[i];
    }
    return 0;
}

static void add_files(struct create_request *request, const struct sandlot_create_opts *opts) {
    request->files = xcalloc(opts->file_count, sizeof *request->files);
    request->message.files = xcalloc(opts->file_count, sizeof *request->message.files);
    for (size_t i = 0; i < opts->file_count; i++) {
        const struct sandlot_file *from = &opts->files[i];
        Sandlot__V1__InitialFile *file = &request->files[i];
        sandlot__v1__initial_file__init(file);
        file->path.data = (uint8_t *)(uintptr_t)from->path;
        file->path.len = from->path_len ? from->path_len : strlen(from->path);
        file->content.data = (uint8_t *)(uintptr_t)from->content;
        file->content.len = from->content_len;
        if (from->mode) {
            file->mode_presence_case = SANDLOT__V1__INITIAL_FILE__MODE_PRESENCE_MODE;
            file->mode = (uint32_t)from->mode;
        }
        request->message.files[request->message.n_files++] = file;
    }
}

static int fill(struct create_request *request, const struct sandlot_create_opts *opts,
                struct sandlot_error *err) {
    Sandlot__V1__CreateSandboxRequest *message = &request->message;
    sandlot__v1__create_sandbox_request__init(message);
    sandlot__v1__resources__init(&request->resources);
    message->request_id = text_or_empty(opts->request_id);
    message->provider = text_or_empty(opts->provider);
    message->image = text_or_empty(opts->image);
    message->workdir = text_or_empty(opts->workdir);
    message->rollout_id = text_or_empty(opts->rollout_id);
    message->holder = text_or_empty(opts->holder);
    message->n_ports = opts->port_count;
    message->ports = (uint32_t *)(uintptr_t)opts->ports;
    message->layer =
        opts->layer_on_disk ? SANDLOT__V1__LAYER__LAYER_DISK : SANDLOT__V1__LAYER__LAYER_UNSPECIFIED;
    if (opts->ttl != 0) {
        if (!(opts->ttl > 0 && opts->ttl < 1e12))
            return error_set(err, 3, "INVALID_REQUEST", "ttl must be a positive number of seconds");
        duration_set(&request->ttl, opts->ttl);
        message->expiration_case = SANDLOT__V1__CREATE_SANDBOX_REQUEST__EXPIRATION_TTL;
        message->ttl = &request->ttl;
    }
    request->resources.memory_bytes = opts->memory_bytes;
    request->resources.layer_bytes = opts->layer_bytes;
    request->resources.pids = opts->pids;
    request->resources.cpu = opts->cpu;
    message->resources = &request->resources;
    add_files(request, opts);
    if (add_env(request, opts->env, err) < 0)
        return -1;
    return add_labels(request, opts->labels, err);
}

static void create_request_fini(struct create_request *request) {
    for (size_t i = 0; i < request->message.n_env; i++)
        free(request->env[i].key);
    for (size_t i = 0; i < request->message.n_labels; i++)
        free(request->labels[i].key);
    free(request->env);
    free(request->labels);
    free(request->files);
    free(request->message.env);
    free(request->message.labels);
    free(request->message.files);
}

int sandlot_create(struct sandlot_client *client, const struct sandlot_create_opts *opts,
                   struct sandlot_sandbox **ret, struct sandlot_error *err) {
    static const struct sandlot_create_opts defaults;
    CLEANUP(create_request_fini) struct create_request request = {.env = NULL};
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    if (!opts)
        opts = &defaults;
    if (fill(&request, opts, err) < 0)
        return -1;
    struct rpc_opts rpc = {.method = "/sandlot.v1.SandboxService/CreateSandbox",
                           .timeout = opts->timeout != 0 ? opts->timeout : client->timeout};
    if (rpc_unary(client->channel, &rpc, &request.message.base,
                  &sandlot__v1__create_sandbox_response__descriptor, &arena, &message, err) < 0)
        return -1;
    const Sandlot__V1__CreateSandboxResponse *response = (const void *)message;
    if (handle_make(client, NULL, response->descriptor_json, ret, err) < 0)
        return -1;
    (*ret)->created = 1;
    return 0;
}

/* The setup's error stays the one that is told; a failed destruction is added to its text. */
static void unwind(struct sandlot_sandbox *sandbox, struct sandlot_error *err) {
    struct sandlot_error stop = {0};
    sandbox->deadline = 0;
    if (sandlot_destroy(sandbox, &stop) < 0 && err) {
        size_t used = strlen(err->text);
        snprintf(err->text + used, sizeof err->text - used,
                 " (and the sandbox %s could not be destroyed yet: %.200s)", sandlot_id(sandbox), stop.text);
    }
    sandlot_close(sandbox);
}

int sandlot_start_with_setup(struct sandlot_client *client, const struct sandlot_create_opts *opts,
                             sandlot_setup_fn setup, void *arg, double setup_timeout,
                             struct sandlot_sandbox **ret, struct sandlot_error *err) {
    struct sandlot_error setup_err = {0};
    struct sandlot_sandbox *sandbox;
    if (sandlot_create(client, opts, &sandbox, err) < 0)
        return -1;
    if (setup_timeout > 0)
        sandbox->deadline = monotonic_seconds() + setup_timeout;
    int rc = setup(sandbox, arg, &setup_err);
    if (rc < 0 && setup_err.status == 0)
        error_set(&setup_err, 10, "SETUP_FAILED", "the setup failed");
    if (rc == 0 && sandbox->deadline > 0 && monotonic_seconds() > sandbox->deadline)
        rc = error_set(&setup_err, DEADLINE_EXCEEDED, "SETUP_FAILED", "the setup took over %g s",
                       setup_timeout);
    sandbox->deadline = 0;
    if (rc == 0) {
        *ret = sandbox;
        return 0;
    }
    unwind(sandbox, &setup_err);
    if (err)
        *err = setup_err;
    return -1;
}

/* ---- End ---- */

int sandlot_destroy(struct sandlot_sandbox *sandbox, struct sandlot_error *err) {
    Sandlot__V1__DestroySandboxRequest request = SANDLOT__V1__DESTROY_SANDBOX_REQUEST__INIT;
    struct rpc_opts rpc = handle_rpc(sandbox, "/sandlot.v1.SandboxService/DestroySandbox", 0);
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    struct sandlot_error own = {0};
    if (rpc_unary(sandbox->client->channel, &rpc, &request.base,
                  &sandlot__v1__destroy_sandbox_response__descriptor, &arena, &message, &own) == 0 ||
        own.status == NOT_FOUND)
        return 0;
    if (err)
        *err = own;
    return -1;
}

int sandlot_stop(struct sandlot_sandbox *sandbox, struct sandlot_error *err) {
    if (strcmp(sandbox->descriptor.scope, "owner") == 0)
        return sandlot_destroy(sandbox, err);
    return sandlot_release(sandbox, NULL, err);
}

/* ---- Looking ---- */

static const char *state_text(Sandlot__V1__SandboxState state) {
    static const char *const names[] = {"unknown", "starting", "running", "paused",
                                        "stopped", "error",    "unknown"};
    return state >= 0 && state < (int)ARRAY_LEN(names) ? names[state] : "unknown";
}

static void fill_info(struct sandlot_sandbox_info *info, const Sandlot__V1__Sandbox *from) {
    info->id = xstrdup(from->id);
    info->state = xstrdup(state_text(from->state));
    info->provider = xstrdup(from->provider);
    info->image = xstrdup(from->image);
    info->workdir = xstrdup(from->workdir);
    info->rollout_id = xstrdup(from->rollout_id);
    info->last_error = xstrdup(from->last_error);
    info->create_time = timestamp_seconds(from->create_time);
    info->expire_time = timestamp_seconds(from->expire_time);
    info->live_leases = from->live_leases;
    info->teardown_pending = from->teardown_pending;
    info->port_count = from->n_ports;
    info->ports = xmemdup(from->ports, from->n_ports * sizeof *from->ports);
    info->labels = xcalloc(from->n_labels + 1, sizeof *info->labels);
    for (size_t i = 0; i < from->n_labels; i++)
        info->labels[i] = xasprintf("%s=%s", from->labels[i]->key, from->labels[i]->value);
    if (from->resources) {
        info->memory_bytes = from->resources->memory_bytes;
        info->pids = from->resources->pids;
    }
}

static void info_fini(struct sandlot_sandbox_info *info) {
    char *texts[] = {info->id,      info->state,      info->provider,  info->image,
                     info->workdir, info->rollout_id, info->last_error};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free(texts[i]);
    free(info->ports);
    strings_free(info->labels);
}

int sandlot_get(struct sandlot_sandbox *sandbox, struct sandlot_sandbox_info **ret,
                struct sandlot_error *err) {
    Sandlot__V1__GetSandboxRequest request = SANDLOT__V1__GET_SANDBOX_REQUEST__INIT;
    struct rpc_opts rpc = handle_rpc(sandbox, "/sandlot.v1.SandboxService/GetSandbox", 0);
    AUTO_ARENA struct arena *arena = NULL;
    const ProtobufCMessage *message;
    if (rpc_unary(sandbox->client->channel, &rpc, &request.base,
                  &sandlot__v1__get_sandbox_response__descriptor, &arena, &message, err) < 0)
        return -1;
    const Sandlot__V1__GetSandboxResponse *response = (const void *)message;
    if (!response->sandbox)
        return error_set(err, 13, "", "the broker answered without a sandbox");
    *ret = xcalloc(1, sizeof **ret);
    fill_info(*ret, response->sandbox);
    return 0;
}

void sandlot_sandbox_info_free(struct sandlot_sandbox_info *info) {
    if (!info)
        return;
    info_fini(info);
    free(info);
}

static int append_page(struct sandlot_sandbox_list *list, const Sandlot__V1__ListSandboxesResponse *page) {
    size_t total = list->count + page->n_sandboxes;
    struct sandlot_sandbox_info *items = realloc(list->items, (total + 1) * sizeof *items);
    if (!items)
        abort();
    list->items = items;
    memset(items + list->count, 0, (page->n_sandboxes + 1) * sizeof *items);
    for (size_t i = 0; i < page->n_sandboxes; i++)
        fill_info(&items[list->count++], page->sandboxes[i]);
    return *page->next_page_token != '\0';
}

int sandlot_list(struct sandlot_client *client, struct sandlot_sandbox_list **ret,
                 struct sandlot_error *err) {
    struct sandlot_sandbox_list *list = xcalloc(1, sizeof *list);
    AUTO_FREE char *token = xstrdup("");
    for (int more = 1; more;) {
        Sandlot__V1__ListSandboxesRequest request = SANDLOT__V1__LIST_SANDBOXES_REQUEST__INIT;
        struct rpc_opts rpc = {.method = "/sandlot.v1.SandboxService/ListSandboxes",
                               .timeout = client->timeout};
        AUTO_ARENA struct arena *arena = NULL;
        const ProtobufCMessage *message;
        request.page_size = PAGE_SIZE;
        request.page_token = token;
        if (rpc_unary(client->channel, &rpc, &request.base, &sandlot__v1__list_sandboxes_response__descriptor,
                      &arena, &message, err) < 0) {
            sandlot_sandbox_list_free(list);
            return -1;
        }
        const Sandlot__V1__ListSandboxesResponse *page = (const void *)message;
        more = append_page(list, page);
        free(token);
        token = xstrdup(page->next_page_token);
    }
    *ret = list;
    return 0;
}

void sandlot_sandbox_list_free(struct sandlot_sandbox_list *list) {
    if (!list)
        return;
    for (size_t i = 0; i < list->count; i++)
        info_fini(&list->items[i]);
    free(list->items);
    free(list);
}
