/* The program, end to end: test_program_*.c by subject. */
#include "tests/program_kit.h"

static void add(TCase *tc) {
    tcase_set_timeout(tc, 0);
    add_memory(tc);
    if (getenv("PONLY") == NULL) add_train(tc);
}

int main(int argc, char **argv) { return kit_main("program", add, argc, argv); }
