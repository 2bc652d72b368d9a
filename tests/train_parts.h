/* Parts of the train suite. */
#ifndef BANTAM_TESTS_TRAIN_PARTS_H
#define BANTAM_TESTS_TRAIN_PARTS_H

#include "tests/model_kit.h"

void add_train_compact(TCase *tc);
void add_train_fault(TCase *tc);
void add_train_freeze(TCase *tc);
void add_train_fused(TCase *tc);
void add_train_grad(TCase *tc);
void add_train_half(TCase *tc);
void add_train_initial(TCase *tc);
void add_train_levels(TCase *tc);
void add_train_moments(TCase *tc);
void add_train_resume(TCase *tc);
void add_train_split(TCase *tc);

#endif
