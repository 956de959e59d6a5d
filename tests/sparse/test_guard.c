/* The guard in a sparse layer: which measurements decide whether a block is sparse or dense, and when.
 * test_guard_rule.c tests the rule alone. */
#include "sparse/sparse_rig.h"

#include <unistd.h>

#include "sparse/sparse_internal.h"

/* A whole sequence: dense and measured, sparse, lists that do not fit, dense, sparse again. */
static void test_guard(void **state)
{
    static Rig rig, dense;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 1, 16, 16, DSVI_F32);
    DsviSparseReport report;
    DsviSparseBlockReport block;
    (void)state;
    rig_set(&settings, "sparse.profile_every=5");
    rig_set(&settings, "sparse.profile_ema=0");
    rig_set(&settings, "sparse.max_density=0.3");
    rig_set(&settings, "sparse.refresh_every=2");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_set(&settings, "sparse.enabled=false");
    rig_open(&dense, "auto", 2, &settings, &shape);

    /* Step 1 measures: one key in eight holds nearly all mass, so both blocks become sparse. */
    rig_fill(&rig, 11, 8);
    rig_fill(&dense, 11, 8);
    rig_step(&rig, 1, true);
    rig_step(&dense, 1, true);
    assert_true(rig_same(&rig, &dense));
    assert_true(dsvi_sparse_measured(rig.sparse) && !dsvi_sparse_measured(dense.sparse));
    assert_non_null(strstr(rig.log, "block 0 turns sparse: its lists hold 0."));
    assert_non_null(strstr(rig.log, "block 1 turns sparse"));
    dsvi_sparse_report(rig.sparse, &report);
    assert_int_equal(report.sparse_blocks, 2);
    assert_true(report.density == 1); /* this step ran dense */
    assert_true(report.captured_mass > 0.85 && report.captured_mass <= 1);
    dsvi_sparse_block_report(rig.sparse, 1, &block);
    assert_true(block.sparse && block.changes == 1);
    assert_true(block.density > 0.1 && block.density < 0.2);
    assert_true(block.share90 > 0.1 && block.share90 < 0.13); /* 90 % of an eighth of the keys */
    for (int64_t h = 0; h < 2; h++)
        assert_true(block.head_captured[h] > 0.8 && block.head_share90[h] > 0.1);
    assert_true(isnan(report.predictor_loss));

    /* Step 2 runs over lists; its results are close to dense attention. */
    rig_step(&rig, 2, true);
    rig_step(&dense, 2, true);
    assert_non_null(dsvi_sparse_lists(rig.sparse, 0));
    assert_false(dsvi_sparse_measured(rig.sparse));
    dsvi_sparse_report(rig.sparse, &report);
    assert_true(report.density < 0.2);
    assert_false(rig_same(&rig, &dense));
    assert_true(rig_difference(&rig, &dense) < 0.5);

    /* Step 3: all keys get equal attention, so lists need all keys and do not fit. */
    rig.log[0] = 0;
    rig_fill(&rig, 12, -1);
    rig_fill(&dense, 12, -1);
    rig_step(&rig, 3, true);
    rig_step(&dense, 3, true);
    assert_true(rig_same(&rig, &dense));
    assert_non_null(strstr(rig.log, "block 0 turns dense: its lists needed density 1.00"));
    assert_null(dsvi_sparse_lists(rig.sparse, 0));
    dsvi_sparse_report(rig.sparse, &report);
    assert_int_equal(report.sparse_blocks, 0);
    assert_true(isnan(report.captured_mass) && report.density == 1);

    /* Step 4 does not measure. Step 5 measures, but lists still do not fit, so all blocks stay dense. */
    rig.log[0] = 0;
    rig_step(&rig, 4, true);
    rig_step(&rig, 5, true);
    assert_true(dsvi_sparse_measured(rig.sparse));
    assert_string_equal(rig.log, "");
    /* Step 10 measures lists that fit again. */
    rig_fill(&rig, 13, 8);
    for (int64_t step = 6; step <= 10; step++)
        rig_step(&rig, step, true);
    assert_non_null(strstr(rig.log, "block 0 turns sparse"));
    dsvi_sparse_block_report(rig.sparse, 0, &block);
    assert_int_equal(block.changes, 3);
    rig_close(&rig);
    rig_close(&dense);
}

/* The guard decides from the running mean, not from one measurement, and only beyond the hysteresis. */
static void test_guard_goes_by_running_means(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.profile_every=1");
    rig_set(&settings, "sparse.profile_ema=0.5");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.16");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 11, 8);
    rig_step(&rig, 1, true);
    assert_non_null(strstr(rig.log, "turns sparse"));
    rig.log[0] = 0;
    rig_fill(&rig, 12, -1); /* equal attention: 16 % of the keys hold 16 % of the mass */
    int64_t turned = 0;
    double expected = NAN;
    DsviSparseBlockReport block;
    dsvi_sparse_block_report(rig.sparse, 0, &block);
    expected = block.captured_mass;
    for (int64_t step = 2; step <= 4 && !turned; step++) {
        rig_step(&rig, step, true);
        DsviSparseBlockReport now;
        dsvi_sparse_block_report(rig.sparse, 0, &now);
        expected = 0.5 * expected + 0.5 * now.density; /* equal attention: captured mass is the density */
        assert_error_below(fabs(now.captured_mass - expected), 1e-5, "running mean");
        turned = strstr(rig.log, "turns dense") ? step : 0;
    }
    assert_int_equal(turned, 2);
    rig_close(&rig);
}

/* Two blocks become sparse, but there is memory for the lists of one only. The other block becomes dense and
 * stays dense even with min_mass 0, since lists that do not fit have no mass to measure. */
static void test_block_without_list_memory_stays_dense(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 2, 32, 1, 16, 16, DSVI_F32);
    DsviSparseBlockReport first, last;
    (void)state;
    rig_set(&settings, "sparse.profile_every=1");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.3");
    rig_set(&settings, "sparse.max_density=0.35");
    rig_set(&settings, "sparse.min_mass=0");
    rig_set(&settings, "sparse.list_memory=0.1");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 11, 0);
    rig_step(&rig, 1, true);
    dsvi_sparse_block_report(rig.sparse, 1, &first);
    assert_true(first.sparse && first.captured_mass < 0.9);
    rig_step(&rig, 2, true);
    assert_non_null(strstr(rig.log, "block 1 turns dense: its lists needed density 0.3"));
    rig.log[0] = 0;
    rig_step(&rig, 3, true);
    assert_string_equal(rig.log, "");
    dsvi_sparse_block_report(rig.sparse, 1, &last);
    assert_true(!last.sparse && last.changes == 2 && last.captured_mass == first.captured_mass);
    rig_close(&rig);
}

/* After lists that did not fit, the running mean of the density starts from their density, and must fall
 * below the bound before the block becomes sparse again. */
static void test_density_comes_down_after_overflow(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.profile_every=1");
    rig_set(&settings, "sparse.profile_ema=0.6");
    rig_set(&settings, "sparse.max_density=0.5");
    rig_set(&settings, "sparse.min_mass=0.5");
    rig_open(&rig, "auto", 2, &settings, &shape);
    for (int64_t step = 1; step <= 4; step++) {
        bool wide = step == 2; /* wide attention: lists need all keys */
        rig.log[0] = 0;
        rig_fill(&rig, 11, wide ? -1 : 8);
        rig_step(&rig, step, true);
        if (step == 3) /* the running mean of the density is 0.6 * 1 + 0.4 * 0.11 */
            assert_non_null(strstr(rig.log, "block 0 stays dense: its lists hold 0."));
        else
            assert_non_null(
                strstr(rig.log, wide ? "turns dense: its lists needed density 1.00" : "turns sparse"));
    }
    rig_close(&rig);
}

/* Blocks that never turn sparse get the reason in the log at their first measurement after the warm-up, and
 * not again, also not after the state was saved and loaded. */
static void test_reason_of_a_block_that_stays_dense(void **state)
{
    static Rig rig, resumed;
    char path[] = "/tmp/dsv-guard-XXXXXX";
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    close(mkstemp(path));
    rig_set(&settings, "sparse.profile_every=1");
    rig_set(&settings, "sparse.warmup_steps=2");
    rig_set(&settings, "sparse.rule=topk");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.1");
    rig_set(&settings, "sparse.min_mass=0.9");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_open(&resumed, "auto", 2, &settings, &shape);
    for (int64_t step = 1; step <= 4; step++) {
        rig.log[0] = 0;
        rig_fill(&rig, (uint64_t)step, -1); /* equal attention: 10 % of the keys hold 10 % of the mass */
        rig_step(&rig, step, true);
        if (step == 2) {
            assert_non_null(strstr(rig.log, "block 0 stays dense: its lists hold 0.1"));
            assert_non_null(strstr(rig.log, "block 1 stays dense: its lists hold 0.1"));
        } else {
            assert_string_equal(rig.log, "");
        }
    }
    assert_ok(dsvi_sparse_save(rig.sparse, path));
    assert_ok(dsvi_sparse_load(resumed.sparse, path));
    rig_fill(&resumed, 5, -1);
    rig_step(&resumed, 5, true);
    assert_true(dsvi_sparse_measured(resumed.sparse));
    assert_string_equal(resumed.log, "");
    unlink(path);
    rig_close(&rig);
    rig_close(&resumed);
}

/* A block whose first measurement would make it sparse stays dense until the warm-up ends, and is sparse
 * right after it, also if measurements are rare. */
static void check_warmup(const char *profile_every, bool every_step)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 16, 16, DSVI_F32);
    rig_set(&settings, profile_every);
    rig_set(&settings, "sparse.warmup_steps=3");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 11, 8);
    for (int64_t step = 1; step <= 4; step++) {
        rig_step(&rig, step, true);
        assert_true(dsvi_sparse_measured(rig.sparse) == (every_step || step == 1 || step == 3));
        assert_true((dsvi_sparse_lists(rig.sparse, 0) != NULL) == (step == 4));
        assert_true((rig.log[0] != 0) == (step >= 3));
    }
    rig_close(&rig);
}

static void test_warmup(void **state)
{
    (void)state;
    check_warmup("sparse.profile_every=1", true);
    check_warmup("sparse.profile_every=50", false);
}

/* The guard ignores the selector's estimate. A projection to four dimensions cannot separate 32 clusters, so
 * its lists hold less than estimated. */
static void test_estimates_decide_nothing(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 64, 4, 16, 16, DSVI_F32);
    DsviSparseBlockReport block;
    (void)state;
    rig_set(&settings, "sparse.rank=4");
    rig_set(&settings, "sparse.target_mass=0.8");
    rig_set(&settings, "sparse.min_mass=0.7");
    rig_set(&settings, "sparse.max_density=1");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 3, 32);
    rig_step(&rig, 1, true);
    dsvi_sparse_block_report(rig.sparse, 0, &block);
    assert_true(block.estimated_mass > 0.75 && block.captured_mass < 0.65);
    assert_false(block.sparse);
    rig_close(&rig);
}

/* A block that falls short of min_mass by less than sparse.hysteresis stays sparse. */
static void test_hysteresis(void **state)
{
    static Rig rig;
    static const char *const hysteresis[] = {"sparse.hysteresis=0", "sparse.hysteresis=0.3"};
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    for (int i = 0; i < 2; i++) {
        DsvConfig settings = rig_settings();
        DsviSparseBlockReport block;
        rig_set(&settings, hysteresis[i]);
        rig_set(&settings, "sparse.profile_every=1");
        rig_set(&settings, "sparse.profile_ema=0.6");
        rig_set(&settings, "sparse.rule=topk");
        rig_set(&settings, "sparse.target_density=0.2");
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, 11, 8);
        rig_step(&rig, 1, true);
        rig_fill(&rig, 12, -1); /* equal attention: a short list holds little mass */
        rig_step(&rig, 2, true);
        dsvi_sparse_block_report(rig.sparse, 0, &block);
        assert_true(block.captured_mass > 0.6 && block.captured_mass < 0.65); /* 0.6 * 1 plus a little */
        assert_int_equal(block.sparse, i == 1);
        rig_close(&rig);
    }
}

/* After dsvi_sparse_force and dsvi_sparse_prescribe the guard measures, but decides nothing. */
static void test_given_sides_stay(void **state)
{
    static Rig rig;
    static const double density[] = {0.3, 0.3, NAN, NAN};
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.profile_every=1");
    for (int prescribed = 0; prescribed < 2; prescribed++) {
        DsviSparseBlockReport block;
        rig_open(&rig, "auto", 2, &settings, &shape);
        if (prescribed)
            dsvi_sparse_prescribe(rig.sparse, density);
        else
            dsvi_sparse_force(rig.sparse, true);
        rig_fill(&rig, 11, 8); /* the guard would make both blocks sparse */
        rig_step(&rig, 1, true);
        for (int64_t n = 0; n < 2; n++) {
            dsvi_sparse_block_report(rig.sparse, n, &block);
            assert_true(block.changes == 0 && rig.sparse->record.sparse[n] == 0);
        }
        assert_string_equal(rig.log, "");
        rig_close(&rig);
    }
}

/* Sets the queries of one head to zero, so that the head attends to all keys equally. */
static void blur_head(Rig *rig, int64_t block, int64_t head)
{
    int64_t heads = rig->shape.heads, dim = rig->shape.head_dim;
    float *q = rig->block[block].q;
    for (int64_t row = 0; row < rig->shape.batch * rig->shape.tokens; row++)
        memset(q + (row * heads + head) * dim, 0, (size_t)dim * sizeof *q);
}

/* Returns a configuration with lists of a fifth of the keys. They hold all attention of two heads and a fifth
 * of the attention of the head that blur_head changes: 0.73 on average. */
static DsvConfig settings_of_heads(const char *floor)
{
    DsvConfig settings = rig_settings();
    rig_set(&settings, "sparse.rule=topk");
    rig_set(&settings, "sparse.target_density=0.2");
    rig_set(&settings, "sparse.min_mass=0.5");
    rig_set(&settings, "sparse.profile_every=1");
    rig_set(&settings, "sparse.profile_ema=0");
    rig_set(&settings, floor);
    return settings;
}

/* One head below its bound keeps a block dense, or makes it dense, although the mean over heads is high. */
static void test_worst_head(void **state)
{
    static Rig rig;
    static const struct {
        const char *floor;
        bool turns;
    } cases[] = {
        {"sparse.min_head_mass=0", true},
        {"sparse.min_head_mass=0.1", true},
        {"sparse.min_head_mass=0.19", true},
        {"sparse.min_head_mass=0.21", false},
    };
    DsviSparseShape shape = rig_shape(2, 2, 3, 32, 1, 16, 16, DSVI_F32);
    DsviSparseBlockReport block;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DsvConfig settings = settings_of_heads(cases[i].floor);
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, 11, 8);
        blur_head(&rig, 0, 0);
        blur_head(&rig, 1, 2);
        rig_step(&rig, 1, true);
        for (int64_t n = 0; n < 2; n++) {
            dsvi_sparse_block_report(rig.sparse, n, &block);
            assert_error_below(fabs(block.captured_mass - 2.2 / 3), 0.01, "mass of the block");
            assert_int_equal(block.sparse, cases[i].turns);
        }
        if (cases[i].turns) {
            assert_non_null(strstr(rig.log, "head 0, the worst, holds 0.20 (at least 0."));
            assert_non_null(strstr(rig.log, "head 2, the worst, holds 0.20 (at least 0."));
        }
        rig_close(&rig);
    }
    DsvConfig settings = settings_of_heads("sparse.min_head_mass=0.3");
    rig_open(&rig, "auto", 2, &settings, &shape);
    for (int64_t step = 1; step <= 2; step++) {
        rig.log[0] = 0;
        rig_fill(&rig, 11, 8);
        if (step == 2)
            blur_head(&rig, 1, 1);
        rig_step(&rig, step, true);
    }
    assert_string_equal(rig.log,
                        "block 1 turns dense: its lists hold 0.64 of the attention mass (at least 0.50 "
                        "required) at density 0.11 (at most 0.50); head 1, the worst, holds 0.11 (at least "
                        "0.30 required)\n");
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_guard_goes_by_running_means),
        cmocka_unit_test(test_block_without_list_memory_stays_dense),
        cmocka_unit_test(test_density_comes_down_after_overflow),
        cmocka_unit_test(test_reason_of_a_block_that_stays_dense),
        cmocka_unit_test(test_warmup),
        cmocka_unit_test(test_estimates_decide_nothing),
        cmocka_unit_test(test_hysteresis),
        cmocka_unit_test(test_given_sides_stay),
        cmocka_unit_test(test_worst_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
