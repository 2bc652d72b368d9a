#include "core/decode/losses.h"

#include "core/base/num.h"
#include "core/base/status.h"

/* Tokens a sentence that room is planned for, beside one of full length. */
#define PLANNED_ROWS 64
#define LOGIT_ROWS 256

struct bti_losses {
    bti_losses_config cfg;
    const bti_model *model;
    bti_places places; /* with its own tables */
    bti_shape caps;
    int64_t logit_rows;
    bti_layout layout;
    bti_program *plan, *program;
    const bti_arena *arena;
    void *host;    /* staging */
    char *loss;    /* 2 a target row, acc type */
    void *outputs; /* of a batch; NULL with a decoder */
    int32_t *sort;
    int64_t (*counts)[2];
};

/* With segments: rows[0] is what text may have, and becomes what the encoder may. */
static void cap_segments(const bti_losses *l, int64_t batch, bti_shape *s) {
    const bti_model *m = l->model;
    int64_t text = m->vocab[0] > 0 ? s->rows[0] : 0, all = text + batch * m->cfg.learned_rows;
    if (m->segments == 0) return;
    for (int32_t f = 0; f < m->cfg.features; f++) {
        s->feature_longest[f] = m->cfg.feature[f].rows;
        s->feature[f] = batch * m->cfg.feature[f].rows;
        all += s->feature[f];
    }
    s->rows[0] = m->cfg.fusion == BTI_FUSION_CONCAT ? all : text > 0 ? text : s->feature[0];
    s->tokens = text > 0 ? bti_min(s->rows[0], batch * l->cfg.length) : 0;
    s->distinct[0] = bti_min(s->tokens, m->vocab[0]);
    bti_shape_settle(m, s);
}

static bti_shape caps_for(const bti_losses *l, int64_t batch) {
    int64_t length = l->cfg.length, rows = length + (batch - 1) * bti_min(length, PLANNED_ROWS);
    bti_shape s = {.sentences = batch};
    for (int i = 0; i < 2; i++) {
        s.rows[i] = rows;
        s.distinct[i] = bti_min(rows, l->model->vocab[i]);
        s.longest[i] = length;
    }
    if (!bti_has_decoder(&l->model->cfg)) s.rows[1] = batch;
    cap_segments(l, batch, &s);
    return s;
}

static bt_status emit(const bti_losses *l, bti_program *p, const bti_shape *shape,
                      bti_train_program *out) {
    bti_step step = {.model = l->model,
                     .places = &l->places,
                     .shape = *shape,
                     .choices.logit_rows = l->logit_rows,
                     .first_micro_batch = 1,
                     .smoothing = l->cfg.smoothing};
    return bti_model_emit_step(p, &step, out);
}

bt_status bti_losses_new(const bti_model *m, const bt_planning *planning, const bt_dev_info *info,
                         const bti_places *places, const bti_losses_config *cfg, int64_t batch,
                         bti_losses **out) {
    uint64_t align = info->alignment;
    bti_train_program unused;
    bti_losses *l = bti_alloc(1, sizeof *l);
    if (l == NULL) return BT_ENOMEM;
    l->cfg = *cfg;
    l->model = m;
    l->places = *places;
    l->caps = caps_for(l, batch);
    l->logit_rows = bti_min(l->caps.rows[1], LOGIT_ROWS);
    bti_staging_plan(m, &l->caps, align, &l->places.staging);
    bt_status status = bti_program_new("losses", planning, info, &l->plan);
    if (status == BT_OK) status = emit(l, l->plan, &l->caps, &unused);
    if (status == BT_OK)
        status = bti_layout_make(
            l->plan,
            &(bti_layout_options){.alignment = align, .heap = info->max_alloc / align * align},
            &l->layout);
    if (status != BT_OK) {
        bti_losses_free(l);
        return status;
    }
    *out = l;
    return BT_OK;
}

void bti_losses_free(bti_losses *l) {
    if (l == NULL) return;
    if (l->host != NULL) l->arena->dev->ops->host_free(l->arena->dev, l->host);
    bti_program_free(l->plan);
    bti_program_free(l->program);
    bti_free(l->loss);
    bti_free(l->outputs);
    bti_free(l->sort);
    bti_free(l->counts);
    bti_free(l);
}

static size_t acc_size(const bti_losses *l) {
    return bti_dtype_size(bti_dtype_acc(l->model->params.dtype));
}

uint64_t bti_losses_dynamic_bytes(const bti_losses *l) { return l->layout.bytes; }
uint64_t bti_losses_staging_bytes(const bti_losses *l) { return l->places.staging.bytes; }

static size_t sort_rows(const bti_losses *l) {
    const int64_t *rows = l->caps.rows;
    return (size_t)(rows[0] > rows[1] ? rows[0] : rows[1]) + 65537;
}

static size_t output_values(const bti_losses *l) {
    return (size_t)(l->caps.rows[1] * l->model->cfg.outputs);
}

uint64_t bti_losses_host_bytes(const bti_losses *l) {
    uint64_t rows = (uint64_t)l->caps.rows[1];
    return l->places.staging.bytes + rows * 2 * acc_size(l) + sort_rows(l) * sizeof *l->sort +
           output_values(l) * acc_size(l) + (uint64_t)l->caps.sentences * sizeof *l->counts;
}

bt_status bti_losses_bind(bti_losses *l, const bti_arena *arena) {
    size_t rows = (size_t)l->caps.rows[1];
    l->arena = arena;
    l->loss = bti_alloc(rows, 2 * acc_size(l));
    l->sort = bti_alloc(sort_rows(l), sizeof *l->sort);
    l->outputs = bti_alloc(output_values(l), acc_size(l));
    l->counts = bti_alloc((size_t)l->caps.sentences, sizeof *l->counts);
    if (l->loss == NULL || l->outputs == NULL || l->sort == NULL || l->counts == NULL)
        return BT_ENOMEM;
    BT_TRY(arena->dev->ops->host_alloc(arena->dev, l->places.staging.bytes, &l->host));
    BT_TRY(bti_program_new("losses", l->plan->planning, &l->plan->info, &l->program));
    return bti_program_reserve(l->program, l->plan);
}

/* `rows`: of losses. With `outputs`, those of the head come too. */
static bt_status enqueue_batch(bti_losses *l, const bti_sentence *sentence, int64_t n, int outputs,
                               int64_t *rows) {
    bt_dev *dev = l->arena->dev;
    bti_program *p = l->program;
    bti_train_program program;
    bti_shape shape;
    BT_TRY(bti_stage(l->model, &l->places.staging, sentence, n, 0, l->cfg.start, l->host, l->sort,
                     &shape));
    *rows = shape.rows[1];
    bt_view v = bti_arena_at(l->arena, BTI_REGION_STAGING, 0);
    BT_TRY(dev->ops->upload(dev, NULL, v.buf, v.off, l->host, l->places.staging.bytes));
    BT_TRY(emit(l, p, &shape, &program));
    BT_TRY(bti_layout_take(p, l->plan));
    BT_TRY(bti_program_run(p, l->arena, 0, 0, p->ops, NULL));
    v = bti_arena_view(l->arena, p, bti_all(p, program.loss), 0);
    BT_TRY(dev->ops->download(dev, NULL, l->loss, v.buf, v.off, (uint64_t)*rows * 2 * acc_size(l)));
    if (!outputs) return BT_OK;
    v = bti_arena_view(l->arena, p, bti_all(p, program.outputs), 0);
    return dev->ops->download(dev, NULL, l->outputs, v.buf, v.off,
                              (uint64_t)(n * l->model->cfg.outputs) * acc_size(l));
}

static bt_status run_batch(bti_losses *l, const bti_sentence *sentence, int64_t n, float *outputs,
                           bti_loss_sum *sum) {
    int64_t rows = 0, values = n * l->model->cfg.outputs;
    bt_dtype acc = bti_dtype_acc(l->model->params.dtype);
    BT_TRY(bti_settle(l->arena->dev, NULL, enqueue_batch(l, sentence, n, outputs != NULL, &rows)));
    for (int64_t r = 0; r < rows; r++) {
        sum->loss += bti_load(l->loss, acc, 2 * r);
        sum->nll += bti_load(l->loss, acc, 2 * r + 1);
    }
    sum->rows += rows;
    for (int64_t k = 0; outputs != NULL && k < values; k++)
        outputs[k] = (float)bti_load(l->outputs, acc, k);
    return BT_OK;
}

/* Rows of a sentence; BT_EINTERNAL when it is longer than was planned. */
static bt_status count_rows(const bti_losses *l, const bti_sentence *s, int64_t count[2]) {
    for (int side = 0; side < 2; side++)
        if (s->count[side] > l->cfg.length)
            return bti_fail(BT_EINTERNAL, "a sentence of %lld symbols, %lld planned",
                            (long long)s->count[side], (long long)l->cfg.length);
    count[0] = bti_encoder_rows(l->model, s);
    count[1] = s->count[1];
    return BT_OK;
}

bt_status bti_losses_run(bti_losses *l, const bti_sentence *sentence, int64_t n, float *outputs,
                         bti_loss_sum *sum) {
    for (int64_t at = 0, take; at < n; at += take) {
        int64_t block = bti_min(n - at, l->caps.sentences);
        for (int64_t i = 0; i < block; i++) BT_TRY(count_rows(l, &sentence[at + i], l->counts[i]));
        take = bti_split_next(&l->caps, (const int64_t(*)[2])l->counts, 0, block);
        float *to = outputs ? outputs + at * l->model->cfg.outputs : NULL;
        BT_TRY(run_batch(l, sentence + at, take, to, sum));
    }
    return BT_OK;
}
