/* Allocations: none in a warm update, every one may fail. Device calls: every one may fail. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <unistd.h>

#include "backends/registry.h"
#include "backends/trace.h"
#include "tests/kit.h"
#include "tests/train_parts.h"

/* ---- the C library's requests, counted while a flag is on --------------------------------------
 */

#if defined(__SANITIZE_ADDRESS__)
#define COUNTED 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNTED 0
#endif
#endif
#if !defined(COUNTED) && defined(__GLIBC__)
#define COUNTED 1
#endif

static atomic_int counting;
static atomic_long requests, vendor_requests;

#if COUNTED
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

#define EXPORT __attribute__((visibility("default")))

/* OpenBLAS takes a table (512 KiB in Debian's build) for each product on several threads and frees
 * it; nobody else is excepted, OpenMP's runtime included. An OpenCL driver takes host memory for
 * every command: there only this program's and the module's own requests count. */
static int of_vendor(const void *caller) {
    static char own[4096];
    Dl_info info;
    if (dladdr(caller, &info) == 0) return 0;
    if (strcmp(kit_backend(), "opencl") != 0) return strstr(info.dli_fname, "libopenblas") != NULL;
    if (own[0] == 0 && readlink("/proc/self/exe", own, sizeof own - 1) < 0) return 0;
    const char *file = strrchr(info.dli_fname, '/'), *program = strrchr(own, '/');
    return strstr(info.dli_fname, "bantam_opencl") == NULL &&
           strcmp(file ? file : info.dli_fname, program) != 0;
}
#define note() note_from(__builtin_return_address(0))
static void note_from(const void *caller) {
    if (!atomic_load_explicit(&counting, memory_order_relaxed)) return;
    atomic_fetch_add(of_vendor(caller) ? &vendor_requests : &requests, 1);
}
EXPORT void *malloc(size_t n) {
    note();
    return __libc_malloc(n);
}
EXPORT void *calloc(size_t n, size_t size) {
    note();
    return __libc_calloc(n, size);
}
EXPORT void *realloc(void *p, size_t n) {
    note();
    return __libc_realloc(p, n);
}
EXPORT void *memalign(size_t alignment, size_t n) {
    note();
    return __libc_memalign(alignment, n);
}
EXPORT void *aligned_alloc(size_t alignment, size_t n) {
    note();
    return __libc_memalign(alignment, n);
}
EXPORT int posix_memalign(void **out, size_t alignment, size_t n) {
    note();
    void *p = __libc_memalign(alignment, n);
    if (p == NULL) return 12;
    *out = p;
    return 0;
}
#endif

static mk_setup four(int64_t rows) {
    static const int64_t source[] = {5, 3, 8, 2}, target[] = {4, 7, 1, 6};
    mk_setup s = mk_defaults();
    s.model.dropout = s.model.attention_dropout = 0.1;
    s.sentence = mk_sentences(4, source, target, 97, 1);
    s.sentences = 4;
    s.plan.force_rows[0] = s.plan.force_rows[1] = rows;
    s.plan.force_logit_rows = 5;
    s.plan.force_recompute_layers = 2;
    s.plan.force_level = BTI_LEVEL_SEGMENTS; /* layer 1's input is made in a sweep */
    s.plan.force_segment = 2;
    s.plan.force_slice_rows = 4;
    return s;
}

/* Large enough for several threads in products and in some of the row-wise work: 267 products on
 * them in five updates. */
static mk_setup wide(void) {
    static const int64_t source[] = {30, 25, 20, 15}, target[] = {28, 24, 22, 16};
    mk_setup s = four(90);
    s.model.d_model = 64;
    s.model.ff = 512;
    s.vocab[0] = s.vocab[1] = 1000;
    s.sentence = mk_sentences(4, source, target, 1000, 1);
    s.plan.force_logit_rows = 40;
    return s;
}

START_TEST(warm_updates_allocate_nothing) {
    mk_setup s = _i == 2 ? wide() : four(_i ? 9 : 18);
    if (_i > 2) s.plan.moments = _i == 3 ? BTI_MOMENTS_HOST : BTI_MOMENTS_8BIT;
    s.apart = _i == 3;
    mk_model m = mk_open(&s);
    bti_update_result r;
    kit_ok(bti_engine_update(m.engine, s.sentence, 4, 1, 1e-3, &r));
    ck_assert_int_eq(r.micro_batches > 1, _i != 0 && _i != 2);
    uint64_t before = bti_alloc_count();
    atomic_store(&requests, 0);
    atomic_store(&vendor_requests, 0);
    atomic_store(&counting, 1);
    bt_status status = BT_OK;
    for (int64_t u = 2; u <= 6 && status == BT_OK; u++)
        status = bti_engine_update(m.engine, s.sentence + (u % 2), 4 - (u % 2), u, 1e-3, &r);
    atomic_store(&counting, 0);
    kit_ok(status);
    ck_assert_uint_eq(bti_alloc_count(), before);
    ck_assert_int_eq(atomic_load(&requests), 0);
    printf("warm updates: 0 requests, and %ld of libraries\n", atomic_load(&vendor_requests));
#if COUNTED
    atomic_store(&counting, 1);
    free(malloc(1));
    atomic_store(&counting, 0);
    ck_assert_int_eq(atomic_load(&requests), 1);
#else
    kit_skip("requests of the C library are not counted under a sanitizer; bti_alloc's are");
#endif
    mk_close(&m);
}
END_TEST

/* ---- the n-th request fails --------------------------------------------------------------------
 */

START_TEST(allocation_fails) {
    mk_setup s = four(9);
    bt_dev *dev = mk_device(kit_backend(), NULL);
    s.plan.moments = (bti_moments)_i;
    dev->info.host_memory = _i != BTI_MOMENTS_HOST;
    bti_workload w = mk_workload(s.sentence, 4);
    bti_model *model = NULL;
    bti_run_plan *plan = NULL;
    bti_engine *engine = NULL;
    int stage[3] = {0, 0, 0};
    for (int k = 0; k < 3; k++)
        for (bt_status status = BT_ENOMEM; status != BT_OK;) {
            bti_alloc_fail_at((uint64_t)++stage[k]);
            status = k == 0 ? bti_model_new(&s.model, 97, 97, BT_F32, &model)
                     : k == 1
                         ? bti_plan_search(model, dev->driver->planning, &dev->info, &w, 8, &s.plan,
                                           &plan)
                         : bti_engine_new(dev, model, plan, 4, w.max_rows[1], &s.engine, &engine);
            bti_alloc_fail_at(0);
            if (status == BT_OK) break;
            ck_assert_int_eq(status, BT_ENOMEM);
            ck_assert_ptr_nonnull(strstr(bt_last_error(), "memory"));
            ck_assert(k == 0 ? model == NULL : k == 1 ? plan == NULL : engine == NULL);
        }
    ck_assert_int_gt(stage[0], 3);
    ck_assert_int_gt(stage[1], 8);
    ck_assert_int_gt(stage[2], 8);
    kit_ok(bti_engine_init(engine));
    bti_update_result r;
    kit_ok(bti_engine_update(engine, s.sentence, 4, 1, 1e-3, &r));
    bti_engine_free(engine);
    bti_run_plan_free(plan);
    bti_model_free(model);
    bti_device_close(dev);
}
END_TEST

/* ---- the n-th device call fails ----------------------------------------------------------------
 */

typedef struct traced {
    bt_dev *dev;
    bti_model *model;
    bti_run_plan *plan;
    bti_workload w;
} traced;

static traced traced_new(const mk_setup *s) {
    traced t = {.dev = mk_device(kit_str("trace:%s", kit_backend()), NULL),
                .w = mk_workload(s->sentence, 4)};
    bti_trace_options(t.dev)->time = 0;
    if (s->apart) t.dev->info.host_memory = 0;
    kit_ok(bti_model_new(&s->model, 97, 97, BT_F32, &t.model));
    kit_ok(bti_plan_search(t.model, t.dev->driver->planning, &t.dev->info, &t.w, 8, &s->plan,
                           &t.plan));
    return t;
}

static void traced_free(traced *t) {
    bti_run_plan_free(t->plan);
    bti_model_free(t->model);
    bti_device_close(t->dev);
}

/* Opens an engine and runs an update with the n-th call failing; gives the status. */
static bt_status fail_at(const traced *t, const mk_setup *s, uint64_t n, int at_open) {
    bt_trace_options *o = bti_trace_options(t->dev);
    bti_engine *e = NULL;
    bti_update_result r = {.loss = -1};
    if (at_open) o->fail_at = n;
    bt_status status =
        bti_engine_new(t->dev, t->model, t->plan, 4, t->w.max_rows[1], &s->engine, &e);
    if (status == BT_OK && at_open) status = bti_engine_init(e);
    if (!at_open) {
        kit_ok(status);
        kit_ok(bti_engine_init(e));
        o->fail_at = n;
        status = bti_engine_update(e, s->sentence, 4, 1, 1e-3, &r);
        ck_assert((status == BT_OK) == (r.loss > 0));
    }
    if (status != BT_OK) ck_assert_ptr_nonnull(strstr(bt_last_error(), "as was asked for"));
    o->fail_at = 0;
    bti_engine_free(e);
    return status;
}

/* Also the n-th copy of moments that are on their way. */
START_TEST(device_call_fails) {
    mk_setup s = four(9);
    s.plan.moments = (bti_moments)_i;
    s.apart = _i == BTI_MOMENTS_HOST;
    traced t = traced_new(&s);
    for (int at_open = 0; at_open < 2; at_open++) {
        bt_status status = BT_EDEVICE;
        uint64_t n = 0;
        while (status == BT_EDEVICE) {
            n += 1 + n / 16;
            status = fail_at(&t, &s, n, at_open);
        }
        kit_ok(status);
        ck_assert_uint_gt(n, at_open ? 20 : 200);
    }
    traced_free(&t);
}
END_TEST

/* A call that failed once is no reason to stop for ever: the same update again is right. */
START_TEST(device_recovers) {
    mk_setup s = four(9);
    s.plan.moments = (bti_moments)_i;
    s.apart = _i == BTI_MOMENTS_HOST;
    traced t = traced_new(&s);
    bti_engine *e;
    bti_update_result want, r;
    kit_ok(bti_engine_new(t.dev, t.model, t.plan, 4, t.w.max_rows[1], &s.engine, &e));
    kit_ok(bti_engine_init(e));
    kit_ok(bti_engine_update(e, s.sentence, 4, 1, 0, &want));
    bt_status status = BT_EDEVICE;
    for (uint64_t n = 1; status == BT_EDEVICE; n += 37) {
        bti_trace_options(t.dev)->fail_at = n;
        status = bti_engine_update(e, s.sentence, 4, 1, 0, &r);
        bti_trace_options(t.dev)->fail_at = 0;
        kit_ok(bti_engine_update(e, s.sentence, 4, 1, 0, &r));
        ck_assert(r.loss == want.loss && r.grad_norm == want.grad_norm);
    }
    kit_ok(status);
    bti_engine_free(e);
    traced_free(&t);
}
END_TEST

void add_train_fault(TCase *tc) {
    tcase_add_loop_test(tc, warm_updates_allocate_nothing, 0, 5);
    tcase_add_loop_test(tc, allocation_fails, BTI_MOMENTS_DEVICE, BTI_MOMENTS_8BIT);
    tcase_add_loop_test(tc, device_call_fails, BTI_MOMENTS_DEVICE, BTI_MOMENTS_COUNT);
    tcase_add_loop_test(tc, device_recovers, BTI_MOMENTS_DEVICE, BTI_MOMENTS_COUNT);
}
