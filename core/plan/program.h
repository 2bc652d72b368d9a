/* A program: the ops of one micro-batch (or update, or decode step) on virtual tensors.
 *
 * Model code emits ops in order; nothing runs and nothing is allocated meanwhile. The same code
 * emits the program at the caps, from which the planner takes live ranges and offsets, and later
 * each micro-batch at its own size: tensors are declared in the same order, so that ids, and with
 * them offsets, are the same; loops are shorter.
 *
 * Errors stick: emitting into a failed program does nothing, bti_program_end tells. */
#ifndef BANTAM_PLAN_PROGRAM_H
#define BANTAM_PLAN_PROGRAM_H

#include "core/ops/ops.h"

typedef int32_t bti_tid; /* 0: absent */

/* Where a tensor lives. All but DYNAMIC have fixed places, the same in every program. */
typedef enum bti_region {
    BTI_REGION_WEIGHTS,
    BTI_REGION_GRADIENTS,
    BTI_REGION_MOMENT1,
    BTI_REGION_MOMENT2,
    BTI_REGION_CONSTANT, /* position table, scalar block, places of compact gradients' rows */
    BTI_REGION_STAGING,  /* ids, places, features and targets of a micro-batch, two slots in turn;
                             the decoder's tables */
    BTI_REGION_DYNAMIC,  /* shared by all programs; placed from live ranges */
    BTI_REGION_COUNT
} bti_region;

/* What a dynamic tensor is, for reports. */
typedef enum bti_kind {
    BTI_KIND_ACTIVATION,
    BTI_KIND_LOGITS,
    BTI_KIND_WORKSPACE,
    BTI_KIND_DECODE,
    BTI_KIND_COUNT
} bti_kind;

/* Classes of forward tensors; a level is a set of classes that are kept for backward, the others
 * are made again from them (core/plan/replay.c). */
typedef enum bti_class {
    BTI_CLASS_NONE,  /* not replayed: gradients, logits */
    BTI_CLASS_INPUT, /* a layer's last sum: with a norm or without, the next one's input */
    BTI_CLASS_STATS, /* mean, rstd, log-sum-exp */
    BTI_CLASS_PROJ,  /* projections: q, k, v */
    BTI_CLASS_ATTN,  /* attention output */
    BTI_CLASS_BLOCK, /* what a block gives, before the residual sum */
    BTI_CLASS_FF,    /* feed-forward: what backward of its activation reads */
    BTI_CLASS_ACT,   /* activation output, where backward of the activation does not read it */
    BTI_CLASS_NORM,  /* norm outputs and the residual sums inside a layer */
    BTI_CLASS_COUNT
} bti_class;

#define BTI_KEEP(c) (1u << (c))
#define BTI_KEEP_ALL 0xFFFFFFFFu
#define BTI_KEEP_INPUT (BTI_KEEP(BTI_CLASS_INPUT) | BTI_KEEP(BTI_CLASS_NONE))

typedef struct bti_tensor {
    const char *name; /* static text */
    int32_t layer;    /* -1: of no layer, always kept */
    bti_region region;
    bti_kind kind;
    bti_class cls;
    bt_dtype dtype;
    int64_t rows, cols;
    uint64_t bytes;
    uint64_t address;    /* in the region; DYNAMIC: set by the layout */
    int32_t first, last; /* ops that touch it first and last; -1: none */
    int32_t producer;    /* op that wrote it first; -1 */
    int32_t pin;         /* 1: lives to the end of the program; 2: all through it */
    bti_tid replay;      /* its current copy made again in backward */
} bti_tensor;

/* A part of a tensor: rows row .. row+rows-1 of columns col .. col+cols-1. */
typedef struct bti_ref {
    bti_tid id;
    int64_t row, rows, col, cols;
} bti_ref;

typedef struct bti_op_record {
    bt_op op;
    bti_tid ws;
    int32_t loop;      /* first op of the loop that it belongs to; -1: none */
    int32_t iteration; /* 1: the first op of an iteration */
    int32_t layer;     /* whose part it is; -1: of none */
    int32_t below;     /* layers whose kept tensors live meanwhile: 0 .. below-1 */
    double pairs;      /* attention: visible query-key pairs of all sequences, for cost */
    bti_ref t[BT_MAX_OPERANDS];
    bt_op_params p;
} bti_op_record;

/* A tensor that is being made again, and how many copies the log of a sweep had then. */
typedef struct bti_wanted {
    bti_tid id;
    int32_t made;
} bti_wanted;

typedef struct bti_program {
    const char *name;
    const bt_planning *planning;
    bt_dev_info info;
    bt_status status;
    bti_tensor *tensor; /* from 1 */
    int32_t tensors;
    bti_op_record *op;
    int32_t ops;
    const uint32_t *keep; /* kept classes of each layer; NULL: all */
    int32_t layers;
    int32_t loop_first;  /* first op of the loop that is emitted now; -1: none */
    int32_t loop_starts; /* 1: the next op is the first of an iteration */
    int32_t loop_again;  /* 1: not of the first iteration */
    bti_tid loop_ws;     /* scratch of the loop, 0 before its first op */
    /* Replay: what is asked for and not made yet, and what was copied to make a layer's input. */
    bti_wanted *wanted;
    bti_tid *made;
    int32_t wanted_count, made_count;
    size_t tensor_room, op_room, wanted_room, made_room;
    int32_t at_layer, below; /* of the ops that are emitted now, see bti_program_at */
    int32_t sweeps;          /* inputs of layers among the wanted */
} bti_program;

/* An empty program for a device like `info`. */
bt_status bti_program_new(const char *name, const bt_planning *planning, const bt_dev_info *info,
                          bti_program **out);
void bti_program_free(bti_program *p);
/* Gives p arrays as large as those of caps, so that emitting a smaller shape allocates nothing. */
bt_status bti_program_reserve(bti_program *p, const bti_program *caps);
/* Empties it for the next emission; keeps the arrays. */
void bti_program_begin(bti_program *p, const uint32_t *keep, int32_t layers);
/* BT_OK, or what went wrong while emitting. Fills first and last of all tensors. */
bt_status bti_program_end(bti_program *p);

/* What is emitted from here on is a part of `layer` (-1: of none), while the layers below `below`
 * hold what they keep for backward. For the planner, which adds up layers. */
void bti_program_at(bti_program *p, int32_t layer, int32_t below);

/* A dynamic tensor. */
bti_tid bti_tensor_new(bti_program *p, const char *name, int32_t layer, bti_kind kind,
                       bti_class cls, bt_dtype dtype, int64_t rows, int64_t cols);
/* A tensor with a fixed place. */
bti_tid bti_tensor_fixed(bti_program *p, const char *name, bti_region region, uint64_t address,
                         bt_dtype dtype, int64_t rows, int64_t cols);
/* Keeps a tensor to the end of the program (it is downloaded afterwards). */
void bti_tensor_pin(bti_program *p, bti_tid id);
/* Keeps it all through the program, which is run more than once (caches). */
void bti_tensor_pin_always(bti_program *p, bti_tid id);
/* Makes it a tensor of no layer: backward never makes it again. */
void bti_tensor_keep(bti_program *p, bti_tid id);
int64_t bti_tensor_rows(const bti_program *p, bti_tid id);
int64_t bti_tensor_cols(const bti_program *p, bti_tid id);

/* References: a whole tensor, rows of it, columns of it. id 0 gives an absent operand. */
bti_ref bti_all(const bti_program *p, bti_tid id);
bti_ref bti_rows(bti_ref r, int64_t row, int64_t rows);
bti_ref bti_cols(bti_ref r, int64_t col, int64_t cols);

/* Emits one op. `t` has BT_MAX_OPERANDS places, absent ones zero. Scratch is declared here. */
void bti_emit(bti_program *p, bt_op op, const bti_ref *t, const bt_op_params *params, double pairs);
#define BTI_OPERANDS(...) ((const bti_ref[BT_MAX_OPERANDS]){__VA_ARGS__})

/* Ops between begin and end run once for each bti_loop_next. They have one scratch, as large as the
 * largest of the first iteration wants it: one for each op would live as long, for all iterations
 * use it. Tensors are declared outside. */
void bti_loop_begin(bti_program *p);
void bti_loop_next(bti_program *p);
void bti_loop_end(bti_program *p);

/* ---- recomputation (replay.c) ------------------------------------------------------------------
 */

/* Backward's view of a forward tensor: itself when its class is kept in its layer, else a copy made
 * by replaying its producer (and what that needs) once, shared until its last use. Not inside a
 * loop. */
bti_tid bti_need(bti_program *p, bti_tid id);
/* Whether tensors of a class are kept in a layer. */
int bti_keeps(const bti_program *p, int32_t layer, bti_class cls);

/* ---- layout -----------------------------------------------------------------------------------
 */

typedef struct bti_layout {
    uint64_t bytes;                /* size of the dynamic region for this program */
    uint64_t live;                 /* most bytes live at once: the lower bound */
    uint64_t kind[BTI_KIND_COUNT]; /* live bytes of each kind at the op where most are live */
    int32_t peak_op;
    bti_tid largest; /* largest tensor live there */
} bti_layout;

/* Layouts that were made, to be met again: a search, and advice that changes what no micro-batch
 * sees, lay out the same blocks many times over. */
typedef struct bti_layout_memo bti_layout_memo;
bti_layout_memo *bti_layout_memo_new(void); /* NULL: out of memory */
void bti_layout_memo_free(bti_layout_memo *memo);

typedef struct bti_layout_options {
    uint64_t alignment;
    uint64_t heap;  /* no tensor crosses a multiple of this; 0: no limit */
    uint64_t guard; /* bytes kept free behind each tensor (tests) */
    uint64_t most;  /* when more is live at once, nothing is placed and bytes = live; 0: no limit */
    int no_alias;   /* no in-place outputs (tests) */
    bti_layout_memo *memo; /* borrowed; the result is the same without: NULL */
} bti_layout_options;

/* Places the dynamic tensors: outputs take over dying inputs where the op list allows, then offsets
 * by live range. BT_EFIT when one tensor is larger than a heap. */
bt_status bti_layout_make(bti_program *p, const bti_layout_options *options, bti_layout *out);
/* Bytes live at each op, without placing anything: live[0 .. ops-1]; and kept[i], those of layer i
 * of 0 .. layers-1 that are live at op `at`. `largest`: bytes of the largest block. The most of
 * `live` is bti_layout.live. */
typedef struct bti_live {
    uint64_t *live, *kept, largest;
    int32_t at, layers;
} bti_live;
bt_status bti_layout_live(const bti_program *p, const bti_layout_options *options, bti_live *out);
/* Gives a program emitted at a smaller shape the places of the one at the caps. */
bt_status bti_layout_take(bti_program *p, const bti_program *caps);

/* ---- arena and execution ----------------------------------------------------------------------
 */

typedef struct bti_arena {
    bt_dev *dev;
    bt_buf **heap;
    uint64_t *heap_bytes;
    int32_t heaps;
    uint64_t heap_limit;             /* bytes of address space a heap; 0: one heap */
    uint64_t base[BTI_REGION_COUNT]; /* address of each region */
    uint64_t bytes[BTI_REGION_COUNT];
    uint64_t total; /* bytes taken from the device */
} bti_arena;

/* Sizes only: bases and total for the given region sizes. */
void bti_arena_plan(bti_arena *a, const uint64_t bytes[BTI_REGION_COUNT], const bt_dev_info *info);
/* Takes the memory, zeroes the fixed regions and touches all of it. */
bt_status bti_arena_take(bti_arena *a, bt_dev *dev);
void bti_arena_release(bti_arena *a);
/* Buffer and offset of an address of a region; shape and type are left zero. */
bt_view bti_arena_at(const bti_arena *a, bti_region region, uint64_t address);
/* View of a tensor's part. `slot` shifts STAGING by the slot's bytes. */
bt_view bti_arena_view(const bti_arena *a, const bti_program *p, bti_ref r, uint64_t slot_offset);

typedef struct bti_run_hooks {
    /* Called after each op when set (tests: poison the dead, check guards). */
    bt_status (*after)(void *user, bti_program *p, int32_t op);
    void *user;
} bti_run_hooks;

/* Enqueues all ops first .. last-1 of the program. Allocates nothing. */
bt_status bti_program_run(bti_program *p, const bti_arena *a, uint64_t slot_offset, int32_t first,
                          int32_t last, const bti_run_hooks *hooks);
/* Op k as a call with shapes and types only. */
void bti_program_shape(const bti_program *p, int32_t op, bt_call *call);

#endif
