/* sandlotd: reads the configuration, takes the host's resources, becomes the spawner and starts the
 * broker as its child. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/broker.h"
#include "broker/host.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/xalloc.h"
#include "spawner/spawner.h"

extern char **environ;

static const char usage[] =
    "usage: sandlotd [options]\n"
    "  --config FILE        JSON configuration; everything in it has a default\n"
    "  --check-config       check the configuration, say what is wrong, and exit\n"
    "  --listen ADDRESS     unix:/PATH or HOST:PORT,insecure (loopback); may be repeated\n"
    "  --state-dir DIR      registry, keys, images and sandboxes\n"
    "  --on-shutdown WHAT   keep (default) or destroy the sandboxes\n"
    "  --ready-fd N         write READY to this descriptor when serving\n"
    "  --log-level LEVEL    error, warning, info (default) or debug\n"
    "  --version\n";

struct arguments {
    const char *config, *state_dir, *on_shutdown;
    const char *listen[CONFIG_LISTEN_MAX];
    size_t listen_count;
    bool check;
    int ready_fd;
};

/* What the broker's process needs, in memory that the fork copies. */
struct start {
    struct config config;
    struct keyring keyring;
    struct host_user user;
    struct server_listener listeners[CONFIG_LISTEN_MAX];
    int lock_fds[CONFIG_LISTEN_MAX + 1];
    size_t lock_count;
    int state_fd, ready_fd;
    const char *const *notes;
};

static int set_log_level(const char *name) {
    static const char *const names[] = {"error", "warning", "info", "debug"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(names[i], name) == 0) {
            log_set_level((enum log_level)i);
            return 0;
        }
    return -1;
}

/* 0: go on; else the exit code + 1. */
static int parse_arguments(int argc, char **argv, struct arguments *ret) {
    static const struct option known[] = {
        {"config", required_argument, NULL, 'c'},
        {"check-config", no_argument, NULL, 'k'},
        {"listen", required_argument, NULL, 'l'},
        {"state-dir", required_argument, NULL, 's'},
        {"on-shutdown", required_argument, NULL, 'o'},
        {"ready-fd", required_argument, NULL, 'r'},
        {"log-level", required_argument, NULL, 'v'},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    *ret = (struct arguments){.ready_fd = -1};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'c': ret->config = optarg; break;
        case 'k': ret->check = true; break;
        case 'l':
            if (ret->listen_count < CONFIG_LISTEN_MAX)
                ret->listen[ret->listen_count++] = optarg;
            break;
        case 's': ret->state_dir = optarg; break;
        case 'o': ret->on_shutdown = optarg; break;
        case 'r': ret->ready_fd = atoi(optarg); break;
        case 'v':
            if (set_log_level(optarg) < 0) {
                fprintf(stderr, "sandlotd: --log-level is error, warning, info or debug\n");
                return 3;
            }
            break;
        case 'V': printf("sandlotd %s\n", SANDLOT_VERSION); return 1;
        case 'h': fputs(usage, stdout); return 1;
        default: fputs(usage, stderr); return 3;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "sandlotd: what is \"%s\"?\n%s", argv[optind], usage);
        return 3;
    }
    return 0;
}

static int read_config(const struct arguments *arguments, struct config *config, struct err *err) {
    config_init(config);
    if (arguments->config && config_load(config, arguments->config, err) < 0)
        return -1;
    for (size_t i = 0; i < arguments->listen_count; i++)
        if (config_add_listen(config, arguments->listen[i], err) < 0)
            return err_wrap(err, "--listen");
    if (arguments->state_dir) {
        free(config->state_dir);
        config->state_dir = xstrdup(arguments->state_dir);
    }
    if (arguments->on_shutdown) {
        config->destroy_on_shutdown = strcmp(arguments->on_shutdown, "destroy") == 0;
        if (!config->destroy_on_shutdown && strcmp(arguments->on_shutdown, "keep") != 0)
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "--on-shutdown is keep or destroy");
    }
    return config_finish(config, err);
}

/* sandlot-agent beside this program, or where it is installed. */
static int find_agent(struct config *config, struct err *err) {
    char self[4096];
    if (config->agent)
        return 0;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return err_set_errno(err, errno, "/proc/self/exe");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    AUTO_FREE char *beside = xasprintf("%s/sandlot-agent", self);
    AUTO_FREE char *installed = xasprintf("%s/../libexec/sandlot/sandlot-agent", self);
    if (access(beside, R_OK) == 0)
        config->agent = TAKE_PTR(beside);
    else if (access(installed, R_OK) == 0)
        config->agent = TAKE_PTR(installed);
    else
        return err_set(err, ERR_NOT_FOUND, 0, "sandlot-agent is neither at %s nor at %s", beside, installed);
    return 0;
}

/* Each sandbox takes the spawner some descriptors, each connection the broker one. */
static void raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* gRPC reads its environment, and a bad value there aborts it. */
static void scrub_environment(void) {
    for (bool again = true; again;) {
        again = false;
        for (char **entry = environ; *entry; entry++)
            if (strncmp(*entry, "GRPC_", 5) == 0 || strncmp(*entry, "grpc_", 5) == 0) {
                char name[128];
                snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
                unsetenv(name);
                again = true;
                break;
            }
    }
}

static int take_host(struct start *start, struct err *err) {
    start->state_fd = host_open_state(&start->config, &start->lock_fds[start->lock_count], err);
    if (start->state_fd < 0)
        return -1;
    start->lock_count++;
    if (host_find_user(start->config.user, &start->user, err) < 0 ||
        keyring_load_or_make(start->state_fd, &start->keyring, err) < 0 ||
        find_agent(&start->config, err) < 0)
        return -1;
    for (size_t i = 0; i < start->config.listen_count; i++) {
        const struct listen_config *listen = &start->config.listen[i];
        start->listeners[i] = (struct server_listener){-1, listen->address};
        if (!listen->is_unix)
            continue;
        start->listeners[i].unix_fd =
            host_listen_unix(listen->address, &start->lock_fds[start->lock_count], err);
        if (start->listeners[i].unix_fd < 0)
            return -1;
        start->lock_count++;
    }
    return host_make_own(&start->config, start->state_fd, &start->user, err);
}

static int run_broker(int spawner_fd, void *arg) {
    struct start *start = arg;
    struct err err = {0};
    if (host_become(&start->user, &err) < 0) {
        log_error("broker", "%s", err.text);
        return 1;
    }
    struct broker_opts opts = {
        .config = &start->config,
        .keyring = &start->keyring,
        .listeners = start->listeners,
        .listener_count = start->config.listen_count,
        .notes = start->notes,
        .user = start->user.name,
        .uid = start->user.uid,
        .ready_fd = start->ready_fd,
    };
    int code = broker_run(&opts, spawner_fd);
    free((void *)(uintptr_t)start->notes);
    config_fini(&start->config);
    return code;
}

static int fail(const struct err *err) {
    fprintf(stderr, "sandlotd: %s\n", err->text);
    return 1;
}

static const char *const *copy_notes(const struct spawner *spawner) {
    size_t count;
    const char *const *notes = spawner_notes(spawner, &count);
    const char **copy = xcalloc(count + 1, sizeof *copy);
    for (size_t i = 0; i < count; i++)
        copy[i] = notes[i];
    return copy;
}

int main(int argc, char **argv) {
    static struct start start;
    struct arguments arguments;
    struct err err = {0};
    int rc = parse_arguments(argc, argv, &arguments);
    if (rc)
        return rc - 1;
    if (read_config(&arguments, &start.config, &err) < 0)
        return fail(&err);
    if (arguments.check) {
        printf("the configuration is valid\n");
        return 0;
    }
    scrub_environment();
    umask(077);
    raise_descriptor_limit();
    if (geteuid() != 0) {
        err_set(&err, ERR_PERMISSION_DENIED, 0,
                "the local provider needs root to make sandboxes; start sandlotd as root (the broker "
                "itself drops its privileges)");
        return fail(&err);
    }
    start.ready_fd = arguments.ready_fd;
    if (take_host(&start, &err) < 0)
        return fail(&err);
    struct spawner_config spawner_config = {
        .broker_id = start.keyring.broker_id,
        .agent_path = start.config.agent,
        .state_fd = start.state_fd,
        .state_dir = start.config.state_dir,
        .images = start.config.images,
        .image_count = start.config.image_count,
        .uid_base = start.config.uid_base,
    };
    struct spawner *spawner = spawner_create(&spawner_config, &err);
    if (!spawner)
        return fail(&err);
    start.notes = copy_notes(spawner);
    rc = spawner_run(spawner, run_broker, &start);
    for (size_t i = 0; i < start.config.listen_count; i++)
        if (start.config.listen[i].is_unix)
            host_unlink_unix(start.config.listen[i].address);
    free((void *)(uintptr_t)start.notes);
    config_fini(&start.config);
    return rc;
}
