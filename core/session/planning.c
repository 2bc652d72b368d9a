/* Plans of a session's run, with validation in them, on the first device on which one fits. */
#include <stdio.h>

#include "backends/registry.h"
#include "core/base/files.h"
#include "core/base/status.h"
#include "core/fit/plan_file.h"
#include "core/model/head.h"
#include "core/run/precision.h"
#include "core/session/session_parts.h"
#include "core/session/validation.h"

/* Host memory that the engine and validation take after runtime was measured: staging, losses,
 * programs, order of rows, a block of examples; and a margin for stacks, the C library, the lines
 * being scored and what first values are read through. */
static uint64_t later_host_bytes(const bti_session *s, const bti_model *m, const bti_workload *w) {
    uint64_t rows = (uint64_t)(w->max_rows[0] + w->max_rows[1]);
    uint64_t ids = (uint64_t)(w->max_distinct[0] + w->max_distinct[1]);
    uint64_t held_out =
        bti_validates(s->cfg)
            ? bti_validation_host_bytes(&m->cfg, s->assumed ? INT64_MAX : s->held_out.count)
            : 0;
    return rows * 64 + ids * 4 + (uint64_t)w->max_sentences * 128 + held_out + (16u << 20);
}

/* As translations of validation are made; of symbols that nobody has named where no tokeniser is
 * there. */
static bti_decoder_config decoding_of(const bti_session *s) {
    if (s->tokenizer[1] != NULL) return bti_validation_decoding(s->cfg, s->tokenizer[1], NULL);
    bti_decoder_config c = {.beam = (int32_t)s->cfg->validation.beam,
                            .length_penalty = 1,
                            .length = s->cfg->data.max_length};
    bti_decoder_specials(&c, 0, 1, 2, 3);
    return c;
}

/* Adds what validation's decoder needs: the largest batch that the plan without it leaves room for,
 * or a single sentence. */
static bt_status plan_validation(const bti_session *s, bti_model *m, int64_t length,
                                 const bti_run_plan *alone, int64_t *batch,
                                 bti_plan_options *options) {
    const bt_planning *planning = s->dev->driver->planning;
    bti_decoder_config decoding = decoding_of(s);
    uint64_t dynamic = alone->region[BTI_REGION_DYNAMIC], runtime = options->runtime;
    decoding.length = length;
    for (*batch = 64;; *batch /= 2) {
        bti_decoder *d;
        BT_TRY(
            bti_decoder_new(m, planning, &s->dev->info, &alone->places, 0, &decoding, *batch, &d));
        options->validation = 1;
        options->decode_dynamic = bti_decoder_dynamic_bytes(d);
        options->decode_staging = bti_decoder_staging_bytes(d);
        if (s->dev->info.host_memory) options->runtime = runtime + bti_decoder_host_bytes(d);
        bti_decoder_free(d);
        uint64_t more = options->decode_dynamic > dynamic ? options->decode_dynamic - dynamic : 0;
        more += options->decode_staging + options->runtime - runtime;
        if (alone->total + more <= options->budget || *batch == 1) return BT_OK;
    }
}

bt_status bti_session_plan(const bti_session *s, bti_model *m, const bti_workload *w,
                           int64_t max_length, const bti_plan_options *given, int64_t *decode_batch,
                           bti_run_plan **out) {
    const bt_planning *planning = s->dev->driver->planning;
    const bt_dev_info *info = &s->dev->info;
    bti_plan_options options = *given;
    bti_run_plan *alone;
    int64_t batch = 0;
    if (info->host_memory) options.runtime += later_host_bytes(s, m, w);
    BT_TRY(bti_plan_search(m, planning, info, w, max_length, &options, &alone));
    if (!bti_validates(s->cfg)) {
        *out = alone;
        return BT_OK;
    }
    bt_status status = BT_OK;
    if (bti_has_decoder(&m->cfg))
        status = plan_validation(s, m, max_length, alone, &batch, &options);
    options.validation = 1;
    bti_run_plan_free(alone);
    BT_TRY(status);
    if (decode_batch != NULL) *decode_batch = batch;
    return bti_plan_search(m, planning, info, w, max_length, &options, out);
}

bti_plan_options bti_session_plan_options(const bti_session *s) {
    return (bti_plan_options){.budget = s->budget.limit,
                              .runtime = s->budget.runtime,
                              .recompute = s->cfg->memory.recompute,
                              .moments = s->cfg->memory.optimizer_state,
                              .rates = s->known ? NULL : &s->rates,
                              .memo = s->memo,
                              .force_recompute_layers = -1,
                              .force_compact = -1};
}

/* The plan that the run began with; without a good one another is searched. */
static int read_kept(const bti_session *s, const char *path, bti_choice *out) {
    if (path == NULL || !bti_file_exists(path)) return 0;
    const char *precision = bti_precision_name(s->cfg->training.precision);
    if (bti_plan_file_read(path, &s->dev->info, precision, s->model->layers, out) == BT_OK)
        return 1;
    bti_log(BT_LOG_WARN, "%s: the run is planned anew", bt_last_error());
    return 0;
}

/* Asks the device and plans. A device on which the plan cannot even be tried (a parameter larger
 * than an allocation) gives BT_EFIT. */
static bt_status make_plan(bti_session *s, const bti_session_options *o) {
    const bti_workload *w = &s->workload;
    int64_t rows = w->max_rows[0] > w->max_rows[1] ? w->max_rows[0] : w->max_rows[1];
    BT_TRY(bti_device_warm(s->dev, s->model, rows < 4096 ? rows : 4096, 256));
    BT_TRY(bti_memory_budget(s->dev, o->memory, s->cfg->memory.limit, &s->budget));
    if (s->known == NULL) bti_rates_get(s->dev, s->cfg->training.precision, &s->rates);
    bti_plan_options options = bti_session_plan_options(s);
    bti_choice kept;
    if (read_kept(s, o->kept, &kept)) options.wanted = &kept;
    BT_TRY(bti_session_plan(s, s->model, w, s->cfg->data.max_length, &options, &s->decode_batch,
                            &s->plan));
    if (options.wanted != NULL && !s->plan->as_wanted)
        bti_log(BT_LOG_WARN, "%s: what it holds does not fit here: the run is planned anew",
                o->kept);
    return BT_OK;
}

/* Smaller ones would be many, and no driver refuses them. */
#define LEAST_HEAP (1u << 16)

/* Does the device refuse what was planned? What failed may have been something else, such as memory
 * of the host. */
static int refuses_plan(const bti_session *s) {
    bti_arena a;
    bti_arena_plan(&a, s->plan->region, &s->plan->step->info);
    if (bti_arena_take(&a, s->dev) != BT_OK) return 1;
    bti_arena_release(&a);
    return 0;
}

int bti_session_halve_heaps(bti_session *s, const bti_session_options *options) {
    bt_dev_info *info = &s->dev->info, now = *info;
    const uint64_t before = info->max_alloc, bytes = s->plan->total - s->budget.runtime;
    char text[1024], one[32], half[32];
    snprintf(text, sizeof text, "%s", bt_last_error());
    const uint64_t most = before > 0 && before < bytes ? before : bytes;
    int helps = !info->host_memory && most / 2 >= LEAST_HEAP &&
                s->dev->ops->query(s->dev, &now) == BT_OK && now.free_bytes >= bytes &&
                refuses_plan(s);
    if (helps) {
        bti_run_plan *old = s->plan;
        s->plan = NULL;
        info->max_alloc = most / 2 / info->alignment * info->alignment;
        helps = make_plan(s, options) == BT_OK && s->plan->fits;
        bti_format_bytes(most, one);
        bti_format_bytes(info->max_alloc, half);
        if (helps)
            bti_log(BT_LOG_WARN, "%s refuses %s in one piece: planned again for pieces of %s",
                    info->name, one, half);
        bti_run_plan_free(helps ? old : s->plan);
        if (!helps) {
            s->plan = old;
            info->max_alloc = before;
        }
    }
    if (!helps) (void)bti_fail(BT_ENOMEM, "%s", text);
    return helps;
}

bt_status bti_session_next_device(const bti_session *s, bti_device_list *l, int *at, int threads,
                                  const char **known, bt_dev **out) {
    for (;;) {
        bt_dev *dev;
        BT_TRY(bti_device_next(l, at, threads, known, &dev));
        bt_status status = bti_precision_check(&dev->info, s->cfg->training.precision);
        if (status == BT_OK) {
            *out = dev;
            return BT_OK;
        }
        bti_device_close(dev);
        if (l->named) return status;
        snprintf(l->last, sizeof l->last, "%s", bt_last_error());
        bti_log(BT_LOG_WARN, "passed over: %s", l->last);
    }
}

bt_status bti_session_plan_somewhere(bti_session *s, const bti_session_options *o,
                                     bti_device_list *l, int at) {
    bt_status status = make_plan(s, o);
    bti_session first = *s;
    char text[1024];
    if (status != BT_OK) snprintf(text, sizeof text, "%s", bt_last_error());
    while (at < l->count && (status == BT_EFIT || (status == BT_OK && !s->plan->fits))) {
        bti_session next = first;
        next.plan = NULL;
        const char **known = o->known_devices ? &next.known : NULL;
        if (bti_session_next_device(s, l, &at, o->threads, known, &next.dev) != BT_OK) break;
        if (make_plan(&next, o) == BT_OK && next.plan->fits) {
            bti_log(BT_LOG_INFO, "the run fits on %s, not on %s", next.dev->info.name,
                    first.dev->info.name);
            bti_run_plan_free(first.plan);
            bti_device_close(first.dev);
            *s = next;
            return BT_OK;
        }
        bti_run_plan_free(next.plan);
        bti_device_close(next.dev);
    }
    return status == BT_OK ? BT_OK : bti_fail(status, "%s", text);
}
