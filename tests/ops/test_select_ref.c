/* The reference implementations of selection against independent brute-force formulas, and properties that
 * all lists must have: order, choice among equal estimates, budget, rate of exploration. */
#include "ops/select.h"

#include "base/rng.h"
#include "test.h"

typedef struct SelectCase {
    DsviSelectArgs args;
    DsviLists lists;
    int64_t needed;
} SelectCase;

static void *take(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

static float *random_floats(int64_t count, uint32_t stream)
{
    float *out = take((size_t)count * sizeof *out);
    DsviRng rng = {11, DSVI_RNG_TEST, stream};
    dsvi_rng_fill_normal(rng, 0, out, count);
    return out;
}

/* Creates a case with the sizes in `args`, memory for results and random features. */
static void create(SelectCase *c, DsviSelectArgs args, int64_t capacity)
{
    int64_t pairs = args.batch * args.heads;
    c->args = args;
    c->args.bin_heads = args.heads;
    c->args.proxies = random_floats(pairs * dsvi_select_proxies(&args) * args.features, 1);
    c->args.candidates = random_floats(pairs * dsvi_select_candidates(&args) * args.features, 2);
    c->args.lse = take((size_t)(pairs * dsvi_select_proxies(&args)) * sizeof(float));
    c->args.bin_count = take((size_t)(args.heads * DSVI_SELECT_BINS) * sizeof(double));
    c->args.bin_mass = take((size_t)(args.heads * DSVI_SELECT_BINS) * sizeof(double));
    c->args.selected_mass = take((size_t)args.heads * sizeof(double));
    c->args.workspace_bytes = dsvi_select_workspace_ref(NULL, &args);
    c->args.workspace = take(c->args.workspace_bytes);
    c->lists = (DsviLists){args.batch, args.heads, args.queries,
                           args.keys,  args.group, dsvi_select_groups(&args),
                           args.grain, capacity,   NULL,
                           NULL};
    c->lists.offsets = take((size_t)(dsvi_lists_count(&c->lists) + 1) * sizeof *c->lists.offsets);
    c->lists.spans = take((size_t)(capacity + 1) * sizeof *c->lists.spans);
    c->needed = -1;
    c->args.lists = &c->lists;
    c->args.needed = &c->needed;
}

static void destroy(SelectCase *c)
{
    void *memory[] = {(void *)c->args.proxies, (void *)c->args.candidates, c->args.lse,
                      c->args.bin_count,       c->args.bin_mass,           c->args.selected_mass,
                      c->args.workspace,       c->lists.offsets,           c->lists.spans};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
}

static const DsviSelectArgs SHAPES[] = {
    {.batch = 1,
     .heads = 1,
     .queries = 8,
     .keys = 10,
     .group = 4,
     .chunk = 2,
     .candidate_keys = 1,
     .grain = 1,
     .features = 3,
     .scale = 0.7},
    {.batch = 2,
     .heads = 3,
     .queries = 21,
     .keys = 37,
     .group = 8,
     .chunk = 4,
     .candidate_keys = 1,
     .grain = 1,
     .features = 5,
     .scale = 0.5},
    {.batch = 1,
     .heads = 2,
     .queries = 17,
     .keys = 37,
     .group = 8,
     .chunk = 8,
     .candidate_keys = 1,
     .grain = 5,
     .features = 4,
     .scale = 0.5},
    {.batch = 2,
     .heads = 2,
     .queries = 9,
     .keys = 50,
     .group = 4,
     .chunk = 1,
     .candidate_keys = 4,
     .grain = 8,
     .features = 4,
     .scale = 0.5},
    {.batch = 1,
     .heads = 1,
     .queries = 5,
     .keys = 3,
     .group = 16,
     .chunk = 16,
     .candidate_keys = 4,
     .grain = 4,
     .features = 2,
     .scale = 1},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof SHAPES[0] };

/* Returns the estimates: for each group the mean over its queries, each with the features of its proxy, of
 * the softmax over all candidates. The caller frees them. */
static double *brute_estimates(const SelectCase *c)
{
    const DsviSelectArgs *a = &c->args;
    int64_t candidates = dsvi_select_candidates(a), spans = dsvi_lists_full(&c->lists);
    double *estimate = calloc((size_t)(dsvi_lists_count(&c->lists) * spans), sizeof *estimate);
    double *weight = malloc((size_t)candidates * sizeof *weight);
    for (int64_t pair = 0; pair < a->batch * a->heads; pair++) {
        for (int64_t i = 0; i < a->queries; i++) {
            int64_t g = i / a->group, in_group = a->queries - g * a->group;
            const float *f = a->proxies + (pair * dsvi_select_proxies(a) + i / a->chunk) * a->features;
            double total = 0;
            in_group = in_group < a->group ? in_group : a->group;
            for (int64_t n = 0; n < candidates; n++) {
                double score = 0;
                for (int64_t r = 0; r < a->features; r++)
                    score += (double)f[r] * a->candidates[(pair * candidates + n) * a->features + r];
                total += weight[n] = exp(a->scale * score);
            }
            for (int64_t n = 0; n < candidates; n++)
                estimate[(pair * c->lists.groups + g) * spans + n * a->candidate_keys / a->grain] +=
                    weight[n] / total / (double)in_group;
        }
    }
    free(weight);
    return estimate;
}

/* Rounding the stored lse changes an estimate by about 1e-7; no estimate is so close to the border of a
 * bin. */
static void histogram_is_brute_force(void **state)
{
    (void)state;
    for (int n = 0; n < SHAPE_COUNT; n++) {
        SelectCase c;
        create(&c, SHAPES[n], 1);
        double *estimate = brute_estimates(&c), *count = calloc((size_t)c.args.heads, DSVI_SELECT_BINS * 8);
        double *mass = calloc((size_t)c.args.heads, DSVI_SELECT_BINS * 8);
        int64_t spans = dsvi_lists_full(&c.lists), lists = dsvi_lists_count(&c.lists);
        for (int64_t i = 0; i < lists * spans; i++) {
            int64_t h = i / spans / c.lists.groups % c.args.heads;
            int64_t bin = (int64_t)floor(64 * (log2(estimate[i]) + 32));
            bin = bin < 0 ? 0 : bin > 2047 ? 2047 : bin;
            count[h * DSVI_SELECT_BINS + bin] += 1;
            mass[h * DSVI_SELECT_BINS + bin] += estimate[i];
        }
        assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
        for (int64_t h = 0; h < c.args.heads; h++) {
            double total = 0;
            for (int64_t bin = h * DSVI_SELECT_BINS; bin < (h + 1) * DSVI_SELECT_BINS; bin++) {
                assert_true(c.args.bin_count[bin] == count[bin]);
                assert_error_below(fabs(c.args.bin_mass[bin] - mass[bin]), 1e-6 * (1 + mass[bin]), "bin");
                total += c.args.bin_mass[bin];
            }
            assert_error_below(fabs(total - (double)(c.args.batch * c.lists.groups)), 1e-5, "head's mass");
        }
        free(estimate);
        free(count);
        free(mass);
        destroy(&c);
    }
}

/* With NaN inputs the operations still return some histogram and some lists. Other code reports that training
 * has diverged. */
static void not_a_number(void **state)
{
    SelectCase c;
    float threshold[3];
    (void)state;
    create(&c, SHAPES[1], 10000);
    ((float *)c.args.candidates)[0] = NAN;
    assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
    double spans = 0;
    for (int64_t i = 0; i < c.args.heads * DSVI_SELECT_BINS; i++)
        spans += c.args.bin_count[i];
    assert_true(spans == (double)(dsvi_lists_count(&c.lists) * dsvi_lists_full(&c.lists)));
    DsviSelectThresholdArgs found = {3, 3, c.args.bin_count, c.args.bin_mass, 0.9, 0.2, threshold};
    assert_ok(dsvi_select_threshold_ref(NULL, &found));
    c.args.threshold = threshold;
    assert_ok(dsvi_select_lists_ref(NULL, &c.args));
    assert_in_range(c.needed, dsvi_lists_count(&c.lists), 10000);
    destroy(&c);
}

static void one_histogram_of_all_heads(void **state)
{
    SelectCase c;
    double each[DSVI_SELECT_BINS] = {0};
    (void)state;
    create(&c, SHAPES[1], 1);
    assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
    for (int64_t i = 0; i < c.args.heads * DSVI_SELECT_BINS; i++)
        each[i % DSVI_SELECT_BINS] += c.args.bin_count[i];
    c.args.bin_heads = 1;
    assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
    assert_memory_equal(c.args.bin_count, each, sizeof each);
    c.args.bin_heads = 2;
    assert_fails(DSV_E_SHAPE, "2 of 3 heads", dsvi_select_histogram_ref(NULL, &c.args));
    destroy(&c);
}

static void clear_offsets(SelectCase *c)
{
    memset(c->lists.offsets, 0xff, (size_t)(dsvi_lists_count(&c->lists) + 1) * sizeof *c->lists.offsets);
}

/* Runs select_lists and checks the properties that all lists have. */
static void select_lists(SelectCase *c)
{
    clear_offsets(c);
    assert_ok(dsvi_select_lists_ref(NULL, &c->args));
    assert_int_equal(c->lists.offsets[0], 0);
    assert_int_equal(c->lists.offsets[dsvi_lists_count(&c->lists)], c->needed);
    for (int64_t n = 0; n < dsvi_lists_count(&c->lists); n++) {
        assert_true(c->lists.offsets[n + 1] > c->lists.offsets[n]);
        for (int64_t at = c->lists.offsets[n]; at < c->lists.offsets[n + 1] && at < c->lists.capacity; at++) {
            int32_t run = c->lists.spans[at];
            assert_true(run >= 0 && run < dsvi_lists_full(&c->lists));
            assert_true(at == c->lists.offsets[n] || run > c->lists.spans[at - 1]);
        }
    }
}

/* Fails unless the lists hold exactly the marked spans and selected_mass is the sum of their estimates. */
static void check_lists(const SelectCase *c, const double *estimate, const bool *marked)
{
    int64_t spans = dsvi_lists_full(&c->lists), at = 0;
    double mass[8] = {0};
    for (int64_t n = 0; n < dsvi_lists_count(&c->lists); n++) {
        for (int64_t r = 0; r < spans; r++) {
            if (!marked[n * spans + r])
                continue;
            assert_true(at < c->needed);
            assert_int_equal(c->lists.spans[at++], r);
            mass[n / c->lists.groups % c->args.heads] += estimate[n * spans + r];
        }
        assert_int_equal(c->lists.offsets[n + 1], at);
    }
    for (int64_t h = 0; h < c->args.heads; h++)
        assert_error_below(fabs(c->args.selected_mass[h] - mass[h]), 1e-5, "selected mass");
}

static void threshold_is_brute_force(void **state)
{
    (void)state;
    /* Thresholds in units of the mean estimate; instead of the last, the threshold is 2, which no estimate
     * reaches, so that only the largest estimate is selected. */
    const double quantile[] = {0, 0.3, 0.8, 1.5};
    for (int n = 0; n < SHAPE_COUNT * 4; n++) {
        SelectCase c;
        create(&c, SHAPES[n / 4], 10000);
        int64_t spans = dsvi_lists_full(&c.lists), lists = dsvi_lists_count(&c.lists);
        float threshold[8];
        bool *marked = calloc((size_t)(lists * spans), sizeof *marked);
        double *estimate = brute_estimates(&c);
        for (int64_t h = 0; h < c.args.heads; h++)
            threshold[h] = n % 4 == 3 ? 2 : (float)(quantile[n % 4] * (1 + 0.1 * (double)h) / (double)spans);
        for (int64_t list = 0; list < lists; list++) {
            int64_t best = list * spans;
            for (int64_t i = list * spans; i < (list + 1) * spans; i++) {
                marked[i] = estimate[i] >= threshold[list / c.lists.groups % c.args.heads];
                best = estimate[i] > estimate[best] ? i : best;
            }
            marked[best] = true;
        }
        c.args.threshold = threshold;
        assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
        select_lists(&c);
        check_lists(&c, estimate, marked);
        free(marked);
        free(estimate);
        destroy(&c);
    }
}

static const double *sorted_estimates;

static int larger_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    double difference = sorted_estimates[y] - sorted_estimates[x];
    return difference > 0 ? 1 : difference < 0 ? -1 : (x > y) - (x < y);
}

static void topk_is_brute_force(void **state)
{
    (void)state;
    for (int n = 0; n < SHAPE_COUNT * 4; n++) {
        SelectCase c;
        create(&c, SHAPES[n / 4], 10000);
        int64_t spans = dsvi_lists_full(&c.lists), lists = dsvi_lists_count(&c.lists);
        int32_t topk[8];
        bool *marked = calloc((size_t)(lists * spans), sizeof *marked);
        int64_t *order = malloc((size_t)spans * sizeof *order);
        double *estimate = brute_estimates(&c);
        for (int64_t h = 0; h < c.args.heads; h++)
            topk[h] = (int32_t)(n % 4 == 0 ? 0 : n % 4 == 3 ? 1000 : n % 4 * 2 + h);
        for (int64_t list = 0; list < lists; list++) {
            int64_t k = topk[list / c.lists.groups % c.args.heads];
            sorted_estimates = estimate + list * spans;
            for (int64_t r = 0; r < spans; r++)
                order[r] = r;
            qsort(order, (size_t)spans, sizeof *order, larger_first);
            for (int64_t r = 0; r < spans; r++)
                marked[list * spans + order[r]] = r == 0 || r < k;
        }
        c.args.topk = topk;
        assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
        select_lists(&c);
        check_lists(&c, estimate, marked);
        free(marked);
        free(order);
        free(estimate);
        destroy(&c);
    }
}

/* With features and lse of zero every estimate is exactly 1. A threshold of 1 selects all spans, a larger
 * threshold only the span with the lowest number, and top-k the k lowest numbers. */
static void ties(void **state)
{
    (void)state;
    DsviSelectArgs shape = {.batch = 1,
                            .heads = 2,
                            .queries = 6,
                            .keys = 16,
                            .group = 4,
                            .chunk = 4,
                            .candidate_keys = 1,
                            .grain = 1,
                            .features = 2,
                            .scale = 1};
    SelectCase c;
    float threshold[2] = {1, 1.5f};
    int32_t topk[2] = {5, 16};
    create(&c, shape, 100);
    memset((void *)c.args.candidates, 0, 2 * 16 * 2 * sizeof(float));
    memset(c.args.lse, 0, 4 * sizeof(float));
    c.args.threshold = threshold;
    select_lists(&c);
    assert_int_equal(c.needed, 2 * 16 + 2 * 1);
    assert_int_equal(c.lists.spans[32], 0);
    assert_int_equal(c.lists.spans[33], 0);
    c.args.threshold = NULL;
    c.args.topk = topk;
    select_lists(&c);
    assert_int_equal(c.needed, 2 * 5 + 2 * 16);
    for (int i = 0; i < 5; i++)
        assert_int_equal(c.lists.spans[i], i);
    destroy(&c);
}

static void too_small_a_capacity(void **state)
{
    (void)state;
    SelectCase c;
    float threshold[3] = {0, 0, 0};
    create(&c, SHAPES[1], 100);
    c.args.threshold = threshold;
    assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
    c.lists.spans[100] = -7;
    clear_offsets(&c);
    assert_ok(dsvi_select_lists_ref(NULL, &c.args));
    assert_int_equal(c.needed, 2 * 3 * 3 * 37);
    for (int64_t n = 0; n <= dsvi_lists_count(&c.lists); n++)
        assert_int_equal(c.lists.offsets[n], 0);
    assert_int_equal(c.lists.spans[100], -7);
    destroy(&c);
}

/* Returns the number of explored spans, those in lists that the rule alone would not select, and marks
 * them. */
static int64_t explore(SelectCase *c, DsviExplore kind, double rate, uint64_t step, bool *listed)
{
    int64_t spans = dsvi_lists_full(&c->lists);
    c->args.explore = kind;
    c->args.explore_rate = rate;
    c->args.explore_seed = 5;
    c->args.explore_step = step;
    select_lists(c);
    assert_true(c->needed <= c->lists.capacity);
    memset(listed, 0, (size_t)(dsvi_lists_count(&c->lists) * spans) * sizeof *listed);
    for (int64_t n = 0; n < dsvi_lists_count(&c->lists); n++)
        for (int64_t at = c->lists.offsets[n]; at < c->lists.offsets[n + 1]; at++)
            listed[n * spans + c->lists.spans[at]] = true;
    return c->needed;
}

typedef struct ExploreRow {
    DsviExplore kind;
    int64_t grain;
} ExploreRow;

/* Exploration draws the fraction `rate` of the units that may be drawn, within five standard deviations of
 * the binomial distribution. */
static void exploration(void **state)
{
    (void)state;
    static const ExploreRow rows[] = {{DSVI_EXPLORE_RANDOM, 1},     {DSVI_EXPLORE_RANDOM, 3},
                                      {DSVI_EXPLORE_NEIGHBOURS, 1}, {DSVI_EXPLORE_NEIGHBOURS, 2},
                                      {DSVI_EXPLORE_BLOCKS, 1},     {DSVI_EXPLORE_BLOCKS, 7},
                                      {DSVI_EXPLORE_BLOCKS, 128}};
    for (size_t n = 0; n < sizeof rows / sizeof rows[0]; n++) {
        const double rate = 0.3;
        DsviSelectArgs shape = {.batch = 2,
                                .heads = 2,
                                .queries = 160,
                                .keys = 1000,
                                .group = 16,
                                .chunk = 16,
                                .candidate_keys = 1,
                                .grain = rows[n].grain,
                                .features = 2,
                                .scale = 1};
        SelectCase c;
        int32_t topk[2] = {2, 3};
        create(&c, shape, 2 * 2 * 10 * 1000);
        int64_t spans = dsvi_lists_full(&c.lists), lists = dsvi_lists_count(&c.lists);
        bool *winner = malloc((size_t)(lists * spans)), *first = malloc((size_t)(lists * spans));
        bool *again = malloc((size_t)(lists * spans));
        c.args.topk = topk;
        assert_ok(dsvi_select_histogram_ref(NULL, &c.args));
        explore(&c, DSVI_EXPLORE_NONE, rate, 1, winner);
        explore(&c, rows[n].kind, rate, 1, first);
        double able = 0, drawn = 0;
        for (int64_t i = 0; i < lists * spans; i++) {
            int64_t r = i % spans, block = r * rows[n].grain / 64;
            bool beside = (r > 0 && winner[i - 1]) || (r + 1 < spans && winner[i + 1]);
            bool may = !winner[i] && (rows[n].kind != DSVI_EXPLORE_NEIGHBOURS || beside);
            assert_true(first[i] || !winner[i]);
            assert_true(may || first[i] == winner[i]);
            if (rows[n].kind == DSVI_EXPLORE_BLOCKS) { /* whole blocks are drawn: count first spans only */
                int64_t same = i;
                while (same % spans > 0 && (same % spans - 1) * rows[n].grain / 64 == block)
                    same--;
                assert_true(winner[i] || winner[same] || first[i] == first[same]);
                may = may && same == i;
            }
            able += may;
            drawn += may && first[i];
        }
        assert_true(able >= 80);
        assert_error_below(fabs(drawn - rate * able), 5 * sqrt(able * rate * (1 - rate)), "row %zu: rate", n);
        explore(&c, rows[n].kind, rate, 1, again);
        assert_memory_equal(first, again, (size_t)(lists * spans));
        explore(&c, rows[n].kind, rate, 2, again);
        assert_memory_not_equal(first, again, (size_t)(lists * spans));
        if (rows[n].kind != DSVI_EXPLORE_NEIGHBOURS)
            assert_int_equal(explore(&c, rows[n].kind, 1, 1, again), lists * spans);
        explore(&c, rows[n].kind, 0, 1, again);
        assert_memory_equal(winner, again, (size_t)(lists * spans));
        free(winner);
        free(first);
        free(again);
        destroy(&c);
    }
}

enum { B = 2, S = 11, N = 3, D = 4, R = 2, CHUNK = 4, CHUNKS = 3, OFFSET = 1, STRIDE = 3 };

static void covariance_is_brute_force(void **state)
{
    (void)state;
    float *x = random_floats(B * S * N * D, 3), second[N * D * D], first[N * D];
    for (int i = 0; i < N * D * D; i++)
        second[i] = 1;
    for (int i = 0; i < N * D; i++)
        first[i] = 2;
    DsviSelectCovarianceArgs args = {B,      N,    S, D, OFFSET, STRIDE, DSVI_F32, dsvi_heads(x, S, N, D),
                                     second, first};
    assert_ok(dsvi_select_covariance_ref(NULL, &args));
    for (int n = 0; n < N * D * D; n++) {
        int h = n / D / D, i = n / D % D, j = n % D;
        double sum2 = 1, sum1 = 2;
        for (int row = 0; row < B * S; row++) {
            const float *values = x + (row * N + h) * D;
            if (row % S % STRIDE != OFFSET)
                continue;
            sum2 += (double)values[i] * values[j];
            sum1 += values[i];
        }
        assert_error_below(fabs(second[n] - sum2), 1e-5, "second moment %d", n);
        assert_error_below(fabs(first[n / D] - sum1), 1e-5, "first moment %d", n / D);
    }
    free(x);
}

static void features_are_brute_force(void **state)
{
    (void)state;
    float *x = random_floats(B * S * N * D, 3), *p = random_floats(N * D * R, 4);
    float y[B * N * CHUNKS * R], mean[B * N * CHUNKS * D];
    DsviSelectFeaturesArgs args = {B, N, S, D, CHUNK, R, DSVI_F32, dsvi_heads(x, S, N, D), p, y};
    assert_ok(dsvi_select_features_ref(NULL, &args));
    args.projection = NULL;
    args.features = D;
    args.y = mean;
    assert_ok(dsvi_select_features_ref(NULL, &args));
    for (int n = 0; n < B * N * CHUNKS; n++) {
        int b = n / CHUNKS / N, h = n / CHUNKS % N, c = n % CHUNKS, rows = c == 2 ? 3 : 4;
        double projected[R] = {0};
        for (int d = 0; d < D; d++) {
            double sum = 0;
            for (int s = c * CHUNK; s < c * CHUNK + rows; s++)
                sum += x[((b * S + s) * N + h) * D + d];
            assert_error_below(fabs(mean[n * D + d] - sum / rows), 1e-6, "mean %d of row %d", d, n);
            for (int r = 0; r < R; r++)
                projected[r] += sum / rows * p[(h * D + d) * R + r];
        }
        for (int r = 0; r < R; r++)
            assert_error_below(fabs(y[n * R + r] - projected[r]), 1e-6, "feature %d of row %d", r, n);
    }
    free(x);
    free(p);
}

static void refuses_bad_shapes(void **state)
{
    (void)state;
    SelectCase c;
    float threshold[1] = {0};
    int32_t topk[1] = {1};
    create(&c, SHAPES[0], 100);
    assert_fails(DSV_E_USAGE, "exactly one of", dsvi_select_lists_ref(NULL, &c.args));
    c.args.threshold = threshold;
    c.args.topk = topk;
    assert_fails(DSV_E_USAGE, "exactly one of", dsvi_select_lists_ref(NULL, &c.args));
    c.args.topk = NULL;
    c.lists.grain = 2;
    assert_fails(DSV_E_SHAPE, "lists to fill", dsvi_select_lists_ref(NULL, &c.args));
    c.args.chunk = 3;
    assert_fails(DSV_E_SHAPE, "chunk is 3", dsvi_select_histogram_ref(NULL, &c.args));
    c.args.chunk = 2;
    c.args.candidate_keys = 2;
    assert_fails(DSV_E_SHAPE, "grain", dsvi_select_histogram_ref(NULL, &c.args));
    destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(histogram_is_brute_force),
        cmocka_unit_test(one_histogram_of_all_heads),
        cmocka_unit_test(not_a_number),
        cmocka_unit_test(threshold_is_brute_force),
        cmocka_unit_test(topk_is_brute_force),
        cmocka_unit_test(ties),
        cmocka_unit_test(too_small_a_capacity),
        cmocka_unit_test(exploration),
        cmocka_unit_test(covariance_is_brute_force),
        cmocka_unit_test(features_are_brute_force),
        cmocka_unit_test(refuses_bad_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
