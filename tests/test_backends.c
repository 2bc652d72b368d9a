#include "tests/conform.h"
static void add(TCase *tc) { (void)tc; }
int main(int argc, char **argv) { return kit_main("backends", add, argc, argv); }
