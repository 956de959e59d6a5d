/* The measured cost of attention on a simulated machine. The test sets the time that each call takes, and a
 * simulated clock adds these times, so that the test knows each figure that must result. */
#include "sparse/sparse_rig.h"

#include "device/carve.h"
#include "sparse/cost.h"
#include "sparse/sparse_internal.h"

enum { FORWARD, BACKWARD };

/* The machine. An attention call takes `call` seconds, and for each pair of a query and a key `dense`
 * seconds, or over lists `lists` at their density. Up to `lanes` heads take as long as one. Selection takes
 * `select` seconds a pair. */
static struct World {
    double call[DSVI_PASSES], dense[DSVI_PASSES], select;
    DsviPriceCurve lists[DSVI_PASSES];
    int64_t lanes;
    int64_t period; /* one attention call in `period` runs undisturbed, the others take twice as long; 0: all
                     * run undisturbed */
    double now;     /* simulated clock, seconds */
    int64_t calls;  /* number of attention calls */
    dsvi_select_fn *histogram;
    size_t room_max; /* larger allocations of device memory fail */
    size_t largest;  /* bytes of the largest requested allocation of device memory */
} world;

static DsvStatus read_clock(DsviStream *stream, double *seconds)
{
    (void)stream;
    *seconds = world.now;
    return DSV_OK;
}

static DsvStatus grant(DsviDevice *device, size_t bytes, void **out)
{
    (void)device;
    *out = NULL;
    world.largest = bytes > world.largest ? bytes : world.largest;
    if (bytes > world.room_max)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes", bytes);
    *out = aligned_alloc(64, (bytes + 64) / 64 * 64);
    return DSV_OK;
}

static void spend(const DsviAttentionArgs *args, int pass, double pair)
{
    int64_t heads = args->batch * args->heads;
    heads = heads > world.lanes ? heads : world.lanes;
    double seconds = world.call[pass] + pair * (double)(heads * args->queries * args->keys);
    world.now += world.period > 0 && world.calls++ % world.period ? 2 * seconds : seconds;
}

static double density_of(const DsviLists *lists)
{
    int64_t count = dsvi_lists_count(lists);
    return (double)lists->offsets[count] / (double)(count * dsvi_lists_full(lists));
}

static DsvStatus dense_forward(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    spend(args, FORWARD, world.dense[FORWARD]);
    return DSV_OK;
}

static DsvStatus dense_backward(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    spend(args, BACKWARD, world.dense[BACKWARD]);
    return DSV_OK;
}

static DsvStatus list_forward(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    spend(args, FORWARD, dsvi_price_at(&world.lists[FORWARD], density_of(args->lists)));
    return DSV_OK;
}

static DsvStatus list_backward(DsviStream *stream, const DsviAttentionArgs *args)
{
    (void)stream;
    spend(args, BACKWARD, dsvi_price_at(&world.lists[BACKWARD], density_of(args->lists)));
    return DSV_OK;
}

static DsvStatus select_histogram(DsviStream *stream, const DsviSelectArgs *args)
{
    world.now += world.select * (double)(args->batch * args->heads * args->queries * args->keys);
    return world.histogram(stream, args);
}

/* Sets prices in nanoseconds per pair of query and key, forward and backward together. `slope` is the price
 * of attention over lists of density 1. */
static void make_world(double dense, double slope, double select)
{
    memset(&world, 0, sizeof world);
    world.room_max = SIZE_MAX;
    world.call[FORWARD] = 20e-6;
    world.call[BACKWARD] = 50e-6;
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        double part = (pass == FORWARD ? 0.3 : 0.7) * 1e-9;
        world.dense[pass] = part * dense;
        dsvi_price_add(&world.lists[pass], 0, 0);
        dsvi_price_add(&world.lists[pass], 1, part * slope);
    }
    world.select = 1e-9 * select;
}

static void open_backend(DsviBackend *backend)
{
    assert_ok(dsvi_cpu_open("auto", 1, backend));
    world.histogram = backend->ops.select_histogram.run;
    backend->ops.select_histogram.run = select_histogram;
    backend->ops.attention_fwd.run = dense_forward;
    backend->ops.attention_bwd.run = dense_backward;
    backend->ops.attention_list_fwd.run = list_forward;
    backend->ops.attention_list_bwd.run = list_backward;
    backend->device->clock = read_clock;
    backend->device->mem_alloc = grant;
}

static DsvStatus measure(const DsvConfig *settings, const DsviSparseShape *shape, DsviCostFound *found)
{
    DsviBackend backend;
    open_backend(&backend);
    DsvStatus status = dsvi_cost_measure(&backend, settings, shape, found);
    dsvi_cpu_close(&backend);
    return status;
}

static DsviSparseShape shape_of(int64_t tokens, int64_t heads)
{
    return rig_shape(3, 1, heads, 32, 1, 1, tokens, DSVI_F32);
}

static void assert_near(double found, double expected, const char *what)
{
    assert_error_below(fabs(found - expected), 1e-9 * fabs(expected) + 1e-18, "%s: %.9g, expected %.9g", what,
                       found, expected);
}

/* The measured prices are equal to the set prices, and the measured lists are about as dense as intended.
 * Short passes are repeated and the best time counts, so that other work on the machine changes nothing. */
static void test_prices(void **state)
{
    static const double wanted_density[] = {0.05, 0.2, 0.5};
    static const int64_t periods[] = {0, 7};
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(256, 2);
    DsviCostFound found;
    (void)state;
    settings.sparse_target_mass = 0.1; /* must not make the measured lists shorter */
    for (int n = 0; n < 2; n++) {
        make_world(10, 18, 1.5);
        world.period = periods[n];
        assert_ok(measure(&settings, &shape, &found));
        assert_non_null(strstr(found.line, "attention of 256 tokens, 2 heads: dense 1.38 ms, over lists "));
        for (int pass = 0; pass < DSVI_PASSES; pass++) {
            const DsviPriceCurve *lists = &found.attention.lists[pass];
            assert_near(found.attention.call[pass], world.call[pass], "a call");
            assert_near(found.attention.dense[pass], world.dense[pass], "a pair, dense");
            assert_int_equal(lists->count, 3);
            for (int i = 0; i < 3; i++) {
                assert_error_below(fabs(lists->x[i] - wanted_density[i]), 0.02, "density of lists");
                assert_near(lists->y[i], dsvi_price_at(&world.lists[pass], lists->x[i]), "a pair, lists");
            }
        }
        assert_near(found.attention.select, world.select, "selection");
    }
}

/* With measurements of only one length, the time of a call cannot be separated from the time of its pairs, so
 * all time is attributed to pairs. */
static void test_prices_of_one_length(void **state)
{
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(128, 2);
    DsviCostFound found;
    (void)state;
    make_world(10, 18, 1.5);
    world.call[FORWARD] = world.call[BACKWARD] = 0;
    assert_ok(measure(&settings, &shape, &found));
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        assert_near(found.attention.call[pass], 0, "a call");
        assert_near(found.attention.dense[pass], world.dense[pass], "a pair, dense");
    }
}

/* Without sparse.enabled only dense attention is measured. */
static void test_dense_alone(void **state)
{
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(256, 2);
    DsviCostFound found;
    (void)state;
    make_world(10, 18, 1.5);
    settings.sparse_enabled = false;
    assert_ok(measure(&settings, &shape, &found));
    assert_true(found.break_even == 0);
    assert_null(strstr(found.line, "lists"));
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        assert_near(found.attention.dense[pass], world.dense[pass], "a pair, dense");
        assert_int_equal(found.attention.lists[pass].count, 0);
    }
}

/* Dense attention costs 10 and lists of density x cost select + slope x: lists pay up to (10 - select) /
 * slope, rounded down to a twentieth. */
static void test_break_even(void **state)
{
    static const struct {
        double slope, select, expected;
    } cases[] = {
        {70, 1, 0.10},   /* 0.129, between the first two densities */
        {20, 2.5, 0.35}, /* 0.375, between the last two */
        {10, 1.3, 0.85}, /* 0.87, beyond the last */
        {24, 1, 0.35},   /* 0.375 again, with other prices */
        {5, 1, 1},       /* 1.8: at every density */
        {0, 9, 1},       /* any list costs 9 */
        {0, 11, 0},      /* any list costs 11 */
        {300, 1, 0},     /* 0.03: even the shortest lists cost more */
    };
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(256, 2);
    DsviCostFound found;
    char words[64];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_world(10, cases[i].slope, cases[i].select);
        assert_ok(measure(&settings, &shape, &found));
        assert_error_below(fabs(found.break_even - cases[i].expected), 1e-12, "break-even, case %d", (int)i);
        snprintf(words, sizeof words, "; lists are faster up to density %.2f", cases[i].expected);
        assert_non_null(strstr(found.line, words));
    }
}

/* Sets the price of lists at three densities, with straight lines in between. */
static void set_lists(const double density[3], const double price[3])
{
    for (int pass = 0; pass < DSVI_PASSES; pass++) {
        double part = (pass == FORWARD ? 0.3 : 0.7) * 1e-9;
        world.lists[pass].count = 0;
        for (int i = 0; i < 3; i++)
            dsvi_price_add(&world.lists[pass], density[i], part * price[i]);
    }
}

/* The price of lists rises by 10 for a density of 1 up to 0.3, and by 100 beyond. Break-even is interpolated
 * between the two measured densities (about 0.05, 0.2 and 0.5) whose prices enclose dense attention's. */
static void test_break_even_is_interpolated(void **state)
{
    static const double dense[] = {1.3, 9}, density[] = {0, 0.3, 1}, price[] = {0, 3, 73};
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(256, 2);
    DsviCostFound found;
    (void)state;
    for (int i = 0; i < 2; i++) {
        make_world(dense[i], 0, 0);
        set_lists(density, price);
        assert_ok(measure(&settings, &shape, &found));
        const double *x = found.attention.lists[FORWARD].x;
        double at_1 = 10 * x[1], at_2 = 3 + 100 * (x[2] - 0.3);
        double crossing = i == 0 ? 0.13 : x[1] + (9 - at_1) * (x[2] - x[1]) / (at_2 - at_1);
        assert_true(i == 0 || (crossing > 0.26 && crossing < 0.34));
        assert_error_below(fabs(found.break_even - floor(20 * crossing) / 20), 1e-12, "case %d", i);
    }
}

/* Lists that cost more than dense attention at every measured density do not pay, even if denser lists cost
 * less. */
static void test_no_break_even(void **state)
{
    static const double density[] = {0, 0.5, 1}, price[] = {16, 13, 10};
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(256, 2);
    DsviCostFound found;
    (void)state;
    make_world(10, 0, 0);
    set_lists(density, price);
    assert_ok(measure(&settings, &shape, &found));
    assert_true(found.break_even == 0);
}

static void carve_layer(void *of, DsviArena *arena)
{
    dsvi_sparse_carve(of, arena);
    dsvi_sparse_carve_call(of, arena);
}

/* A layer's density bound is the measured break-even, or sparse.max_density where that is lower. */
static void test_break_even_bounds_density(void **state)
{
    static const double max_density[] = {0.5, 0.2}, expected[] = {0.35, 0.2};
    DsviSparseShape shape = shape_of(256, 2);
    (void)state;
    for (int i = 0; i < 2; i++) {
        DsvConfig settings = rig_settings();
        DsviBackend backend;
        DsviSparse *sparse;
        settings.sparse_measure_cost = true;
        settings.sparse_max_density = max_density[i];
        make_world(10, 20, 2.5);
        open_backend(&backend);
        assert_ok(dsvi_sparse_create(&backend, &settings, &shape, NULL, NULL, &sparse));
        void *memory = NULL, *host;
        assert_ok(dsvi_device_alloc_layout(backend.device, carve_layer, sparse, &memory));
        assert_ok(rig_host_memory(sparse, backend.device, &host));
        assert_ok(dsvi_sparse_setup(sparse));
        assert_error_below(fabs(dsvi_sparse_max_density(sparse) - expected[i]), 1e-12, "density of case %d",
                           i);
        dsvi_sparse_free(&sparse);
        backend.device->mem_free(backend.device, memory);
        backend.device->host_free(backend.device, host);
        dsvi_cpu_close(&backend);
    }
}

/* The measured length doubles as long as 12 dense passes of the next length would take less than 1.5 s. One
 * pass of the next length takes four times as long, so the present pass must take less than 31 ms. */
static void test_affordable_length(void **state)
{
    static const struct {
        double dense; /* ns per pair; 2 heads of 128 tokens have 32,768 pairs */
        const char *line;
    } cases[] = {
        {970, "attention of 128 tokens, 2 heads"}, /* 31.8 ms */
        {940, "attention of 256 tokens, 2 heads"}, /* 30.8 ms, then 123 */
        {230, "attention of 512 tokens, 2 heads"}, /* 7.5 ms, 30.1, 121 */
        {40, "attention of 600 tokens, 2 heads"},  /* 28.8 ms: all tokens; with all 12 heads, 12 dense passes
                                                    * would take 2.1 s */
        {20, "attention of 600 tokens, 12 heads"},
    };
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(600, 6);
    DsviCostFound found;
    (void)state;
    shape.batch = 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_world(cases[i].dense, 18, 1);
        world.call[FORWARD] = world.call[BACKWARD] = 0;
        assert_ok(measure(&settings, &shape, &found));
        if (!strstr(found.line, cases[i].line))
            fail_msg("case %d: '%s' lacks '%s'", (int)i, found.line, cases[i].line);
    }
}

/* The simulated device takes as long for two heads as for twelve. Measured with two heads, a pair would seem
 * six times as expensive as it is. So all heads are measured if time and memory allow. */
static void test_all_heads(void **state)
{
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(256, 6), few = shape_of(256, 2);
    DsviCostFound found;
    (void)state;
    shape.batch = 2;
    make_world(1, 2, 0.02);
    world.lanes = 12;
    assert_ok(measure(&settings, &shape, &found));
    assert_non_null(strstr(found.line, "attention of 256 tokens, 12 heads"));
    assert_near(found.break_even, 0.45, "break-even"); /* 0.98 / 2 */
    make_world(1, 2, 0.02);
    assert_ok(measure(&settings, &few, &found));
    size_t room_of_few = world.largest;
    make_world(1, 2, 0.02);
    world.room_max = room_of_few;
    assert_ok(measure(&settings, &shape, &found));
    assert_non_null(strstr(found.line, "attention of 256 tokens, 2 heads"));
}

/* Where device memory is too small for the whole length, half of the length is measured. */
static void test_little_memory(void **state)
{
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = shape_of(512, 1);
    DsviCostFound found;
    (void)state;
    make_world(0, 0, 0); /* attention takes no time, so that time does not limit the length */
    world.call[FORWARD] = world.call[BACKWARD] = 0;
    assert_ok(measure(&settings, &shape, &found));
    assert_non_null(strstr(found.line, "attention of 512 tokens"));
    world.room_max = world.largest - 1;
    assert_ok(measure(&settings, &shape, &found));
    assert_non_null(strstr(found.line, "attention of 256 tokens"));
    assert_true(found.attention.lists[FORWARD].count > 0);
    world.room_max = 64;
    assert_fails(DSV_E_NO_MEMORY, "measuring the cost of attention", measure(&settings, &shape, &found));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prices),
        cmocka_unit_test(test_prices_of_one_length),
        cmocka_unit_test(test_dense_alone),
        cmocka_unit_test(test_break_even),
        cmocka_unit_test(test_break_even_is_interpolated),
        cmocka_unit_test(test_no_break_even),
        cmocka_unit_test(test_break_even_bounds_density),
        cmocka_unit_test(test_affordable_length),
        cmocka_unit_test(test_all_heads),
        cmocka_unit_test(test_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
