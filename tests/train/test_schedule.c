/* The learning rate, and the distribution of noise levels. */
#include "test.h"

#include "train/flow_draw.h"
#include "train/schedule.h"

static void warm_up_then_constant(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    settings.lr = 2;
    settings.warmup_steps = 4;
    settings.max_train_steps = 10;
    assert_true(dsvi_learning_rate(&settings, 1) == 0.5);
    assert_true(dsvi_learning_rate(&settings, 3) == 1.5);
    for (int64_t step = 4; step <= 10; step++)
        assert_true(dsvi_learning_rate(&settings, step) == 2);
}

static void cosine_falls_to_almost_nothing(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    settings.lr = 1;
    settings.warmup_steps = 10;
    settings.max_train_steps = 109;
    assert_ok(dsv_config_set(&settings, "lr_scheduler=cosine"));
    assert_true(dsvi_learning_rate(&settings, 10) == 1);
    assert_true(fabs(dsvi_learning_rate(&settings, 60) - 0.5) < 1e-12); /* after half of 100 steps */
    for (int64_t step = 11; step <= 109; step++)
        assert_true(dsvi_learning_rate(&settings, step) < dsvi_learning_rate(&settings, step - 1));
    assert_true(dsvi_learning_rate(&settings, 109) > 0 && dsvi_learning_rate(&settings, 109) < 1e-3);
}

static void linear_follows_a_line(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    settings.lr = 2;
    settings.warmup_steps = 20;
    settings.max_train_steps = 119;
    settings.lr_min_ratio = 0.1;
    assert_ok(dsv_config_set(&settings, "lr_scheduler=linear"));
    assert_true(dsvi_learning_rate(&settings, 10) == 1);
    for (int64_t step = 20; step <= 119; step++)
        assert_error_below(fabs(dsvi_learning_rate(&settings, step) - (2 - 0.018 * (double)(step - 20))),
                           1e-12, "distance from the line");
    assert_error_below(fabs(dsvi_learning_rate(&settings, 1000) - 0.2), 1e-12, "rate after the run");
    assert_ok(dsv_config_set(&settings, "lr_scheduler=cosine"));
    assert_error_below(fabs(dsvi_learning_rate(&settings, 70) - 1.1), 1e-12, "middle of the cosine");
}

static void wsd_is_stable_before_it_falls(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    settings.lr = 1;
    settings.warmup_steps = 10;
    settings.max_train_steps = 99;
    settings.lr_decay_steps = 20;
    assert_ok(dsv_config_set(&settings, "lr_scheduler=wsd"));
    assert_true(dsvi_learning_rate(&settings, 5) == 0.5);
    for (int64_t step = 10; step <= 80; step++)
        assert_true(dsvi_learning_rate(&settings, step) == 1);
    for (int64_t step = 81; step <= 99; step++)
        assert_error_below(fabs(dsvi_learning_rate(&settings, step) - (double)(100 - step) / 20), 1e-12,
                           "distance from the line");
    settings.lr_decay_steps = 0; /* a tenth of the run: the last 10 of 99 steps */
    assert_true(dsvi_learning_rate(&settings, 90) == 1);
    assert_error_below(fabs(dsvi_learning_rate(&settings, 95) - 0.5), 1e-12, "middle of the fall");
    settings.lr_decay_steps = 1000; /* longer than the run: the fall begins after the warm-up */
    assert_true(dsvi_learning_rate(&settings, 10) == 1 && dsvi_learning_rate(&settings, 11) < 1);
}

/* Mean and standard deviation of the logit of sigma before the shift, from the definition. The bounds are
 * five standard errors of 20,000 draws. */
static void times_have_their_distribution(void **state)
{
    enum { DRAWS = 20000 };
    DsvConfig settings;
    double sum = 0, square = 0;
    (void)state;
    dsv_config_defaults(&settings);
    settings.logit_mean = 0.3;
    settings.logit_std = 1.5;
    settings.flow_shift = 3;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double sigma = dsvi_flow_sigma(&settings, settings.flow_shift, i);
        assert_true(sigma > 0 && sigma < 1);
        double logit = log(sigma / (1 - sigma)) - log(3.0); /* the shift multiplies the odds */
        sum += logit;
        square += logit * logit;
    }
    double mean = sum / DRAWS, deviation = sqrt(square / DRAWS - mean * mean);
    assert_error_below(fabs(mean - 0.3), 5 * 1.5 / sqrt(DRAWS), "mean logit");
    assert_error_below(fabs(deviation - 1.5), 5 * 1.5 / sqrt(2.0 * DRAWS), "deviation of the logit");

    assert_ok(dsv_config_set(&settings, "weighting_scheme=uniform"));
    settings.flow_shift = 1;
    sum = 0;
    for (uint64_t i = 0; i < DRAWS; i++)
        sum += dsvi_flow_sigma(&settings, settings.flow_shift, i);
    assert_error_below(fabs(sum / DRAWS - 0.5), 5 * sqrt(1.0 / 12 / DRAWS), "mean of uniform times");
}

/* A frame with four times the pixels has twice the shift. */
static void the_shift_follows_the_resolution(void **state)
{
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_set(&settings, "flow_shift=3"));
    assert_true(dsvi_flow_shift(&settings, 480 * 832) == 3);
    assert_ok(dsv_config_set(&settings, "flow_shift_pixels=399360"));
    assert_true(dsvi_flow_shift(&settings, 480 * 832) == 3);
    assert_error_below(fabs(dsvi_flow_shift(&settings, 960 * 1664) - 6), 1e-12, "shift");
    assert_error_below(fabs(dsvi_flow_shift(&settings, 240 * 416) - 1.5), 1e-12, "shift");
    assert_true(dsvi_flow_sigma(&settings, 6, 3) > dsvi_flow_sigma(&settings, 3, 3));
}

static void sigma_has_its_bin(void **state)
{
    (void)state;
    assert_int_equal(dsvi_sigma_bin(0), 0);
    assert_int_equal(dsvi_sigma_bin(0.0999), 0);
    assert_int_equal(dsvi_sigma_bin(0.5), 5);
    assert_int_equal(dsvi_sigma_bin(0.95), 9);
    assert_int_equal(dsvi_sigma_bin(1), 9);
}

static void draw(const DsvConfig *settings, uint64_t sample, float noise[64])
{
    dsvi_rng_fill_normal(dsvi_flow_noise(settings, sample), 0, noise, 64);
}

static void samples_have_noise_of_their_own(void **state)
{
    DsvConfig settings;
    float a[64], b[64];
    (void)state;
    dsv_config_defaults(&settings);
    draw(&settings, 5, a);
    draw(&settings, 5, b);
    assert_memory_equal(a, b, sizeof a);
    draw(&settings, 5 + (1ull << 32), b);
    assert_memory_not_equal(a, b, sizeof a);
    draw(&settings, 6, b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* Draws stay in the range, and keep the distribution that the draws in the range have without it. */
static void a_range_keeps_the_distribution(void **state)
{
    enum { DRAWS = 20000 };
    DsvConfig whole, part;
    double sum = 0, expected = 0;
    int64_t inside = 0;
    (void)state;
    dsv_config_defaults(&whole);
    part = whole;
    part.sigma_min = 0.875;
    for (uint64_t i = 0; i < DRAWS; i++) {
        double sigma = dsvi_flow_sigma(&whole, whole.flow_shift, i),
               drawn = dsvi_flow_sigma(&part, part.flow_shift, i);
        assert_true(drawn >= 0.875 && drawn < 1);
        sum += drawn;
        if (sigma < 0.875)
            continue;
        assert_true(drawn == sigma);
        expected += sigma;
        inside++;
    }
    /* 19.8 % of logit-normal draws with shift 3; five standard errors */
    assert_error_below(fabs((double)inside / DRAWS - 0.198), 5 * sqrt(0.198 * 0.802 / DRAWS), "in the range");
    assert_error_below(fabs(sum / DRAWS - expected / (double)inside), 0.003, "mean in the range");
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The distribution function of logit-normal noise levels with the shift. */
static double distribution(const DsvConfig *settings, double sigma)
{
    double unshifted = sigma / (settings->flow_shift - (settings->flow_shift - 1) * sigma);
    double normal = (log(unshifted / (1 - unshifted)) - settings->logit_mean) / settings->logit_std;
    return 0.5 * erfc(-normal / sqrt(2));
}

/* Kolmogorov and Smirnov: the largest distance between the distribution of draws in a range and the density
 * outside of which draws are cut off. 1.95 / sqrt(draws) is exceeded by chance once in 1000 seeds. */
static void experts_draw_from_the_cut_density(void **state)
{
    enum { DRAWS = 20000 };
    static const double range[][2] = {{0.875, 1}, {0, 0.875}, {0.3, 0.6}};
    static double sigma[DRAWS];
    DsvConfig settings;
    (void)state;
    dsv_config_defaults(&settings);
    settings.flow_shift = 5;
    settings.logit_mean = 0.2;
    for (int r = 0; r < 3; r++) {
        double largest = 0;
        settings.sigma_min = range[r][0];
        settings.sigma_max = range[r][1];
        double below = range[r][0] > 0 ? distribution(&settings, range[r][0]) : 0;
        double inside = (range[r][1] < 1 ? distribution(&settings, range[r][1]) : 1) - below;
        for (int i = 0; i < DRAWS; i++)
            sigma[i] = dsvi_flow_sigma(&settings, settings.flow_shift, (uint64_t)i);
        qsort(sigma, DRAWS, sizeof *sigma, by_size);
        for (int i = 0; i < DRAWS; i++) {
            double wanted = (distribution(&settings, sigma[i]) - below) / inside;
            double distance = fmax(fabs(wanted - (double)i / DRAWS), fabs(wanted - (i + 1.0) / DRAWS));
            largest = distance <= largest ? largest : distance;
        }
        assert_error_below(largest, 1.95 / sqrt(DRAWS), "distance of the distributions");
    }
}

static void the_bell_has_mean_one(void **state)
{
    enum { POINTS = 1000 };
    DsvConfig settings;
    double sum = 0;
    (void)state;
    dsv_config_defaults(&settings);
    assert_true(dsvi_flow_weight(&settings, 0.1) == 1);
    assert_ok(dsv_config_set(&settings, "loss_weight=bell"));
    for (int i = 0; i < POINTS; i++)
        sum += dsvi_flow_weight(&settings, (i + 0.5) / POINTS);
    assert_error_below(fabs(sum / POINTS - 1), 1e-5, "mean of the bell");
    assert_error_below(fabs(dsvi_flow_weight(&settings, 0)), 1e-12, "edge");
    assert_true(dsvi_flow_weight(&settings, 0.5) > 1.5);
    settings.sigma_min = 1;
    assert_fails(DSV_E_USAGE, "expected a smaller sigma_min", dsvi_flow_check(&settings));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_then_constant),
        cmocka_unit_test(cosine_falls_to_almost_nothing),
        cmocka_unit_test(linear_follows_a_line),
        cmocka_unit_test(wsd_is_stable_before_it_falls),
        cmocka_unit_test(times_have_their_distribution),
        cmocka_unit_test(a_range_keeps_the_distribution),
        cmocka_unit_test(experts_draw_from_the_cut_density),
        cmocka_unit_test(the_bell_has_mean_one),
        cmocka_unit_test(the_shift_follows_the_resolution),
        cmocka_unit_test(sigma_has_its_bin),
        cmocka_unit_test(samples_have_noise_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
