/* The simulated cuBLAS: products of every orientation and type, what it refuses, its workspace. */
#include "tests/kit.h"

#include <cublas_v2.h>
#include <cusim.h>

#include "core/base/dtype.h"
#include "tests/cusim_parts.h"

#define bl_ok(call) ck_assert_str_eq(cublasGetStatusName(call), "CUBLAS_STATUS_SUCCESS")
#define bl_fails(call, status) \
    ck_assert_str_eq(cublasGetStatusName(call), cublasGetStatusName(status))

enum { M = 7, N = 5, K = 11, LD = 13, BATCH = 3, STRIDE = LD * LD, SIZE = STRIDE * BATCH };

typedef struct matrices {
    cublasHandle_t handle;
    float a[SIZE], b[SIZE], c[SIZE];
    float *da, *db, *dc;
} matrices;

static matrices m;

static void begin(const char *settings) {
    cs_restart(settings);
    bl_ok(cublasCreate(&m.handle));
    for (int i = 0; i < SIZE; i++) {
        m.a[i] = (float)(i * 7 % 19 - 9) / 8; /* exact in every type, and so are their sums */
        m.b[i] = (float)(i * 5 % 23 - 11) / 4;
        m.c[i] = (float)(i % 13 - 6);
    }
    m.da = cs_up(m.a, SIZE);
    m.db = cs_up(m.b, SIZE);
    m.dc = cs_up(m.c, SIZE);
}
static void end(void) {
    bl_ok(cublasDestroy(m.handle));
    cs_ok(cudaFree(m.da));
    cs_ok(cudaFree(m.db));
    cs_ok(cudaFree(m.dc));
}

/* Element (i, j) of 2 op(A) op(B) - C. */
static float element(int ta, int tb, int batch, int i, int j) {
    const float *a = m.a + (size_t)batch * STRIDE, *b = m.b + (size_t)batch * STRIDE;
    float s = 0;
    for (int l = 0; l < K; l++)
        s += a[ta ? l + i * LD : i + l * LD] * b[tb ? j + l * LD : l + j * LD];
    return 2 * s - m.c[batch * STRIDE + i + j * LD];
}

/* Nothing but the m x n of each batch may have changed. */
static void check(int ta, int tb, int batches, const float *got) {
    for (int at = 0; at < SIZE; at++) {
        const int batch = at / STRIDE, i = at % STRIDE % LD, j = at % STRIDE / LD;
        const int inside = batch < batches && i < M && j < N;
        ck_assert_float_eq(got[at], inside ? element(ta, tb, batch, i, j) : m.c[at]);
    }
}

static const float two = 2, minus_one = -1;

START_TEST(all_orientations) {
    float got[SIZE];
    for (int t = 0; t < 4; t++) {
        const cublasOperation_t ta = t & 1 ? CUBLAS_OP_T : CUBLAS_OP_N,
                                tb = t & 2 ? CUBLAS_OP_T : CUBLAS_OP_N;
        begin("");
        bl_ok(
            cublasSgemm(m.handle, ta, tb, M, N, K, &two, m.da, LD, m.db, LD, &minus_one, m.dc, LD));
        cs_down(got, m.dc, SIZE);
        check(t & 1, t & 2, 1, got);
        cs_ok(cudaMemcpy(m.dc, m.c, sizeof m.c, cudaMemcpyHostToDevice));
        bl_ok(cublasSgemmStridedBatched(m.handle, ta, tb, M, N, K, &two, m.da, LD, STRIDE, m.db, LD,
                                        STRIDE, &minus_one, m.dc, LD, STRIDE, BATCH));
        cs_down(got, m.dc, SIZE);
        check(t & 1, t & 2, BATCH, got);
        end();
    }
}
END_TEST

/* What C held does not matter where beta is 0, not even NaN. */
START_TEST(beta_zero) {
    const float zero = 0;
    float got[SIZE];
    begin("");
    cs_ok(cudaMemset(m.dc, 0xff, sizeof m.c));
    bl_ok(cublasSgemm(m.handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &two, m.da, LD, m.db, LD, &zero,
                      m.dc, LD));
    cs_down(got, m.dc, SIZE);
    ck_assert_float_eq(got[LD + 2], element(0, 0, 0, 2, 1) + m.c[LD + 2]);
    end();
}
END_TEST

static uint16_t to_half(float x, int bf16) { return bf16 ? bti_f32_to_bf16(x) : bti_f32_to_f16(x); }

/* Half operands, half or float results. */
START_TEST(half_operands) {
    uint16_t a[SIZE], b[SIZE], c[SIZE];
    float got[SIZE];
    for (int form = 0; form < 4; form++) {
        const int bf16 = form & 1, wide = form & 2;
        const cudaDataType half = bf16 ? CUDA_R_16BF : CUDA_R_16F, out = wide ? CUDA_R_32F : half;
        begin("CUSIM_ARCH=86");
        for (int i = 0; i < SIZE; i++) {
            a[i] = to_half(m.a[i], bf16);
            b[i] = to_half(m.b[i], bf16);
            c[i] = to_half(m.c[i], bf16);
        }
        cs_ok(cudaMemcpy(m.da, a, sizeof a, cudaMemcpyHostToDevice));
        cs_ok(cudaMemcpy(m.db, b, sizeof b, cudaMemcpyHostToDevice));
        if (!wide) cs_ok(cudaMemcpy(m.dc, c, sizeof c, cudaMemcpyHostToDevice));
        bl_ok(cublasGemmStridedBatchedEx(m.handle, CUBLAS_OP_T, CUBLAS_OP_N, M, N, K, &two, m.da,
                                         half, LD, STRIDE, m.db, half, LD, STRIDE, &minus_one, m.dc,
                                         out, LD, STRIDE, BATCH, CUBLAS_COMPUTE_32F,
                                         CUBLAS_GEMM_DEFAULT));
        cs_down(got, m.dc, SIZE);
        if (wide)
            check(1, 0, BATCH, got);
        else {
            memcpy(c, got, sizeof c);
            const int at = STRIDE + 2 * LD + 3;
            ck_assert_uint_eq(c[at], to_half(element(1, 0, 1, 3, 2), bf16));
        }
        end();
    }
}
END_TEST

static cublasStatus_t ex(cudaDataType a, cudaDataType b, cudaDataType c, cublasComputeType_t how) {
    return cublasGemmEx(m.handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &two, m.da, a, LD, m.db, b, LD,
                        &minus_one, m.dc, c, LD, how, CUBLAS_GEMM_DEFAULT);
}

START_TEST(what_it_refuses) {
    const cudaDataType f = CUDA_R_32F, h = CUDA_R_16F, b = CUDA_R_16BF;
    const cublasComputeType_t how = CUBLAS_COMPUTE_32F;
    begin("CUSIM_ARCH=37");
    bl_fails(ex(h, h, f, how), CUBLAS_STATUS_ARCH_MISMATCH);
    bl_fails(ex(f, f, f, how), CUBLAS_STATUS_ARCH_MISMATCH);
    bl_fails(cublasSgemm(m.handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &two, m.da, M - 1, m.db, LD,
                         &two, m.dc, LD),
             CUBLAS_STATUS_INVALID_VALUE);
    bl_fails(cublasSgemm(m.handle, CUBLAS_OP_N, CUBLAS_OP_N, -1, N, K, &two, m.da, LD, m.db, LD,
                         &two, m.dc, LD),
             CUBLAS_STATUS_INVALID_VALUE);
    end();
    begin("CUSIM_ARCH=70");
    bl_ok(ex(h, h, f, how));
    bl_fails(ex(b, b, f, how), CUBLAS_STATUS_ARCH_MISMATCH);
    end();
    begin("CUSIM_ARCH=80");
    bl_ok(ex(b, b, f, how));
    bl_fails(ex(h, f, f, how), CUBLAS_STATUS_NOT_SUPPORTED);
    bl_fails(ex(h, b, f, how), CUBLAS_STATUS_NOT_SUPPORTED);
    bl_fails(ex(f, f, h, how), CUBLAS_STATUS_NOT_SUPPORTED);
    bl_fails(ex(h, h, h, CUBLAS_COMPUTE_16F), CUBLAS_STATUS_NOT_SUPPORTED);
    end();
}
END_TEST

static uint64_t own_workspaces(void) {
    cusim_counts counts;
    cusim_read_counts(&counts);
    return counts.workspaces;
}
static void multiply(void) {
    bl_ok(cublasSgemm(m.handle, CUBLAS_OP_N, CUBLAS_OP_N, M, N, K, &two, m.da, LD, m.db, LD,
                      &minus_one, m.dc, LD));
}

/* Setting the stream forgets the workspace: it has to be given again, or the library takes one. */
START_TEST(workspace) {
    void *ws = NULL;
    size_t before, after, total;
    cudaStream_t stream;
    begin("CUSIM_ARCH=86");
    cs_ok(cudaMalloc(&ws, 1 << 20));
    cs_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cs_ok(cudaMemGetInfo(&before, &total));
    bl_ok(cublasSetStream(m.handle, stream));
    bl_fails(cublasSetWorkspace(m.handle, (char *)ws + 4, 1000), CUBLAS_STATUS_INVALID_VALUE);
    bl_ok(cublasSetWorkspace(m.handle, ws, 1 << 20));
    multiply();
    ck_assert_uint_eq(own_workspaces(), 0);
    bl_ok(cublasSetStream(m.handle, stream));
    multiply();
    multiply();
    ck_assert_uint_eq(own_workspaces(), 1);
    cs_ok(cudaMemGetInfo(&after, &total));
    ck_assert_uint_eq(before - after, 4 << 20);
    cs_ok(cudaStreamSynchronize(stream));
    end();
    cs_ok(cudaFree(ws));
    cs_ok(cudaStreamDestroy(stream));
    cs_ok(cudaMemGetInfo(&after, &total));
    ck_assert_uint_gt(after, before);
}
END_TEST

/* TF32 rounds operands to 10 bits of mantissa, where the card has it and was asked to. */
START_TEST(tf32) {
    const float fine = 1 + 0x1p-12f, one = 1, zero = 0;
    float got;
    for (int form = 0; form < 3; form++) {
        begin(form == 0 ? "CUSIM_ARCH=75" : "CUSIM_ARCH=80");
        if (form < 2) bl_ok(cublasSetMathMode(m.handle, CUBLAS_TF32_TENSOR_OP_MATH));
        cs_ok(cudaMemcpy(m.da, &fine, 4, cudaMemcpyHostToDevice));
        cs_ok(cudaMemcpy(m.db, &one, 4, cudaMemcpyHostToDevice));
        bl_ok(cublasSgemm(m.handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, m.da, 1, m.db, 1,
                          &zero, m.dc, 1));
        cs_down(&got, m.dc, 1);
        ck_assert_float_eq(got, form == 1 ? 1 : fine);
        end();
    }
}
END_TEST

/* A row's bits depend on how many rows there are, as they do in the real library. */
START_TEST(bits_depend_on_sizes) {
    enum { ROWS = 6, DEPTH = 200 };
    static float a[ROWS * DEPTH], b[DEPTH];
    const float one = 1, zero = 0;
    float first[ROWS], differ = 0;
    begin("");
    for (int i = 0; i < ROWS * DEPTH; i++) a[i] = 1 / (float)(1 + i % 97);
    for (int i = 0; i < DEPTH; i++) b[i] = 1 / (float)(3 + i % 31);
    float *da = cs_up(a, ROWS * DEPTH), *db = cs_up(b, DEPTH);
    for (int rows = 1; rows <= ROWS; rows++) {
        float got[ROWS];
        bl_ok(cublasSgemm(m.handle, CUBLAS_OP_T, CUBLAS_OP_N, rows, 1, DEPTH, &one, da, DEPTH, db,
                          DEPTH, &zero, m.dc, ROWS));
        cs_down(got, m.dc, ROWS);
        if (rows == 1) first[0] = got[0];
        kit_near(got[0], first[0], 1e-5 * first[0]);
        differ += got[0] != first[0];
    }
    ck_assert_float_gt(differ, 0);
    cs_ok(cudaFree(da));
    cs_ok(cudaFree(db));
    end();
}
END_TEST

void cs_add_cublas(TCase *tc) {
    tcase_add_test(tc, all_orientations);
    tcase_add_test(tc, beta_zero);
    tcase_add_test(tc, half_operands);
    tcase_add_test(tc, what_it_refuses);
    tcase_add_test(tc, workspace);
    tcase_add_test(tc, tf32);
    tcase_add_test(tc, bits_depend_on_sizes);
}
