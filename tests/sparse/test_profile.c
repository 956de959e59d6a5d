/* How the layer measures its lists: which queries it draws, and the running means of the measurements,
 * compared with plain loops over queries and keys. */
#include "sparse/sparse_rig.h"

#include "sparse/sparse_internal.h"

/* ---- drawn queries ---- */

enum { TOKENS = 96, QUERIES = 8, EACH = TOKENS / QUERIES, BLOCKS = 4, STEPS = 3000 };

/* Returns the chi-square statistic of counts that should be equal, in standard deviations above its mean. */
static double chi_square(const int64_t *count, int64_t cells, int64_t draws)
{
    double expected = (double)draws / (double)cells, sum = 0, degrees = (double)(cells - 1);
    for (int64_t i = 0; i < cells; i++)
        sum += ((double)count[i] - expected) * ((double)count[i] - expected) / expected;
    return (sum - degrees) / sqrt(2 * degrees);
}

/* Every query is drawn equally often. The draws are the same in every run of the test, so it cannot fail by
 * chance. */
static void test_draws_are_uniform(void **state)
{
    int64_t count[TOKENS] = {0};
    (void)state;
    for (int64_t step = 1; step <= STEPS; step++)
        for (int64_t block = 0; block < BLOCKS; block++) {
            int32_t query[QUERIES];
            dsvi_draw_queries(7, step, block, DSVI_DRAW_PROFILE, TOKENS, QUERIES, query);
            for (int i = 0; i < QUERIES; i++) {
                assert_int_equal(query[i] / EACH, i); /* one query of each range */
                count[query[i]]++;
            }
        }
    for (int i = 0; i < QUERIES; i++)
        assert_error_below(chi_square(count + i * EACH, EACH, STEPS * BLOCKS), 6, "range %d", i);
}

/* The arguments from which a draw follows. */
typedef struct Draw {
    uint64_t seed;
    int64_t step, block;
    DsviDraw use;
    int range;
} Draw;

static int place_in_range(Draw draw)
{
    int32_t query[QUERIES];
    dsvi_draw_queries(draw.seed, draw.step, draw.block, draw.use, TOKENS, QUERIES, query);
    return query[draw.range] % EACH;
}

/* Draws that differ in one argument are independent: all pairs of drawn positions are equally frequent. */
static void test_draws_are_independent(void **state)
{
    static const char *const difference[] = {"seed", "step", "block", "use", "range"};
    (void)state;
    for (int n = 0; n < 5; n++) {
        int64_t count[EACH * EACH] = {0};
        for (int64_t step = 1; step <= STEPS; step++)
            for (int64_t block = 0; block < BLOCKS; block++) {
                Draw one = {7, 2 * step, 2 * block, DSVI_DRAW_PROFILE, 3}, other = one;
                other.seed += n == 0;
                other.step += n == 1;
                other.block += n == 2;
                other.use = n == 3 ? DSVI_DRAW_PREDICTOR : DSVI_DRAW_PROFILE;
                other.range += n == 4;
                count[place_in_range(one) * EACH + place_in_range(other)]++;
            }
        assert_error_below(chi_square(count, EACH * EACH, STEPS * BLOCKS), 6, "another %s", difference[n]);
    }
}

/* No two draws of a step use the same random number: in ranges of 2^20 queries all drawn positions differ. */
static void test_draws_share_no_numbers(void **state)
{
    enum { EACH_LONG = 1 << 20, DRAWS = BLOCKS * DSVI_DRAW_COUNT * QUERIES };
    int32_t place[DRAWS];
    int count = 0;
    (void)state;
    for (int64_t block = 0; block < BLOCKS; block++)
        for (int use = 0; use < DSVI_DRAW_COUNT; use++) {
            dsvi_draw_queries(7, 1, block, (DsviDraw)use, (int64_t)QUERIES * EACH_LONG, QUERIES,
                              place + count);
            for (int i = 0; i < QUERIES; i++)
                place[count + i] %= EACH_LONG;
            count += QUERIES;
        }
    for (int i = 0; i < DRAWS; i++)
        for (int j = 0; j < i; j++)
            assert_int_not_equal(place[i], place[j]);
}

/* Ranges of unequal lengths cover all tokens without overlap. Drawing as many queries as there are tokens
 * draws all tokens. */
static void test_draws_of_ragged_ranges(void **state)
{
    int64_t count[11] = {0};
    int32_t query[11];
    (void)state;
    for (int64_t step = 1; step <= 300; step++) {
        dsvi_draw_queries(7, step, 0, DSVI_DRAW_PROFILE, 11, 4, query);
        for (int i = 0; i < 4; i++) {
            assert_true(i == 0 || query[i] > query[i - 1]);
            assert_true(query[i] >= 0 && query[i] < 11);
            count[query[i]]++;
        }
    }
    for (int i = 0; i < 11; i++)
        assert_true(count[i] > 50);
    dsvi_draw_queries(7, 1, 0, DSVI_DRAW_PROFILE, 11, 11, query);
    for (int i = 0; i < 11; i++)
        assert_int_equal(query[i], i);
}

/* Each measurement of each block draws new queries, which follow from the seed of the configuration. */
static void test_layer_draws_anew(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(2, 1, 1, 32, 2, 8, 8, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.profile_samples=4");
    rig_set(&settings, "sparse.profile_every=2");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 3, 0);
    for (int64_t step = 2; step <= 4; step += 2) {
        rig_step(&rig, step, true);
        for (int64_t block = 0; block < 2; block++) {
            int32_t wanted[4];
            dsvi_draw_queries((uint64_t)settings.seed, step, block, DSVI_DRAW_PROFILE, shape.tokens, 4,
                              wanted);
            assert_memory_equal(rig.sparse->host_sample + 4 * block, wanted, sizeof wanted);
        }
    }
    rig_close(&rig);
}

/* ---- measurements ---- */

enum { HEADS = 3, DIM = 32, HELD_TOKENS = 128, BATCH = 2 };

typedef struct Measured {
    double captured, share90, listed; /* means over batch and queries */
} Measured;

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Computes from the exact attention of one query the captured mass of its list, the smallest fraction of keys
 * that holds 0.9, and the listed fraction of keys. */
static Measured of_query(const DsviAttentionCall *pass, const DsviLists *lists, int64_t b, int64_t h,
                         int64_t i)
{
    double p[HELD_TOKENS], sum = 0, held = 0, largest = -INFINITY;
    DsviHeads q = dsvi_heads(pass->q, HELD_TOKENS, HEADS, DIM),
              k = dsvi_heads(pass->k, HELD_TOKENS, HEADS, DIM);
    DsviList list = dsvi_list_of(lists, HELD_TOKENS, b, h, i);
    Measured m = {.listed = (double)dsvi_list_length(&list) / HELD_TOKENS};
    for (int64_t j = 0; j < HELD_TOKENS; j++) {
        p[j] = pass->scale * dsvi_heads_dot(DSVI_F32, &q, i, &k, j, b, h, DIM);
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j < HELD_TOKENS; j++)
        sum += p[j] = exp(p[j] - largest);
    for (int64_t n = 0; n < dsvi_list_length(&list); n++)
        m.captured += p[dsvi_list_key(&list, n)] / sum;
    qsort(p, HELD_TOKENS, sizeof *p, descending);
    for (int64_t n = 0; held < 0.9 * sum; n++) {
        held += p[n];
        m.share90 = (double)(n + 1) / HELD_TOKENS;
    }
    return m;
}

/* Returns the means of a head over batch and drawn queries. */
static Measured of_head(Rig *rig, int64_t step, int64_t block, int64_t h)
{
    DsviAttentionCall pass = rig_pass(rig, block);
    const DsviLists *lists = dsvi_sparse_lists(rig->sparse, block);
    int64_t samples = rig->settings.sparse_profile_samples;
    int32_t query[HELD_TOKENS];
    Measured mean = {0, 0, 0};
    assert_non_null(lists);
    dsvi_draw_queries((uint64_t)rig->settings.seed, step, block, DSVI_DRAW_PROFILE, HELD_TOKENS, samples,
                      query);
    for (int64_t n = 0; n < BATCH * samples; n++) {
        Measured m = of_query(&pass, lists, n / samples, h, query[n % samples]);
        mean.captured += m.captured / (double)(BATCH * samples);
        mean.share90 += m.share90 / (double)(BATCH * samples);
        mean.listed += m.listed / (double)(BATCH * samples);
    }
    return mean;
}

/* Makes the queries of head h 1 + h times as long, so that the heads' lists hold different masses. */
static void sharpen_heads(Rig *rig)
{
    for (int64_t block = 0; block < rig->shape.blocks; block++) {
        float *q = rig->block[block].q;
        for (int64_t i = 0; i < BATCH * HELD_TOKENS * HEADS * DIM; i++)
            q[i] *= (float)(0.3 * (double)(1 + i / DIM % HEADS));
    }
}

enum { MEASURED_STEPS = 3, MEASURED_BLOCKS = 2 };

/* Returns the running mean after step `step`: the first measurement, then a fourth of each later measurement
 * plus three fourths of the mean before. */
static double blended(int step, double before, double now)
{
    return step == 1 ? now : 0.75 * before + 0.25 * now;
}

static Measured all_blended(int step, Measured before, Measured now)
{
    return (Measured){
        blended(step, before.captured, now.captured),
        blended(step, before.share90, now.share90),
        blended(step, before.listed, now.listed),
    };
}

/* The expected running means of a block and of its heads. */
typedef struct Expected {
    Measured head[HEADS], block;
    double missed;
} Expected;

static void expect_step(Rig *rig, int step, int64_t block, Expected *e)
{
    Measured mean = {0, 0, 0};
    for (int64_t h = 0; h < HEADS; h++) {
        Measured now = of_head(rig, step, block, h);
        mean.captured += now.captured / HEADS;
        mean.share90 += now.share90 / HEADS;
        mean.listed += now.listed / HEADS;
        e->head[h] = all_blended(step, e->head[h], now);
    }
    double estimated = 1 - rig->sparse->record.estimated_mass[block];
    e->block = all_blended(step, e->block, mean);
    e->missed = blended(step, e->missed, (1 - mean.captured) / estimated);
}

/* Compares a block's record with the expected means. share90 counts keys, so that rounding may change the
 * count of some queries by one key. */
static void compare_step(const DsviSparseRecord *r, int64_t block, const Expected *e)
{
    for (int64_t h = 0; h < HEADS; h++) {
        int64_t at = block * HEADS + h;
        assert_error_below(fabs(r->head_captured[at] - e->head[h].captured), 1e-6, "captured");
        assert_error_below(fabs(r->head_listed[at] - e->head[h].listed), 1e-6, "listed");
        assert_error_below(fabs(r->head_share90[at] - e->head[h].share90), 1e-4, "share90");
    }
    assert_error_below(fabs(r->captured[block] - e->block.captured), 1e-6, "captured by the block");
    assert_error_below(fabs(r->share90[block] - e->block.share90), 1e-4, "share90 of the block");
    assert_error_below(fabs(r->listed[block] - e->block.listed), 1e-12, "density of the block");
    assert_error_below(fabs(r->missed[block] - e->missed), 1e-5, "missed");
}

/* The running means of all heads and blocks equal those of plain loops over the drawn queries. */
static void test_measurements(void **state)
{
    static Rig rig;
    static Expected expected[MEASURED_BLOCKS];
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(MEASURED_BLOCKS, BATCH, HEADS, DIM, 2, 8, 8, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.profile_samples=48");
    rig_set(&settings, "sparse.profile_every=1");
    rig_set(&settings, "sparse.profile_ema=0.75");
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=0.2");
    rig_set(&settings, "sparse.list_memory=1");
    rig_open(&rig, "auto", 2, &settings, &shape);
    dsvi_sparse_force(rig.sparse, true);
    for (int step = 1; step <= MEASURED_STEPS; step++) {
        rig_fill(&rig, (uint64_t)step, 0);
        sharpen_heads(&rig);
        rig_step(&rig, step, true);
        for (int64_t block = 0; block < MEASURED_BLOCKS; block++) {
            expect_step(&rig, step, block, &expected[block]);
            compare_step(&rig.sparse->record, block, &expected[block]);
        }
        /* The test would notice if heads or blocks were mixed up. */
        assert_true(fabs(expected[0].head[0].captured - expected[0].head[2].captured) > 0.1);
        assert_true(fabs(expected[0].block.captured - expected[1].block.captured) > 1e-4);
    }
    rig_close(&rig);
}

/* Lists of all keys have an estimated missed mass of 0. The ratio `missed` would divide by this 0, so that it
 * stays unknown. */
static void test_nothing_missed(void **state)
{
    static Rig rig;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 1, 32, 2, 8, 8, DSVI_F32);
    (void)state;
    rig_set(&settings, "sparse.selector=window"); /* its estimates sum to exactly 1 */
    rig_set(&settings, "sparse.target_mass=0");
    rig_set(&settings, "sparse.target_density=1");
    rig_set(&settings, "sparse.max_density=1");
    rig_set(&settings, "sparse.list_memory=1");
    rig_open(&rig, "auto", 2, &settings, &shape);
    rig_fill(&rig, 3, 0);
    rig_step(&rig, 1, true);
    assert_error_below(fabs(rig.sparse->record.captured[0] - 1), 1e-6, "captured");
    assert_true(isnan(rig.sparse->record.missed[0]));
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws_are_uniform),      cmocka_unit_test(test_draws_are_independent),
        cmocka_unit_test(test_draws_share_no_numbers), cmocka_unit_test(test_draws_of_ragged_ranges),
        cmocka_unit_test(test_layer_draws_anew),       cmocka_unit_test(test_measurements),
        cmocka_unit_test(test_nothing_missed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
