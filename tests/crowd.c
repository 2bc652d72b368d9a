#include "tests/crowd.h"

#include <stdio.h>
#include <stdlib.h>

#include "backends/registry.h"
#include "core/base/status.h"

crowd crowds[CROWDS];

static struct {
    const bt_dev_ops *real;
    bt_dev_ops table;
} tables[CROWDS];

static int index_of(bt_dev *dev) { return dev->info.name[6] - '0'; /* "crowd 0" */ }
static crowd *self(bt_dev *dev) { return &crowds[index_of(dev)]; }
static const bt_dev_ops *real(bt_dev *dev) { return tables[index_of(dev)].real; }

static bt_status crowd_query(bt_dev *dev, bt_dev_info *info) {
    *info = dev->info;
    info->free_bytes = self(dev)->free;
    info->runtime_bytes = self(dev)->runtime;
    return BT_OK;
}

static bt_status crowd_alloc(bt_dev *dev, uint64_t bytes, bt_buf **out) {
    crowd *c = self(dev);
    if (c->grabbed || bytes > c->free || (c->max_alloc && bytes > c->max_alloc))
        return bti_fail(BT_ENOMEM, "crowd: no %llu bytes", (unsigned long long)bytes);
    c->allocs++;
    if (bytes > c->largest) c->largest = bytes;
    return real(dev)->alloc(dev, bytes, out);
}

static void crowd_free(bt_dev *dev, bt_buf *buf) {
    if (buf != NULL) self(dev)->freed++;
    real(dev)->free(dev, buf);
}

static bt_status crowd_fill(bt_dev *dev, bt_stream *s, bt_buf *buf, uint64_t off, uint64_t bytes,
                            uint8_t value) {
    if (self(dev)->first_use_fails) return bti_fail(BT_EDEVICE, "crowd: the memory is not there");
    return real(dev)->fill(dev, s, buf, off, bytes, value);
}

static bt_status crowd_sync(bt_dev *dev, bt_stream *s) {
    if (self(dev)->grab_after_start) self(dev)->grabbed = 1;
    return real(dev)->sync(dev, s);
}

static bt_status crowd_probe(const bt_host *host, int *count, char *reason, size_t reason_size) {
    (void)host;
    if (reason_size > 0) reason[0] = 0;
    *count = CROWDS;
    return BT_OK;
}

static bt_status crowd_open(const bt_host *host, int index, const bt_open_options *options,
                            bt_dev **out) {
    (void)host;
    bt_dev *dev;
    if (index >= CROWDS) return bti_fail(BT_EUSAGE, "crowd: there are %d devices", CROWDS);
    BT_TRY(bti_device_open("null", options, &dev));
    const crowd *c = &crowds[index];
    tables[index].real = dev->ops;
    tables[index].table = *dev->ops;
    tables[index].table.query = crowd_query;
    tables[index].table.alloc = crowd_alloc;
    tables[index].table.free = crowd_free;
    tables[index].table.fill = crowd_fill;
    tables[index].table.sync = crowd_sync;
    dev->ops = &tables[index].table;
    snprintf(dev->info.name, sizeof dev->info.name, "crowd %d", index);
    dev->info.total_bytes = c->total;
    dev->info.free_bytes = c->free;
    dev->info.runtime_bytes = c->runtime;
    dev->info.max_alloc = c->max_alloc;
    *out = dev;
    return BT_OK;
}

void crowd_reset(void) {
    static bt_driver driver = {BT_BACKEND_ABI, "crowd", NULL, crowd_probe, crowd_open};
    driver.planning = bti_backend_planning("null");
    if (bti_backend_register(&driver) != BT_OK) abort();
    for (int i = 0; i < CROWDS; i++)
        crowds[i] = (crowd){.total = (uint64_t)64 << 30, .free = (uint64_t)64 << 30};
}
