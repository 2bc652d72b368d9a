/* Beam search on a device, in process: what a sentence's batch may not change. */
#include "backends/registry.h"
#include "core/decode/decoder.h"
#include "tests/kit.h"
#include "tests/model_kit.h"

enum { SENTENCES = 9, LENGTH = 40, NBEST = 3, VOCAB = 97, END = 2 };

typedef struct place {
    bt_dev *dev;
    bti_model *model;
    bti_places places;
    bti_arena arena;
    bti_decoder *decoder;
} place;

static void put(place *p, bti_region region, uint64_t address, const void *data, uint64_t bytes) {
    bt_view v = bti_arena_at(&p->arena, region, address);
    kit_ok(p->dev->ops->upload(p->dev, NULL, v.buf, v.off, data, bytes));
    kit_ok(p->dev->ops->sync(p->dev, NULL));
}

/* Weights at random: such a model does look at its input, and ends now and then. */
static void put_weights(place *p) {
    const bti_params *t = &p->model->params;
    uint32_t state = 7;
    for (int32_t i = 0; i < t->count; i++) {
        int64_t n = t->param[i].rows * t->param[i].cols;
        float *w = malloc((size_t)n * sizeof *w);
        for (int64_t k = 0; k < n; k++) {
            state = state * 1664525u + 1013904223u;
            w[k] = ((float)(state >> 8) / 8388608.0f - 1.0f) * 0.4f;
        }
        put(p, BTI_REGION_WEIGHTS, t->param[i].address, w, (uint64_t)n * sizeof *w);
        free(w);
    }
    uint64_t bytes = (uint64_t)(LENGTH * p->model->cfg.d_model) * sizeof(float);
    float *table = malloc(bytes);
    bti_model_sinusoids(p->model, LENGTH, table);
    put(p, BTI_REGION_CONSTANT, p->places.positions, table, bytes);
    free(table);
}

/* The decoder refers to the place until it is closed. */
static void open_place(place *p, int64_t batch) {
    *p = (place){.dev = mk_device(kit_backend(), NULL), .places.position_rows = LENGTH};
    mk_setup s = mk_defaults();
    const bt_dev_info *info = &p->dev->info;
    bti_decoder_config cfg = {.beam = 4, .nbest = NBEST, .length_penalty = 1, .length = LENGTH};
    uint64_t region[BTI_REGION_COUNT] = {0};
    bti_decoder_specials(&cfg, 1, END, 3, 0);
    kit_ok(bti_model_new(&s.model, VOCAB, VOCAB, BT_F32, &p->model));
    kit_ok(bti_params_place(&p->model->params, info->alignment,
                            info->max_alloc / info->alignment * info->alignment));
    kit_ok(bti_decoder_new(p->model, p->dev->driver->planning, info, &p->places, 0, &cfg, batch,
                           &p->decoder));
    region[BTI_REGION_WEIGHTS] = p->model->params.bytes;
    region[BTI_REGION_CONSTANT] = (uint64_t)(LENGTH * p->model->cfg.d_model) * sizeof(float);
    region[BTI_REGION_STAGING] = bti_decoder_staging_bytes(p->decoder);
    region[BTI_REGION_DYNAMIC] = bti_decoder_dynamic_bytes(p->decoder);
    bti_arena_plan(&p->arena, region, info);
    kit_ok(bti_arena_take(&p->arena, p->dev));
    kit_ok(bti_decoder_bind(p->decoder, &p->arena));
    put_weights(p);
}

static void close_place(place *p) {
    bti_decoder_free(p->decoder);
    bti_arena_release(&p->arena);
    bti_model_free(p->model);
    bti_device_close(p->dev);
}

/* The hypotheses of a sentence, text and bits of the score, as one line. */
static const char *hypotheses(place *p, int64_t i) {
    const bti_hypothesis *h;
    int32_t count;
    char text[NBEST * LENGTH * 8 + 100], *at = text;
    kit_ok(bti_decoder_results(p->decoder, i, &h, &count));
    ck_assert(count >= 1 && count <= NBEST);
    for (int32_t k = 0; k < count; k++) {
        at += sprintf(at, "%a %d:", h[k].score, h[k].cut);
        for (int32_t j = 0; j < h[k].length; j++) at += sprintf(at, " %d", h[k].ids[j]);
        at += sprintf(at, "\n");
    }
    return kit_str("%s", text);
}

/* All of them in batches as they come, from the first or the last on. */
static void run_all(place *p, const bti_source *source, int backwards, const char **out) {
    const bti_source *list[SENTENCES];
    for (int i = 0; i < SENTENCES; i++) list[i] = &source[backwards ? SENTENCES - 1 - i : i];
    for (int64_t at = 0, take; at < SENTENCES; at += take) {
        take = bti_decoder_batch(p->decoder, list, at, SENTENCES);
        kit_ok(bti_decoder_run(p->decoder, list + at, take, NULL));
        for (int64_t i = 0; i < take; i++) out[list[at + i] - source] = hypotheses(p, i);
    }
}

/* Every bit of a sentence's scores is its own: alone, among others, at another place among them.
 * Where rows are stable in tiles only, this is what filling them up must give. */
START_TEST(sentences_stand_alone) {
    static const int64_t count[SENTENCES] = {5, 1, 9, 3, 12, 7, 20, 2, 15};
    static const int64_t batch[] = {1, 4, SENTENCES};
    const bti_sentence *s = mk_sentences(SENTENCES, count, count, VOCAB, 3);
    bti_source source[SENTENCES];
    const char *want[SENTENCES], *got[SENTENCES];
    int different = 0;
    for (int i = 0; i < SENTENCES; i++)
        source[i] = (bti_source){.ids = s[i].ids[0], .count = s[i].count[0]};
    for (int b = 0; b < 3; b++)
        for (int backwards = 0; backwards < 2; backwards++) {
            place p;
            open_place(&p, batch[b]);
            run_all(&p, source, backwards, b + backwards ? got : want);
            for (int i = 0; i < SENTENCES && b + backwards; i++) ck_assert_str_eq(got[i], want[i]);
            close_place(&p);
        }
    for (int i = 1; i < SENTENCES; i++) different += strcmp(want[i], want[0]) != 0;
    ck_assert_int_gt(different, SENTENCES / 2);
}
END_TEST

static void add(TCase *tc) {
    if (mk_there()) tcase_add_test(tc, sentences_stand_alone);
}

int main(int argc, char **argv) { return kit_main("decoder", add, argc, argv); }
