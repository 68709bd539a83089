/* libsandlot: create sandboxes, lend them, work in them.
 *
 * Every call blocks until it is done. A client may be used by several threads at once, a sandbox
 * handle too, but for its close. All functions return 0, or -1 with *err filled; err may be NULL.
 * Times are seconds (double), sizes are bytes. Strings that go in are borrowed for the call; what
 * comes out belongs to the caller and has a function that frees it; those accept NULL.
 *
 * Handles do not survive a fork: in a child they are refused with reason HANDLE_FORKED. Let the child
 * connect from a descriptor instead. */
#ifndef SANDLOT_H
#define SANDLOT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SANDLOT_API __attribute__((visibility("default")))

/* ---- Errors ---- */

/* status is a gRPC status code (5 = NOT_FOUND, 14 = UNAVAILABLE, ...). reason is one of
 * sandlot.v1.ErrorReason without its prefix, such as LEASE_REVOKED, or of this library: LOCAL_FILE,
 * HANDLE_FORKED, DESCRIPTOR_INVALID, BROKER_MISMATCH, CANNOT_CONNECT, SETUP_FAILED; may be empty. */
struct sandlot_error {
    int status;
    char reason[64];
    char text[640];
};

/* "NOT_FOUND" for 5; never NULL. */
SANDLOT_API const char *sandlot_status_name(int status);
SANDLOT_API const char *sandlot_version(void);

/* ---- Clients: a connection to one broker ---- */

struct sandlot_client;
struct sandlot_sandbox;

struct sandlot_client_opts {
    /* "unix:/path" or "host:port". NULL: $SANDLOT_ADDRESS, else the default socket of this user. */
    const char *address;
    /* Deadline of each call that has none of its own; 0 = 60 s, negative = none. */
    double timeout;
};

/* Makes no call yet. opts may be NULL. */
SANDLOT_API int sandlot_client_open(const struct sandlot_client_opts *opts, struct sandlot_client **ret,
                                    struct sandlot_error *err);
/* Close its sandbox handles first. */
SANDLOT_API void sandlot_client_close(struct sandlot_client *client);
/* The address that is used; valid as long as the client. */
SANDLOT_API const char *sandlot_client_address(const struct sandlot_client *client);

struct sandlot_provider_info {
    char *name;
    char **images, **capabilities, **notes; /* NULL-terminated */
};

struct sandlot_info {
    char *version, *broker_id, *user;
    int serving;
    char **endpoints; /* NULL-terminated */
    struct sandlot_provider_info *providers;
    size_t provider_count;
    uint32_t sandboxes, max_sandboxes;
    double default_ttl, max_ttl;
};

SANDLOT_API int sandlot_get_info(struct sandlot_client *client, struct sandlot_info **ret,
                                 struct sandlot_error *err);
SANDLOT_API void sandlot_info_free(struct sandlot_info *info);

/* ---- Making sandboxes ---- */

/* "NAME=value" strings, NULL-terminated, wherever an env or labels is asked for. */

struct sandlot_file {
    const void *path; /* bytes; relative to the workdir unless absolute */
    size_t path_len;  /* 0: strlen(path) */
    const void *content;
    size_t content_len; /* all files together below 4 MiB */
    int mode;           /* permission bits; 0 = 0644 */
};

/* A zero or NULL field means the broker's default. */
struct sandlot_create_opts {
    const char *request_id; /* with one, a repeated create returns the same sandbox */
    const char *provider, *image, *workdir;
    double ttl; /* seconds until it is destroyed */
    const char *const *env;
    const char *const *labels;
    const struct sandlot_file *files;
    size_t file_count;
    const uint32_t *ports;
    size_t port_count;
    const char *rollout_id;
    const char *holder; /* label of the lease */
    uint64_t memory_bytes, layer_bytes;
    uint32_t pids;
    double cpu;
    int layer_on_disk;
    double timeout; /* of the call; 0 = the client's */
};

/* The handle holds the creator's lease. Only it, or another of scope owner, can destroy. */
SANDLOT_API int sandlot_create(struct sandlot_client *client, const struct sandlot_create_opts *opts,
                               struct sandlot_sandbox **ret, struct sandlot_error *err);

/* Runs once, on the calling thread. Return 0, or -1 with *err filled. */
typedef int (*sandlot_setup_fn)(struct sandlot_sandbox *sandbox, void *arg, struct sandlot_error *err);

/* Creates, then runs setup. If setup fails, or setup_timeout (seconds, 0 = none) passes, the sandbox is
 * destroyed before this returns the setup's error; a failure of that destruction is told in its text
 * and goes on in the broker. During setup calls on the handle are cut at the timeout. */
SANDLOT_API int sandlot_start_with_setup(struct sandlot_client *client,
                                         const struct sandlot_create_opts *opts, sandlot_setup_fn setup,
                                         void *arg, double setup_timeout, struct sandlot_sandbox **ret,
                                         struct sandlot_error *err);

/* ---- Descriptors: how a sandbox travels ---- */

/* A handle on the lease that the descriptor holds. client may be NULL: then one is opened to the
 * descriptor's endpoints and owned by the handle. A broker that is not the descriptor's is refused
 * before the lease is sent (BROKER_MISMATCH). */
SANDLOT_API int sandlot_open(struct sandlot_client *client, const char *descriptor_json,
                             struct sandlot_sandbox **ret, struct sandlot_error *err);
/* The same, but with a lease of this connection's own, so that its release harms no one else. */
SANDLOT_API int sandlot_connect(struct sandlot_client *client, const char *descriptor_json,
                                const char *holder, struct sandlot_sandbox **ret, struct sandlot_error *err);
/* Frees the handle; calls nothing. The sandbox and its lease live on. */
SANDLOT_API void sandlot_close(struct sandlot_sandbox *sandbox);

/* JSON with this handle's own token: a secret. Valid as long as the handle. */
SANDLOT_API const char *sandlot_descriptor(const struct sandlot_sandbox *sandbox);
SANDLOT_API const char *sandlot_id(const struct sandlot_sandbox *sandbox);
SANDLOT_API const char *sandlot_scope(const struct sandlot_sandbox *sandbox); /* "operate" */
SANDLOT_API const char *sandlot_workdir(const struct sandlot_sandbox *sandbox);

struct sandlot_serialize_opts {
    const char *scope; /* "observe", "operate", "owner"; NULL: operate, or less if the handle has less */
    double ttl;        /* seconds; 0: as long as the handle's own lease */
    const char *holder;
    int for_other_host;
};

/* A descriptor to hand on; opts may be NULL. Free with sandlot_string_free. */
SANDLOT_API int sandlot_serialize(struct sandlot_sandbox *sandbox, const struct sandlot_serialize_opts *opts,
                                  char **ret_descriptor_json, struct sandlot_error *err);
SANDLOT_API void sandlot_string_free(char *text);

/* Gives the lease back: its token is dead when this returns. Not for a handle that sandlot_create made
 * (FAILED_PRECONDITION: it would orphan the sandbox). ret_remaining may be NULL. */
SANDLOT_API int sandlot_release(struct sandlot_sandbox *sandbox, uint32_t *ret_remaining,
                                struct sandlot_error *err);
/* Needs scope owner. Returns when the sandbox is gone. A sandbox that is gone already is fine. */
SANDLOT_API int sandlot_destroy(struct sandlot_sandbox *sandbox, struct sandlot_error *err);
/* Destroys with a handle of scope owner, releases with a lesser one. */
SANDLOT_API int sandlot_stop(struct sandlot_sandbox *sandbox, struct sandlot_error *err);

/* ---- Looking ---- */

struct sandlot_sandbox_info {
    char *id, *state; /* "starting", "running", "paused", "stopped", "error", "unknown" */
    char *provider, *image, *workdir, *rollout_id, *last_error;
    double create_time, expire_time; /* Unix time */
    uint32_t live_leases;
    int teardown_pending;
    uint32_t *ports;
    size_t port_count;
    char **labels; /* "NAME=value", NULL-terminated */
    uint64_t memory_bytes;
    uint32_t pids;
};

struct sandlot_sandbox_list {
    struct sandlot_sandbox_info *items;
    size_t count;
};

SANDLOT_API int sandlot_get(struct sandlot_sandbox *sandbox, struct sandlot_sandbox_info **ret,
                            struct sandlot_error *err);
SANDLOT_API void sandlot_sandbox_info_free(struct sandlot_sandbox_info *info);
/* The caller's own sandboxes, all pages; an administrator sees everybody's. */
SANDLOT_API int sandlot_list(struct sandlot_client *client, struct sandlot_sandbox_list **ret,
                             struct sandlot_error *err);
SANDLOT_API void sandlot_sandbox_list_free(struct sandlot_sandbox_list *list);

struct sandlot_lease_info {
    char *id, *parent_id, *holder;
    char *scope;                     /* "observe", "operate", "owner" */
    char *kind;                      /* "created", "serialized", "connected" */
    char *state;                     /* "live", "released", "revoked", "expired" */
    double create_time, expire_time; /* Unix time */
};

struct sandlot_lease_list {
    struct sandlot_lease_info *items;
    size_t count;
};

/* Scope owner. */
SANDLOT_API int sandlot_leases(struct sandlot_sandbox *sandbox, struct sandlot_lease_list **ret,
                               struct sandlot_error *err);
SANDLOT_API void sandlot_lease_list_free(struct sandlot_lease_list *list);
/* Scope owner. Ends the lease and all minted from it. ret_count (may be NULL): how many ended now. */
SANDLOT_API int sandlot_revoke(struct sandlot_sandbox *sandbox, const char *lease_id, uint32_t *ret_count,
                               struct sandlot_error *err);

/* ---- Commands ---- */

struct sandlot_exec_opts {
    const char *const *argv; /* NULL-terminated; or: */
    const char *shell;       /* for /bin/sh -c */
    const char *cwd;         /* NULL: the workdir */
    const char *const *env;
    const char *user; /* name, uid or uid:gid; NULL: root */
    double timeout;   /* the command's, seconds; 0 = 180, negative = none */
    const void *stdin_data;
    size_t stdin_len;                /* at most 1 MiB */
    uint64_t max_stdout, max_stderr; /* bytes to return; 0 = 2 MiB */
    double call_timeout;             /* RPC deadline: ends the command too; 0 = none */
};

struct sandlot_exec_result {
    char *exec_id;
    char *stdout_data, *stderr_data; /* NUL-terminated beyond their length */
    size_t stdout_len, stderr_len;
    uint64_t stdout_total, stderr_total;
    int stdout_truncated, stderr_truncated;
    int exit_code;          /* 125 with error_type; 128+N by signal N; 127 not found; 126 not executable */
    int signal;             /* 0 unless it ended by one */
    const char *error_type; /* "timeout", "sandbox" or NULL */
    char *message;          /* why, for 125 to 127; else empty */
    int timed_out, output_held_open;
    double duration, cpu_time; /* seconds */
    uint64_t peak_memory;
    int tree_kill_best_effort;
};

/* A command that fails is a result (0), not an error. */
SANDLOT_API int sandlot_exec(struct sandlot_sandbox *sandbox, const struct sandlot_exec_opts *opts,
                             struct sandlot_exec_result **ret, struct sandlot_error *err);
SANDLOT_API void sandlot_exec_result_free(struct sandlot_exec_result *result);

/* ---- Files ---- */

/* total is UINT64_MAX when unknown. */
typedef void (*sandlot_progress_fn)(void *arg, uint64_t done, uint64_t total);

struct sandlot_transfer_opts {
    /* Upload only: permission bits to set. Without: those of the file that is replaced, or, for a new
     * one, new_mode if that is not 0, else 0644. */
    int has_mode;
    uint32_t mode, new_mode;
    sandlot_progress_fn progress; /* may be NULL; on the calling thread */
    void *progress_arg;
    double timeout; /* RPC deadline; 0 = none */
};

/* The file appears at `remote` whole or not at all. remote_len 0: strlen. opts may be NULL. */
SANDLOT_API int sandlot_upload_file(struct sandlot_sandbox *sandbox, const char *local_path,
                                    const void *remote_path, size_t remote_len,
                                    const struct sandlot_transfer_opts *opts, struct sandlot_error *err);
SANDLOT_API int sandlot_upload_bytes(struct sandlot_sandbox *sandbox, const void *bytes, size_t len,
                                     const void *remote_path, size_t remote_len,
                                     const struct sandlot_transfer_opts *opts, struct sandlot_error *err);
/* Written beside local_path and renamed when complete; a failure leaves what was there. */
SANDLOT_API int sandlot_download_file(struct sandlot_sandbox *sandbox, const void *remote_path,
                                      size_t remote_len, const char *local_path,
                                      const struct sandlot_transfer_opts *opts, struct sandlot_error *err);

#ifdef __cplusplus
}
#endif
#endif
