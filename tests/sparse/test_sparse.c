/* The sparse layer as a model uses it: full lists equal dense attention; recomputation, timing, refused
 * configurations; results do not depend on the number of threads. */
#include "sparse/sparse_rig.h"

#include "base/threads.h"
#include "sparse/sparse_internal.h"

/* Returns the difference between attention over lists and dense attention for the same tensors;
 * dsvi_sparse_force switches between them. */
static double sparse_against_dense(const char *isa, const DsvConfig *settings, const DsviSparseShape *shape)
{
    static Rig sparse, dense;
    rig_open(&sparse, isa, 2, settings, shape);
    rig_open(&dense, isa, 2, settings, shape);
    rig_fill(&sparse, 1, 0);
    rig_fill(&dense, 1, 0);
    dsvi_sparse_force(sparse.sparse, true);
    rig_run(&sparse);
    rig_run(&dense);
    for (int64_t i = 0; i < shape->blocks; i++) {
        const DsviLists *lists = dsvi_sparse_lists(sparse.sparse, i);
        assert_non_null(lists);
        assert_null(dsvi_sparse_lists(dense.sparse, i));
    }
    double difference = rig_difference(&sparse, &dense);
    rig_close(&sparse);
    rig_close(&dense);
    return difference;
}

static void test_full_lists_are_dense(void **state)
{
    static const struct {
        int64_t batch, heads, dim, frames, height, width, group, chunk, grain;
        DsviDtype act;
        const char *isa;
        double bound; /* two roundings of act; in F64 only the order of sums differs */
    } cases[] = {
        {1, 2, 32, 2, 5, 7, 32, 16, 1, DSVI_F64, "ref", 1e-13},
        {2, 3, 64, 1, 9, 11, 32, 16, 1, DSVI_F32, "auto", 2e-6},
        {1, 1, 128, 3, 8, 8, 64, 16, 4, DSVI_F32, "auto", 2e-6},
        {2, 2, 96, 1, 3, 3, 128, 16, 1, DSVI_F32, "auto", 2e-6}, /* fewer tokens than one group */
        {1, 2, 256, 1, 1, 1, 16, 16, 1, DSVI_F32, "auto", 2e-6}, /* one token */
        {1, 1, 34, 1, 7, 19, 16, 8, 3, DSVI_F32, "auto", 2e-6},
        {2, 2, 64, 2, 6, 5, 32, 16, 64, DSVI_BF16, "auto", 1e-2},
    };
    static const char *const selectors[] = {"projection", "predictor", "pooled", "window"};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t n = 0; n < sizeof selectors / sizeof *selectors; n++) {
            DsvConfig settings = rig_settings();
            snprintf(settings.sparse_selector, sizeof settings.sparse_selector, "%s", selectors[n]);
            settings.sparse_group = cases[i].group;
            settings.sparse_chunk = cases[i].chunk;
            settings.sparse_grain = cases[i].grain;
            settings.sparse_target_mass = 1;
            settings.sparse_max_density = settings.sparse_list_memory = 1;
            DsviSparseShape shape = rig_shape(2, cases[i].batch, cases[i].heads, cases[i].dim,
                                              cases[i].frames, cases[i].height, cases[i].width, cases[i].act);
            assert_error_below(sparse_against_dense(cases[i].isa, &settings, &shape), cases[i].bound,
                               "case %d, %s", (int)i, selectors[n]);
        }
    }
}

/* Shows that the comparison above can fail: lists of few keys differ from dense attention. */
static void test_few_keys_are_not_dense(void **state)
{
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 64, 2, 8, 8, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.25");
    assert_true(sparse_against_dense("auto", &settings, &shape) > 0.05);
}

/* Gradient checkpointing: repeating the forward pass gives the same bits and makes no new lists. */
static void test_recompute(void **state)
{
    static Rig rig, straight;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 2, 64, 2, 8, 8, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.selector=predictor"); /* repeating must not train the predictor */
    rig_set(&settings, "sparse.explore_kind=random");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_open(&straight, "auto", 2, &settings, &shape);
    for (int i = 0; i < 2; i++) {
        Rig *r = i ? &straight : &rig;
        dsvi_sparse_force(r->sparse, true);
        rig_fill(r, 5, 8);
        assert_ok(dsvi_sparse_step_begin(r->sparse, 1, true));
        for (int64_t block = 0; block < 2; block++) {
            DsviAttentionCall pass = rig_pass(r, block);
            assert_ok(dsvi_sparse_forward(r->sparse, block, &pass));
        }
        for (int64_t block = 1; block >= 0; block--) {
            DsviAttentionCall pass = rig_pass(r, block);
            pass.recompute = true;
            if (r == &rig) {
                memset(pass.out, 0xff, r->tensor_bytes);
                memset(pass.lse, 0xff, r->lse_bytes);
                assert_ok(dsvi_sparse_forward(r->sparse, block, &pass));
            }
            assert_ok(dsvi_sparse_backward(r->sparse, block, &pass));
        }
        assert_ok(dsvi_sparse_step_end(r->sparse));
    }
    assert_true(rig_same(&rig, &straight));
    assert_true(rig_same_state(&rig, &straight));
    rig_close(&rig);
    rig_close(&straight);
}

/* Outside training the layer learns, measures and decides nothing; sparse blocks run over lists. */
static void test_without_training(void **state)
{
    static Rig rig, fresh;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_open(&fresh, "auto", 2, &settings, &shape);
    rig_fill(&rig, 11, 8);
    rig_step(&rig, 1, false);
    assert_false(dsvi_sparse_measured(rig.sparse));
    assert_true(rig_same_state(&rig, &fresh));
    rig_step(&rig, 1, true);
    assert_false(rig_same_state(&rig, &fresh));
    assert_ok(dsvi_sparse_copy(fresh.sparse, rig.sparse));
    assert_true(rig_same_state(&rig, &fresh));
    rig_fill(&rig, 12, 8);
    rig_step(&rig, 2, false);
    assert_non_null(dsvi_sparse_lists(rig.sparse, 0));
    assert_true(rig_same_state(&rig, &fresh) == false); /* only the last lists' density and estimate differ */
    rig_close(&rig);
    rig_close(&fresh);
}

/* Without backward pass all blocks use the same memory for their lists, one after the other. */
static void test_forward_only(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(3, 1, 2, 64, 2, 8, 8, DSVI_F32);
    (void)state;
    shape.backward = false;
    rig_open(&rig, "auto", 1, &settings, &shape);
    rig_fill(&rig, 3, 8);
    dsvi_sparse_force(rig.sparse, true);
    for (int64_t i = 0; i < 3; i++) {
        DsviAttentionCall pass = rig_pass(&rig, i);
        assert_ok(dsvi_sparse_forward(rig.sparse, i, &pass));
        assert_non_null(dsvi_sparse_lists(rig.sparse, i));
    }
    assert_null(dsvi_sparse_lists(rig.sparse, 0));
    rig_close(&rig);
}

static void test_threads_change_nothing(void **state)
{
    static Rig one, two;
    static const char *const selectors[] = {"projection", "predictor", "pooled"};
    DsviSparseShape shape = rig_shape(2, 2, 3, 64, 3, 9, 8, DSVI_BF16);
    (void)state;
    for (size_t n = 0; n < sizeof selectors / sizeof *selectors; n++) {
        DsvConfig settings = rig_settings();
        snprintf(settings.sparse_selector, sizeof settings.sparse_selector, "%s", selectors[n]);
        rig_set(&settings, "sparse.profile_every=2");
        rig_set(&settings, "sparse.min_mass=0.2");
        rig_open(&one, "auto", 1, &settings, &shape);
        rig_open(&two, "auto", 2, &settings, &shape);
        for (int64_t step = 1; step <= 3; step++) {
            rig_fill(&one, (uint64_t)step, 8);
            rig_fill(&two, (uint64_t)step, 8);
            dsvi_threads_set(1);
            rig_step(&one, step, true);
            dsvi_threads_set(2);
            rig_step(&two, step, true);
            assert_true(rig_same(&one, &two));
            assert_true(rig_same_state(&one, &two));
        }
        assert_string_equal(one.log, two.log);
        rig_close(&one);
        rig_close(&two);
    }
}

/* With several passes in one step, the selector learns from all passes; only the first pass is measured. */
static void test_accumulation(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 64, 2, 8, 8, DSVI_F32);
    DsviSparseBlockReport once, twice;
    DsviSparseReport report;
    (void)state;
    rig_set(&settings, "sparse.selector=predictor");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.1");
    for (int passes = 1; passes <= 2; passes++) {
        rig_open(&rig, "auto", 2, &settings, &shape);
        rig_fill(&rig, 11, 8);
        assert_ok(dsvi_sparse_step_begin(rig.sparse, 1, true));
        for (int i = 0; i < passes; i++)
            rig_run(&rig);
        assert_ok(dsvi_sparse_step_end(rig.sparse));
        dsvi_sparse_block_report(rig.sparse, 0, passes == 1 ? &once : &twice);
        dsvi_sparse_report(rig.sparse, &report);
        assert_true(report.predictor_loss > 0 && report.predictor_loss < 2);
        rig_close(&rig);
    }
    assert_true(once.captured_mass == twice.captured_mass);
}

/* In deterministic mode no measured time decides anything. */
static void test_no_measured_cost_in_deterministic_mode(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 2, 12, 12, DSVI_F32);
    (void)state;
    settings.sparse_measure_cost = true;
    settings.deterministic = true;
    rig_open(&rig, "auto", 2, &settings, &shape);
    assert_string_equal(rig.log, "");
    assert_true(dsvi_sparse_max_density(rig.sparse) == settings.sparse_max_density);
    rig_close(&rig);
}

/* With sparse.time_choices the layer logs a line with the times of sparse and dense attention for each block
 * in each measuring step; everything else is as without this option. */
static void test_both_choices_timed(void **state)
{
    static Rig rig, plain;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 1, 16, 16, DSVI_F32);
    double select, forward, backward, dense_forward, dense_backward;
    (void)state;
    rig_set(&settings, "sparse.profile_every=2");
    rig_set(&settings, "sparse.list_memory=1");
    rig_open(&plain, "auto", 2, &settings, &shape);
    rig_set(&settings, "sparse.time_choices=true");
    rig_open(&rig, "auto", 2, &settings, &shape);
    for (int step = 1; step <= 3; step++) { /* 1: dense, measured; 2: over lists, measured; 3: over lists */
        rig.log[0] = plain.log[0] = 0;
        rig_fill(&plain, 11, 8);
        rig_fill(&rig, 11, 8);
        rig_step(&plain, step, true);
        rig_step(&rig, step, true);
        assert_true(rig_same(&rig, &plain) && rig_same_state(&rig, &plain));
        for (int block = 0; block < 2; block++) {
            char words[64];
            snprintf(words, sizeof words, "block %d runs %s: ", block, step == 1 ? "dense" : "sparse");
            assert_int_equal(strstr(rig.log, words) != NULL, step < 3);
        }
        const char *times = strstr(rig.log, "mass, taking "), *dense = strstr(rig.log, "; dense ");
        if (step == 3)
            continue;
        assert_int_equal(sscanf(times, "mass, taking %lf + %lf + %lf ms", &select, &forward, &backward), 3);
        assert_int_equal(sscanf(dense, "; dense %lf + %lf ms", &dense_forward, &dense_backward), 2);
        assert_true(isfinite(select + forward + backward + dense_forward + dense_backward));
    }
    rig_close(&rig);
    rig_close(&plain);
}

/* Lists that are timed in blocks that stay dense are kept until their backward pass, but do not reduce the
 * list memory of other blocks. */
static void test_timed_lists_take_no_list_memory(void **state)
{
    static const char *const tight[] = {
        "sparse.target_mass=0", "sparse.target_density=0.32", "sparse.max_density=0.35",
        "sparse.min_mass=0",    "sparse.list_memory=0.01",    "sparse.profile_every=1",
    };
    static Rig rig, plain;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 2, 2, 32, 1, 16, 16, DSVI_F32);
    (void)state;
    for (size_t i = 0; i < sizeof tight / sizeof *tight; i++)
        rig_set(&settings, tight[i]);
    rig_open(&plain, "auto", 2, &settings, &shape);
    rig_set(&settings, "sparse.time_choices=true");
    rig_open(&rig, "auto", 2, &settings, &shape);
    for (int step = 1; step <= 3; step++) {
        rig_fill(&plain, 11, 8);
        rig_fill(&rig, 11, 8);
        rig_step(&plain, step, true);
        rig_step(&rig, step, true);
        assert_true(rig_same(&rig, &plain) && rig_same_state(&rig, &plain));
    }
    rig_close(&rig);
    rig_close(&plain);
}

static DsvStatus create_with(const DsvConfig *settings, const DsviSparseShape *shape)
{
    DsviBackend backend;
    DsviSparse *sparse;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    DsvStatus status = dsvi_sparse_create(&backend, settings, shape, NULL, NULL, &sparse);
    assert_true((status == DSV_OK) == (sparse != NULL));
    dsvi_sparse_free(&sparse);
    dsvi_cpu_close(&backend);
    return status;
}

static DsvStatus create(const char *assignment, const DsviSparseShape *shape)
{
    DsvConfig settings = rig_settings();
    rig_set(&settings, assignment);
    return create_with(&settings, shape);
}

static void test_key_chunk_refusals(void **state)
{
    static const char *const others[] = {"predictor", "pooled", "window"};
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 2, 4, 4, DSVI_F32);
    DsvConfig settings = rig_settings();
    (void)state;
    assert_fails(DSV_E_USAGE, "sparse.key_chunk, 2, does not divide sparse.grain, 1",
                 create("sparse.key_chunk=2", &shape));
    rig_set(&settings, "sparse.grain=6");
    rig_set(&settings, "sparse.key_chunk=3");
    assert_ok(create_with(&settings, &shape));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char expected[96];
        snprintf(settings.sparse_selector, sizeof settings.sparse_selector, "%s", others[i]);
        snprintf(expected, sizeof expected, "sparse.key_chunk is 3 and sparse.selector is %s, expected ",
                 others[i]);
        assert_fails(DSV_E_USAGE, expected, create_with(&settings, &shape));
    }
}

static void test_refusals(void **state)
{
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 2, 4, 4, DSVI_F32), wrong = shape;
    (void)state;
    assert_ok(create("sparse.rank=32", &shape));
    assert_fails(DSV_E_USAGE, "sparse.rank is 33, above the head size of 32",
                 create("sparse.rank=33", &shape));
    assert_fails(DSV_E_USAGE, "sparse.chunk, 24, does not divide sparse.group, 32",
                 create("sparse.chunk=24", &shape));
    assert_fails(DSV_E_USAGE, "sparse.target_density is 0 and so is sparse.target_mass",
                 create("sparse.target_mass=0", &shape));
    assert_fails(DSV_E_USAGE, "sparse.target_density is 0 and sparse.rule is topk",
                 create("sparse.rule=topk", &shape));
    wrong.tokens = 33;
    assert_fails(DSV_E_SHAPE, "33 tokens do not make a grid of 2 x 4 x 4", create("seed=1", &wrong));
    wrong = shape;
    wrong.head_dim = 30;
    assert_fails(DSV_E_SHAPE, "head size is 30", create("seed=1", &wrong));
}

typedef struct Watched {
    const void *q[RIG_BLOCKS_MAX];
    int calls;
    DsvStatus answer;
} Watched;

static DsvStatus watch(void *context, int64_t block, const DsviAttentionCall *args)
{
    Watched *seen = context;
    seen->q[block] = args->q;
    seen->calls++;
    return seen->answer;
}

/* The watch function is called once for each block's forward pass, not for a recomputation. If it fails, the
 * pass fails. */
static void test_watch(void **state)
{
    static Rig rig;
    Watched seen = {.answer = DSV_OK};
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 2, 64, 1, 8, 8, DSVI_F32);
    (void)state;
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 3, 0);
    dsvi_sparse_watch(rig.sparse, watch, &seen);
    rig_run(&rig);
    assert_int_equal(seen.calls, 2);
    for (int i = 0; i < 2; i++)
        assert_ptr_equal(seen.q[i], rig.block[i].q);
    DsviAttentionCall pass = rig_pass(&rig, 0);
    pass.recompute = true;
    assert_ok(dsvi_sparse_forward(rig.sparse, 0, &pass));
    assert_int_equal(seen.calls, 2);
    pass.recompute = false;
    seen.answer = DSV_E_INTERRUPTED;
    assert_int_equal(dsvi_sparse_forward(rig.sparse, 0, &pass), DSV_E_INTERRUPTED);
    rig_close(&rig);
}

/* Values that are not finite cause an error that names the place. */
static void test_not_finite(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 2, 64, 1, 8, 8, DSVI_F32);
    (void)state;
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 3, 0);
    ((float *)rig.block[1].k)[64 + 5] = INFINITY;
    DsviAttentionCall pass = rig_pass(&rig, 1);
    dsvi_sparse_force(rig.sparse, true);
    assert_fails(DSV_E_DIVERGED, "block 1, head 1: projection: queries or keys are not finite",
                 dsvi_sparse_forward(rig.sparse, 1, &pass));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_full_lists_are_dense),
        cmocka_unit_test(test_few_keys_are_not_dense),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_without_training),
        cmocka_unit_test(test_forward_only),
        cmocka_unit_test(test_threads_change_nothing),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_no_measured_cost_in_deterministic_mode),
        cmocka_unit_test(test_both_choices_timed),
        cmocka_unit_test(test_timed_lists_take_no_list_memory),
        cmocka_unit_test(test_key_chunk_refusals),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_watch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
