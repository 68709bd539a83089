/* The leaf code: frames, buffers, JSON, UTF-8, unpacking, ids, errors. */
#include <math.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/cleanup.h"
#include "common/err.h"
#include "common/frame.h"
#include "common/id.h"
#include "common/json.h"
#include "common/mailbox.h"
#include "common/unpack.h"
#include "common/utf8.h"
#include "sandlot/v1/sandbox.pb-c.h"
#include "tests/lib/suite.h"

static void test_frame_round_trip(void) {
    uint8_t bytes[FRAME_HEADER + 5] = {0};
    struct frame frame = {.stream_id = 0x01020304, .type = FRAME_DATA, .flags = 3, .len = 5}, got;
    frame_encode_header(bytes, &frame);
    memcpy(bytes + FRAME_HEADER, "hello", 5);
    for (size_t len = 0; len < sizeof bytes; len++)
        CHECK_INT(frame_decode(bytes, len, &got), 0);
    CHECK_INT(frame_decode(bytes, sizeof bytes, &got), sizeof bytes);
    CHECK_INT(got.stream_id, 0x01020304);
    CHECK_INT(got.type, FRAME_DATA);
    CHECK_INT(got.flags, 3);
    CHECK_INT(got.len, 5);
    CU_ASSERT(memcmp(got.payload, "hello", 5) == 0);
}

static void test_frame_refuses_nonsense(void) {
    uint8_t bytes[FRAME_HEADER] = {0};
    struct frame frame = {.stream_id = 1, .type = FRAME_REQUEST, .len = FRAME_PAYLOAD_MAX + 1}, got;
    frame_encode_header(bytes, &frame);
    CHECK_INT(frame_decode(bytes, sizeof bytes, &got), -1);
    frame.len = 0;
    frame.type = 9;
    frame_encode_header(bytes, &frame);
    CHECK_INT(frame_decode(bytes, sizeof bytes, &got), -1);
    frame.type = FRAME_REQUEST;
    frame.stream_id = 0;
    frame_encode_header(bytes, &frame);
    CHECK_INT(frame_decode(bytes, sizeof bytes, &got), -1);
}

static void test_buf_has_a_hard_maximum(void) {
    struct buf buf;
    buf_init(&buf, 10);
    CHECK_INT(buf_append(&buf, "123456", 6), 0);
    CHECK_INT(buf_append(&buf, "12345", 5), -1);
    CHECK_INT(buf.len, 6);
    CHECK_INT(buf_append_some(&buf, "78901", 5), 4);
    CHECK_INT(buf_append_some(&buf, "x", 1), 0);
    buf_consume(&buf, 7);
    CHECK_INT(buf.len, 3);
    CU_ASSERT(memcmp(buf.data, "890", 3) == 0);
    CHECK_INT(buf_reserve(&buf, SIZE_MAX), -1);
    buf_fini(&buf);
}

static void test_json_is_strict(void) {
    static const char *const keys[] = {"n", "s", NULL};
    struct err err = {0};
    cJSON *json = json_parse("{\"n\": 5, \"s\": \"x\"} \n", 20, &err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(json);
    uint64_t n = 0;
    const char *s = NULL;
    CHECK_INT(json_check_keys(json, "it", keys, &err), 0);
    CHECK_INT(json_get_u64(json, "n", 0, 10, &n, &err), 0);
    CHECK_INT(n, 5);
    CHECK_INT(json_get_u64(json, "n", 6, 10, &n, &err), -1);
    CHECK_INT(json_get_string(json, "n", &s, &err), -1);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "\"n\""));
    CHECK_INT(json_get_string(json, "absent", &s, &err), 0);
    CU_ASSERT_PTR_NULL(s);
    cJSON_Delete(json);
    CU_ASSERT_PTR_NULL(json_parse("{} {}", 5, &err));
    CU_ASSERT_PTR_NULL(json_parse("", 0, &err));
    json = json_parse("{\"n\": 1, \"n\": 2}", 16, &err);
    CHECK_INT(json_check_keys(json, "it", keys, &err), -1);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "twice"));
    cJSON_Delete(json);
    static const char *const numbers[] = {"1.5", "-1", "1e400", "9007199254740994", "true", "\"5\""};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "{\"n\": %s}", numbers[i]);
        json = json_parse(text, strlen(text), &err);
        CHECK_INT(json_get_u64(json, "n", 0, UINT64_C(1) << 60, &n, &err), -1);
        cJSON_Delete(json);
    }
}

static void test_utf8(void) {
    static const struct {
        const char *text;
        size_t len;
        bool ok;
    } cases[] = {
        {"", 0, true},
        {"plain", 5, true},
        {"\xc3\xbc\xe2\x82\xac\xf0\x9f\x98\x80", 9, true},
        {"a\0b", 3, false},
        {"\xc0\xaf", 2, false},         /* overlong */
        {"\xe0\x80\xaf", 3, false},     /* overlong */
        {"\xed\xa0\x80", 3, false},     /* surrogate */
        {"\xf4\x90\x80\x80", 4, false}, /* beyond U+10FFFF */
        {"\xff", 1, false},
        {"\xe2\x82", 2, false}, /* cut */
        {"\x80", 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        CHECK_INT(utf8_is_text((const uint8_t *)cases[i].text, cases[i].len), cases[i].ok);
}

static ProtobufCMessage *try_unpack(const uint8_t *bytes, size_t len, size_t max, struct arena **arena,
                                    struct err *err) {
    *arena = NULL;
    *err = (struct err){0};
    return unpack(&sandlot__v1__create_sandbox_request__descriptor, bytes, len, max, 7, arena, err);
}

static void test_unpack_is_bounded(void) {
    struct arena *arena;
    struct err err;
    CU_ASSERT_PTR_NOT_NULL(try_unpack(NULL, 0, 65536, &arena, &err));
    arena_destroy(arena);

    static const uint8_t embedded_nul[] = {0x1a, 3, 'a', 0, 'b'};
    CU_ASSERT_PTR_NULL(try_unpack(embedded_nul, sizeof embedded_nul, 65536, &arena, &err));
    CHECK_INT(err.code, ERR_INVALID_ARGUMENT);
    CHECK_INT(err.reason, 7);
    CHECK_STR(err.violations[0].field, "image");

    /* Two wire bytes an entry become some forty of memory: 1 MiB of them would be 20. */
    size_t len = 1 << 20;
    uint8_t *flood = malloc(len);
    for (size_t i = 0; i < len; i += 2) {
        flood[i] = 0x42;
        flood[i + 1] = 0;
    }
    CU_ASSERT_PTR_NULL(try_unpack(flood, len, 1 << 20, &arena, &err));
    CU_ASSERT_PTR_NOT_NULL(strstr(err.text, "memory"));
    free(flood);

    static const uint8_t cut[] = {0x1a, 50, 'a'}, group[] = {0x0b}, zero_field[] = {0x02, 0};
    CU_ASSERT_PTR_NULL(try_unpack(cut, sizeof cut, 65536, &arena, &err));
    CU_ASSERT_PTR_NULL(try_unpack(group, sizeof group, 65536, &arena, &err));
    CU_ASSERT_PTR_NULL(try_unpack(zero_field, sizeof zero_field, 65536, &arena, &err));
}

static void test_ids(void) {
    char a[ID_MAX], b[ID_MAX];
    id_make("sb-", a);
    id_make("sb-", b);
    CU_ASSERT(strcmp(a, b) != 0);
    CU_ASSERT(id_is_valid("sb-", a));
    CU_ASSERT(!id_is_valid("le-", a));
    CU_ASSERT(!id_is_valid("sb-", "sb-../../etc/passwd"));
    CU_ASSERT(!id_is_valid("sb-", "sb-0123456789abcde"));
    CU_ASSERT(!id_is_valid("sb-", "sb-0123456789abcdefg"));
    CU_ASSERT(!id_is_valid("sb-", ""));
}

static void test_errors_wrap(void) {
    struct err err = {0};
    CHECK_INT(err_set(&err, ERR_NOT_FOUND, 3, "no %s", "x"), -1);
    CHECK_INT(err_wrap(&err, "while %d", 5), -1);
    CHECK_STR(err.text, "while 5: no x");
    CHECK_INT(err.code, ERR_NOT_FOUND);
    for (int i = 0; i < 10; i++)
        err_violation(&err, 4, "field", "number %d", i);
    CHECK_INT(err.code, ERR_INVALID_ARGUMENT);
    CHECK_INT(err.violation_count, ERR_VIOLATIONS_MAX);
    char large[2000];
    memset(large, 'a', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    err_set(&err, ERR_INTERNAL, 0, "%s", large);
    err_wrap(&err, "%s", large);
    CU_ASSERT(strlen(err.text) < sizeof err.text);
}

/* ---- Mailbox: many threads, one loop, order kept per thread ---- */

#define MAILS 20000
#define THREADS 4

struct numbered {
    struct mail mail;
    int thread, number;
};

static struct mailbox box;
static int next_number[THREADS], delivered;

static void deliver(struct mail *mail) {
    struct numbered *numbered = CONTAINER_OF(mail, struct numbered, mail);
    CU_ASSERT(next_number[numbered->thread] == numbered->number);
    next_number[numbered->thread]++;
    if (++delivered == MAILS * THREADS)
        mailbox_close(&box);
    free(numbered);
}

static void push_all(void *arg) {
    for (int i = 0; i < MAILS; i++) {
        struct numbered *numbered = calloc(1, sizeof *numbered);
        numbered->thread = (int)(intptr_t)arg;
        numbered->number = i;
        numbered->mail.deliver = deliver;
        mailbox_push(&box, &numbered->mail);
    }
}

static void test_mailbox_loses_nothing(void) {
    uv_loop_t loop;
    uv_thread_t threads[THREADS];
    uv_loop_init(&loop);
    mailbox_init(&box, &loop);
    for (intptr_t i = 0; i < THREADS; i++)
        uv_thread_create(&threads[i], push_all, (void *)i);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (int i = 0; i < THREADS; i++)
        uv_thread_join(&threads[i]);
    CHECK_INT(delivered, MAILS * THREADS);
    CHECK_INT(uv_loop_close(&loop), 0);
}

static const struct test tests[] = {
    TEST(test_frame_round_trip),
    TEST(test_frame_refuses_nonsense),
    TEST(test_buf_has_a_hard_maximum),
    TEST(test_json_is_strict),
    TEST(test_utf8),
    TEST(test_unpack_is_bounded),
    TEST(test_ids),
    TEST(test_errors_wrap),
    TEST(test_mailbox_loses_nothing),
};

SUITE("common", tests)
