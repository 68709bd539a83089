/* The moves of one sandbox (diagram in sandbox.h). Callbacks store what happened and call the next
 * step; only the steps here change the state. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker/link/file_stream.h"
#include "broker/sandbox/record.h"
#include "broker/sandbox/registry_internal.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "sandlot/agent/v1/agent.pb-c.h"
#include "sandlot/v1/errors.pb-c.h"

#define RETRY_FIRST_MS 500
#define RETRY_MAX_MS 60000
#define EXPIRY_LOOK_MS 60000
#define REASON(name) SANDLOT__V1__ERROR_REASON__ERROR_REASON_##name

static const char *const states[] = {"recording", "starting", "preparing", "running", "failed",
                                     "stopping",  "waiting",  "deleting",  "gone"};
static const uint32_t moves[] = {
    [SANDBOX_RECORDING] = SM_TO(SANDBOX_STARTING) | SM_TO(SANDBOX_GONE) | SM_TO(SANDBOX_DELETING),
    [SANDBOX_STARTING] = SM_TO(SANDBOX_PREPARING) | SM_TO(SANDBOX_RUNNING) | SM_TO(SANDBOX_FAILED) |
                         SM_TO(SANDBOX_STOPPING) | SM_TO(SANDBOX_DELETING),
    [SANDBOX_PREPARING] = SM_TO(SANDBOX_RUNNING) | SM_TO(SANDBOX_STOPPING),
    [SANDBOX_RUNNING] = SM_TO(SANDBOX_FAILED) | SM_TO(SANDBOX_STOPPING),
    [SANDBOX_FAILED] = SM_TO(SANDBOX_STOPPING),
    [SANDBOX_STOPPING] = SM_TO(SANDBOX_WAITING) | SM_TO(SANDBOX_DELETING),
    [SANDBOX_WAITING] = SM_TO(SANDBOX_STOPPING),
    [SANDBOX_DELETING] = SM_TO(SANDBOX_GONE),
    [SANDBOX_GONE] = 0,
};
static const struct sm_conf conf = {
    .name = "sandbox", .states = states, .moves = moves, .count = SANDBOX_STATE_MAX};

struct sandbox *lifecycle_new(struct registry *registry, const char *id, enum sandbox_state state) {
    struct sandbox *sandbox = xcalloc(1, sizeof *sandbox);
    snprintf(sandbox->id, sizeof sandbox->id, "%s", id);
    sandbox->registry = registry;
    sm_init(&sandbox->sm, &conf, (int)state, sandbox->id);
    STAILQ_INIT(&sandbox->created);
    STAILQ_INIT(&sandbox->destroyed);
    LIST_INIT(&sandbox->ops);
    uv_timer_init(registry->loop, &sandbox->expiry_timer);
    uv_timer_init(registry->loop, &sandbox->retry_timer);
    sandbox->expiry_timer.data = sandbox->retry_timer.data = sandbox;
    sandbox->open_timers = 2;
    return sandbox;
}

static void answer(struct sandbox_waiters *waiters, const struct err *err) {
    while (!STAILQ_EMPTY(waiters)) {
        struct sandbox_waiter *waiter = STAILQ_FIRST(waiters);
        STAILQ_REMOVE_HEAD(waiters, link);
        waiter->cb(waiter->arg, err);
        free(waiter);
    }
}

static void set_last_error(struct sandbox *sandbox, const char *text) {
    snprintf(sandbox->last_error, sizeof sandbox->last_error, "%.*s", (int)sizeof sandbox->last_error - 1,
             text);
}

static enum store_durability durability(const struct sandbox *sandbox) {
    return sandbox->provider->dies_with_boot ? STORE_BOOT : STORE_DISK;
}

static void store_state(struct sandbox *sandbox, Sandlot__Store__V1__SandboxRecord__State state,
                        store_commit_cb cb) {
    size_t len;
    AUTO_FREE uint8_t *bytes = record_pack(sandbox, state, &len);
    char key[STORE_KEY_MAX];
    struct store_txn *txn = store_txn_create();
    record_key(sandbox->id, key);
    store_txn_put(txn, key, STORE_ANY, bytes, len);
    sandbox->storing = true;
    store_commit(sandbox->registry->store, txn, durability(sandbox), cb, sandbox);
}

/* ---- The end of it ---- */

static void on_timer_closed(uv_handle_t *handle) {
    struct sandbox *sandbox = handle->data;
    if (--sandbox->open_timers > 0)
        return;
    if (sandbox->spec)
        sandlot__v1__create_sandbox_request__free_unpacked(sandbox->spec, NULL);
    free(sandbox->rollout_id);
    free(sandbox->request_id);
    free(sandbox->workdir);
    free(sandbox);
}

static void free_later(struct sandbox *sandbox) {
    uv_close((uv_handle_t *)&sandbox->expiry_timer, on_timer_closed);
    uv_close((uv_handle_t *)&sandbox->retry_timer, on_timer_closed);
}

static void become_gone(struct sandbox *sandbox) {
    struct err gone;
    sm_move(&sandbox->sm, SANDBOX_GONE);
    err_set(&gone, ERR_NOT_FOUND, sandbox->expired ? REASON(SANDBOX_EXPIRED) : REASON(SANDBOX_DESTROYED),
            "sandbox %s %s", sandbox->id, sandbox->expired ? "expired" : "was destroyed");
    registry_on_gone(sandbox);
    answer(&sandbox->created, err_is_set(&sandbox->create_error) ? &sandbox->create_error : &gone);
    answer(&sandbox->destroyed, NULL);
    free_later(sandbox);
    registry_on_settled(sandbox->registry);
}

static void wait_for_retry(struct sandbox *sandbox, const struct err *err);

static void on_deleted(void *arg, uint64_t revision, const struct err *err) {
    (void)revision;
    struct sandbox *sandbox = arg;
    if (err) /* the record stays; the next start finds nothing at the provider and deletes it */
        log_error("sandbox", "id=%s its record can't be deleted: %s", sandbox->id, err->text);
    become_gone(sandbox);
}

static void delete_record(struct sandbox *sandbox) {
    char key[STORE_KEY_MAX];
    struct store_txn *txn = store_txn_create();
    sm_move(&sandbox->sm, SANDBOX_DELETING);
    record_key(sandbox->id, key);
    store_txn_delete(txn, key, STORE_ANY);
    store_commit(sandbox->registry->store, txn, durability(sandbox), on_deleted, sandbox);
}

/* ---- Teardown ---- */

static void on_torn_down(void *arg, const struct err *err) {
    struct sandbox *sandbox = arg;
    if (err)
        wait_for_retry(sandbox, err);
    else
        delete_record(sandbox);
}

static void on_stop_stored(void *arg, uint64_t revision, const struct err *err) {
    (void)revision;
    struct sandbox *sandbox = arg;
    sandbox->storing = false;
    if (err)
        wait_for_retry(sandbox, err);
    else
        sandbox->provider->ops->destroy(sandbox->provider, sandbox->id, on_torn_down, sandbox);
}

static void end_ops(struct sandbox *sandbox) {
    struct err err;
    err_set(&err, ERR_NOT_FOUND, sandbox->expired ? REASON(SANDBOX_EXPIRED) : REASON(SANDBOX_DESTROYED),
            "sandbox %s %s while this ran", sandbox->id, sandbox->expired ? "expired" : "was destroyed");
    while (!LIST_EMPTY(&sandbox->ops)) {
        struct sandbox_op *op = LIST_FIRST(&sandbox->ops);
        LIST_REMOVE(op, link);
        op->end(op, &err);
    }
}

static void start_teardown(struct sandbox *sandbox) {
    sm_move(&sandbox->sm, SANDBOX_STOPPING);
    uv_timer_stop(&sandbox->expiry_timer);
    uv_timer_stop(&sandbox->retry_timer);
    end_ops(sandbox);
    link_close(sandbox->link);
    sandbox->link = NULL;
    store_state(sandbox, SANDLOT__STORE__V1__SANDBOX_RECORD__STATE__STATE_STOPPING, on_stop_stored);
}

static void on_retry(uv_timer_t *timer) {
    start_teardown(timer->data);
}

/* A failed teardown keeps its record, its capacity and its retry. */
static void wait_for_retry(struct sandbox *sandbox, const struct err *err) {
    struct err told;
    unsigned shift = sandbox->tries < 7 ? sandbox->tries : 7;
    uint64_t wait = (uint64_t)RETRY_FIRST_MS << shift;
    sandbox->tries++;
    sm_move(&sandbox->sm, SANDBOX_WAITING);
    set_last_error(sandbox, err->text);
    log_error("sandbox", "id=%s teardown failed, will be tried again: %s", sandbox->id, err->text);
    uv_timer_start(&sandbox->retry_timer, on_retry, wait < RETRY_MAX_MS ? wait : RETRY_MAX_MS, 0);
    err_set(&told, ERR_UNAVAILABLE, REASON(TEARDOWN_FAILED),
            "teardown of %s failed and is tried again by the broker: %s", sandbox->id, err->text);
    answer(&sandbox->created, err_is_set(&sandbox->create_error) ? &sandbox->create_error : &told);
    answer(&sandbox->destroyed, &told);
    registry_on_settled(sandbox->registry);
}

void lifecycle_stop(struct sandbox *sandbox, bool expired) {
    switch ((enum sandbox_state)sandbox->sm.state) {
    case SANDBOX_RECORDING:
    case SANDBOX_STARTING:
    case SANDBOX_PREPARING: /* each ends within a bound and then sees this */
        sandbox->expired = sandbox->expired || expired;
        sandbox->destroy_wanted = true;
        return;
    case SANDBOX_RUNNING:
    case SANDBOX_FAILED:
        sandbox->expired = expired;
        start_teardown(sandbox);
        return;
    case SANDBOX_WAITING: start_teardown(sandbox); return;
    default: return;
    }
}

/* ---- Expiry ---- */

static void on_expiry(uv_timer_t *timer) {
    struct sandbox *sandbox = timer->data;
    if (clock_unix_ms() >= sandbox->expire_unix_ms)
        lifecycle_stop(sandbox, true);
    else
        lifecycle_arm_expiry(sandbox);
}

void lifecycle_arm_expiry(struct sandbox *sandbox) {
    int64_t left = sandbox->expire_unix_ms - clock_unix_ms();
    uint64_t wait = left < 0 ? 0 : left > EXPIRY_LOOK_MS ? EXPIRY_LOOK_MS : (uint64_t)left;
    uv_timer_start(&sandbox->expiry_timer, on_expiry, wait, 0);
}

/* ---- Preparing: the working directory, then the files of the request ---- */

struct preparation {
    struct sandbox *sandbox;
    struct file_stream *stream;
};

static void prepare_next(struct sandbox *sandbox);

static void abandon_creation(struct sandbox *sandbox, const struct err *err) {
    if (err && !err_is_set(&sandbox->create_error))
        sandbox->create_error = *err;
    start_teardown(sandbox);
}

static void on_prepare_ready(void *arg) {
    struct preparation *preparation = arg;
    struct sandbox *sandbox = preparation->sandbox;
    if (sandbox->next_file == 0)
        return; /* MakeDirectory has no data */
    const ProtobufCBinaryData *content = &sandbox->spec->files[sandbox->next_file - 1]->content;
    file_stream_write(preparation->stream, content->data, content->len, true);
}

static void on_prepare_done(void *arg, const uint8_t *response, size_t len, const struct err *err) {
    (void)response;
    (void)len;
    struct preparation *preparation = arg;
    struct sandbox *sandbox = preparation->sandbox;
    struct err wrapped;
    if (err) {
        wrapped = *err;
        if (sandbox->next_file == 0)
            err_wrap(&wrapped, "workdir");
        else
            err_wrap(&wrapped, "files[%zu]", sandbox->next_file - 1);
        err = &wrapped;
    }
    file_stream_close(preparation->stream);
    free(preparation);
    if (err || sandbox->destroy_wanted) {
        abandon_creation(sandbox, err);
        return;
    }
    sandbox->next_file++;
    prepare_next(sandbox);
}

static const struct file_stream_ops prepare_ops = {.ready = on_prepare_ready, .done = on_prepare_done};

static void send_make_directory(struct preparation *preparation, int fd) {
    const char *workdir = preparation->sandbox->workdir;
    Sandlot__Agent__V1__MakeDirectoryRequest request = SANDLOT__AGENT__V1__MAKE_DIRECTORY_REQUEST__INIT;
    request.path.data = (uint8_t *)(uintptr_t)workdir;
    request.path.len = strlen(workdir);
    preparation->stream = file_stream_create(preparation->sandbox->registry->loop, fd, "MakeDirectory",
                                             &request.base, &prepare_ops, preparation);
}

static void send_file(struct preparation *preparation, int fd) {
    const struct sandbox *sandbox = preparation->sandbox;
    const Sandlot__V1__InitialFile *file = sandbox->spec->files[sandbox->next_file - 1];
    size_t len;
    AUTO_FREE char *path = sandbox_resolve_path(sandbox, file->path.data, file->path.len, &len);
    Sandlot__Agent__V1__UploadOpen request = SANDLOT__AGENT__V1__UPLOAD_OPEN__INIT;
    request.path.data = (uint8_t *)path;
    request.path.len = len;
    request.size_presence_case = SANDLOT__AGENT__V1__UPLOAD_OPEN__SIZE_PRESENCE_SIZE;
    request.size = file->content.len;
    if (file->mode_presence_case == SANDLOT__V1__INITIAL_FILE__MODE_PRESENCE_MODE) {
        request.mode_presence_case = SANDLOT__AGENT__V1__UPLOAD_OPEN__MODE_PRESENCE_MODE;
        request.mode = file->mode;
    }
    preparation->stream =
        file_stream_create(sandbox->registry->loop, fd, "Upload", &request.base, &prepare_ops, preparation);
}

static void on_prepare_stream(void *arg, int fd, const struct err *err) {
    struct sandbox *sandbox = arg;
    if (err || sandbox->destroy_wanted) {
        if (fd >= 0)
            close(fd);
        abandon_creation(sandbox, err);
        return;
    }
    struct preparation *preparation = xcalloc(1, sizeof *preparation);
    preparation->sandbox = sandbox;
    if (sandbox->next_file == 0)
        send_make_directory(preparation, fd);
    else
        send_file(preparation, fd);
}

static void drop_files(struct sandbox *sandbox) {
    for (size_t i = 0; i < sandbox->spec->n_files; i++)
        sandlot__v1__initial_file__free_unpacked(sandbox->spec->files[i], NULL);
    free(sandbox->spec->files);
    sandbox->spec->files = NULL;
    sandbox->spec->n_files = 0;
}

static void on_running_stored(void *arg, uint64_t revision, const struct err *err) {
    (void)revision;
    struct sandbox *sandbox = arg;
    struct err lost;
    sandbox->storing = false;
    if (!err && !sandbox->link) {
        err_set(&lost, ERR_UNAVAILABLE, REASON(SANDBOX_CREATE_FAILED),
                "its agent was lost while it was prepared");
        err = &lost;
    }
    if (err || sandbox->destroy_wanted) {
        abandon_creation(sandbox, err);
        return;
    }
    sm_move(&sandbox->sm, SANDBOX_RUNNING);
    lifecycle_arm_expiry(sandbox);
    answer(&sandbox->created, NULL);
}

static void prepare_next(struct sandbox *sandbox) {
    bool default_workdir = strcmp(sandbox->workdir, "/root") == 0;
    if (sandbox->next_file == 0 && default_workdir)
        sandbox->next_file = 1;
    if (sandbox->next_file > sandbox->spec->n_files) {
        drop_files(sandbox);
        store_state(sandbox, SANDLOT__STORE__V1__SANDBOX_RECORD__STATE__STATE_RUNNING, on_running_stored);
        return;
    }
    sandbox->provider->ops->open_stream(sandbox->provider, sandbox->id, on_prepare_stream, sandbox);
}

/* ---- The link ---- */

static void reconnect(struct sandbox *sandbox);
static void on_adopt_outcome(struct sandbox *sandbox, const struct err *err);

static void on_link_ready(void *arg, const struct err *err) {
    struct sandbox *sandbox = arg;
    if (err) {
        link_close(sandbox->link);
        sandbox->link = NULL;
    }
    if (sandbox->sm.state == SANDBOX_RUNNING) { /* connected again */
        if (err)
            lifecycle_fail(sandbox, err->text);
        return;
    }
    if (sandbox->adopting) {
        on_adopt_outcome(sandbox, err);
        return;
    }
    if (err || sandbox->destroy_wanted) {
        abandon_creation(sandbox, err);
        return;
    }
    sm_move(&sandbox->sm, SANDBOX_PREPARING);
    prepare_next(sandbox);
}

static void on_link_lost(void *arg, const struct err *err) {
    struct sandbox *sandbox = arg;
    (void)err;
    link_close(sandbox->link);
    sandbox->link = NULL;
    if (sandbox->sm.state == SANDBOX_RUNNING)
        reconnect(sandbox);
}

static const struct link_ops link_ops = {.ready = on_link_ready, .lost = on_link_lost};

static void on_stream(void *arg, int fd, const struct err *err) {
    struct sandbox *sandbox = arg;
    if (err) {
        on_link_ready(sandbox, err);
        return;
    }
    if (sandbox->sm.state != SANDBOX_RUNNING && sandbox->sm.state != SANDBOX_STARTING) {
        close(fd);
        return;
    }
    sandbox->link = link_create(sandbox->registry->loop, fd, sandbox->id, &link_ops, sandbox);
}

/* The sandbox may be gone by the time the stream comes: it is looked up again. */
struct reconnection {
    struct registry *registry;
    char id[ID_MAX];
};

static void on_reconnect_stream(void *arg, int fd, const struct err *err) {
    struct reconnection *reconnection = arg;
    struct sandbox *sandbox = registry_find(reconnection->registry, reconnection->id);
    free(reconnection);
    if (sandbox && sandbox->sm.state == SANDBOX_RUNNING && !sandbox->link)
        on_stream(sandbox, fd, err);
    else if (fd >= 0)
        close(fd);
}

static void reconnect(struct sandbox *sandbox) {
    struct reconnection *reconnection = xcalloc(1, sizeof *reconnection);
    reconnection->registry = sandbox->registry;
    snprintf(reconnection->id, sizeof reconnection->id, "%s", sandbox->id);
    sandbox->provider->ops->open_stream(sandbox->provider, sandbox->id, on_reconnect_stream, reconnection);
}

void lifecycle_fail(struct sandbox *sandbox, const char *why) {
    if (sandbox->sm.state != SANDBOX_RUNNING && sandbox->sm.state != SANDBOX_STARTING)
        return;
    sm_move(&sandbox->sm, SANDBOX_FAILED);
    set_last_error(sandbox, why);
    log_warning("sandbox", "id=%s state ERROR: %s", sandbox->id, why);
    link_close(sandbox->link);
    sandbox->link = NULL;
    lifecycle_arm_expiry(sandbox);
}

/* ---- Creation ---- */

static void on_created(void *arg, int fd, const struct err *err) {
    struct sandbox *sandbox = arg;
    if (err) { /* the provider should have left nothing; its destroy makes sure */
        sandbox->create_error = *err;
        start_teardown(sandbox);
    } else if (sandbox->destroy_wanted) {
        close(fd);
        start_teardown(sandbox);
    } else {
        on_stream(sandbox, fd, NULL);
    }
}

static void on_intent_stored(void *arg, uint64_t revision, const struct err *err) {
    (void)revision;
    struct sandbox *sandbox = arg;
    sandbox->storing = false;
    if (err) {
        sandbox->create_error = *err;
        become_gone(sandbox);
        return;
    }
    if (sandbox->destroy_wanted) {
        delete_record(sandbox);
        return;
    }
    sm_move(&sandbox->sm, SANDBOX_STARTING);
    const Sandlot__V1__CreateSandboxRequest *spec = sandbox->spec;
    struct provider_spec wanted = {
        .id = sandbox->id,
        .image = spec->image,
        .layer_on_disk = spec->layer == SANDLOT__V1__LAYER__LAYER_DISK,
        .layer_bytes = spec->resources->layer_bytes,
        .memory_bytes = spec->resources->memory_bytes,
        .pids = spec->resources->pids,
        .cpu = spec->resources->cpu,
        .expire_unix_ms = sandbox->expire_unix_ms,
    };
    sandbox->provider->ops->create(sandbox->provider, &wanted, on_created, sandbox);
}

void lifecycle_start(struct sandbox *sandbox) {
    store_state(sandbox, SANDLOT__STORE__V1__SANDBOX_RECORD__STATE__STATE_CREATING, on_intent_stored);
}

/* ---- After a restart ---- */

static void on_adopt_outcome(struct sandbox *sandbox, const struct err *err) {
    struct registry *registry = sandbox->registry;
    sandbox->adopting = false;
    if (err) {
        lifecycle_fail(sandbox, err->text);
    } else {
        sm_move(&sandbox->sm, SANDBOX_RUNNING);
        lifecycle_arm_expiry(sandbox);
    }
    if (sandbox->destroy_wanted)
        lifecycle_stop(sandbox, sandbox->expired);
    registry_on_adopted(registry);
    registry_on_settled(registry);
}

void lifecycle_adopt(struct sandbox *sandbox) {
    sandbox->adopting = true;
    sandbox->provider->ops->open_stream(sandbox->provider, sandbox->id, on_stream, sandbox);
}

void lifecycle_detach(struct sandbox *sandbox) {
    link_close(sandbox->link);
    sandbox->link = NULL;
    free_later(sandbox);
}
