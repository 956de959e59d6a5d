/* Thresholds that are computed from histograms, compared with the values from which the histograms were
 * made. */
#include "test.h"

#include "base/rng.h"
#include "ops/select.h"

enum { HEADS = 3, VALUES = 500 };

typedef struct Estimates {
    double value[HEADS][VALUES];
    double count[HEADS * DSVI_SELECT_BINS], mass[HEADS * DSVI_SELECT_BINS];
} Estimates;

/* Fills in estimates that spread over many octaves, more octaves for later heads; with `zeros` some are
 * zero. */
static void fill(Estimates *e, uint64_t seed, bool zeros)
{
    DsviRng rng = {seed, DSVI_RNG_TEST, 0};
    memset(e, 0, sizeof *e);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < VALUES; i++) {
            double x = exp2(-12 + 3 * (h + 1) * dsvi_rng_normal(rng, (uint64_t)(h * VALUES + i)));
            e->value[h][i] = x = zeros && i % 7 == 0 ? 0 : x < 1 ? x : 1;
            double bin = floor((log2(x) + DSVI_SELECT_OCTAVES) * DSVI_SELECT_PER_OCTAVE);
            int at = h * DSVI_SELECT_BINS + (int)(bin < 0                      ? 0
                                                  : bin > DSVI_SELECT_BINS - 1 ? DSVI_SELECT_BINS - 1
                                                                               : bin);
            e->count[at] += 1;
            e->mass[at] += x;
        }
    }
}

/* Computes which fraction of the spans and of the mass is at or above the threshold. */
static void reach(const Estimates *e, double threshold, double *count, double *mass)
{
    double all = 0;
    *count = *mass = 0;
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < VALUES; i++) {
            all += e->value[h][i];
            *count += e->value[h][i] >= threshold;
            *mass += e->value[h][i] >= threshold ? e->value[h][i] : 0;
        }
    }
    *count /= HEADS * VALUES;
    *mass /= all;
}

static void test_mass_is_reached_and_not_by_a_bin_more(void **state)
{
    static Estimates e;
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        fill(&e, seed, seed % 2);
        for (double share = 0.05; share < 1; share += 0.09) {
            double count, mass, fewer, less;
            DsviThreshold t = dsvi_threshold_for_mass(e.count, e.mass, HEADS, share);
            reach(&e, t.value, &count, &mass);
            assert_true(mass >= share - 1e-12);
            assert_error_below(fabs(mass - t.mass), 1e-12, "mass");
            assert_error_below(fabs(count - t.count), 1e-12, "count");
            reach(&e, t.value * exp2(1.001 / DSVI_SELECT_PER_OCTAVE), &fewer, &less);
            assert_true(less < share);
        }
    }
}

static void test_count_is_met_within_a_bin(void **state)
{
    static Estimates e;
    const double bin = exp2(1.001 / DSVI_SELECT_PER_OCTAVE);
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        fill(&e, seed, false);
        for (double share = 0.05; share < 1; share += 0.09) {
            double fewer, more, less, greater;
            DsviThreshold t = dsvi_threshold_for_count(e.count, e.mass, HEADS, share);
            reach(&e, t.value * bin, &fewer, &less);
            reach(&e, t.value / bin, &more, &greater);
            assert_true(fewer <= share && share <= more);
            assert_true(less - 1e-12 <= t.mass && t.mass <= greater + 1e-12);
            assert_error_below(fabs(t.count - share), 1e-12, "count");
        }
    }
}

/* Diffuse attention: estimates are normally distributed, nearly all within six bins. A threshold at the
 * border of a bin would miss the requested count by far. */
static void test_count_inside_a_bin(void **state)
{
    enum { RUNS = 200000 };
    static double count[DSVI_SELECT_BINS], mass[DSVI_SELECT_BINS], place[RUNS];
    DsviRng rng = {5, DSVI_RNG_TEST, 0};
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        place[i] = 1000.4 + 1.3 * dsvi_rng_normal(rng, (uint64_t)i);
        count[(int)place[i]] += 1;
        mass[(int)place[i]] += exp2(place[i] / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES);
    }
    for (double share = 0.02; share < 1; share += 0.04) {
        double reached = 0;
        DsviThreshold t = dsvi_threshold_for_count(count, mass, 1, share);
        for (int i = 0; i < RUNS; i++)
            reached += exp2(place[i] / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES) >= t.value;
        /* error of linear interpolation inside a bin, in the tail of a normal distribution */
        assert_error_below(fabs(reached / RUNS - share), 0.05 * share, "share %.2f", share);
    }
}

static void test_target_of_everything(void **state)
{
    static Estimates e;
    (void)state;
    fill(&e, 1, true);
    DsviThreshold t = dsvi_threshold_for_mass(e.count, e.mass, HEADS, 1);
    assert_true(t.value == 0);
    assert_true(t.count == 1 && t.mass == 1);
    t = dsvi_threshold_for_count(e.count, e.mass, HEADS, 1);
    assert_true(t.value == 0);
    assert_true(t.count == 1);
}

/* Equal estimates are in one bin: a target mass selects the whole bin, a target count a part of its width. */
static void test_equal_estimates(void **state)
{
    static double count[DSVI_SELECT_BINS], mass[DSVI_SELECT_BINS];
    (void)state;
    count[1000] = 64;
    mass[1000] = 1;
    DsviThreshold t = dsvi_threshold_for_mass(count, mass, 1, 0.3);
    assert_true(t.count == 1);
    t = dsvi_threshold_for_count(count, mass, 1, 0.3);
    double place = (log2((double)t.value) + DSVI_SELECT_OCTAVES) * DSVI_SELECT_PER_OCTAVE;
    assert_error_below(fabs(place - 1000.7), 1e-4, "place in the bin");
}

/* For narrow attention few spans hold the target mass. For wide attention the bound on the number of spans
 * decides. */
static void test_mass_within_a_count(void **state)
{
    static double count[DSVI_SELECT_BINS], mass[DSVI_SELECT_BINS];
    float threshold;
    DsviSelectThresholdArgs args = {1, 1, count, mass, 0.9, 0.2, &threshold};
    (void)state;
    count[1900] = 10, mass[1900] = 0.95;
    count[1000] = 90, mass[1000] = 0.05;
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_mass(count, mass, 1, 0.9).value);
    mass[1900] = 0.4, mass[1000] = 0.6;
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_count(count, mass, 1, 0.2).value);
    args.span_fraction = 1; /* no bound on the number of spans: the whole lower bin too */
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_mass(count, mass, 1, 0.9).value);
    args.mass_fraction = 1, args.span_fraction = 0.2; /* bound on the number of spans alone */
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_count(count, mass, 1, 0.2).value);
    args.span_fraction = 1;
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == 0);
}

/* Two heads share one threshold: a head with narrow attention leaves spans to a head with wide attention. */
static void test_heads_share(void **state)
{
    static double count[2 * DSVI_SELECT_BINS], mass[2 * DSVI_SELECT_BINS];
    (void)state;
    count[1900] = 10, mass[1900] = 0.9; /* head 0: ten keys hold nearly all */
    count[1000] = 90, mass[1000] = 0.1;
    count[DSVI_SELECT_BINS + 1500] = 50, mass[DSVI_SELECT_BINS + 1500] = 0.95;
    count[DSVI_SELECT_BINS + 900] = 50, mass[DSVI_SELECT_BINS + 900] = 0.05;
    DsviThreshold t = dsvi_threshold_for_count(count, mass, 2, 0.3);
    assert_true(t.count == 60 / 200.0);
    assert_error_below(fabs(t.mass - 1.85 / 2), 1e-12, "mass");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass_is_reached_and_not_by_a_bin_more),
        cmocka_unit_test(test_count_is_met_within_a_bin),
        cmocka_unit_test(test_count_inside_a_bin),
        cmocka_unit_test(test_target_of_everything),
        cmocka_unit_test(test_equal_estimates),
        cmocka_unit_test(test_mass_within_a_count),
        cmocka_unit_test(test_heads_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
