#include "tests/far.h"
void far_register(void) {}
