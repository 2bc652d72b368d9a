/* Layouts without a device: waste, overlaps, smaller shapes in the places of the caps, storage that
 * is taken over. tests/plan_levels.c has
 * levels of recomputation and slices, tests/plan_budget.c the search, tests/plan_run.c what happens
 * in an arena. */
#include "backends/registry.h"
#include "tests/far.h"
#include "tests/kit.h"
#include "tests/plan_parts.h"

/* Programs that are laid out; fewer where a sanitizer makes them slow. */
#if defined(__SANITIZE_ADDRESS__)
#define RUNS 40
#else
#define RUNS 240
#endif

static uint64_t state;

static int64_t pick(int64_t least, int64_t most) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return least + (int64_t)((state >> 33) % (uint64_t)(most - least + 1));
}

/* ---- programs of random models -----------------------------------------------------------------
 */

typedef struct plain {
    bti_model *model;
    bti_program *p;
    bti_places places;
    bti_shape shape;
    uint32_t *keep;
    int64_t chunk, slice;
    bt_dev_info info;
} plain;

static bti_model_config random_model(void) {
    int64_t heads = pick(1, 8);
    double drop = pick(0, 1) ? 0.1 : 0;
    return (bti_model_config){.d_model = heads * pick(1, 40),
                              .ff = pick(8, 900),
                              .heads = heads,
                              .encoder_layers = pick(1, 7),
                              .decoder_layers = pick(1, 7),
                              .norm = pick(0, 1) ? BTI_NORM_PRE : BTI_NORM_POST,
                              .activation = pick(0, 1) ? BTI_ACTIVATION_GELU : BTI_ACTIVATION_RELU,
                              .positions = (bti_positions)(heads % 2),
                              .position_rows = 1000,
                              .tie = (bti_tie)pick(0, 2),
                              .final_norm = (int)pick(0, 1),
                              .norm_eps = 1e-5,
                              .dropout = drop,
                              .attention_dropout = drop,
                              .activation_dropout = drop,
                              .embedding_dropout = drop};
}

static bti_shape random_shape(const bti_shape *cap) {
    bti_shape s = *cap;
    for (int i = 0; i < 2; i++) {
        s.rows[i] = pick(1, cap->rows[i]);
        s.distinct[i] = pick(1, s.rows[i] < cap->distinct[i] ? s.rows[i] : cap->distinct[i]);
        s.longest[i] = pick(1, s.rows[i]);
    }
    s.sentences = pick(1, cap->sentences);
    return s;
}

static void emit(plain *x, bti_program *p, const bti_shape *shape) {
    bti_step step = {.model = x->model,
                     .places = &x->places,
                     .shape = *shape,
                     .choices = {x->keep, x->chunk, x->slice, 0},
                     .training = 1,
                     .first_micro_batch = 1,
                     .grad_scale = 1};
    bti_train_program unused;
    kit_ok(bti_model_emit_step(p, &step, &unused));
}

/* A program at its caps, not laid out. */
static plain random_program(const char *planning, uint32_t alignment) {
    plain x = {.info = {.alignment = alignment, .threads = (uint32_t)pick(1, 8)}};
    bti_model_config cfg = random_model();
    int64_t vocab = pick(5, 4000);
    x.shape = (bti_shape){.sentences = pick(1, 40),
                          .rows = {pick(1, 900), pick(1, 900)},
                          .distinct = {vocab, vocab},
                          .longest = {900, 900}};
    for (int i = 0; i < 2; i++)
        if (x.shape.distinct[i] > x.shape.rows[i]) x.shape.distinct[i] = x.shape.rows[i];
    kit_ok(bti_model_new(&cfg, vocab, vocab, BT_F32, &x.model));
    kit_ok(bti_params_place(&x.model->params, alignment, 0));
    bti_staging_plan(x.model, &x.shape, alignment, &x.places.staging);
    x.places.position_rows = bti_model_sinusoid_rows(x.model, 1000);
    x.chunk = pick(1, 300);
    x.keep = calloc((size_t)x.model->layers, sizeof *x.keep);
    x.slice = pick(0, 1) ? pick(1, 400) : 0;
    int32_t recomputed = (int32_t)pick(0, x.model->layers);
    bti_level_fill(x.model, BTI_LEVEL_NONE, recomputed, x.model->layers, 0, x.keep);
    bti_level_fill(x.model, (bti_level)pick(1, BTI_LEVEL_COUNT - 1), 0, recomputed,
                   (int32_t)pick(1, 4), x.keep);
    kit_ok(bti_program_new("step", bti_backend_planning(planning), &x.info, &x.p));
    emit(&x, x.p, &x.shape);
    return x;
}

static void discard(plain *x) {
    bti_program_free(x->p);
    bti_model_free(x->model);
    free(x->keep);
}

/* ---- independent checks ------------------------------------------------------------------------
 */

/* First and last op that touch each tensor, from the op list alone; pinned ones live to the end. */
static void ranges(const bti_program *p, int32_t *first, int32_t *last) {
    for (int32_t i = 0; i <= p->tensors; i++) first[i] = last[i] = -1;
    for (int32_t k = 0; k < p->ops; k++)
        for (int i = 0; i <= BT_MAX_OPERANDS; i++) {
            bti_tid id = i < BT_MAX_OPERANDS ? p->op[k].t[i].id : p->op[k].ws;
            if (id == 0) continue;
            if (first[id] < 0) first[id] = k;
            last[id] = k;
        }
    for (int32_t i = 1; i <= p->tensors; i++)
        if (p->tensor[i].pin && first[i] >= 0) last[i] = p->ops - 1;
}

/* Output y of op k in the place of input x, as the op list allows it. */
static int takes_over(const bti_program *p, int32_t k, bti_tid x, bti_tid y) {
    const bti_op_record *o = &p->op[k];
    const bt_op_info *info = bti_op_info(o->op);
    for (int i = 0; i < info->operands; i++)
        for (int j = 0; j < info->operands; j++)
            if (o->t[i].id == y && o->t[j].id == x && (info->operand[i].alias >> j & 1)) return 1;
    return 0;
}

/* No two tensors that live at the same time share a byte, but for a storage that is taken over; all
 * lie inside the region; none crosses a heap. `guard` bytes belong to each tensor. */
static void check_places(const bti_program *p, uint64_t region, uint64_t heap, uint64_t guard) {
    size_t n = (size_t)p->tensors + 1;
    int32_t *first = malloc(2 * n * sizeof *first), *last = first + n;
    ranges(p, first, last);
    for (bti_tid i = 1; i <= p->tensors; i++) {
        const bti_tensor *a = &p->tensor[i];
        if (a->region != BTI_REGION_DYNAMIC || first[i] < 0 || a->bytes == 0) continue;
        uint64_t end = a->address + a->bytes + guard;
        ck_assert_msg(end <= region, "%s ends at %llu of %llu", a->name, (unsigned long long)end,
                      (unsigned long long)region);
        ck_assert(heap == 0 || a->address / heap == (end - 1) / heap);
        ck_assert_uint_eq(a->address % p->info.alignment, 0);
        for (bti_tid j = i + 1; j <= p->tensors; j++) {
            const bti_tensor *b = &p->tensor[j];
            if (b->region != BTI_REGION_DYNAMIC || first[j] < 0 || b->bytes == 0) continue;
            if (last[j] < first[i] || last[i] < first[j]) continue;
            if (b->address >= end || a->address >= b->address + b->bytes + guard) continue;
            int taken = a->address == b->address &&
                        ((last[i] == first[j] && takes_over(p, first[j], i, j)) ||
                         (last[j] == first[i] && takes_over(p, first[i], j, i)));
            ck_assert_msg(taken, "%s (%d..%d) and %s (%d..%d) overlap", a->name, first[i], last[i],
                          b->name, first[j], last[j]);
        }
    }
    free(first);
}

/* ---- tests -------------------------------------------------------------------------------------
 */

/* Waste of at most 2 % over the most bytes live at once, over random models and shapes. */
START_TEST(waste) {
    const char *const planning[] = {"ref", "cpu", "far"};
    double worst = 1, sum = 0;
    int runs = RUNS;
    state = 1;
    for (int i = 0; i < runs; i++) {
        plain x = random_program(planning[i % 2], i % 4 == 3 ? 4096 : 64);
        bti_layout_options o = {.alignment = x.info.alignment};
        bti_layout l;
        kit_ok(bti_layout_make(x.p, &o, &l));
        double ratio = (double)l.bytes / (double)l.live;
        ck_assert_uint_ge(l.bytes, l.live);
        if (!(ratio <= worst)) worst = ratio;
        sum += ratio;
        ck_assert_msg(ratio <= 1.02,
                      "run %d: %llu bytes for %llu live (%d + %d layers, d %d, %d and %d rows)", i,
                      (unsigned long long)l.bytes, (unsigned long long)l.live,
                      (int)x.model->cfg.encoder_layers, (int)x.model->cfg.decoder_layers,
                      (int)x.model->cfg.d_model, (int)x.shape.rows[0], (int)x.shape.rows[1]);
        if (i % 4 == 0) check_places(x.p, l.bytes, 0, 0);
        discard(&x);
    }
    printf("layout: %d programs, waste %.3f %% at most, %.4f %% on average\n", runs,
           100 * (worst - 1), 100 * (sum / runs - 1));
}
END_TEST

/* With heaps: nothing crosses one. */
START_TEST(heaps) {
    double worst = 1;
    state = 2;
    for (int i = 0; i < 60; i++) {
        plain x = random_program(i % 2 ? "ref" : "cpu", 256);
        uint64_t largest = 0, heap;
        for (bti_tid k = 1; k <= x.p->tensors; k++)
            if (x.p->tensor[k].region == BTI_REGION_DYNAMIC && x.p->tensor[k].bytes > largest)
                largest = x.p->tensor[k].bytes;
        largest = (largest + 255) / 256 * 256;
        heap = largest * (uint64_t)pick(1, 4);
        bti_layout l;
        kit_ok(bti_layout_make(x.p, &(bti_layout_options){.alignment = 256, .heap = heap}, &l));
        check_places(x.p, l.bytes, heap, 0);
        double ratio = (double)l.bytes / (double)l.live;
        if (!(ratio <= worst)) worst = ratio;
        kit_fails(bti_layout_make(
                      x.p, &(bti_layout_options){.alignment = 256, .heap = largest - 256}, &l),
                  BT_EFIT, "more than the device gives");
        discard(&x);
    }
    printf("layout: with heaps of 1 to 4 largest tensors, waste %.2f %% at most\n",
           100 * (worst - 1));
}
END_TEST

/* Smaller shapes keep within the places of the caps, and nothing overlaps there either. */
START_TEST(smaller_shapes) {
    const char *const planning[] = {"ref", "cpu", "far"};
    state = 3;
    for (int i = 0; i < 40; i++) {
        plain x = random_program(planning[i % 3], 64);
        bti_layout l;
        kit_ok(bti_layout_make(x.p, &(bti_layout_options){.alignment = 64, .guard = 32}, &l));
        check_places(x.p, l.bytes, 0, 32);
        bti_program *small;
        kit_ok(bti_program_new("small", x.p->planning, &x.info, &small));
        kit_ok(bti_program_reserve(small, x.p));
        for (int k = 0; k < 4; k++) {
            bti_shape s = random_shape(&x.shape);
            if (k == 0) s.rows[0] = s.rows[1] = s.sentences = s.distinct[0] = s.distinct[1] = 1;
            uint64_t requests = bti_alloc_count();
            emit(&x, small, &s);
            kit_ok(bti_layout_take(small, x.p));
            ck_assert_uint_eq(bti_alloc_count(), requests);
            for (bti_tid id = 1; id <= small->tensors; id++)
                ck_assert_uint_le(small->tensor[id].bytes, x.p->tensor[id].bytes);
            check_places(small, l.bytes, 0, 32);
        }
        bti_program_free(small);
        discard(&x);
    }
}
END_TEST

/* In-place outputs save bytes. That they are right is shown by running, see plan_run.c. */
START_TEST(in_place) {
    int fewer = 0;
    state = 4;
    for (int i = 0; i < 20; i++) {
        plain x = random_program("ref", 64);
        bti_layout with, without;
        kit_ok(
            bti_layout_make(x.p, &(bti_layout_options){.alignment = 64, .no_alias = 1}, &without));
        kit_ok(bti_layout_make(x.p, &(bti_layout_options){.alignment = 64}, &with));
        ck_assert_uint_le(with.live, without.live);
        fewer += with.live < without.live;
        discard(&x);
    }
    ck_assert_int_ge(fewer, 5);
}
END_TEST

/* What is remembered is what would be found again, whatever else was laid out meanwhile: the same
 * program with other heaps, guards and lives. */
START_TEST(remembered) {
    enum { LAYOUTS = 7, TURNS = 2 };
    bti_layout_memo *memo = bti_layout_memo_new();
    state = 5;
    for (int i = 0; i < 12; i++) {
        plain x = random_program("cpu", 64);
        uint64_t *address = bti_alloc((size_t)x.p->tensors + 1, sizeof *address);
        bti_tensor *middle = x.p->tensor;
        for (bti_tid k = 1; k <= x.p->tensors; k++) {
            bti_tensor *t = &x.p->tensor[k];
            if (t->region == BTI_REGION_DYNAMIC && t->first > 0 && t->last < x.p->ops / 2)
                middle = t;
        }
        const bti_tensor as_is = *middle;
        for (int turn = 0; turn < TURNS * LAYOUTS; turn++) {
            bti_layout_options o = {.alignment = 64, .guard = turn % LAYOUTS == 1 ? 64 : 0};
            if (turn % LAYOUTS == 2) o.heap = 1 << 24;
            if (turn % LAYOUTS == 3) o.heap = 1 << 25;
            if (turn % LAYOUTS == 4) o.no_alias = 1;
            middle->first = turn % LAYOUTS == 5 ? 0 : as_is.first;
            middle->last = turn % LAYOUTS == 6 ? x.p->ops : as_is.last;
            bti_layout plain_one, kept;
            kit_ok(bti_layout_make(x.p, &o, &plain_one));
            for (bti_tid k = 1; k <= x.p->tensors; k++) address[k] = x.p->tensor[k].address;
            o.memo = memo;
            const uint64_t before = bti_alloc_count();
            kit_ok(bti_layout_make(x.p, &o, &kept));
            const uint64_t once = bti_alloc_count() - before;
            kit_ok(bti_layout_make(x.p, &o, &kept));
            ck_assert_uint_eq(kept.bytes, plain_one.bytes);
            ck_assert_int_eq(kept.peak_op, plain_one.peak_op);
            ck_assert_int_eq(kept.largest, plain_one.largest);
            ck_assert_mem_eq(kept.kind, plain_one.kind, sizeof kept.kind);
            for (bti_tid k = 1; k <= x.p->tensors; k++)
                ck_assert_uint_eq(x.p->tensor[k].address, address[k]);
            /* The first time it is kept, which takes memory; from then on it is found. */
            const uint64_t again = bti_alloc_count() - before - once;
            ck_assert_uint_le(again, once);
            if (turn >= LAYOUTS) ck_assert_uint_eq(again, once);
        }
        bti_free(address);
        discard(&x);
    }
    bti_layout_memo_free(memo);
}
END_TEST

/* An input that is wanted after the program is no storage to take over, not even in the last op. */
START_TEST(pinned_is_kept) {
    bt_dev_info info = {.alignment = 64};
    bti_program *p;
    bti_layout l;
    kit_ok(bti_program_new("pinned", bti_backend_planning("ref"), &info, &p));
    bti_tid t[3];
    for (int i = 0; i < 3; i++)
        t[i] = bti_tensor_new(p, "t", -1, BTI_KIND_ACTIVATION, BTI_CLASS_NONE, BT_F32, 4, 16);
    bti_tid w = bti_tensor_fixed(p, "w", BTI_REGION_WEIGHTS, 0, BT_F32, 4, 16);
    bti_tid from[3] = {w, t[0], t[1]};
    for (int i = 0; i < 3; i++)
        bti_emit(p, BT_OP_BIAS_ACT_FWD,
                 BTI_OPERANDS([BT_BIAS_ACT_FWD_X] = bti_all(p, from[i]), [BT_BIAS_ACT_FWD_Y] =
                                                                             bti_all(p, t[i])),
                 &(bt_op_params){.bias_act = {.act = BT_ACT_RELU}}, 0);
    bti_tensor_pin(p, t[1]);
    bti_tensor_pin(p, t[2]);
    kit_ok(bti_program_end(p));
    kit_ok(bti_layout_make(p, &(bti_layout_options){.alignment = 64}, &l));
    ck_assert_uint_eq(p->tensor[t[0]].address, p->tensor[t[1]].address);
    ck_assert_uint_ne(p->tensor[t[1]].address, p->tensor[t[2]].address);
    bti_program_free(p);
}
END_TEST

static void add(TCase *tc) {
    far_register();
    tcase_add_test(tc, waste);
    tcase_add_test(tc, heaps);
    tcase_add_test(tc, smaller_shapes);
    tcase_add_test(tc, in_place);
    tcase_add_test(tc, remembered);
    tcase_add_test(tc, pinned_is_kept);
    tcase_set_timeout(tc, 0);
    add_plan_levels(tc);
    add_plan_budget(tc);
    add_plan_run(tc);
    add_plan_search(tc);
}

int main(int argc, char **argv) { return kit_main("plan", add, argc, argv); }
