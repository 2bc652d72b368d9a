#include "core/model/moments.h"

#include <string.h>

#include "core/base/code8.h"
#include "core/base/num.h"
#include "core/ops/op_args.h"

const char *const bti_moments_name[BTI_MOMENTS_COUNT] = {"auto", "device", "host", "8bit"};

/* A bucket: a sixteenth of a moment, or what is large enough for a copy to run at full speed. */
#define MOST_BUCKET ((uint64_t)8 << 20)

int64_t bti_moment_blocks(int64_t n) { return n / BT_ADAMW8_BLOCK + (n % BT_ADAMW8_BLOCK != 0); }

uint64_t bti_moments_alignment(bti_moments kind, bt_dtype dtype) {
    return kind == BTI_MOMENTS_8BIT ? BT_ADAMW8_BLOCK * bti_dtype_size(dtype) : 1;
}

/* Tables are cut between rows, so that a bucket takes the widest. */
static uint64_t widest_row(const bti_params *t) {
    int64_t cols = 0;
    for (int32_t i = 0; i < t->count; i++)
        if (t->param[i].compact && t->param[i].cols > cols) cols = t->param[i].cols;
    return (uint64_t)cols * bti_dtype_size(t->dtype);
}

static uint64_t bucket_of(const bti_params *t, uint64_t alignment, uint64_t heap) {
    uint64_t bytes = t->trained / 16, row = widest_row(t);
    if (bytes > MOST_BUCKET) bytes = MOST_BUCKET;
    if (heap && bytes > heap / 2) bytes = heap / 2 / alignment * alignment;
    return bti_align_up(bytes > row ? bytes : row, alignment);
}

/* No piece of a moment crosses a multiple of `heap`: codes and scales of what lies in one heap of
 * the weights take a fixed part of one here, scales from a multiple of theirs on, unless all of
 * them lie in the first. */
static uint64_t scales_of(const bti_params *t, uint64_t alignment, uint64_t heap) {
    uint64_t codes = bti_code_address(t, t->trained), share = heap / BT_ADAMW8_BLOCK;
    int one = bti_align_up(codes, alignment) + codes / BT_ADAMW8_BLOCK * sizeof(double) <= heap;
    return bti_align_up(codes, share > alignment && !one ? share : alignment);
}

void bti_moments_place(const bti_params *t, bti_moments kind, uint64_t alignment, uint64_t heap,
                       bti_moment_places *out) {
    memset(out, 0, sizeof *out);
    out->kind = kind;
    out->bytes = t->trained;
    if (kind == BTI_MOMENTS_HOST) {
        out->bucket = bucket_of(t, alignment, heap);
        out->bytes = 2 * out->bucket;
        out->host_bytes = 2 * t->trained;
    }
    if (kind == BTI_MOMENTS_8BIT) {
        out->scales = scales_of(t, alignment, heap);
        out->bytes = bti_align_up(bti_scale_address(out, t, t->trained), alignment);
    }
}

uint64_t bti_scale_address(const bti_moment_places *at, const bti_params *t, uint64_t address) {
    uint64_t size = bti_dtype_size(bti_dtype_acc(t->dtype));
    return at->scales + bti_code_address(t, address) / BT_ADAMW8_BLOCK * size;
}

uint64_t bti_moment_bytes(bti_moments kind, const bti_params *t, int64_t n) {
    if (kind == BTI_MOMENTS_HOST) return 0;
    if (kind == BTI_MOMENTS_8BIT)
        return (uint64_t)n + (uint64_t)bti_moment_blocks(n) * bti_dtype_size(t->dtype);
    return (uint64_t)n * bti_dtype_size(t->dtype);
}

static const int largest_code[2] = {BTI_CODE8_SIGNED, BTI_CODE8_UNSIGNED};

void bti_moment_widen(bt_dtype type, int moment, const uint8_t *code, const void *scale, int64_t n,
                      void *values) {
    for (int64_t i = 0; i < n; i++) {
        double s = bti_load(scale, bti_dtype_acc(type), i / BT_ADAMW8_BLOCK);
        bti_store(values, type, i, bti_code8_value(code[i], s, largest_code[moment]));
    }
}

void bti_moment_narrow(bt_dtype type, int moment, const void *values, int64_t n, uint8_t *code,
                       void *scale) {
    for (int64_t from = 0, b = 0; from < n; from += BT_ADAMW8_BLOCK, b++) {
        int64_t end = n - from < BT_ADAMW8_BLOCK ? n : from + BT_ADAMW8_BLOCK;
        double s = 0;
        for (int64_t i = from; i < end; i++) s = fmax(s, fabs(bti_load(values, type, i)));
        bti_store(scale, bti_dtype_acc(type), b, s);
        for (int64_t i = from; i < end; i++)
            code[i] = bti_code8_of(bti_load(values, type, i), s, largest_code[moment]);
    }
}
