#include "core/fit/device.h"

#include <stdio.h>
#include <string.h>

#include "backends/registry.h"
#include "core/base/num.h"
#include "core/base/status.h"

/* ---- which -------------------------------------------------------------------------------------
 */

static void add_device(bti_device_list *l, const char *text, size_t bytes) {
    if (l->count < BTI_MOST_DEVICES)
        snprintf(l->spec[l->count++], sizeof l->spec[0], "%.*s", (int)bytes, text);
}

/* Keeps why a backend or a device cannot be taken. */
static void pass_over(bti_device_list *l, const char *text) {
    size_t n = strlen(l->why);
    snprintf(l->last, sizeof l->last, "%s", text);
    snprintf(l->why + n, sizeof l->why - n, "; %s", text);
}

/* All devices of all backends but those for tests. */
static void list_all(bti_device_list *l) {
    for (const char *const *name = bti_backend_names(); *name != NULL; name++) {
        const bt_driver *driver;
        int count = 0;
        char reason[256] = "", spec[64], text[320];
        if (bti_backend_for_tests(*name)) continue;
        if (bti_backend_driver(*name, &driver) != BT_OK) {
            pass_over(l, bt_last_error());
        } else if (driver->probe(bti_host(), &count, reason, sizeof reason) != BT_OK || count < 1) {
            snprintf(text, sizeof text, "%s: %s", *name, reason);
            pass_over(l, text);
            count = 0;
        }
        for (int i = 0; i < count; i++)
            add_device(l, spec, (size_t)snprintf(spec, sizeof spec, "%s:%d", *name, i));
    }
}

void bti_device_list_make(const char *device, bti_device_list *l) {
    l->count = 0;
    l->named = 0;
    l->automatic = 0;
    l->why[0] = 0;
    snprintf(l->last, sizeof l->last, "there is no backend");
    if (device == NULL || strcmp(device, "auto") == 0) {
        l->automatic = 1;
        list_all(l);
        return;
    }
    for (size_t n; *device != 0; device += n + (device[n] == ','))
        add_device(l, device, n = strcspn(device, ","));
    l->named = l->count <= 1;
    if (l->count == 0) add_device(l, "", 0);
}

bt_status bti_device_next(bti_device_list *l, int *at, int threads, const char **known,
                          bt_dev **out) {
    bt_open_options options = {.threads = threads, .automatic = (uint8_t)l->automatic};
    while (*at < l->count) {
        const char *spec = l->spec[(*at)++];
        const bti_known_device *row = known != NULL ? bti_known_device_find(spec) : NULL;
        if (known != NULL) *known = row != NULL ? row->name : NULL;
        bt_status status =
            row ? bti_device_open_known(row, out) : bti_device_open(spec, &options, out);
        if (status == BT_OK && l->automatic)
            bti_log(BT_LOG_INFO, "auto takes %s%s", spec,
                    l->why[0] ? l->why : ", the first device there is");
        if (status == BT_OK || l->named) return status;
        pass_over(l, bt_last_error());
        if (l->automatic && status == BT_EUSAGE) continue; /* it is not for this */
        bti_log(BT_LOG_WARN, "%s cannot be used: %s", spec, l->last);
    }
    return bti_fail(BT_EDEVICE, "no device can be used (%s); bantam devices tells more", l->last);
}

/* ---- how much of it ----------------------------------------------------------------------------
 */

#define WARM_ROWS 4096
#define WARM_THREAD_ROWS 1024

/* Product `kind` of r rows of width d and n: y = x w^T, dx = dy w, dw = dy^T x, for types of x and
 * y. A library that runs on the host packs no more than some hundred of a weight's rows at a time
 * in the first two; in the third it is given no more than so many for each thread. */
static bt_call product_of(const bt_dev_info *info, bt_dtype w, int kind, int64_t r, int64_t d,
                          int64_t n, bt_dtype x, bt_dtype y) {
    bt_dtype type[3][3] = {{x, w, y}, {y, w, x}, {y, x, w}};
    const int64_t most = WARM_ROWS + (kind == 2 ? (int64_t)info->threads * WARM_THREAD_ROWS : 0);
    if (info->host_memory && n > most) n = most;
    int64_t shape[3][6] = {{r, d, n, d, r, n}, {r, n, n, d, r, d}, {r, n, r, d, n, d}};
    bt_call call = {.op = BT_OP_GEMM};
    for (int k = 0; k < 3; k++)
        call.t[k] = (bt_view){.rows = shape[kind][2 * k],
                              .cols = shape[kind][2 * k + 1],
                              .ld = shape[kind][2 * k + 1],
                              .dtype = type[kind][k]};
    call.p.gemm = (bt_gemm_params){
        .alpha = 1, .trans_a = kind == 2, .trans_b = kind == 0, .round = x == w ? BT_F32 : x};
    return call;
}

/* Widths of what a layer's products read and of what comes out. A library on the host has taken
 * what it keeps after the widest; one on a device loads kernels for each shape. */
enum { WARM_SHAPES = 4 + BTI_MAX_FEATURES };
static int layer_shapes(const bt_dev_info *info, const bti_model *m, int64_t shape[][2]) {
    const int64_t d = m->cfg.d_model, ff = m->cfg.ff;
    const int64_t all[4][2] = {{d, bti_max(ff, 3 * d)}, {d, bti_min(ff, 3 * d)}, {ff, d}, {d, d}};
    int n = 0;
    for (; n < (info->host_memory ? 1 : 4); n++) memcpy(shape[n], all[n], sizeof all[n]);
    for (int32_t f = 0; f < m->cfg.features && !info->host_memory; f++, n++) {
        shape[n][0] = m->cfg.feature[f].width;
        shape[n][1] = d;
    }
    return n;
}

bt_status bti_device_warm(bt_dev *dev, const bti_model *m, int64_t rows, int64_t logit_rows) {
    const bt_dev_info *info = &dev->info;
    const int64_t decoding = info->row_tile > 0 ? info->row_tile : logit_rows;
    const bt_dtype own = m->params.dtype;
    int64_t shape[WARM_SHAPES + 1][2];
    bt_call call[4 * (WARM_SHAPES + 1)];
    size_t n = 0;
    if (dev->ops->warm == NULL) return BT_OK;
    const int layers = layer_shapes(info, m, shape);
    shape[layers][0] = m->cfg.d_model;
    shape[layers][1] = bti_model_outputs(m);
    for (int i = 0; i <= layers; i++) { /* the output comes last */
        const int64_t d = shape[i][0], width = shape[i][1];
        const int out = i == layers;
        call[n] = product_of(info, own, 0, decoding, d, width, own, own);
        call[n++].p.gemm.stable_rows = 1;
        for (int kind = 0; kind < 3 && rows > 0; kind++) {
            call[n] = product_of(info, own, kind, out ? logit_rows : rows, d, width, m->data,
                                 out ? own : m->data);
            call[n++].p.gemm.tf32 = (uint8_t)m->tf32;
        }
    }
    return dev->ops->warm(dev, call, n);
}

bt_status bti_memory_budget(bt_dev *dev, const char *memory, uint64_t limit, bti_budget *out) {
    bt_dev_info info = dev->info;
    BT_TRY(dev->ops->query(dev, &info));
    if (memory != NULL) BT_TRY(bti_parse_bytes(memory, &limit));
    bti_budget b = {.limit = limit,
                    .runtime = info.runtime_bytes,
                    .total = info.total_bytes,
                    .free = info.free_bytes,
                    .automatic = limit == BTI_MEMORY_AUTO};
    uint64_t known = info.free_bytes + info.runtime_bytes;
    b.others = info.total_bytes > known ? info.total_bytes - known : 0;
    if (b.automatic) {
        b.reserve = info.total_bytes / 20;
        if (b.reserve < 256u << 20) b.reserve = 256u << 20;
        if (b.reserve > info.free_bytes / 2) b.reserve = info.free_bytes / 2;
        b.limit = info.free_bytes - b.reserve + info.runtime_bytes;
        if (b.limit == 0) b.limit = 1; /* 0 would be no limit */
    }
    *out = b;
    return BT_OK;
}
