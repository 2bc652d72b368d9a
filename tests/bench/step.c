/* Where the time of an update goes: runs updates of a model on a traced device and prints, for each
 * op, calls, seconds, share, GFLOP/s and GB/s; the measured seconds beside the predicted ones.
 *
 * usage: step [backend] [updates] [d ff heads layers vocab batch length]
 *        defaults: cpu 3 512 2048 8 6 32100 128 15; lengths are length +- a half on both sides */
#include <stdio.h>
#include <time.h>

#include "backends/registry.h"
#include "backends/trace.h"
#include "tests/kit.h"
#include "tests/model_kit.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int64_t argument(int argc, char **argv, int i, int64_t fallback) {
    return i < argc ? atoll(argv[i]) : fallback;
}

static void print_rows(const bt_trace_row *row, double seconds, int64_t updates) {
    printf("%-16s %8s %10s %7s %9s %8s\n", "op", "calls", "ms/update", "share", "GFLOP/s", "GB/s");
    for (int op = 0; op < BT_OP_COUNT; op++) {
        const bt_trace_row *r = &row[op];
        if (r->calls == 0) continue;
        printf("%-16s %8.1f %10.2f %6.1f%% %9.1f %8.2f\n", bti_op_info((bt_op)op)->name,
               (double)r->calls / (double)updates, 1e3 * r->seconds / (double)updates,
               100 * r->seconds / seconds, r->flops / r->seconds / 1e9,
               r->bytes / r->seconds / 1e9);
    }
}

static void run(int argc, char **argv) {
    const char *backend = argc > 1 ? argv[1] : "cpu";
    int64_t updates = argument(argc, argv, 2, 3), batch = argument(argc, argv, 8, 128);
    int64_t length = argument(argc, argv, 9, 15), side[2][4096], target = 0;
    mk_setup s = mk_defaults();
    if (batch > 4096) batch = 4096;
    for (int64_t i = 0; i < batch; i++)
        for (int k = 0; k < 2; k++)
            side[k][i] = length - length / 2 + (i * 7 + k * 3) % (length + 1);
    for (int64_t i = 0; i < batch; i++) target += side[1][i];
    s.backend = kit_str("trace:%s", backend);
    s.model.d_model = argument(argc, argv, 3, 512);
    s.model.ff = argument(argc, argv, 4, 2048);
    s.model.heads = argument(argc, argv, 5, 8);
    s.model.encoder_layers = s.model.decoder_layers = argument(argc, argv, 6, 6);
    s.model.dropout = s.model.attention_dropout = s.model.activation_dropout =
        s.model.embedding_dropout = 0.1;
    s.vocab[0] = s.vocab[1] = argument(argc, argv, 7, 32100);
    s.sentence = mk_sentences(batch, side[0], side[1], s.vocab[0], 1);
    s.sentences = batch;
    mk_model m = mk_open(&s);
    bti_update_result r;
    kit_ok(bti_engine_update(m.engine, s.sentence, batch, 1, 1e-4, &r));
    bt_trace_row *row = bti_trace_rows(m.dev);
    memset(row, 0, BT_OP_COUNT * sizeof *row);
    bti_trace_options(m.dev)->time = 1;
    double start = now();
    for (int64_t u = 0; u < updates; u++)
        kit_ok(bti_engine_update(m.engine, s.sentence, batch, u + 2, 1e-4, &r));
    double seconds = now() - start;
    printf("%lld parameters, %lld target tokens: %.3f s an update (predicted %.3f), %.0f target "
           "tokens/s, %.2f GiB planned\n",
           (long long)m.model->params.elements, (long long)target, seconds / (double)updates,
           m.plan->seconds, (double)(target * updates) / seconds,
           (double)m.plan->total / (1 << 30));
    print_rows(row, seconds, updates);
    mk_close(&m);
}

static int saved_argc;
static char **saved_argv;
START_TEST(bench) { run(saved_argc, saved_argv); }
END_TEST
static void add(TCase *tc) { tcase_add_test(tc, bench); }

int main(int argc, char **argv) {
    saved_argc = argc;
    saved_argv = argv;
    return kit_main("step", add, argc, argv);
}
