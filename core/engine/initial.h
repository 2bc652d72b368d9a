/* initial_model: weights of another run or program to begin with.
 *
 * A run's folder, a checkpoint, or any safetensors file with torch.nn.Transformer's names; the
 * "transformer." before them may be missing. Values of any floating type are converted. A tied
 * table may stand there under one or several of its names, with equal values. */
#ifndef BANTAM_ENGINE_INITIAL_H
#define BANTAM_ENGINE_INITIAL_H

#include "core/engine/engine.h"

typedef struct bti_initial bti_initial;

/* Opens a file or folder and checks all that can be wrong with it: BT_EINPUT when a parameter is
 * missing or has another shape, or when there are other tensors (all three are left out with
 * `partial`, as long as anything fits), when copies of a tied table differ, and when a value that
 * would be taken is not finite. */
bt_status bti_initial_open(const char *path, int partial, const bti_model *m, bti_initial **out);
void bti_initial_close(bti_initial *i);

/* Every parameter has a value there. */
int bti_initial_is_whole(const bti_initial *i);
/* For people: "all 68 parameters of PATH", or what was taken and what was not. */
const char *bti_initial_text(const bti_initial *i);
/* Warns of what shapes do not tell, where the file says it: other tokenisers (by checksum), and
 * settings of the model that differ. */
void bti_initial_compare(const bti_initial *i, const bti_run_config *cfg,
                         const uint64_t tokenizer[2]);
/* Writes what was found into the weights, a piece at a time. */
bt_status bti_initial_load(const bti_initial *i, bti_engine *e);

#endif
