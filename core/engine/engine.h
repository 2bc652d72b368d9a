/* The engine: model, arena and programs of a run on one device; runs updates.
 *
 * It knows neither files nor tokenisers: sentences come as ids. Everything is taken in
 * bti_engine_new; bti_engine_update allocates nothing. */
#ifndef BANTAM_ENGINE_ENGINE_H
#define BANTAM_ENGINE_ENGINE_H

#include "core/engine/host_moments.h"
#include "core/fit/planner.h"

struct bti_engine;

/* Where dense features come from, and targets that are numbers. */
typedef struct bti_dense {
    void *user;
    /* Rows x width numbers of an example's feature. Allocates nothing. */
    bt_status (*read)(void *user, int32_t feature, int64_t example, float *out);
    /* model.outputs numbers; NULL: the head has no such targets. */
    void (*values)(void *user, int64_t example, float *out);
} bti_dense;

/* An example. Without a decoder count[1] is 1: ids[1] is its class, or `dense` has its targets. */
typedef struct bti_sentence {
    const int32_t *ids[2]; /* source, target; the end symbol last */
    int64_t count[2];
    const bti_dense *dense; /* NULL: there are no features */
    int64_t example;        /* what `dense` knows it by */
    const int32_t *rows;    /* of each feature */
} bti_sentence;

/* Rows of a segment of the encoder's input, of the encoder, and of what its layers attend to
 * beside. */
int64_t bti_sentence_segment(const bti_model *m, const bti_sentence *s, int32_t segment);
int64_t bti_encoder_rows(const bti_model *m, const bti_sentence *s);
int64_t bti_memory_rows(const bti_model *m, const bti_sentence *s);

typedef struct bti_engine_settings {
    int32_t start; /* symbol before the first target symbol */
    uint64_t seed;
    double smoothing, clip_norm;
    bt_adamw_params adamw;
    double loss_scale; /* of the first update; 0: none, which is 1 */
    bt_update_scalars_params scaling;
    bti_run_hooks hooks; /* tests */
    /* Tests: called when all gradients of an update are there, before the step. */
    bt_status (*before_step)(void *user, struct bti_engine *e, int64_t update);
    void *user;
} bti_engine_settings;

typedef struct bti_engine {
    bt_dev *dev;
    const bti_model *model;
    const bti_run_plan *plan;
    bti_engine_settings settings;
    bti_arena arena;
    bti_program *step, *update;     /* emitted again for each micro-batch; places of the plan */
    bti_program *losses;            /* of validation, where the plan has it */
    bti_host_moments *host_moments; /* NULL: they are on the device */
    /* Staging: micro-batches take the two slots in turn, on the host and on the device. A stream of
     * its own brings the next one's tables and features while the program of the one before runs.
     */
    void *host_slot[2];
    bt_stream *copies;
    bt_event *came[2], *ran[2]; /* the slot has come; what reads it has run */
    int slot_used[2];
    void *host_loss;    /* losses of one update, 2 a target row, acc type */
    void *host_outputs; /* of a micro-batch, where validation wants them; else NULL */
    void *host_scalars;
    int64_t (*counts)[2]; /* rows of the sentences of one update */
    int32_t *sort;        /* scratch of the row order: cap rows + 65,537 counters */
    /* Of sides with compact gradients: row k of the gradient belongs to id index[side][k]. */
    int32_t *index[2];   /* as in bti_places */
    int64_t distinct[2]; /* ids of the last update */
    uint64_t *seen;      /* scratch: a bit for each symbol, all clear */
    int64_t max_sentences, max_target_rows;
    int64_t steps; /* optimiser steps taken; skipped ones do not count */
    /* The loss scale of the next update and updates without overflow since it changed: what the
     * device held after the last one. */
    double loss_scale, good;
} bti_engine;

typedef struct bti_update_result {
    double loss, nll; /* per target token; loss with label smoothing */
    double grad_norm; /* before clipping */
    int64_t rows[2];  /* source and target tokens */
    int64_t micro_batches;
    double loss_scale; /* of the next update: halved when this one overflowed */
    int skipped;       /* a gradient was not finite: nothing was changed */
} bti_update_result;

/* Takes all memory. Weights and moments are zero until bti_engine_init or writes. The plan, model
 * and device are borrowed. max_sentences, max_target_rows: of the largest update. */
bt_status bti_engine_new(bt_dev *dev, const bti_model *model, const bti_run_plan *plan,
                         int64_t max_sentences, int64_t max_target_rows,
                         const bti_engine_settings *settings, bti_engine **out);
void bti_engine_free(bti_engine *e);

/* First values of all parameters from the seed. */
bt_status bti_engine_init(bti_engine *e);

/* Goes on with a loss scale: this one, which stood for `good` updates. */
bt_status bti_engine_set_scale(bti_engine *e, double loss_scale, double good);

/* One update over n sentences, in place order. */
bt_status bti_engine_update(bti_engine *e, const bti_sentence *sentence, int64_t n, int64_t update,
                            double lr, bti_update_result *out);

/* Sums of losses without gradients or dropout, for any number of sentences of at most the planned
 * lengths; the plan has validation. */
typedef struct bti_loss_sum {
    double loss, nll; /* sums over target tokens */
    int64_t rows;     /* target tokens */
} bti_loss_sum;
/* `outputs` (may be NULL): n x model.outputs of a head without a decoder. */
bt_status bti_engine_losses(bti_engine *e, const bti_sentence *sentence, int64_t n, float *outputs,
                            bti_loss_sum *out);

/* engine_state.c: copies elements from .. from+count-1 of a parameter in a state region (weights,
 * gradients, moments) to the host or from it, or a whole one from it, wherever it is kept. A
 * compact gradient has grad_rows rows, and a frozen parameter has weights only. Moments in 8 bits
 * are widened, and narrowed when written; parts of them begin and end with blocks. */
bt_status bti_engine_read(bti_engine *e, bti_region region, int32_t param, int64_t from,
                          int64_t count, void *host);
bt_status bti_engine_write_part(bti_engine *e, bti_region region, int32_t param, int64_t from,
                                int64_t count, const void *host);
bt_status bti_engine_write(bti_engine *e, bti_region region, int32_t param, const void *host);

/* Moments in 8 bits as they are: codes (one byte each) or scales (one for each block) from .. from
 * + count - 1. */
typedef enum bti_state_part { BTI_CODES, BTI_SCALES } bti_state_part;
bt_status bti_engine_read_8bit(bti_engine *e, bti_region region, bti_state_part part, int32_t param,
                               int64_t from, int64_t count, void *host);
bt_status bti_engine_write_8bit(bti_engine *e, bti_region region, bti_state_part part,
                                int32_t param, int64_t from, int64_t count, const void *host);

/* staging.c: fills the tables of sentences 0 .. n-1, whose places in the update begin at `place`,
 * reads their features, and gives the micro-batch's shape. `sort` is scratch of rows + 65,537
 * words. Fails where features cannot be read, or do not go with each other. */
bt_status bti_stage(const bti_model *m, const bti_staging *at, const bti_sentence *sentence,
                    int64_t n, int64_t place, int32_t start, void *slot, int32_t *sort,
                    bti_shape *shape);
/* The part of it that makes the encoder's tables for a model with segments. */
bt_status bti_stage_source(const bti_model *m, const bti_staging *at, const bti_sentence *sentence,
                           int64_t n, int64_t place, void *slot, int32_t *sort, bti_shape *shape);
/* The distinct ids that n sentences feed to a side, ascending, INT32_MAX behind the last; gives how
 * many there are, of which the first `room` are kept. `seen`: vocab bits, clear before and after.
 */
int64_t bti_stage_index(const bti_sentence *sentence, int64_t n, int side, int32_t start,
                        uint64_t *seen, int64_t vocab, int32_t *index, int64_t room);
/* Turns the ids of a side's segs into their places in such an index of the whole update: rows of
 * the compact gradient. */
void bti_stage_compact(const bti_model *m, const bti_staging *at, void *slot, int side,
                       int64_t distinct, const int32_t *index);

#endif
