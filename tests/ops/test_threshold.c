/* Thresholds from histograms: against brute force over the values the histogram was made of. */
#include "test.h"

#include "base/rng.h"
#include "ops/select.h"

enum { HEADS = 3, VALUES = 500 };

typedef struct Estimates {
    double value[HEADS][VALUES];
    double count[HEADS * DSV_SELECT_BINS], mass[HEADS * DSV_SELECT_BINS];
} Estimates;

/* Values spread over many octaves, more so for later heads; some exactly zero where asked. */
static void fill(Estimates *e, uint64_t seed, bool zeros)
{
    DsvRng rng = {seed, DSV_RNG_TEST, 0};
    memset(e, 0, sizeof *e);
    for (int h = 0; h < HEADS; h++) {
        for (int i = 0; i < VALUES; i++) {
            double x = exp2(-12 + 3 * (h + 1) * dsvi_rng_normal(rng, (uint64_t)(h * VALUES + i)));
            e->value[h][i] = x = zeros && i % 7 == 0 ? 0 : x < 1 ? x : 1;
            double bin = floor((log2(x) + DSV_SELECT_OCTAVES) * DSV_SELECT_PER_OCTAVE);
            int at = h * DSV_SELECT_BINS +
                     (int)(bin < 0 ? 0 : bin > DSV_SELECT_BINS - 1 ? DSV_SELECT_BINS - 1 : bin);
            e->count[at] += 1;
            e->mass[at] += x;
        }
    }
}

/* Share of runs and mass at or above the threshold. */
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
            DsvThreshold t = dsvi_threshold_for_mass(e.count, e.mass, HEADS, share);
            reach(&e, t.value, &count, &mass);
            assert_true(mass >= share - 1e-12);
            assert_error_below(fabs(mass - t.mass), 1e-12, "mass");
            assert_error_below(fabs(count - t.count), 1e-12, "count");
            reach(&e, t.value * exp2(1.001 / DSV_SELECT_PER_OCTAVE), &fewer, &less);
            assert_true(less < share);
        }
    }
}

static void test_count_is_met_within_a_bin(void **state)
{
    static Estimates e;
    const double bin = exp2(1.001 / DSV_SELECT_PER_OCTAVE);
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        fill(&e, seed, false);
        for (double share = 0.05; share < 1; share += 0.09) {
            double fewer, more, less, greater;
            DsvThreshold t = dsvi_threshold_for_count(e.count, e.mass, HEADS, share);
            reach(&e, t.value * bin, &fewer, &less);
            reach(&e, t.value / bin, &more, &greater);
            assert_true(fewer <= share && share <= more);
            assert_true(less - 1e-12 <= t.mass && t.mass <= greater + 1e-12);
            assert_error_below(fabs(t.count - share), 1e-12, "count");
        }
    }
}

/* Diffuse attention: normal estimates, nearly all within six bins. A bin more or less would miss by far. */
static void test_count_inside_a_bin(void **state)
{
    enum { RUNS = 200000 };
    static double count[DSV_SELECT_BINS], mass[DSV_SELECT_BINS], place[RUNS];
    DsvRng rng = {5, DSV_RNG_TEST, 0};
    (void)state;
    for (int i = 0; i < RUNS; i++) {
        place[i] = 1000.4 + 1.3 * dsvi_rng_normal(rng, (uint64_t)i);
        count[(int)place[i]] += 1;
        mass[(int)place[i]] += exp2(place[i] / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
    }
    for (double share = 0.02; share < 1; share += 0.04) {
        double reached = 0;
        DsvThreshold t = dsvi_threshold_for_count(count, mass, 1, share);
        for (int i = 0; i < RUNS; i++)
            reached += exp2(place[i] / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES) >= t.value;
        /* what a straight line inside a bin leaves of the tail of a normal distribution */
        assert_error_below(fabs(reached / RUNS - share), 0.05 * share, "share %.2f", share);
    }
}

static void test_all_of_it(void **state)
{
    static Estimates e;
    (void)state;
    fill(&e, 1, true);
    DsvThreshold t = dsvi_threshold_for_mass(e.count, e.mass, HEADS, 1);
    assert_true(t.value == 0);
    assert_true(t.count == 1 && t.mass == 1);
    t = dsvi_threshold_for_count(e.count, e.mass, HEADS, 1);
    assert_true(t.value == 0);
    assert_true(t.count == 1);
}

/* Equal estimates share a bin: a mass takes all, a count its part of the bin's width. */
static void test_equal_estimates(void **state)
{
    static double count[DSV_SELECT_BINS], mass[DSV_SELECT_BINS];
    (void)state;
    count[1000] = 64;
    mass[1000] = 1;
    DsvThreshold t = dsvi_threshold_for_mass(count, mass, 1, 0.3);
    assert_true(t.count == 1);
    t = dsvi_threshold_for_count(count, mass, 1, 0.3);
    double place = (log2((double)t.value) + DSV_SELECT_OCTAVES) * DSV_SELECT_PER_OCTAVE;
    assert_error_below(fabs(place - 1000.7), 1e-4, "place in the bin");
}

/* Few runs hold the mass of narrow attention; that of wide attention takes more than there may be. */
static void test_mass_within_a_count(void **state)
{
    static double count[DSV_SELECT_BINS], mass[DSV_SELECT_BINS];
    float threshold;
    DsvSelectThresholdArgs args = {1, 1, count, mass, 0.9, 0.2, &threshold};
    (void)state;
    count[1900] = 10, mass[1900] = 0.95;
    count[1000] = 90, mass[1000] = 0.05;
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_mass(count, mass, 1, 0.9).value);
    mass[1900] = 0.4, mass[1000] = 0.6;
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_count(count, mass, 1, 0.2).value);
    args.run_share = 1; /* no bound: all of the lower bin too */
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_mass(count, mass, 1, 0.9).value);
    args.mass_share = 1, args.run_share = 0.2; /* of the runs alone */
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == dsvi_threshold_for_count(count, mass, 1, 0.2).value);
    args.run_share = 1;
    assert_ok(dsvi_select_threshold_ref(NULL, &args));
    assert_true(threshold == 0);
}

/* One head's bins alone: the threshold is common, so a narrow head gives its share to a wide one. */
static void test_heads_share(void **state)
{
    static double count[2 * DSV_SELECT_BINS], mass[2 * DSV_SELECT_BINS];
    (void)state;
    count[1900] = 10, mass[1900] = 0.9;   /* head 0: ten keys hold nearly all */
    count[1000] = 90, mass[1000] = 0.1;
    count[DSV_SELECT_BINS + 1500] = 50, mass[DSV_SELECT_BINS + 1500] = 0.95;
    count[DSV_SELECT_BINS + 900] = 50, mass[DSV_SELECT_BINS + 900] = 0.05;
    DsvThreshold t = dsvi_threshold_for_count(count, mass, 2, 0.3);
    assert_true(t.count == 60 / 200.0);
    assert_error_below(fabs(t.mass - 1.85 / 2), 1e-12, "mass");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass_is_reached_and_not_by_a_bin_more),
        cmocka_unit_test(test_count_is_met_within_a_bin),
        cmocka_unit_test(test_count_inside_a_bin),
        cmocka_unit_test(test_all_of_it),
        cmocka_unit_test(test_equal_estimates),
        cmocka_unit_test(test_mass_within_a_count),
        cmocka_unit_test(test_heads_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
