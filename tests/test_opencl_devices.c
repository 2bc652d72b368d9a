/* What `bantam devices` makes of OpenCL devices that say other things of themselves than PoCL's do:
 * their order, and the memory that is free on them. */
#include <sys/wait.h>
#include <unistd.h>

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include "backends/registry.h"
#include "tests/opencl_calls.h"
#include "tests/program_kit.h"

#define TIB ((uint64_t)1 << 40)
#define CONTEXT_BYTES ((uint64_t)256 << 20) /* what a GPU's driver is taken to hold */

/* More memory than any machine has that tests run on: a device is known by it. */
enum { CPU, UNUSABLE, INTEGRATED, DISCRETE, FACES };
static const calls_face faces[FACES] = {
    [CPU] = {.type = CL_DEVICE_TYPE_CPU, .bytes = 1024 * TIB, .shared = 1, .compiler = 1},
    [UNUSABLE] = {.type = CL_DEVICE_TYPE_GPU, .bytes = 1025 * TIB, .shared = 0, .compiler = 0},
    [INTEGRATED] = {.type = CL_DEVICE_TYPE_GPU, .bytes = 1026 * TIB, .shared = 1, .compiler = 1},
    [DISCRETE] = {.type = CL_DEVICE_TYPE_GPU, .bytes = 1027 * TIB, .shared = 0, .compiler = 1},
};

/* What a process lists that sees these faces: devices are looked for once a process. */
static json_t *listed(void) {
    static const char *path;
    int status = 0;
    if (path != NULL) return parse_json(file_text(path));
    path = kit_str("%s/devices.json", kit_tmpdir());
    const pid_t child = fork();
    if (child == 0) {
        char *text = NULL;
        calls.faces = faces;
        calls.face_count = FACES;
        if (bt_devices_json(&text) != BT_OK) _exit(1);
        kit_write_text(path, text);
        _exit(0);
    }
    ck_assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return parse_json(file_text(path));
}

/* The device's place among those of OpenCL; -1: not listed as usable. */
static int place_of(json_t *root, int face, json_t **out) {
    json_t *list = json_object_get(root, "devices"), *d;
    int place = 0;
    size_t i;
    json_array_foreach(list, i, d) {
        if (strcmp(json_string_value(json_object_get(d, "backend")), "opencl") != 0) continue;
        if (json_is_true(json_object_get(d, "usable")) &&
            (uint64_t)number_at(d, "total_bytes") == faces[face].bytes) {
            if (out != NULL) *out = d;
            return place;
        }
        place++;
    }
    return -1;
}

/* GPUs first, as their platforms list them, then CPUs, then what cannot be used. */
START_TEST(order) {
    json_t *root = listed(), *list = json_object_get(root, "devices"), *d;
    const int integrated = place_of(root, INTEGRATED, NULL), cpu = place_of(root, CPU, NULL);
    int place = 0, unusable = -1;
    size_t i;
    ck_assert_int_ge(integrated, 0);
    ck_assert_int_eq(place_of(root, DISCRETE, NULL), integrated + 1);
    ck_assert_int_gt(cpu, integrated + 1);
    json_array_foreach(list, i, d) {
        if (strcmp(json_string_value(json_object_get(d, "backend")), "opencl") != 0) continue;
        const char *reason = json_string_value(json_object_get(d, "reason"));
        ck_assert_str_eq(json_string_value(json_object_get(d, "device")),
                         kit_str("opencl:%d", place));
        if (reason != NULL && strstr(reason, "no compiler") != NULL) unusable = place;
        place++;
    }
    ck_assert_int_gt(unusable, cpu);
    json_decref(root);
}
END_TEST

/* A GPU's own memory is free but for its driver's part; of memory that it shares with the machine,
 * no more than the machine has. */
START_TEST(free_memory) {
    json_t *root = listed(), *d = NULL;
    const double machine = (double)sysconf(_SC_PAGESIZE) * (double)sysconf(_SC_PHYS_PAGES);
    ck_assert_int_ge(place_of(root, DISCRETE, &d), 0);
    ck_assert_uint_eq((uint64_t)number_at(d, "free_bytes"), faces[DISCRETE].bytes - CONTEXT_BYTES);
    ck_assert(number_at(d, "held_by_others_bytes") == 0);
    ck_assert_int_ge(place_of(root, INTEGRATED, &d), 0);
    ck_assert(number_at(d, "free_bytes") > 0);
    ck_assert(number_at(d, "free_bytes") <= machine - (double)CONTEXT_BYTES);
    ck_assert_int_ge(place_of(root, CPU, &d), 0);
    ck_assert(number_at(d, "free_bytes") > 0);
    ck_assert(number_at(d, "free_bytes") <= machine);
    json_decref(root);
}
END_TEST

/* Devices that another process finds: this one must not have looked. */
static int devices(void) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        const bt_driver *driver;
        char reason[512];
        int count = 0;
        if (bti_backend_driver("opencl", &driver) == BT_OK)
            driver->probe(bti_host(), &count, reason, sizeof reason);
        _exit(count);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : 0;
}

static void add(TCase *tc) {
    const int count = devices();
    if (count < FACES) {
        kit_skip("devices with other faces: %d OpenCL devices", count);
        return;
    }
    tcase_add_test(tc, order);
    tcase_add_test(tc, free_memory);
}

int main(int argc, char **argv) { return kit_main("opencl_devices", add, argc, argv); }
