/* A test program: a list of named functions, CUnit around them, a non-zero exit if one fails.
 * An argument picks the tests whose names contain it. */
#pragma once

#include <CUnit/Basic.h>
#include <stdio.h>
#include <string.h>

struct test {
    const char *name;
    void (*run)(void);
};

#define TEST(function) \
    { #function, function }

int suite_run(const char *name, const struct test *tests, size_t count, int argc, char **argv);

#define SUITE(name, tests) \
    int main(int argc, char **argv) { \
        return suite_run(name, tests, sizeof(tests) / sizeof((tests)[0]), argc, argv); \
    }

/* With the values in the output. */
#define CHECK_INT(actual, expected) \
    do { \
        long long actual_ = (long long)(actual), expected_ = (long long)(expected); \
        if (actual_ != expected_) \
            printf("\n    %s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #actual, actual_, expected_); \
        CU_ASSERT(actual_ == expected_); \
    } while (0)

#define CHECK_STR(actual, expected) \
    do { \
        const char *actual_ = (actual), *expected_ = (expected); \
        int same_ = actual_ && strcmp(actual_, expected_) == 0; \
        if (!same_) \
            printf("\n    %s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, #actual, \
                   actual_ ? actual_ : "(null)", expected_); \
        CU_ASSERT(same_); \
    } while (0)
