/* The program, end to end: test_program_*.c by subject. */
#include "tests/program_kit.h"

static void add(TCase *tc) {
    tcase_set_timeout(tc, 0);
    add_usage(tc);
    add_memory(tc);
    add_train(tc);
    add_data(tc);
    add_translate(tc);
    add_repeat(tc);
    add_valid(tc);
    add_check(tc);
    add_init(tc);
    add_half(tc);
    add_features(tc);
    add_folder(tc);
}

int main(int argc, char **argv) { return kit_main("program", add, argc, argv); }
