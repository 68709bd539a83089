/* CreateSandboxRequest: what is allowed in it, and what its absent fields mean. */
#pragma once

#include "broker/sandbox/registry.h"

#define SPEC_ENV_BYTES_MAX (256 * 1024) /* names and values of one environment */

/* INVALID_ARGUMENT with all violations that fit. */
int spec_check(const Sandlot__V1__CreateSandboxRequest *request, const struct registry_limits *limits,
               struct err *err);
/* In a heap copy of a checked request. */
void spec_fill_defaults(Sandlot__V1__CreateSandboxRequest *spec, const struct registry_limits *limits);
/* When it expires, by the request or the default. */
int64_t spec_expiry(const Sandlot__V1__CreateSandboxRequest *request, const struct registry_limits *limits,
                    int64_t now_unix_ms);
/* A positive duration in milliseconds, at most max_ms; false if it is not one. */
bool spec_duration_ms(const Google__Protobuf__Duration *duration, uint64_t max_ms, uint64_t *ret);
/* Names and values of an environment map; false: *ret_why says what is wrong. */
bool spec_env_is_valid(const char *name, const char *value, const char **ret_why);
