/* Parts of the data suite. */
#ifndef BANTAM_TESTS_DATA_PARTS_H
#define BANTAM_TESTS_DATA_PARTS_H

#include "tests/toy.h"

void add_data_batcher(TCase *tc);
void add_data_cache(TCase *tc);
void add_data_order(TCase *tc);

#endif
