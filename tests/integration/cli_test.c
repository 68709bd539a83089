/* The command line as its user meets it: exit codes, messages, files. */
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static struct fixture fixture;
static char output[65536];

#define CLI(...) fixture_cli(&fixture, output, sizeof output, __VA_ARGS__)
#define SAYS(text) \
    do { \
        if (!strstr(output, text)) \
            printf("\n    %s:%d: \"%s\" is not in: %s", __FILE__, __LINE__, text, output); \
        CU_ASSERT_PTR_NOT_NULL(strstr(output, text)); \
    } while (0)

static void test_the_commands_of_the_readme(void) {
    CHECK_INT(CLI("create --ttl 600 --workdir /work -e WHO=me --label a=b -o owner.json"), 0);
    SAYS("sb-");
    CHECK_INT(CLI("exec -s owner.json -- sh -c 'echo $WHO in $PWD; exit 9'"), 9);
    CHECK_STR(output, "me in /work\n");
    CHECK_INT(CLI("serialize -s owner.json --scope operate --ttl 60 --holder bob -o lend.json"), 0);
    CHECK_INT(CLI("connect lend.json -o mine.json"), 0);
    SAYS("scope operate");
    CHECK_INT(CLI("exec -s mine.json -w /tmp -e WHO=you -u nobody -- sh -c 'echo $WHO $PWD $(id -un)'"), 0);
    CHECK_STR(output, "you /tmp nobody\n");
    CHECK_INT(CLI("destroy -s mine.json"), 125);
    SAYS("PERMISSION_DENIED (SCOPE_INSUFFICIENT)");
    CHECK_INT(CLI("exec -s lend.json -- echo once"), 0); /* a lent file connects for one command */
    CHECK_STR(output, "once\n");
    CHECK_INT(CLI("leases -s owner.json"), 0);
    SAYS("released");
    CHECK_INT(CLI("--json ls"), 0);
    SAYS("\"state\": \"running\"");
    SAYS("\"labels\": {\"a\": \"b\"}");
    CHECK_INT(CLI("get -s mine.json --json"), 0); /* globals work after the subcommand too */
    SAYS("\"workdir\": \"/work\"");
    CHECK_INT(CLI("release -s mine.json"), 0);
    CHECK_INT(CLI("exec -s mine.json -- true"), 125);
    SAYS("LEASE_RELEASED");
    CHECK_INT(CLI("--json leases -s owner.json | grep -o 'le-[a-z0-9]*' | sed -n 2p > lease-id; sandlot "
                  "revoke -s owner.json $(cat lease-id)"),
              0);
    SAYS("revoked");
    CHECK_INT(CLI("connect lend.json -o again.json"), 125);
    SAYS("LEASE_REVOKED");
    CHECK_INT(CLI("destroy -s owner.json"), 0);
    CHECK_INT(CLI("destroy -s owner.json"), 0);
    CHECK_INT(CLI("get -s owner.json"), 125);
    SAYS("NOT_FOUND");
    CHECK_INT(CLI("info"), 0);
    SAYS("image     host");
}

static void test_exit_codes(void) {
    CHECK_INT(CLI("create -o c.json"), 0);
    CHECK_INT(CLI("exec -s c.json --timeout 0.3 -- sh -c 'echo part; sleep 60'"), 124);
    SAYS("part");
    CHECK_INT(CLI("exec -s c.json -- sh -c 'kill -9 $$'"), 137);
    CHECK_INT(CLI("exec -s c.json -- no-such-command"), 127);
    SAYS("no-such-command");
    CHECK_INT(CLI("exec -s c.json -- /etc/hostname"), 126);
    CHECK_INT(CLI("exec -s c.json -w /missing -- pwd"), 125);
    SAYS("CWD_NOT_FOUND");
    CHECK_INT(CLI("exec -s c.json -- sh -c 'cat; echo end' </dev/zero"), 0); /* no -i: EOF at once */
    CHECK_STR(output, "end\n");
    CHECK_INT(CLI("--version >/dev/null; printf abc | sandlot exec -i -s c.json -- wc -c"), 0);
    SAYS("3");
    CHECK_INT(CLI("--json exec -s c.json -- sh -c 'printf \"q\\\"\\n\"; exit 4'"), 4);
    SAYS("\"exit_code\": 4");
    SAYS("\"stdout\": \"q\\\"\\u000a\"");
    CHECK_INT(CLI("destroy -s c.json"), 0);
}

static void test_cp(void) {
    CHECK_INT(CLI("create -o cp.json"), 0);
    CHECK_INT(CLI("--version >/dev/null; printf 'one\\ntwo' > 'a file'; chmod 755 'a file'; sandlot cp -s "
                  "cp.json 'a file' ':some dir/x'"),
              0);
    CHECK_INT(CLI("exec -s cp.json -- stat -c '%%a %%s' 'some dir/x'"), 0);
    CHECK_STR(output, "755 7\n");
    CHECK_INT(CLI("cp -s cp.json ':some dir/x' back; cmp 'a file' back && echo same"), 0);
    CHECK_STR(output, "same\n");
    CHECK_INT(CLI("cp -s cp.json ':some dir/x' .; cmp 'a file' x && echo same"), 0);
    CHECK_STR(output, "same\n");
    CHECK_INT(CLI("cp -s cp.json --mode 0600 back :dir/; sandlot exec -s cp.json -- stat -c %%a dir/back"),
              0);
    CHECK_STR(output, "600\n");
    CHECK_INT(CLI("cp -s cp.json :missing there"), 125);
    SAYS("FILE_NOT_FOUND");
    CHECK_INT(CLI("cp -s cp.json missing :there"), 125);
    SAYS("missing");
    CHECK_INT(CLI("cp -s cp.json a b"), 125);
    SAYS("usage: sandlot cp");
    CHECK_INT(CLI("cp -s cp.json :a :b"), 125);
    CHECK_INT(CLI("destroy -s cp.json; ls"), 0);
}

static void test_devices_and_links_are_not_replaced(void) {
    CHECK_INT(CLI("create -o d.json; mknod null c 1 3; touch real real.json; ln -s real.json link.json; ln "
                  "-s real link"),
              0);
    CHECK_INT(CLI("serialize -s d.json -o null; sandlot serialize -s d.json -o link.json; test -c null && "
                  "test -L link.json && test -s real.json && echo kept"),
              0);
    SAYS("kept");
    CHECK_INT(CLI("cp -s d.json :/etc/hostname null; sandlot cp -s d.json :/etc/hostname link; test -c null "
                  "&& test -L link && cat real"),
              0);
    SAYS("sb-");
    CHECK_INT(CLI("exec -s d.json -- ln -s /proc/self/pagemap endless; sandlot cp -s d.json :endless out; "
                  "test ! -e out"),
              0);
    SAYS("FILE_NOT_REGULAR");
    CHECK_INT(CLI("destroy -s d.json"), 0);
}

static void test_mistakes_are_explained(void) {
    CHECK_INT(CLI("nonsense"), 125);
    SAYS("no command \"nonsense\"");
    CHECK_INT(CLI("create"), 125);
    SAYS("-o FILE is needed");
    CHECK_INT(CLI("create --ttl x -o f"), 125);
    SAYS("--ttl");
    CHECK_INT(CLI("create --nope -o f"), 125);
    SAYS("unknown option --nope");
    CHECK_INT(CLI("create --image nope -o f"), 125);
    SAYS("IMAGE_NOT_FOUND");
    CHECK_INT(CLI("exec -- true"), 125);
    CHECK_INT(CLI("exec -s missing.json -- true"), 125);
    SAYS("missing.json");
    CHECK_INT(
        CLI("--version >/dev/null; echo '{\"version\": 9}' > bad.json; sandlot exec -s bad.json -- true"),
        125);
    SAYS("DESCRIPTOR_INVALID");
    CHECK_INT(CLI("create -o /no/such/dir/f; sandlot ls | wc -l"), 0);
    SAYS("can't write /no/such/dir/f");
    SAYS("1"); /* the header alone: nothing was left behind */
    CHECK_INT(CLI("--help"), 0);
    SAYS("serialize");
}

static void test_nothing_listening_fails_fast(void) {
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    CHECK_INT(CLI("--address unix:/tmp/nobody-listens-here ls"), 125);
    clock_gettime(CLOCK_MONOTONIC, &after);
    SAYS("unix:/tmp/nobody-listens-here");
    CU_ASSERT(after.tv_sec - before.tv_sec <= 5);
}

static void start(void) {
    fixture_start(&fixture, NULL);
}

static void stop(void) {
    fixture_stop(&fixture);
}

static const struct test tests[] = {
    TEST(start),
    TEST(test_the_commands_of_the_readme),
    TEST(test_exit_codes),
    TEST(test_cp),
    TEST(test_devices_and_links_are_not_replaced),
    TEST(test_mistakes_are_explained),
    TEST(test_nothing_listening_fails_fast),
    TEST(stop),
};

SUITE("cli", tests)
