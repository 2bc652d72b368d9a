/* The program, end to end: test_program_*.c by subject. */
#include "tests/program_kit.h"

static void add(TCase *tc) {
    const char *P = getenv("PONLY");
    tcase_set_timeout(tc, 0);
    if (!P || strchr(P, 'm')) add_memory(tc);
    if (!P || strchr(P, 't')) add_train(tc);
    if (!P || strchr(P, 'd')) add_data(tc);
    if (!P || strchr(P, 'x')) add_translate(tc);
}

int main(int argc, char **argv) { return kit_main("program", add, argc, argv); }
