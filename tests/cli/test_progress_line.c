/* The progress line: its content, and what it omits if there is no room. */
#include "test.h"

#include "cli/progress_line.h"

static const DsvProgress training = {
    .unit = "step",
    .done = 120,
    .total = 3000,
    .seconds_left = 3723,
    .loss = 0.12345,
    .step_ms = 512.3,
    .tokens_per_s = 2531,
    .peak_share = 0.414,
    .density = 0.314,
    .sparse_blocks = 4,
    .blocks = 6,
    .captured_mass = 0.934,
    .memory_bytes = UINT64_C(412) << 20,
};

static void assert_line(DsvProgress progress, size_t width, const char *wanted)
{
    char line[CLI_LINE_BYTES];
    cli_progress_line(&progress, width, line);
    assert_string_equal(line, wanted);
}

static void test_everything(void **unused)
{
    (void)unused;
    assert_line(training, 1000,
                "step  120/3000  loss 0.1235   512 ms   2531 tok/s  41% of peak  sparse 4/6  "
                "density 0.31  mass 0.93   412 MiB  1:02:03 left");
}

static void test_narrow(void **unused)
{
    (void)unused;
    assert_line(training, 79, "step  120/3000  loss 0.1235   512 ms  sparse 4/6  mass 0.93  1:02:03 left");
    assert_line(training, 50, "step  120/3000  loss 0.1235  1:02:03 left");
    assert_line(training, 14, "step  120/3000");
    assert_line(training, 5, "");
}

/* The line fits any width, and more width never shows less. */
static void test_every_width(void **unused)
{
    (void)unused;
    char line[CLI_LINE_BYTES];
    size_t before = 0;
    for (size_t width = 0; width < 300; width++) {
        cli_progress_line(&training, width, line);
        assert_true(strlen(line) <= width);
        assert_true(strlen(line) >= before);
        before = strlen(line);
    }
}

static void test_numbers(void **unused)
{
    (void)unused;
    DsvProgress p = {
        .unit = "step", .done = 5, .total = 5, .loss = 12345, .step_ms = 8.25, .tokens_per_s = 12345};
    assert_line(p, 100, "step 5/5  loss 1.23e+04   8.2 ms  12.3k tok/s");
    p = (DsvProgress){.unit = "step",
                      .done = 5,
                      .total = 5,
                      .loss = 1e-5,
                      .step_ms = 61234,
                      .tokens_per_s = 2.5e6,
                      .memory_bytes = UINT64_C(20) << 30};
    assert_line(p, 100, "step 5/5  loss 1.00e-05   61.2 s  2.50M tok/s  20.0 GiB");
    p = (DsvProgress){.unit = "step",
                      .done = 1,
                      .total = 2,
                      .loss = NAN,
                      .step_ms = 100,
                      .blocks = 2,
                      .density = 1,
                      .captured_mass = NAN,
                      .seconds_left = NAN};
    assert_line(p, 100, "step 1/2  loss nan   100 ms      0 tok/s  sparse 0/2  density 1.00  mass   --");
    p.output_error = NAN;
    assert_line(p, 100, "step 1/2  loss nan   100 ms      0 tok/s  sparse 0/2  density 1.00  error   --");
    p.output_error = 0.625;
    assert_line(p, 100, "step 1/2  loss nan   100 ms      0 tok/s  sparse 0/2  density 1.00  error 0.62");
    p.dense_finish = true;
    assert_line(p, 100, "step 1/2  loss nan   100 ms      0 tok/s  dense finish");
}

/* Work other than training shows a count and a time. */
static void test_other_work(void **unused)
{
    (void)unused;
    DsvProgress p = {.unit = "window", .done = 7, .total = 96, .seconds_left = 40.4, .loss = NAN};
    assert_line(p, 80, "window  7/96  0:40 left");
    p = (DsvProgress){.unit = "window", .done = 7, .total = 96, .seconds_left = 73, .step_ms = 820};
    assert_line(p, 80, "window  7/96   820 ms  1:13 left");
}

static void test_duration(void **unused)
{
    (void)unused;
    const struct {
        double seconds;
        const char *text;
    } cases[] = {
        {0, "0:00"},       {0.4, "0:00"},        {59.6, "1:00"},     {754, "12:34"},
        {3600, "1:00:00"}, {172799, "47:59:59"}, {172800, "2d 00h"}, {356400, "4d 03h"},
        {NAN, "0:00"},     {-5, "0:00"},         {1e300, "0:00"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[CLI_DURATION_BYTES];
        cli_duration(cases[i].seconds, text);
        assert_string_equal(text, cases[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),  cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_every_width), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_other_work),  cmocka_unit_test(test_duration),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
