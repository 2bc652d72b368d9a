/* Known devices: rows of device_table.inc with the planning half of their backend. Everything
 * that planning asks of a device is there; nothing can be allocated or run. */
#include <ctype.h>
#include <stdio.h>

#include "backends/builtin.h"
#include "backends/registry.h"
#include "core/base/status.h"

/* What is reached of the peaks of the data sheet, until a device is here to be measured: cuBLAS'
 * sgemm between 0.6 and 0.9 of them, copies 0.75 to 0.9. The lower ends. */
#define REACHED_FLOPS 0.65
#define REACHED_BYTES 0.75

#define ALIGNMENT 256 /* of cudaMalloc (CUDA C++ Programming Guide, "Device Memory Accesses") */

static const bti_known_device table[] = {
#define BT_KNOWN_DEVICE(name, title, backend, total, runtime, gflops, gbytes, major, minor) \
    {name, \
     title, \
     backend, \
     (uint64_t)(total) << 20, \
     (uint64_t)(runtime) << 20, \
     1e9 * (gflops), \
     1e9 * (gbytes), \
     major, \
     minor},
#include "backends/device_table.inc"
};

const bti_known_device *bti_known_devices(size_t *count) {
    *count = sizeof table / sizeof table[0];
    return table;
}

/* Letters and digits alone count: "RTX-3090" and "rtx3090" are one. */
static int same_name(const char *a, const char *b) {
    for (;;) {
        while (*a == '-' || *a == ' ' || *a == '_') a++;
        while (*b == '-' || *b == ' ' || *b == '_') b++;
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b)) return 0;
        if (*a == 0) return 1;
        a++;
        b++;
    }
}

const bti_known_device *bti_known_device_find(const char *name) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (same_name(table[i].name, name)) return &table[i];
    return NULL;
}

static void known_close(bt_dev *dev) { bti_free(dev); }

static bt_status known_query(bt_dev *dev, bt_dev_info *info) {
    *info = dev->info;
    return BT_OK;
}

static bt_status known_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    (void)bytes;
    (void)out;
    return bti_fail(BT_EDEVICE, "%s is not here: it is known from a table, for plans only",
                    dev->info.name);
}

static const bt_dev_ops device_table = {
    .close = known_close, .query = known_query, .alloc = known_alloc};
static const bt_op_fn no_ops[BT_OP_COUNT];

/* One driver for each planning half that the table's rows name. */
static const bt_driver known_cuda = {BT_BACKEND_ABI, "cuda", &bti_planning_cuda, NULL, NULL};

bt_status bti_device_open_known(const bti_known_device *known, bt_dev **out) {
    bt_dev *dev = bti_alloc(1, sizeof *dev);
    if (dev == NULL) return BT_ENOMEM;
    *dev = (bt_dev){
        .driver = &known_cuda,
        .host = bti_host(),
        .ops = &device_table,
        .op = no_ops,
        .info = {.total_bytes = known->total_bytes,
                 .free_bytes = known->total_bytes - known->runtime_bytes,
                 .runtime_bytes = known->runtime_bytes,
                 .alignment = ALIGNMENT,
                 .dtypes = 1u << BT_F32 | 1u << BT_F16 | 1u << BT_BF16,
                 .tf32 = known->major >= 8,
                 .threads = 1,
                 .flops = REACHED_FLOPS * known->flops,
                 .bytes_per_s = REACHED_BYTES * known->bytes_per_s},
    };
    bt_dev_info *info = &dev->info;
    snprintf(info->name, sizeof info->name, "%s", known->title);
    snprintf(info->backend, sizeof info->backend, "%s", known->backend);
    snprintf(info->capability, sizeof info->capability, "%d.%d", known->major, known->minor);
    *out = dev;
    return BT_OK;
}
