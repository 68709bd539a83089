#include "broker/config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/json.h"
#include "common/xalloc.h"

#define FILE_MAX (1024 * 1024)
#define GIB (UINT64_C(1) << 30)
#define YEAR (365.0 * 86400)

void config_init(struct config *config) {
    *config = (struct config){
        .limits = {.max_sandboxes = 1024,
                   .default_ttl = 1800,
                   .max_ttl = 7 * 86400,
                   .default_memory = 2 * GIB,
                   .max_memory = 64 * GIB,
                   .default_layer = GIB,
                   .default_pids = 1024,
                   .max_pids = 32768},
        .drain_timeout = 10,
        .uid_base = 524288,
    };
}

void config_fini(struct config *config) {
    for (size_t i = 0; i < config->listen_count; i++)
        free(config->listen[i].address);
    for (size_t i = 0; i < config->advertise_count; i++)
        free(config->advertise[i]);
    for (size_t i = 0; i < config->image_count; i++) {
        free((char *)(uintptr_t)config->images[i].name);
        free((char *)(uintptr_t)config->images[i].path);
    }
    free(config->state_dir);
    free(config->user);
    free(config->agent);
}

static int bad(struct err *err, const char *text, const char *what) {
    return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"%s\": %s", text, what);
}

/* ---- Addresses ---- */

static bool is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strncmp(address, "localhost:", 10) == 0 ||
           strncmp(address, "[::1]:", 6) == 0;
}

static bool is_wildcard(const char *address) {
    return strncmp(address, "0.0.0.0", 7) == 0 || strncmp(address, "[::]", 4) == 0 ||
           strncmp(address, ":", 1) == 0 || strncmp(address, "*", 1) == 0;
}

static bool has_port(const char *address) {
    const char *colon = strrchr(address, ':');
    char *end;
    if (!colon)
        return false;
    long port = strtol(colon + 1, &end, 10);
    return *end == '\0' && port >= 1 && port <= 65535;
}

static int add_listen(struct config *config, const char *address, bool insecure, struct err *err) {
    bool prefixed = strncmp(address, "unix:", 5) == 0;
    bool is_unix = prefixed || address[0] == '/';
    const char *where = prefixed ? address + 5 : address;
    if (config->listen_count == CONFIG_LISTEN_MAX)
        return bad(err, address, "too many listeners");
    if (is_unix && (where[0] != '/' || strlen(where) > 107))
        return bad(err, address, "a unix socket is an absolute path of at most 107 bytes");
    if (!is_unix && !has_port(where))
        return bad(err, address, "is neither unix:/PATH nor HOST:PORT with a port from 1 to 65535");
    if (!is_unix && !insecure)
        return bad(err, address,
                   "TCP without TLS and tokens must be asked for: add \",insecure\" (or "
                   "\"insecure\": true)");
    if (!is_unix && !is_loopback(where))
        return bad(err, address, "an insecure listener is for loopback only");
    config->listen[config->listen_count++] = (struct listen_config){xstrdup(where), is_unix};
    return 0;
}

int config_add_listen(struct config *config, const char *text, struct err *err) {
    static const char suffix[] = ",insecure";
    AUTO_FREE char *address = xstrdup(text);
    size_t len = strlen(address), tail = sizeof suffix - 1;
    bool insecure = len > tail && strcmp(address + len - tail, suffix) == 0;
    if (insecure)
        address[len - tail] = '\0';
    return add_listen(config, address, insecure, err);
}

/* ---- The file ---- */

static int parse_listen(struct config *config, const cJSON *json, struct err *err) {
    static const char *const known[] = {"address", "insecure", NULL};
    const cJSON *list = NULL, *item;
    if (json_get_array(json, "listen", &list, err) < 0)
        return -1;
    cJSON_ArrayForEach (item, list) {
        const char *address = NULL;
        bool insecure = false;
        if (json_check_keys(item, "an entry of \"listen\"", known, err) < 0 ||
            json_get_string(item, "address", &address, err) < 0 ||
            json_get_bool(item, "insecure", &insecure, err) < 0)
            return -1;
        if (!address)
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "an entry of \"listen\" has no \"address\"");
        if (add_listen(config, address, insecure, err) < 0)
            return err_wrap(err, "listen");
    }
    return 0;
}

static int parse_advertise(struct config *config, const cJSON *json, struct err *err) {
    const cJSON *list = NULL, *item;
    if (json_get_array(json, "advertise", &list, err) < 0)
        return -1;
    cJSON_ArrayForEach (item, list) {
        if (!cJSON_IsString(item))
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"advertise\" holds strings");
        if (config->advertise_count == CONFIG_LISTEN_MAX)
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"advertise\" is too long");
        if (is_wildcard(item->valuestring))
            return err_set(err, ERR_INVALID_ARGUMENT, 0,
                           "advertise: \"%s\" is a wildcard, nobody can connect to it; name an address "
                           "that the users of a descriptor reach",
                           item->valuestring);
        config->advertise[config->advertise_count++] = xstrdup(item->valuestring);
    }
    return 0;
}

static int parse_images(struct config *config, const cJSON *json, struct err *err) {
    const cJSON *object = NULL;
    if (json_get_object(json, "images", &object, err) < 0)
        return -1;
    for (const cJSON *item = object ? object->child : NULL; item; item = item->next) {
        const char *name = item->string;
        if (strcmp(name, "host") == 0 || !*name || strlen(name) > 63 || strchr(name, '/') || *name == '.')
            return err_set(err, ERR_INVALID_ARGUMENT, 0,
                           "images: \"%s\" is no image name (1 to 63 bytes without \"/\", not \"host\")",
                           name);
        if (!cJSON_IsString(item) || item->valuestring[0] != '/')
            return err_set(err, ERR_INVALID_ARGUMENT, 0,
                           "images: \"%s\" must be the absolute path of a directory or a tar", name);
        if (config->image_count == CONFIG_IMAGES_MAX)
            return err_set(err, ERR_INVALID_ARGUMENT, 0, "images: at most %d", CONFIG_IMAGES_MAX);
        config->images[config->image_count++] =
            (struct image_config){xstrdup(name), xstrdup(item->valuestring)};
    }
    return 0;
}

static int parse_limits(struct registry_limits *limits, const cJSON *json, struct err *err) {
    static const char *const known[] = {"max_sandboxes",
                                        "default_memory_bytes",
                                        "max_memory_bytes",
                                        "default_pids",
                                        "max_pids",
                                        "default_layer_bytes",
                                        NULL};
    const cJSON *object = NULL;
    uint64_t sandboxes = limits->max_sandboxes, pids = limits->default_pids, max_pids = limits->max_pids;
    if (json_get_object(json, "limits", &object, err) < 0)
        return -1;
    if (!object)
        return 0;
    if (json_check_keys(object, "\"limits\"", known, err) < 0 ||
        json_get_u64(object, "max_sandboxes", 1, 16000, &sandboxes, err) < 0 ||
        json_get_u64(object, "default_memory_bytes", 16 << 20, 1024 * GIB, &limits->default_memory, err) <
            0 ||
        json_get_u64(object, "max_memory_bytes", 16 << 20, 1024 * GIB, &limits->max_memory, err) < 0 ||
        json_get_u64(object, "default_layer_bytes", 1 << 20, 1024 * GIB, &limits->default_layer, err) < 0 ||
        json_get_u64(object, "default_pids", 8, 4000000, &pids, err) < 0 ||
        json_get_u64(object, "max_pids", 8, 4000000, &max_pids, err) < 0)
        return err_wrap(err, "limits");
    limits->max_sandboxes = (uint32_t)sandboxes;
    limits->default_pids = (uint32_t)pids;
    limits->max_pids = (uint32_t)max_pids;
    if (limits->default_memory > limits->max_memory || limits->default_pids > limits->max_pids)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "limits: a default is above its maximum");
    return 0;
}

static int parse_ttl(struct registry_limits *limits, const cJSON *json, struct err *err) {
    static const char *const known[] = {"default", "max", NULL};
    const cJSON *object = NULL;
    if (json_get_object(json, "ttl", &object, err) < 0)
        return -1;
    if (!object)
        return 0;
    if (json_check_keys(object, "\"ttl\"", known, err) < 0 ||
        json_get_double(object, "default", 0.1, YEAR, &limits->default_ttl, err) < 0 ||
        json_get_double(object, "max", 0.1, YEAR, &limits->max_ttl, err) < 0)
        return err_wrap(err, "ttl");
    if (limits->default_ttl > limits->max_ttl)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "ttl: the default is above the maximum");
    return 0;
}

static int parse_string(const cJSON *json, const char *key, char **ret, struct err *err) {
    const char *value = NULL;
    if (json_get_string(json, key, &value, err) < 0)
        return -1;
    if (value) {
        free(*ret);
        *ret = xstrdup(value);
    }
    return 0;
}

static int parse_rest(struct config *config, const cJSON *json, struct err *err) {
    const char *on_shutdown = "keep";
    uint64_t uid_base = config->uid_base;
    if (parse_string(json, "state_dir", &config->state_dir, err) < 0 ||
        parse_string(json, "user", &config->user, err) < 0 ||
        parse_string(json, "agent", &config->agent, err) < 0 ||
        json_get_string(json, "on_shutdown", &on_shutdown, err) < 0 ||
        json_get_double(json, "drain_timeout", 0, 3600, &config->drain_timeout, err) < 0 ||
        json_get_u64(json, "uid_base", 65536, 4000000000u, &uid_base, err) < 0)
        return -1;
    if (strcmp(on_shutdown, "keep") != 0 && strcmp(on_shutdown, "destroy") != 0)
        return err_set(err, ERR_INVALID_ARGUMENT, 0, "\"on_shutdown\" must be \"keep\" or \"destroy\"");
    config->destroy_on_shutdown = strcmp(on_shutdown, "destroy") == 0;
    config->uid_base = (uint32_t)uid_base;
    return 0;
}

int config_parse(struct config *config, const char *text, size_t len, struct err *err) {
    static const char *const known[] = {"listen",        "advertise",   "state_dir", "user",
                                        "agent",         "images",      "limits",    "ttl",
                                        "drain_timeout", "on_shutdown", "uid_base",  NULL};
    CLEANUP(cleanup_cjson_p) cJSON *json = json_parse(text, len, err);
    if (!json || json_check_keys(json, "the configuration", known, err) < 0 ||
        parse_listen(config, json, err) < 0 || parse_advertise(config, json, err) < 0 ||
        parse_images(config, json, err) < 0 || parse_limits(&config->limits, json, err) < 0 ||
        parse_ttl(&config->limits, json, err) < 0 || parse_rest(config, json, err) < 0)
        return -1;
    return 0;
}

int config_load(struct config *config, const char *path, struct err *err) {
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_set_errno(err, errno, "configuration %s", path);
    AUTO_FREE char *text = xcalloc(1, FILE_MAX);
    size_t len = 0;
    for (ssize_t n; len < FILE_MAX - 1 && (n = read(fd, text + len, FILE_MAX - 1 - len)) != 0;
         len += (size_t)n)
        if (n < 0)
            return err_set_errno(err, errno, "configuration %s", path);
    if (config_parse(config, text, len, err) < 0)
        return err_wrap(err, "configuration %s", path);
    return 0;
}

/* ---- Defaults that depend on who runs it ---- */

int config_finish(struct config *config, struct err *err) {
    bool root = geteuid() == 0;
    if (!config->state_dir) {
        const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
        if (root)
            config->state_dir = xstrdup("/var/lib/sandlot");
        else if (state && *state)
            config->state_dir = xasprintf("%s/sandlot", state);
        else
            config->state_dir = xasprintf("%s/.local/state/sandlot", home ? home : "/tmp");
    }
    if (config->state_dir[0] != '/')
        return bad(err, config->state_dir, "the state directory must be an absolute path");
    if (config->listen_count == 0) {
        const char *runtime = getenv("XDG_RUNTIME_DIR");
        AUTO_FREE char *path = root ? xstrdup("/run/sandlot/sandlot.sock")
                               : runtime && *runtime
                                   ? xasprintf("%s/sandlot/sandlot.sock", runtime)
                                   : xasprintf("/tmp/sandlot-%u/sandlot.sock", (unsigned)geteuid());
        if (add_listen(config, path, false, err) < 0)
            return -1;
    }
    for (size_t i = 0; config->advertise_count == 0 && i < config->listen_count; i++)
        config->advertise[i] = config->listen[i].is_unix ? xasprintf("unix:%s", config->listen[i].address)
                                                         : xstrdup(config->listen[i].address);
    while (config->advertise[config->advertise_count])
        config->advertise_count++;
    return 0;
}
