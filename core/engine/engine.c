#include "core/engine/engine.h"

#include <math.h>
#include <string.h>

#include "core/base/status.h"

static size_t acc_size(const bti_engine *e) {
    return bti_dtype_size(bti_dtype_acc(e->model->params.dtype));
}

static int is_compact(const bti_engine *e, int side) {
    return (int)(e->plan->choices.compact >> side & 1);
}

static const bti_param *table_of(const bti_engine *e, int side) {
    return &e->model->params.param[e->model->embed[side]];
}

static uint64_t index_bytes(const bti_engine *e, int side) {
    return (uint64_t)table_of(e, side)->grad_rows * sizeof(int32_t);
}

/* What compact gradients need on the host. */
static bt_status take_index(bti_engine *e) {
    const int64_t *vocab = e->model->vocab;
    int64_t words = (vocab[vocab[1] > vocab[0]] + 63) / 64;
    if (e->plan->choices.compact == 0) return BT_OK;
    e->seen = bti_alloc((size_t)words, sizeof *e->seen);
    if (e->seen == NULL) return BT_ENOMEM;
    for (int side = 0; side < 2; side++) {
        void *index = NULL;
        if (!is_compact(e, side)) continue;
        BT_TRY(e->dev->ops->host_alloc(e->dev, index_bytes(e, side), &index));
        e->index[side] = index;
    }
    return BT_OK;
}

/* Host memory, programs and events. */
static bt_status take_host(bti_engine *e) {
    const bti_run_plan *plan = e->plan;
    const bt_dev_ops *ops = e->dev->ops;
    int64_t loss_rows =
        plan->caps.rows[1] > e->max_target_rows ? plan->caps.rows[1] : e->max_target_rows;
    uint64_t loss_bytes = (uint64_t)loss_rows * 2 * acc_size(e);
    int64_t rows =
        plan->caps.rows[0] > plan->caps.rows[1] ? plan->caps.rows[0] : plan->caps.rows[1];
    e->counts = bti_alloc((size_t)e->max_sentences, sizeof *e->counts);
    e->sort = bti_alloc((size_t)rows + 65537, sizeof *e->sort);
    if (e->counts == NULL || e->sort == NULL) return BT_ENOMEM;
    for (int i = 0; i < 2; i++) {
        BT_TRY(ops->host_alloc(e->dev, plan->places.staging.bytes, &e->host_slot[i]));
        BT_TRY(ops->event_new(e->dev, &e->came[i]));
        BT_TRY(ops->event_new(e->dev, &e->ran[i]));
    }
    BT_TRY(ops->stream_new(e->dev, &e->copies));
    BT_TRY(ops->host_alloc(e->dev, loss_bytes, &e->host_loss));
    if (plan->losses != NULL && !bti_has_decoder(&e->model->cfg))
        BT_TRY(ops->host_alloc(e->dev,
                               (uint64_t)(plan->caps.rows[1] * e->model->cfg.outputs) * acc_size(e),
                               &e->host_outputs));
    BT_TRY(ops->host_alloc(e->dev, 2 * BT_SCALAR_COUNT * sizeof(double), &e->host_scalars));
    BT_TRY(bti_program_new("step", plan->step->planning, &plan->step->info, &e->step));
    BT_TRY(bti_program_reserve(e->step, plan->step));
    if (plan->losses != NULL) {
        BT_TRY(bti_program_new("losses", plan->losses->planning, &plan->losses->info, &e->losses));
        BT_TRY(bti_program_reserve(e->losses, plan->losses));
    }
    BT_TRY(bti_program_new("update", plan->update->planning, &plan->update->info, &e->update));
    return bti_program_reserve(e->update, plan->update);
}

static bt_status write_positions(bti_engine *e) {
    const bti_places *at = &e->plan->places;
    size_t bytes = (size_t)(at->position_rows * e->model->cfg.d_model) *
                   bti_dtype_size(e->model->params.dtype);
    if (bytes == 0) return BT_OK;
    void *table = bti_alloc(1, bytes);
    if (table == NULL) return BT_ENOMEM;
    bti_model_sinusoids(e->model, at->position_rows, table);
    bt_view v = bti_arena_at(&e->arena, BTI_REGION_CONSTANT, at->positions);
    bt_status status = e->dev->ops->upload(e->dev, NULL, v.buf, v.off, table, bytes);
    status = bti_settle(e->dev, NULL, status);
    bti_free(table);
    return status;
}

/* The part of the scalar block that lives on the device. */
bt_status bti_engine_set_scale(bti_engine *e, double loss_scale, double good) {
    bt_dtype acc = bti_dtype_acc(e->model->params.dtype);
    double value[] = {loss_scale, good};
    e->loss_scale = loss_scale;
    e->good = good;
    for (int i = 0; i < 2; i++) bti_store(e->host_scalars, acc, i, value[i]);
    bt_view v = bti_arena_at(&e->arena, BTI_REGION_CONSTANT, e->plan->places.scalars);
    return bti_settle(e->dev, NULL,
                      e->dev->ops->upload(e->dev, NULL, v.buf,
                                          v.off + BT_SCALAR_LOSS_SCALE * bti_dtype_size(acc),
                                          e->host_scalars, 2 * bti_dtype_size(acc)));
}

static bt_status emit_update(bti_engine *e) {
    bti_update_step step = {.model = e->model,
                            .places = &e->plan->places,
                            .heap = e->plan->heap,
                            .adamw = e->settings.adamw,
                            .scaling = e->settings.scaling};
    BT_TRY(bti_model_emit_update(e->update, &step));
    return bti_layout_take(e->update, e->plan->update);
}

bt_status bti_engine_new(bt_dev *dev, const bti_model *model, const bti_run_plan *plan,
                         int64_t max_sentences, int64_t max_target_rows,
                         const bti_engine_settings *settings, bti_engine **out) {
    bti_engine *e = bti_alloc(1, sizeof *e);
    if (e == NULL) return BT_ENOMEM;
    e->dev = dev;
    e->model = model;
    e->plan = plan;
    e->settings = *settings;
    e->max_sentences = max_sentences;
    e->max_target_rows = max_target_rows;
    bti_arena_plan(&e->arena, plan->region, &plan->step->info);
    bt_status status = bti_arena_take(&e->arena, dev);
    if (status == BT_OK) status = take_host(e);
    if (status == BT_OK) status = take_index(e);
    if (status == BT_OK && plan->places.moments.kind == BTI_MOMENTS_HOST)
        status = bti_host_moments_new(dev, plan->places.moments.host_bytes / 2, &e->host_moments);
    if (status == BT_OK) status = write_positions(e);
    if (status == BT_OK)
        status = bti_engine_set_scale(e, settings->loss_scale > 0 ? settings->loss_scale : 1, 0);
    if (status == BT_OK) status = emit_update(e);
    if (status != BT_OK) {
        bti_engine_free(e);
        return status;
    }
    *out = e;
    return BT_OK;
}

/* After a failure streams may still hold copies of host memory that the next update writes. */
static bt_status settle(bti_engine *e, bt_status status) {
    if (e->copies != NULL) status = bti_settle(e->dev, e->copies, status);
    return bti_settle(e->dev, NULL, status);
}

void bti_engine_free(bti_engine *e) {
    if (e == NULL) return;
    settle(e, BT_OK);
    bti_host_moments_free(e->host_moments);
    for (int i = 0; i < 2; i++) {
        e->dev->ops->host_free(e->dev, e->host_slot[i]);
        e->dev->ops->host_free(e->dev, e->index[i]);
        e->dev->ops->event_free(e->dev, e->came[i]);
        e->dev->ops->event_free(e->dev, e->ran[i]);
    }
    if (e->copies != NULL) e->dev->ops->stream_free(e->dev, e->copies);
    e->dev->ops->host_free(e->dev, e->host_loss);
    e->dev->ops->host_free(e->dev, e->host_outputs);
    e->dev->ops->host_free(e->dev, e->host_scalars);
    bti_arena_release(&e->arena);
    bti_program_free(e->step);
    bti_program_free(e->update);
    bti_program_free(e->losses);
    bti_free(e->counts);
    bti_free(e->sort);
    bti_free(e->seen);
    bti_free(e);
}

/* ---- one update --------------------------------------------------------------------------------
 */

/* One micro-batch: its sentences and where they stand in the update. */
typedef struct portion {
    const bti_sentence *sentence;
    int64_t n, place, index; /* index: of the micro-batch */
    int64_t update;          /* 0: losses only */
    double grad_scale;
    int64_t loss_row; /* where its losses go in the host's */
} portion;

/* Brings a filled slot to the device, where the program that last read it has run, and lets what
 * comes next on the device's own stream wait for it. */
static bt_status bring(bti_engine *e, int slot) {
    const bt_dev_ops *ops = e->dev->ops;
    uint64_t bytes = e->plan->places.staging.bytes;
    bt_view v = bti_arena_at(&e->arena, BTI_REGION_STAGING, (uint64_t)slot * bytes);
    if (e->slot_used[slot]) BT_TRY(ops->event_wait(e->dev, e->copies, e->ran[slot]));
    BT_TRY(ops->upload(e->dev, e->copies, v.buf, v.off, e->host_slot[slot], bytes));
    BT_TRY(ops->event_record(e->dev, e->copies, e->came[slot]));
    return ops->event_wait(e->dev, NULL, e->came[slot]);
}

/* Stages and runs one micro-batch; gives its target rows. */
static bt_status micro_batch(bti_engine *e, const portion *m, int64_t *rows) {
    const bti_run_plan *plan = e->plan;
    const bt_dev_ops *ops = e->dev->ops;
    int slot = (int)(m->index % 2), training = m->update > 0;
    bti_program *p = training ? e->step : e->losses;
    uint64_t slot_at = (uint64_t)slot * plan->places.staging.bytes;
    if (e->slot_used[slot]) BT_TRY(ops->event_sync(e->dev, e->came[slot]));
    bti_step step = {.model = e->model,
                     .places = &plan->places,
                     .choices = plan->choices,
                     .training = training,
                     .first_micro_batch = m->index == 0,
                     .seed = e->settings.seed,
                     .update = (uint32_t)m->update,
                     .smoothing = e->settings.smoothing,
                     .grad_scale = m->grad_scale};
    BT_TRY(bti_stage(e->model, &plan->places.staging, m->sentence, m->n, m->place,
                     e->settings.start, e->host_slot[slot], e->sort, &step.shape));
    for (int side = 0; side < 2; side++)
        if (training && is_compact(e, side))
            bti_stage_compact(e->model, &plan->places.staging, e->host_slot[slot], side,
                              step.shape.distinct[side], e->index[side]);
    BT_TRY(bring(e, slot));
    bti_train_program program;
    BT_TRY(bti_model_emit_step(p, &step, &program));
    BT_TRY(bti_layout_take(p, training ? plan->step : plan->losses));
    BT_TRY(bti_program_run(p, &e->arena, slot_at, 0, p->ops, &e->settings.hooks));
    BT_TRY(ops->event_record(e->dev, NULL, e->ran[slot]));
    e->slot_used[slot] = 1;
    if (program.outputs != 0) {
        bt_view y = bti_arena_view(&e->arena, p, bti_all(p, program.outputs), slot_at);
        BT_TRY(ops->download(e->dev, NULL, e->host_outputs, y.buf, y.off,
                             (uint64_t)(y.rows * y.cols) * acc_size(e)));
    }
    bt_view loss = bti_arena_view(&e->arena, p, bti_all(p, program.loss), slot_at);
    *rows = step.shape.rows[1];
    return ops->download(e->dev, NULL, (char *)e->host_loss + (size_t)m->loss_row * 2 * acc_size(e),
                         loss.buf, loss.off, (uint64_t)*rows * 2 * acc_size(e));
}

/* Scalars up, norm and step, scalars down. */
static bt_status take_step(bti_engine *e, double lr) {
    bt_dtype acc = bti_dtype_acc(e->model->params.dtype);
    uint64_t bytes = BT_SCALAR_COUNT * bti_dtype_size(acc);
    char *up = e->host_scalars, *down = up + BT_SCALAR_COUNT * sizeof(double);
    double t = (double)(e->steps + 1);
    double value[BT_SCALAR_HOST_COUNT] = {
        [BT_SCALAR_LR] = lr,
        [BT_SCALAR_CLIP] = e->settings.clip_norm,
        [BT_SCALAR_CORRECTION1] = -expm1(t * log(e->settings.adamw.beta1)),
        [BT_SCALAR_CORRECTION2] = -expm1(t * log(e->settings.adamw.beta2))};
    for (int i = 0; i < BT_SCALAR_HOST_COUNT; i++) bti_store(up, acc, i, value[i]);
    bt_view v = bti_arena_at(&e->arena, BTI_REGION_CONSTANT, e->plan->places.scalars);
    BT_TRY(e->dev->ops->upload(e->dev, NULL, v.buf, v.off, up,
                               BT_SCALAR_HOST_COUNT * bti_dtype_size(acc)));
    if (e->host_moments != NULL)
        BT_TRY(bti_host_moments_run(e->host_moments, e->update, &e->arena, &e->settings.hooks));
    else
        BT_TRY(bti_program_run(e->update, &e->arena, 0, 0, e->update->ops, &e->settings.hooks));
    BT_TRY(e->dev->ops->download(e->dev, NULL, down, v.buf, v.off, bytes));
    BT_TRY(e->dev->ops->sync(e->dev, NULL));
    return e->host_moments != NULL ? bti_host_moments_wait(e->host_moments) : BT_OK;
}

static double scalar(const bti_engine *e, int which) {
    bt_dtype acc = bti_dtype_acc(e->model->params.dtype);
    return bti_load((const char *)e->host_scalars + BT_SCALAR_COUNT * sizeof(double), acc, which);
}

/* Row losses in place order, in double. */
static void sum_losses(const bti_engine *e, int64_t rows, bti_loss_sum *sum) {
    bt_dtype acc = bti_dtype_acc(e->model->params.dtype);
    for (int64_t r = 0; r < rows; r++) {
        sum->loss += bti_load(e->host_loss, acc, 2 * r);
        sum->nll += bti_load(e->host_loss, acc, 2 * r + 1);
    }
    sum->rows += rows;
}

static bt_status count_sentence(const bti_engine *e, const bti_sentence *s, int64_t count[2]) {
    count[0] = bti_encoder_rows(e->model, s);
    count[1] = s->count[1];
    for (int side = 0; side < 2; side++)
        if (count[side] > e->plan->caps.rows[side])
            return bti_fail(BT_EINTERNAL, "a sentence of %lld rows, %lld planned",
                            (long long)count[side], (long long)e->plan->caps.rows[side]);
    return BT_OK;
}

static bt_status count_rows(bti_engine *e, const bti_sentence *sentence, int64_t n,
                            bti_update_result *out) {
    if (n > e->max_sentences)
        return bti_fail(BT_EINTERNAL, "update of %lld sentences, %lld planned", (long long)n,
                        (long long)e->max_sentences);
    for (int64_t i = 0; i < n; i++) {
        BT_TRY(count_sentence(e, &sentence[i], e->counts[i]));
        for (int side = 0; side < 2; side++) out->rows[side] += e->counts[i][side];
    }
    if (out->rows[1] > e->max_target_rows)
        return bti_fail(BT_EINTERNAL, "update of %lld target symbols, %lld planned",
                        (long long)out->rows[1], (long long)e->max_target_rows);
    return BT_OK;
}

/* The ids whose rows of a table the update touches, to host and device. The update before has been
 * waited for. */
static bt_status stage_index(bti_engine *e, const bti_sentence *sentence, int64_t n) {
    for (int side = 0; side < 2; side++) {
        if (!is_compact(e, side)) continue;
        int64_t room = table_of(e, side)->grad_rows;
        e->distinct[side] = bti_stage_index(sentence, n, side, e->settings.start, e->seen,
                                            e->model->vocab[side], e->index[side], room);
        if (e->distinct[side] > room)
            return bti_fail(BT_EINTERNAL, "update of %lld distinct %s symbols, %lld planned",
                            (long long)e->distinct[side], side ? "target" : "source",
                            (long long)room);
        bt_view v = bti_arena_at(&e->arena, BTI_REGION_CONSTANT, e->plan->places.index[side]);
        BT_TRY(
            e->dev->ops->upload(e->dev, NULL, v.buf, v.off, e->index[side], index_bytes(e, side)));
    }
    return BT_OK;
}

static bt_status run_update(bti_engine *e, const bti_sentence *sentence, int64_t n, int64_t update,
                            double lr, bti_update_result *out) {
    bti_update_result result = {.loss_scale = e->loss_scale};
    BT_TRY(count_rows(e, sentence, n, &result));
    if (result.rows[1] == 0) {
        result.skipped = 1;
        *out = result;
        return BT_OK;
    }
    if (e->host_moments != NULL)
        BT_TRY(bti_host_moments_begin(e->host_moments, e->update, &e->arena));
    BT_TRY(stage_index(e, sentence, n));
    portion m = {.update = update, .grad_scale = 1.0 / (double)result.rows[1]};
    while (m.place < n) {
        int64_t rows;
        m.sentence = sentence + m.place;
        m.index = result.micro_batches;
        m.n = bti_split_next(&e->plan->caps, (const int64_t(*)[2])e->counts, m.place, n);
        BT_TRY(micro_batch(e, &m, &rows));
        result.micro_batches++;
        m.loss_row += rows;
        m.place += m.n;
    }
    if (e->settings.before_step != NULL)
        BT_TRY(e->settings.before_step(e->settings.user, e, update));
    BT_TRY(take_step(e, lr));
    bti_loss_sum sum = {0};
    sum_losses(e, result.rows[1], &sum);
    result.loss = sum.loss / (double)sum.rows;
    result.nll = sum.nll / (double)sum.rows;
    result.grad_norm = scalar(e, BT_SCALAR_NORM);
    result.skipped = scalar(e, BT_SCALAR_SKIP) != 0;
    result.loss_scale = e->loss_scale = scalar(e, BT_SCALAR_LOSS_SCALE);
    e->good = scalar(e, BT_SCALAR_GOOD);
    if (!result.skipped) e->steps++;
    *out = result;
    return BT_OK;
}

bt_status bti_engine_update(bti_engine *e, const bti_sentence *sentence, int64_t n, int64_t update,
                            double lr, bti_update_result *out) {
    bt_status status = run_update(e, sentence, n, update, lr, out);
    return status == BT_OK ? BT_OK : settle(e, status);
}

static bt_status run_losses(bti_engine *e, const bti_sentence *sentence, int64_t n, float *outputs,
                            bti_loss_sum *out) {
    bt_dtype acc = bti_dtype_acc(e->model->params.dtype);
    int64_t cols = e->model->cfg.outputs;
    const bti_shape *caps = &e->plan->caps;
    bti_loss_sum sum = {0};
    portion m = {0};
    for (int64_t at = 0; at < n; at += m.n, m.index++) {
        int64_t block = n - at < e->max_sentences ? n - at : e->max_sentences, rows;
        for (int64_t i = 0; i < block; i++)
            BT_TRY(count_sentence(e, &sentence[at + i], e->counts[i]));
        m.sentence = sentence + at;
        m.n = bti_split_next(caps, (const int64_t(*)[2])e->counts, 0, block);
        BT_TRY(micro_batch(e, &m, &rows));
        BT_TRY(e->dev->ops->sync(e->dev, NULL));
        sum_losses(e, rows, &sum);
        for (int64_t k = 0; outputs != NULL && k < rows * cols; k++)
            outputs[at * cols + k] = (float)bti_load(e->host_outputs, acc, k);
    }
    *out = sum;
    return BT_OK;
}

bt_status bti_engine_losses(bti_engine *e, const bti_sentence *sentence, int64_t n, float *outputs,
                            bti_loss_sum *out) {
    bt_status status = run_losses(e, sentence, n, outputs, out);
    return status == BT_OK ? BT_OK : settle(e, status);
}
