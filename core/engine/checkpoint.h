/* Checkpoints: one safetensors file holds weights under torch.nn.Transformer's names, both moments
 * of what is not frozen (optimizer.exp_avg.NAME, optimizer.exp_avg_sq.NAME; in 8 bits these are the
 * codes, uint8, and optimizer.exp_avg_scale.NAME, optimizer.exp_avg_sq_scale.NAME the scale of each
 * 256 of them) and, as metadata, all that a run needs to go on: update, steps taken, checksums of
 * text and tokenisers, and the run file. Written aside, flushed, renamed; checksummed. Never in it:
 * anything of how the run was fitted. */
#ifndef BANTAM_ENGINE_CHECKPOINT_H
#define BANTAM_ENGINE_CHECKPOINT_H

#include "core/base/safetensors.h"
#include "core/engine/engine.h"

typedef struct bti_checkpoint_info {
    int64_t update;          /* updates done, skipped ones included */
    int64_t steps;           /* optimiser steps taken */
    double loss_scale, good; /* as the device has them */
    int64_t vocab[2];
    uint64_t tokenizer[2];     /* checksums */
    uint64_t corpus, held_out; /* held_out: what the scores below are of; 0: not known */
    const char *run;           /* the effective run file */
    /* What the training data are, part by part (bti_examples_describe): says what differs where
     * `corpus` does. NULL: not known. */
    const char *data;
    /* Validation so far: update of the last one (0: none), the best score and its update, and how
     * many since then were no better. */
    int64_t validated, best_update, worse;
    double best;
} bti_checkpoint_info;

/* Writes weights and, with `moments`, the optimiser's state. A weight or moment that is not finite
 * is BT_ENUMERIC, and no file is made. */
bt_status bti_checkpoint_save(bti_engine *e, const char *path, const bti_checkpoint_info *info,
                              int moments);

typedef struct bti_checkpoint {
    char *path;
    bti_st_file *file;
    bti_checkpoint_info info; /* run and data point into the file */
} bti_checkpoint;

/* Opens and checks one file, checksum included. */
bt_status bti_checkpoint_open(const char *path, bti_checkpoint **out);
void bti_checkpoint_close(bti_checkpoint *c);

/* Tells what of the model's parameters the file lacks or has in another shape: BT_EINPUT naming the
 * first and how many there are. */
bt_status bti_checkpoint_match(const bti_checkpoint *c, const bti_model *m);
/* Loads weights and, with `moments`, the optimiser's state and steps into the engine. Moments in 8
 * bits and in fp32 turn into each other, which is told. */
bt_status bti_checkpoint_load(const bti_checkpoint *c, bti_engine *e, int moments);

/* OUT/checkpoint-<update>.safetensors; new string. */
char *bti_checkpoint_path(const char *folder, int64_t update);
/* The newest complete checkpoint of a folder, *out NULL when there is none. What is damaged is
 * passed over with a warning that names it. */
bt_status bti_checkpoint_newest(const char *folder, bti_checkpoint **out);
/* Of a folder the model that validation found best; where nothing was validated, the newest of its
 * checkpoints and its model file. */
bt_status bti_checkpoint_find(const char *folder, bti_checkpoint **out);
/* Largest update in the names of a folder's checkpoints, complete or not; -1: there are none. */
bt_status bti_checkpoint_last(const char *folder, int64_t *update);
/* Removes all up to `newest` but the `keep` last of them, and what killed processes left of some
 * that they were writing. Files of later updates are ones that were
 * passed over: they neither count nor go. */
bt_status bti_checkpoint_prune(const char *folder, int64_t newest, int64_t keep);

#endif
