/* Which device a run uses, and how much of its memory. */
#ifndef BANTAM_FIT_DEVICE_H
#define BANTAM_FIT_DEVICE_H

#include "core/model/model.h"
#include "core/run/run_file.h"

/* Devices to try, in order. */
enum { BTI_MOST_DEVICES = 32 };
typedef struct bti_device_list {
    char spec[BTI_MOST_DEVICES][64];
    int count;
    int named;      /* by the user, and only one: then its failure is the answer */
    int automatic;  /* nobody named one: a device may refuse to be taken so, which is no fault */
    char last[512]; /* why the last one cannot be used */
    char why[1024]; /* automatic: why each that would have been preferred is not taken */
} bti_device_list;

/* "auto" (NULL): all devices of all backends but those for tests, in the backends' order of
 * preference; else one, or a list: "cuda:1,cpu". */
void bti_device_list_make(const char *device, bti_device_list *l);
/* Opens the next usable device from *at on, and moves *at behind it. With `known` not NULL it may
 * be one that is known from a table only; *known is its name then, else NULL. BT_EDEVICE when there
 * is none left. */
bt_status bti_device_next(bti_device_list *l, int *at, int threads, const char **known,
                          bt_dev **out);

/* What a run may use of a device's memory. */
typedef struct bti_budget {
    uint64_t limit;               /* arena and what is held already together */
    uint64_t runtime;             /* held by this process outside any arena */
    uint64_t total, free, others; /* of the device, when asked; others: what is held by others */
    uint64_t reserve;             /* left free by an automatic limit */
    int automatic;                /* nobody gave a limit */
} bti_budget;

/* What a run may use: `memory` as text (NULL: `limit`). An automatic limit is what is free and what
 * this process holds already, less a reserve: a twentieth of the device or 256 MiB, whichever is
 * more, but no more than half of what is free. */
bt_status bti_memory_budget(bt_dev *dev, const char *memory, uint64_t limit, bti_budget *out);

/* Warms the device's libraries for products of this model: of decoding, and with `rows` > 0 of
 * training with up to so many rows. */
bt_status bti_device_warm(bt_dev *dev, const bti_model *m, int64_t rows, int64_t logit_rows);

#endif
