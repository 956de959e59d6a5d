/* Attention over lists with a tail through the sparse layer: limits, recomputation, resume, the measured
 * output error, the guard's decision by the error, refusals, and the dense finish. */
#include "sparse/sparse_rig.h"

#include <unistd.h>

#include "sparse/sparse_internal.h"

enum { BLOCKS = 2, HEADS = 2, TOKENS = 130 }; /* the last group, chunk and run are short */

static const char *const TAILS[][3] = {
    {"sparse.tail=query", "sparse.tail_chunk=16", "sparse.tail_run=4"},
    {"sparse.tail=key", "sparse.tail_chunk=16", "sparse.tail_run=8"},
    {"sparse.tail=both", "sparse.tail_chunk=8", "sparse.tail_run=4"},
};
enum { TAIL_COUNT = sizeof TAILS / sizeof *TAILS };

static DsviSparseShape shape_of(DsviDtype act)
{
    return rig_shape(BLOCKS, 2, HEADS, 32, 1, 10, 13, act);
}

static DsvConfig settings_with(const char *const tail[3])
{
    DsvConfig settings = rig_settings();
    rig_set(&settings, "sparse.rule=topk");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.2");
    rig_set(&settings, "sparse.max_density=1");
    rig_set(&settings, "sparse.list_memory=1");
    rig_set(&settings, "sparse.profile_every=2");
    rig_set(&settings, "sparse.max_error=100"); /* blocks become sparse after the first measurement */
    for (int i = 0; i < 3 && tail[i]; i++)
        rig_set(&settings, tail[i]);
    return settings;
}

static void open_with(Rig *rig, const char *const tail[3], double density)
{
    double all[BLOCKS * HEADS];
    DsviSparseShape shape = shape_of(DSVI_F32);
    DsvConfig settings = settings_with(tail);
    rig_open(rig, "auto", 2, &settings, &shape);
    for (int i = 0; i < BLOCKS * HEADS; i++)
        all[i] = density;
    dsvi_sparse_prescribe(rig->sparse, all);
}

/* Full lists have no tail; chunks and runs of one give dense attention over any lists. */
static void test_limits_are_dense(void **state)
{
    static Rig dense, tail;
    static const char *const one[3] = {"sparse.tail=key", "sparse.tail_run=1", NULL};
    (void)state;
    open_with(&dense, one, NAN);
    rig_fill(&dense, 3, 0);
    rig_step(&dense, 1, true);
    for (int i = 0; i <= TAIL_COUNT; i++) {
        open_with(&tail, i < TAIL_COUNT ? TAILS[i] : one, i < TAIL_COUNT ? 1 : 0.2);
        rig_fill(&tail, 3, 0);
        rig_step(&tail, 1, true);
        assert_non_null(dsvi_sparse_lists(tail.sparse, 0));
        assert_error_below(rig_difference(&dense, &tail), 1e-5, "tail %d", i);
        rig_close(&tail);
    }
    rig_close(&dense);
}

/* A tail brings the output nearer to dense attention and leaves a difference. */
static void test_tail_stands_in(void **state)
{
    static Rig dense, bare, tail;
    static const char *const none[3] = {"sparse.tail=none", NULL};
    (void)state;
    open_with(&dense, none, NAN);
    open_with(&bare, none, 0.2);
    rig_fill(&dense, 3, 0);
    rig_fill(&bare, 3, 0);
    rig_step(&dense, 1, true);
    rig_step(&bare, 1, true);
    for (int i = 0; i < TAIL_COUNT; i++) {
        open_with(&tail, TAILS[i], 0.2);
        rig_fill(&tail, 3, 0);
        rig_step(&tail, 1, true);
        double left_out = relative_l2(DSVI_F32, bare.block[0].out, DSVI_F32, dense.block[0].out,
                                      (int64_t)(dense.tensor_bytes / sizeof(float)));
        double stood_in = relative_l2(DSVI_F32, tail.block[0].out, DSVI_F32, dense.block[0].out,
                                      (int64_t)(dense.tensor_bytes / sizeof(float)));
        assert_true(stood_in > 1e-3 && stood_in < left_out);
        rig_close(&tail);
    }
    rig_close(&dense);
    rig_close(&bare);
}

/* Recomputation of a block's forward pass, from memory filled with NaN, gives the bits of the first pass, and
 * so do the gradients. */
static void test_recomputation(void **state)
{
    static Rig once, twice;
    (void)state;
    for (int i = 0; i < TAIL_COUNT; i++) {
        open_with(&once, TAILS[i], 0.2);
        open_with(&twice, TAILS[i], 0.2);
        rig_fill(&once, 5, 0);
        rig_fill(&twice, 5, 0);
        rig_step(&once, 1, true);
        assert_ok(dsvi_sparse_step_begin(twice.sparse, 1, true));
        for (int64_t b = 0; b < BLOCKS; b++) {
            DsviAttentionCall pass = rig_pass(&twice, b);
            assert_ok(dsvi_sparse_forward(twice.sparse, b, &pass));
        }
        for (int64_t b = BLOCKS - 1; b >= 0; b--) {
            DsviAttentionCall pass = rig_pass(&twice, b), again = pass;
            again.recompute = true;
            memset(pass.out, 0xff, twice.tensor_bytes);
            memset(pass.lse, 0xff, twice.lse_bytes);
            memset(twice.sparse->block[b].tail_lse, 0xff, sizeof(float));
            assert_ok(dsvi_sparse_forward(twice.sparse, b, &again));
            assert_ok(dsvi_sparse_backward(twice.sparse, b, &pass));
        }
        assert_ok(dsvi_sparse_step_end(twice.sparse));
        assert_true(rig_same(&once, &twice));
        rig_close(&once);
        rig_close(&twice);
    }
}

/* A layer that loads the state of another after `stop` steps continues with the same bits, also when the
 * dense finish has begun. */
static void test_resume(void **state)
{
    static Rig straight, resumed;
    char path[] = "/tmp/dsv-tail-XXXXXX";
    DsviSparseShape shape = shape_of(DSVI_F32);
    (void)state;
    close(mkstemp(path));
    for (int64_t stop = 1; stop <= 6; stop++) {
        DsvConfig settings = settings_with(TAILS[stop % TAIL_COUNT]);
        rig_set(&settings, "max_train_steps=8");
        rig_set(&settings, "sparse.dense_finish=0.5");
        rig_open(&straight, "auto", 2, &settings, &shape);
        rig_open(&resumed, "auto", 2, &settings, &shape);
        for (int64_t step = 1; step <= 8; step++) {
            rig_fill(&straight, (uint64_t)step, 0);
            rig_step(&straight, step, true);
            if (step == stop) {
                assert_ok(dsvi_sparse_save(straight.sparse, path));
                assert_ok(dsvi_sparse_load(resumed.sparse, path));
            }
            if (step <= stop)
                continue;
            rig_fill(&resumed, (uint64_t)step, 0);
            rig_step(&resumed, step, true);
            assert_true(rig_same(&straight, &resumed));
            assert_true(rig_same_state(&straight, &resumed));
        }
        rig_close(&straight);
        rig_close(&resumed);
    }
    unlink(path);
}

/* Returns the relative error of one head's output in `rig` against `exact`. */
static double head_error(const Rig *rig, const Rig *exact, int64_t block, int64_t head)
{
    int64_t dim = rig->shape.head_dim, rows = rig->shape.batch * rig->shape.tokens;
    double error = 0, norm = 0;
    for (int64_t i = 0; i < rows * dim; i++) {
        int64_t at = (i / dim * HEADS + head) * dim + i % dim;
        double expected = ((const float *)exact->block[block].out)[at];
        error += pow(((const float *)rig->block[block].out)[at] - expected, 2);
        norm += pow(expected, 2);
    }
    return sqrt(error / norm);
}

/* With all queries sampled, the reported error is the error of the output that attention has written. */
static void test_reported_error(void **state)
{
    static Rig dense, tail;
    static const char *const none[3] = {"sparse.tail=none", NULL};
    (void)state;
    open_with(&dense, none, NAN);
    rig_fill(&dense, 3, 0);
    rig_step(&dense, 1, true);
    for (int i = 0; i <= TAIL_COUNT; i++) {
        DsviSparseBlockReport report;
        DsviSparseReport all;
        DsvConfig settings = settings_with(i < TAIL_COUNT ? TAILS[i] : none);
        DsviSparseShape shape = shape_of(DSVI_F32);
        rig_set(&settings, "sparse.profile_samples=1000");
        rig_open(&tail, "auto", 2, &settings, &shape);
        dsvi_sparse_force(tail.sparse, true);
        rig_fill(&tail, 3, 0);
        rig_step(&tail, 1, true);
        double mean = 0;
        for (int64_t block = 0; block < BLOCKS; block++) {
            dsvi_sparse_block_report(tail.sparse, block, &report);
            for (int64_t h = 0; h < HEADS; h++) {
                double expected = head_error(&tail, &dense, block, h);
                assert_true(expected > 1e-3);
                assert_error_below(fabs(report.head_error[h] / expected - 1), 1e-4, "tail %d, head %d", i,
                                   (int)h);
            }
            assert_error_below(fabs(report.output_error -
                                    0.5 * (report.head_error[0] + report.head_error[1])),
                               1e-6, "mean over heads");
            mean += report.output_error / BLOCKS;
        }
        dsvi_sparse_report(tail.sparse, &all);
        assert_error_below(fabs(all.output_error - mean), 1e-9, "mean over blocks");
        double tail_work = i == TAIL_COUNT ? 0 : i == 0 ? 1.0 / 16 : i == 1 ? 1.0 / 8 : 1.0 / 32;
        assert_error_below(fabs(all.work - all.density - tail_work), 1e-9, "work");
        rig_close(&tail);
    }
    rig_close(&dense);
}

/* With a tail the guard goes by the output error, whatever mass the lists hold; without one by the mass. */
static void test_guard_decides_by_error(void **state)
{
    static const struct {
        const char *setting[4];
        bool sparse;
    } cases[] = {
        {{"sparse.tail=query", "sparse.tail_chunk=16", "sparse.min_mass=1", "sparse.max_error=5"}, true},
        {{"sparse.tail=query", "sparse.tail_chunk=16", "sparse.min_mass=0", "sparse.max_error=0.001"}, false},
        {{"sparse.tail=none", "sparse.max_head_error=0", "sparse.min_mass=0", "sparse.max_error=0"}, true},
        {{"sparse.tail=none", "sparse.max_head_error=9", "sparse.min_mass=1", "sparse.max_error=9"}, false},
    };
    static const char *const nothing[3] = {NULL};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static Rig rig;
        DsviSparseBlockReport report;
        DsviSparseShape shape = shape_of(DSVI_F32);
        DsvConfig settings = settings_with(nothing);
        for (int n = 0; n < 4; n++)
            rig_set(&settings, cases[i].setting[n]);
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, 3, 0);
        rig_step(&rig, 1, true);
        dsvi_sparse_block_report(rig.sparse, 0, &report);
        assert_int_equal(report.sparse, cases[i].sparse);
        if (i == 0)
            assert_non_null(strstr(rig.log, "block 0 turns sparse: its output over lists and tail has a "
                                            "relative error of"));
        rig_close(&rig);
    }
}

/* A block that is accurate in the mean stays dense while one head is not. */
static void test_guard_watches_the_worst_head(void **state)
{
    static const char *const bounds[] = {"sparse.max_head_error=0", "sparse.max_head_error=10"};
    double error[2];
    (void)state;
    for (int i = 0; i < 3; i++) {
        static Rig rig;
        char between[64];
        DsviSparseBlockReport report;
        DsviSparseShape shape = shape_of(DSVI_F32);
        DsvConfig settings = settings_with(TAILS[0]);
        if (i > 0) { /* a bound for the mean that the mean meets and the worst head misses */
            rig_set(&settings, bounds[i - 1]);
            snprintf(between, sizeof between, "sparse.max_error=%.17g", error[0]);
            rig_set(&settings, between);
        }
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, 3, 0);
        rig_step(&rig, 1, true);
        dsvi_sparse_block_report(rig.sparse, 0, &report);
        if (i == 0) {
            error[1] = fmax(report.head_error[0], report.head_error[1]);
            error[0] = (report.output_error + error[1]) / 2;
            assert_true(error[1] > report.output_error + 1e-4);
        } else {
            assert_int_equal(report.sparse, i == 2);
        }
        rig_close(&rig);
    }
}

/* Without sparse.tail_chunk a tail has means of 64 queries, or of a group. Without sparse.tail_run it has
 * means of 128 keys, or of 64 or a group where ranks otherwise could not divide a clip at most multiples of
 * groups. */
static void test_default_lengths(void **state)
{
    static const struct {
        const char *tail;
        int64_t group, chunk, run;
    } cases[] = {{"key", 64, 1, 128}, {"key", 192, 1, 64},  {"key", 256, 1, 128}, {"key", 32, 1, 32},
                 {"key", 96, 1, 96},  {"query", 64, 64, 1}, {"query", 96, 96, 1}, {"both", 128, 64, 128}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DsvConfig settings = rig_settings();
        snprintf(settings.sparse_tail, sizeof settings.sparse_tail, "%s", cases[i].tail);
        settings.sparse_group = cases[i].group;
        DsviSparseTail tail = dsvi_sparse_tail_of(&settings);
        assert_int_equal(tail.chunk, cases[i].chunk);
        assert_int_equal(tail.run, cases[i].run);
    }
}

static void test_refusals(void **state)
{
    static const struct {
        const char *setting[3], *words;
    } cases[] = {
        {{"sparse.tail=query", "sparse.tail_chunk=12", NULL},
         "sparse.tail is query and sparse.tail_chunk, 12, does not divide sparse.group, 32"},
        {{"sparse.tail=both", "sparse.tail_chunk=64", NULL}, "sparse.tail_chunk, 64, does not divide"},
    };
    DsviBackend backend;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DsviSparse *sparse = NULL;
        DsviSparseShape shape = shape_of(DSVI_F32);
        DsvConfig settings = settings_with(cases[i].setting);
        assert_int_equal(dsvi_sparse_create(&backend, &settings, &shape, NULL, NULL, &sparse), DSV_E_USAGE);
        assert_non_null(strstr(dsv_error_message(), cases[i].words));
    }
    DsvConfig settings = settings_with(
        (const char *const[3]){"sparse.tail=key", "sparse.tail_chunk=12", NULL});
    DsviSparse *sparse = NULL;
    DsviSparseShape shape = shape_of(DSVI_F32);
    assert_ok(dsvi_sparse_create(&backend, &settings, &shape, NULL, NULL, &sparse)); /* chunks are not used */
    dsvi_sparse_free(&sparse);
    dsvi_cpu_close(&backend);
}

static void finish_settings(DsvConfig *settings, const char *steps)
{
    *settings = settings_with(TAILS[0]);
    rig_set(settings, "sparse.dense_finish=0.3");
    rig_set(settings, steps);
}

static int count_of(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)); at++)
        count++;
    return count;
}

/* The last 3 of 10 steps are dense. The guard's decisions survive the finish: a longer run goes on sparse. */
static void test_dense_finish(void **state)
{
    static Rig rig, longer, sampling;
    char path[] = "/tmp/dsv-finish-XXXXXX";
    DsvConfig settings, more;
    DsviSparseShape shape = shape_of(DSVI_F32), forward = shape;
    DsviSparseReport report;
    (void)state;
    close(mkstemp(path));
    finish_settings(&settings, "max_train_steps=10");
    finish_settings(&more, "max_train_steps=20");
    forward.backward = false;
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_open(&longer, "auto", 2, &more, &shape);
    rig_open(&sampling, "auto", 2, &settings, &forward);
    for (int64_t step = 1; step <= 10; step++) {
        if (step == 8) /* a bound that no block meets: the guard must not decide in the finish */
            rig.sparse->settings.sparse_max_error = rig.sparse->settings.sparse_max_head_error = 0;
        rig_fill(&rig, (uint64_t)step, 0);
        rig_step(&rig, step, true);
        dsvi_sparse_report(rig.sparse, &report);
        assert_int_equal(report.sparse_blocks, step <= 7 ? BLOCKS : 0);
        assert_true(step == 1 || step > 7 ? report.density == 1 : report.density < 0.5);
        assert_true(step <= 7 || report.work == 1);
        assert_int_equal(dsvi_sparse_measured(rig.sparse), step == 1 || step % 2 == 0 || step == 8);
        assert_int_equal(count_of(rig.log, "all blocks attend densely from step 8 to the end of the run at "
                                           "step 10 (sparse.dense_finish=0.3)\n"),
                         step >= 8);
    }
    assert_int_equal(count_of(rig.log, "turns dense"), 0);
    assert_ok(dsvi_sparse_copy(sampling.sparse, rig.sparse));
    assert_false(dsvi_sparse_uses_lists(sampling.sparse, 0)); /* clips of the run are sampled as it trains */
    assert_ok(dsvi_sparse_save(rig.sparse, path));
    dsvi_sparse_restart(sampling.sparse);
    assert_ok(dsvi_sparse_load(sampling.sparse, path));
    assert_false(dsvi_sparse_uses_lists(sampling.sparse, 0));
    assert_int_equal(count_of(sampling.log, "from the dense finish of its training"), 1);
    sampling.sparse->settings.sparse_dense_finish = 0;
    assert_ok(dsvi_sparse_load(sampling.sparse, path));
    assert_true(dsvi_sparse_uses_lists(sampling.sparse, 0));
    snprintf(sampling.sparse->settings.sparse_tail, sizeof settings.sparse_tail, "none");
    assert_ok(
        dsvi_sparse_load(sampling.sparse, path)); /* decisions about lists of another rule are not used */
    assert_false(dsvi_sparse_uses_lists(sampling.sparse, 0));
    assert_int_equal(count_of(sampling.log, "measurements and decisions about blocks are not used"), 1);
    assert_ok(dsvi_sparse_load(longer.sparse, path));
    for (int64_t step = 11; step <= 15; step++) {
        rig_fill(&longer, (uint64_t)step, 0);
        rig_step(&longer, step, true);
        dsvi_sparse_report(longer.sparse, &report);
        assert_int_equal(report.sparse_blocks, step <= 14 ? BLOCKS : 0);
    }
    assert_int_equal(count_of(longer.log, "all blocks attend densely from step 15"), 1);
    assert_int_equal(count_of(longer.log, "the dense finish is over: blocks attend as the guard decides"), 1);
    rig_close(&rig);
    rig_close(&longer);
    rig_close(&sampling);
    unlink(path);
}

/* A finish of nothing and of everything. */
static void test_finish_of_all(void **state)
{
    static const char *const fractions[] = {"sparse.dense_finish=0", "sparse.dense_finish=1"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        static Rig rig;
        DsvConfig settings;
        DsviSparseReport report;
        DsviSparseShape shape = shape_of(DSVI_F32);
        finish_settings(&settings, "max_train_steps=4");
        rig_set(&settings, fractions[i]);
        rig_open(&rig, "auto", 2, &settings, &shape);
        for (int64_t step = 1; step <= 4; step++) {
            rig_fill(&rig, (uint64_t)step, 0);
            rig_step(&rig, step, true);
        }
        dsvi_sparse_report(rig.sparse, &report);
        assert_int_equal(report.sparse_blocks, i == 0 ? BLOCKS : 0);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_are_dense),
        cmocka_unit_test(test_tail_stands_in),
        cmocka_unit_test(test_recomputation),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_reported_error),
        cmocka_unit_test(test_guard_decides_by_error),
        cmocka_unit_test(test_guard_watches_the_worst_head),
        cmocka_unit_test(test_default_lengths),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_dense_finish),
        cmocka_unit_test(test_finish_of_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
