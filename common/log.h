/* One line per event on stderr: time, level, component, text with key=value. Never contains tokens,
 * env values, file contents or output. Safe from any thread (one write per line). */
#pragma once

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

void log_set_level(enum log_level level);
enum log_level log_get_level(void);
void log_line(enum log_level level, const char *component, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(component, ...) log_line(LOG_LEVEL_ERROR, component, __VA_ARGS__)
#define log_warning(component, ...) log_line(LOG_LEVEL_WARNING, component, __VA_ARGS__)
#define log_info(component, ...) log_line(LOG_LEVEL_INFO, component, __VA_ARGS__)
#define log_debug(component, ...) \
    do { \
        if (log_get_level() >= LOG_LEVEL_DEBUG) \
            log_line(LOG_LEVEL_DEBUG, component, __VA_ARGS__); \
    } while (0)
