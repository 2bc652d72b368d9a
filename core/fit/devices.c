/* bt_devices_*: every backend but those for tests and its devices, usable or not and then why; and
 * those that can be planned for from a table. */
#include "core/fit/devices.h"

#include <stdio.h>

#include "backends/registry.h"
#include "core/base/json.h"
#include "core/base/text.h"

/* Names of the types that its ops take as data. */
static json_t *types_json(const bt_dev_info *info) {
    json_t *list = json_array();
    for (int t = 0; t < BT_DTYPE_COUNT; t++)
        if (info->dtypes >> t & 1)
            json_array_append_new(list, json_string(bti_dtype_name((bt_dtype)t)));
    return list;
}

/* null: there is none. */
static json_t *text_json(const char *text) { return text[0] ? json_string(text) : json_null(); }

json_t *bti_allocation_json(const bt_dev_info *info) {
    return info->max_alloc > 0 ? json_integer((json_int_t)info->max_alloc) : json_null();
}

static json_t *unusable_json(const char *device, const char *backend, const char *reason) {
    return json_pack("{s:s, s:s, s:b, s:s}", "device", device, "backend", backend, "usable", 0,
                     "reason", reason);
}

static json_t *usable_json(const char *spec, const char *backend, const bt_dev_info *info) {
    uint64_t known = info->free_bytes + info->runtime_bytes;
    json_t *out =
        json_pack("{s:s, s:s, s:b, s:s, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:f, s:f, s:o}",
                  "device", spec, "backend", backend, "usable", 1, "name", info->name,
                  "compute_capability", text_json(info->capability), "driver",
                  text_json(info->driver), "total_bytes", (json_int_t)info->total_bytes,
                  "free_bytes", (json_int_t)info->free_bytes, "held_by_others_bytes",
                  (json_int_t)(info->total_bytes > known ? info->total_bytes - known : 0),
                  "largest_allocation_bytes", bti_allocation_json(info), "threads",
                  (json_int_t)info->threads, "gflops", info->flops / 1e9, "gigabytes_per_s",
                  info->bytes_per_s / 1e9, "types", types_json(info));
    json_object_set_new(out, "largest_work_group",
                        info->work_group ? json_integer(info->work_group) : json_null());
    return out;
}

/* One device, or the reason why it cannot be used. */
static json_t *device_json(const char *backend, int index) {
    bt_dev *dev;
    char spec[64];
    snprintf(spec, sizeof spec, "%s:%d", backend, index);
    if (bti_device_open(spec, &(bt_open_options){0}, &dev) != BT_OK)
        return unusable_json(spec, backend, bt_last_error());
    bt_dev_info info = dev->info;
    json_t *out = dev->ops->query(dev, &info) == BT_OK
                      ? usable_json(spec, backend, &info)
                      : unusable_json(spec, backend, bt_last_error());
    bti_device_close(dev);
    return out;
}

static json_t *list_devices(void) {
    json_t *list = json_array();
    for (const char *const *name = bti_backend_names(); *name != NULL; name++) {
        const bt_driver *driver;
        char reason[512] = "";
        int count = 0;
        if (bti_backend_for_tests(*name)) continue;
        bt_status status = bti_backend_driver(*name, &driver);
        if (status == BT_OK) status = driver->probe(bti_host(), &count, reason, sizeof reason);
        if (status != BT_OK) snprintf(reason, sizeof reason, "%s", bt_last_error());
        if (status != BT_OK || count == 0)
            json_array_append_new(list, unusable_json(*name, *name, reason));
        for (int i = 0; status == BT_OK && i < count; i++)
            json_array_append_new(list, device_json(*name, i));
    }
    return list;
}

static json_t *list_known(void) {
    json_t *list = json_array();
    size_t count;
    const bti_known_device *d = bti_known_devices(&count);
    for (size_t i = 0; i < count; i++) {
        char capability[16];
        snprintf(capability, sizeof capability, "%d.%d", d[i].major, d[i].minor);
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:s}", "device",
                                        d[i].name, "name", d[i].title, "backend", d[i].backend,
                                        "total_bytes", (json_int_t)d[i].total_bytes,
                                        "runtime_bytes", (json_int_t)d[i].runtime_bytes,
                                        "peak_gflops", d[i].flops / 1e9, "peak_gigabytes_per_s",
                                        d[i].bytes_per_s / 1e9, "compute_capability", capability));
    }
    return list;
}

bt_status bt_devices_json(char **json) {
    json_t *root =
        json_pack("{s:o, s:o}", "devices", list_devices(), "planned_from_a_table", list_known());
    return bti_json_take(root, JSON_INDENT(2), json);
}

/* "; fp32, fp16" and so on. */
static void print_types(bti_text *out, json_t *types) {
    for (size_t i = 0; i < json_array_size(types); i++)
        bti_text_add(out, "%s%s", i == 0 ? "; " : ", ",
                     json_string_value(json_array_get(types, i)));
}

/* "Tesla K80 (compute capability 3.7, driver CUDA 11.4)". */
static void print_name(bti_text *out, json_t *d) {
    const char *capability = json_string_value(json_object_get(d, "compute_capability"));
    const char *driver = json_string_value(json_object_get(d, "driver"));
    json_t *group = json_object_get(d, "largest_work_group");
    const char *before = " (";
    bti_text_add(out, "%s", json_string_value(json_object_get(d, "name")));
    if (capability != NULL) {
        bti_text_add(out, "%scompute capability %s", before, capability);
        before = ", ";
    }
    if (driver != NULL) {
        bti_text_add(out, "%sdriver %s", before, driver);
        before = ", ";
    }
    if (json_is_integer(group)) {
        bti_text_add(out, "%sgroups of %d", before, (int)json_integer_value(group));
        before = ", ";
    }
    if (before[0] == ',') bti_text_add(out, ")");
}

static void print_device(bti_text *out, json_t *d) {
    const char *spec = json_string_value(json_object_get(d, "device"));
    if (!json_is_true(json_object_get(d, "usable"))) {
        bti_text_add(out, "%-10s not usable: %s\n", spec,
                     json_string_value(json_object_get(d, "reason")));
        return;
    }
    double gib = 1024.0 * 1024 * 1024;
    json_t *largest = json_object_get(d, "largest_allocation_bytes");
    bti_text_add(out, "%-10s ", spec);
    print_name(out, d);
    bti_text_add(out, ": %.2f GiB, %.2f free, %.2f held by others",
                 (double)json_integer_value(json_object_get(d, "total_bytes")) / gib,
                 (double)json_integer_value(json_object_get(d, "free_bytes")) / gib,
                 (double)json_integer_value(json_object_get(d, "held_by_others_bytes")) / gib);
    if (json_is_integer(largest))
        bti_text_add(out, ", %.2f in one allocation", (double)json_integer_value(largest) / gib);
    bti_text_add(out, "; %d threads, %.0f GFLOP/s, %.1f GB/s",
                 (int)json_integer_value(json_object_get(d, "threads")),
                 json_real_value(json_object_get(d, "gflops")),
                 json_real_value(json_object_get(d, "gigabytes_per_s")));
    print_types(out, json_object_get(d, "types"));
    bti_text_add(out, "\n");
}

static void print_known(bti_text *out) {
    size_t count;
    const bti_known_device *d = bti_known_devices(&count);
    bti_text_add(out, "\nPlanned for without being here (bantam plan RUN.yaml --device NAME):\n");
    for (size_t i = 0; i < count; i++)
        bti_text_add(out, "%-10s %-20s %6.2f GiB, %6.0f GFLOP/s, %4.0f GB/s at their peaks\n",
                     d[i].name, d[i].title, (double)d[i].total_bytes / (1u << 30), d[i].flops / 1e9,
                     d[i].bytes_per_s / 1e9);
}

bt_status bt_devices_text(char **text) {
    json_t *list = list_devices();
    bti_text out = {0};
    for (size_t i = 0; i < json_array_size(list); i++) print_device(&out, json_array_get(list, i));
    json_decref(list);
    print_known(&out);
    return bti_text_take(&out, text);
}
