#include "tests/lib/suite.h"

int suite_run(const char *name, const struct test *tests, size_t count, int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 2;
    CU_pSuite suite = CU_add_suite(name, NULL, NULL);
    for (size_t i = 0; suite && i < count; i++)
        if (argc < 2 || strstr(tests[i].name, argv[1]))
            CU_add_test(suite, tests[i].name, tests[i].run);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed ? 1 : 0;
}
