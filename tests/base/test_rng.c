/* Random numbers: published test vectors of Philox, and distributions made from Philox. */
#include "base/rng.h"

#include "test.h"

/* kat_vectors of Random123 (D. E. Shaw Research), philox4x32 with 10 rounds. */
static void words_are_philox(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], words[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t words[4];
        DsviRng rng = {.seed = (uint64_t)known[i].key[1] << 32 | known[i].key[0],
                       .purpose = known[i].counter[2],
                       .stream = known[i].counter[3]};
        dsvi_rng_words(rng, (uint64_t)known[i].counter[1] << 32 | known[i].counter[0], words);
        assert_memory_equal(words, known[i].words, sizeof words);
    }
}

/* These values must not change: a run that resumes from an older checkpoint depends on them. */
static void purposes_keep_their_numbers(void **state)
{
    (void)state;
    assert_int_equal(DSVI_RNG_INIT, 0);
    assert_int_equal(DSVI_RNG_NOISE, 1);
    assert_int_equal(DSVI_RNG_TIMESTEP, 2);
    assert_int_equal(DSVI_RNG_DATA, 3);
    assert_int_equal(DSVI_RNG_TEXT, 4);
    assert_int_equal(DSVI_RNG_EXPLORE, 5);
    assert_int_equal(DSVI_RNG_PROFILE, 6);
    assert_int_equal(DSVI_RNG_TEST, 7);
    assert_int_equal(DSVI_RNG_SAMPLE, 8);
}

/* Changing any input bit of a number changes about half of its 128 bits: never fewer than 30, six standard
 * deviations below 64. */
static void every_input_matters(void **state)
{
    DsviRng rng = {.seed = 12345, .purpose = DSVI_RNG_TEST, .stream = 3};
    uint32_t base[4];
    (void)state;
    dsvi_rng_words(rng, 77, base);
    for (int bit = 0; bit < 192; bit++) {
        DsviRng other = rng;
        uint64_t index = 77;
        uint32_t words[4];
        int changed = 0;
        if (bit < 64)
            other.seed ^= UINT64_C(1) << bit;
        else if (bit < 96)
            other.purpose ^= UINT32_C(1) << (bit - 64);
        else if (bit < 128)
            other.stream ^= UINT32_C(1) << (bit - 96);
        else
            index ^= UINT64_C(1) << (bit - 128);
        dsvi_rng_words(other, index, words);
        for (int i = 0; i < 4; i++)
            changed += __builtin_popcount(words[i] ^ base[i]);
        assert_in_range(changed, 30, 98);
    }
}

/* The mean of n uniforms is within 5 standard deviations, 1 / sqrt(12 n), of 1/2; the mean of squares within
 * 5 times sqrt(4 / 45 n) of 1/3. */
static void uniforms_fill_the_interval(void **state)
{
    enum { N = 100000, CELLS = 10 };
    DsviRng rng = {.seed = 1, .purpose = DSVI_RNG_TEST};
    double sum = 0, squares = 0;
    int cell[CELLS] = {0};
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double u = dsvi_rng_uniform(rng, i);
        assert_true(u >= 0 && u < 1);
        sum += u;
        squares += u * u;
        cell[(int)(u * CELLS)]++;
    }
    assert_error_below(fabs(sum / N - 0.5), 5 / sqrt(12.0 * N), "mean");
    assert_error_below(fabs(squares / N - 1.0 / 3), 5 * sqrt(4 / (45.0 * N)), "mean of squares");
    for (int i = 0; i < CELLS; i++) /* binomial, p = 1 / CELLS */
        assert_error_below(fabs((double)cell[i] - (double)N / CELLS), 5 * sqrt(N * 0.1 * 0.9), "cell %d", i);
}

static void below_takes_every_value(void **state)
{
    enum { N = 7, DRAWS = 70000 };
    DsviRng rng = {.seed = 2, .purpose = DSVI_RNG_TEST};
    int seen[N] = {0};
    (void)state;
    for (uint64_t i = 0; i < DRAWS; i++) {
        uint64_t drawn = dsvi_rng_below(rng, i, N);
        assert_true(drawn < N);
        seen[drawn]++;
        assert_int_equal(dsvi_rng_below(rng, i, 1), 0);
        assert_true(dsvi_rng_below(rng, i, UINT64_MAX) < UINT64_MAX);
    }
    for (int i = 0; i < N; i++)
        assert_error_below(fabs(seen[i] - 1.0 * DRAWS / N), 5 * sqrt(DRAWS * 6.0 / 49), "value %d", i);
}

/* Moments of n normals are within 5 standard deviations; the variances of x, x^2, x^3 and x^4 are 1, 2, 15
 * and 96. Neighbours, which share one Philox block, are uncorrelated. */
static void normals_have_their_moments(void **state)
{
    enum { N = 100000 };
    static const double want[] = {0, 1, 0, 3}, variance[] = {1, 2, 15, 96};
    DsviRng rng = {.seed = 3, .purpose = DSVI_RNG_TEST};
    double sum[4] = {0}, product = 0;
    (void)state;
    for (uint64_t i = 0; i < N; i++) {
        double x = dsvi_rng_normal(rng, i), power = 1;
        assert_true(isfinite(x));
        for (int k = 0; k < 4; k++)
            sum[k] += power *= x;
        if (i % 2)
            product += x * dsvi_rng_normal(rng, i - 1);
    }
    for (int k = 0; k < 4; k++)
        assert_error_below(fabs(sum[k] / N - want[k]), 5 * sqrt(variance[k] / N), "moment %d", k + 1);
    assert_error_below(fabs(product / (N / 2)), 5 * sqrt(1 / (N / 2.0)), "correlation");
}

static void fill_is_the_same_however_split(void **state)
{
    enum { N = 101 };
    DsviRng rng = {.seed = 4, .purpose = DSVI_RNG_TEST, .stream = 9};
    float whole[N], parts[N + 1];
    (void)state;
    for (uint64_t first = 0; first < 3; first++) {
        dsvi_rng_fill_normal(rng, first, whole, N);
        for (int i = 0; i < N; i++)
            assert_true(whole[i] == (float)dsvi_rng_normal(rng, first + (uint64_t)i));
        for (int cut = 0; cut <= N; cut += 10) {
            parts[N] = -7;
            dsvi_rng_fill_normal(rng, first, parts, cut);
            dsvi_rng_fill_normal(rng, first + (uint64_t)cut, parts + cut, N - cut);
            assert_memory_equal(whole, parts, sizeof whole);
            assert_true(parts[N] == -7);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_philox),
        cmocka_unit_test(purposes_keep_their_numbers),
        cmocka_unit_test(every_input_matters),
        cmocka_unit_test(uniforms_fill_the_interval),
        cmocka_unit_test(below_takes_every_value),
        cmocka_unit_test(normals_have_their_moments),
        cmocka_unit_test(fill_is_the_same_however_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
