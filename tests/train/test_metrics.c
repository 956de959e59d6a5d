/* metrics.jsonl and blocks.jsonl: content of lines, precision of numbers, and what opening a file cuts off.
 */
#include "test.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "run/metrics.h"
#include "run/metrics_read.h"

static char folder[] = "/tmp/dsv-metrics-XXXXXX";
static char path[DSVI_PATH_MAX];

static int make_folder(void **unused)
{
    (void)unused;
    if (!mkdtemp(folder))
        return -1;
    return dsvi_path_join(path, folder, "metrics.jsonl") == DSV_OK ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    return dsvi_folder_remove(folder) == DSV_OK ? 0 : -1;
}

static void write_text(const char *text)
{
    assert_ok(dsvi_file_write(path, text, strlen(text)));
}

static void assert_text(const char *wanted)
{
    char *text;
    size_t bytes;
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    assert_string_equal(text, wanted);
    free(text);
}

/* Numbers without a short decimal, so that a lost digit shows. */
static DsviMetricsStep line_of(int64_t step)
{
    double odd = 1.0 / (double)(3 * step);
    return (DsviMetricsStep){
        .step = step,
        .loss = odd,
        .grad_norm = sqrt(odd),
        .lr = 1e-4,
        .step_ms = 12.5,
        .tokens_per_s = 1e6 * odd,
        .data_wait_ms = 0,
        .forward_ms = 4,
        .backward_ms = 8,
        .optimizer_ms = 0.5,
        .density = 0.1,
        .sparse_blocks = 2,
        .captured_mass = NAN,
        .output_error = 0.25,
        .predictor_loss = 5e-324,
        .memory_bytes = UINT64_C(1) << 40,
        .loss_bins = {NAN, 0.5f, 0.1f},
    };
}

/* Opens the files for lines after this step. */
static DsviMetrics *open_after(int64_t resume_step)
{
    DsviMetrics *metrics;
    DsviSuperseded superseded = {.root = folder};
    assert_ok(dsvi_metrics_open(path, resume_step, &metrics));
    assert_ok(dsvi_metrics_begin(metrics, &superseded));
    return metrics;
}

static void write_steps(int64_t resume_step, int64_t first, int64_t last)
{
    DsviMetrics *metrics = open_after(resume_step);
    for (int64_t step = first; step <= last; step++) {
        DsviMetricsStep line = line_of(step);
        assert_ok(dsvi_metrics_step(metrics, &line));
    }
    dsvi_metrics_close(&metrics);
    assert_null(metrics);
}

static void test_line(void **unused)
{
    (void)unused;
    unlink(path);
    write_steps(0, 3, 3);
    assert_text("{\"step\": 3, \"loss\": 0.1111111111111111, \"grad_norm\": 0.3333333333333333, "
                "\"lr\": 0.0001, \"loss_bins\": [null, 0.5, 0.10000000149011612, 0, 0, 0, 0, 0, 0, 0], "
                "\"step_ms\": 12.5, \"tokens_per_s\": 111111.11111111111, "
                "\"density\": 0.1, \"sparse_blocks\": 2, \"captured_mass\": null, "
                "\"output_error\": 0.25, \"predictor_loss\": 4.94065645841247e-324, \"data_wait_ms\": 0, "
                "\"forward_ms\": 4, \"backward_ms\": 8, \"optimizer_ms\": 0.5, "
                "\"memory_bytes\": 1099511627776}\n");
}

static void test_numbers_survive(void **unused)
{
    (void)unused;
    char *text, *end;
    size_t bytes;
    unlink(path);
    write_steps(0, 1, 200);
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    const char *at = text;
    for (int64_t step = 1; step <= 200; step++) {
        DsviMetricsStep wanted = line_of(step);
        double loss = strtod(strstr(at, "\"loss\": ") + 8, &end);
        double norm = strtod(strstr(at, "\"grad_norm\": ") + 13, &end);
        assert_true(loss == wanted.loss);
        assert_true(norm == wanted.grad_norm);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(*at, 0);
    free(text);
}

static void test_block(void **unused)
{
    (void)unused;
    const float captured[2] = {0.5f, NAN}, error[2] = {0.125f, NAN}, share[2] = {0.25f, 0.1f};
    DsviSparseBlockReport report = {
        .sparse = true,
        .captured_mass = 0.75,
        .output_error = 0.375,
        .density = 0.125,
        .estimated_mass = 0.9,
        .share90 = 0.2,
        .head_captured = captured,
        .head_error = error,
        .head_share90 = share,
    };
    unlink(path);
    DsviMetrics *metrics = open_after(0);
    assert_ok(dsvi_metrics_block(metrics, 20, 3, 2, &report));
    dsvi_metrics_close(&metrics);
    assert_text("{\"step\": 20, \"block\": 3, \"sparse\": true, \"density\": 0.125, "
                "\"captured_mass\": 0.75, \"output_error\": 0.375, \"estimated_mass\": 0.9, "
                "\"share90\": 0.2, \"head_captured\": [0.5, null], \"head_error\": [0.125, null], "
                "\"head_share90\": [0.25, 0.10000000149011612]}\n");
}

static void test_held_out(void **unused)
{
    (void)unused;
    DsviHeldOutLoss loss = {
        .loss = 0.5, .bin_sigma = {0.05, 0.15}, .bin_loss = {1.5, NAN}, .dense_loss = NAN};
    char *text;
    size_t bytes;
    unlink(path);
    DsviMetrics *metrics = open_after(0);
    assert_int_equal(dsvi_metrics_last_step(metrics), 0);
    assert_ok(dsvi_metrics_held_out(metrics, 20, &loss));
    assert_int_equal(dsvi_metrics_last_step(metrics), 20);
    loss.dense_loss = 0.25;
    assert_ok(dsvi_metrics_held_out(metrics, 40, &loss));
    dsvi_metrics_close(&metrics);
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    assert_non_null(strstr(text, "{\"step\": 20, \"loss\": 0.5, \"bins\": [{\"sigma\": 0.05, \"loss\": 1.5}, "
                                 "{\"sigma\": 0.15, \"loss\": null}, {\"sigma\": 0, \"loss\": 0}, "));
    assert_non_null(strstr(text, "}], \"dense_loss\": null}\n{\"step\": 40, "));
    assert_non_null(strstr(text, "}], \"dense_loss\": 0.25}\n"));
    free(text);
    metrics = open_after(30);
    assert_int_equal(dsvi_metrics_last_step(metrics), 20);
    dsvi_metrics_close(&metrics);
}

static void test_decision(void **unused)
{
    (void)unused;
    unlink(path);
    DsviMetrics *metrics = open_after(0);
    assert_ok(dsvi_metrics_decision(metrics, 20, "block 3 turns \"sparse\"\\:\n so"));
    dsvi_metrics_close(&metrics);
    assert_text("{\"step\": 20, \"reason\": \"block 3 turns \\\"sparse\\\"\\\\:\\u000a so\"}\n");
}

/* A run that was stopped while it wrote the line of step 8, with a last checkpoint of step 4 or 7, continues
 * the file as if it had never been stopped. */
static void test_resume(void **unused)
{
    (void)unused;
    const char *const torn = "{\"step\": 8, \"loss\": 0.0416666666666667, \"grad_norm\": 0.204124145231932";
    char *straight;
    size_t bytes;
    unlink(path);
    write_steps(0, 1, 9);
    assert_ok(dsvi_file_read(path, 1 << 20, &straight, &bytes));
    for (int64_t checkpoint = 4; checkpoint <= 7; checkpoint += 3)
        for (size_t written = 0; written <= strlen(torn); written++) {
            unlink(path);
            write_steps(0, 1, 7);
            FILE *file = fopen(path, "a");
            assert_non_null(file);
            assert_int_equal(fwrite(torn, 1, written, file), written);
            fclose(file);
            write_steps(checkpoint, checkpoint + 1, 9);
            assert_text(straight);
        }
    write_steps(0, 1, 9);
    assert_text(straight);
    free(straight);
}

/* A file with an incomplete last line is read up to this line. */
static void test_summary(void **unused)
{
    (void)unused;
    const char *const torn = "{\"step\": 4, \"loss\": 9}";
    DsviMetricsSummary summary;
    for (size_t written = 0; written <= strlen(torn); written++) {
        char text[128];
        snprintf(text, sizeof text, "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"loss\": 2}\n%.*s",
                 (int)written, torn);
        write_text(text);
        assert_ok(dsvi_metrics_summarise(path, &summary));
        assert_int_equal(summary.last_step, 2);
        assert_true(summary.first_loss == 2.5 && summary.last_loss == 2.5);
    }
    write_text(torn);
    assert_ok(dsvi_metrics_summarise(path, &summary));
    assert_true(summary.last_step == 0 && isnan(summary.last_loss));
    write_text("{\"step\": 1, \"loss\": 3}\n{\"step\": 2\n");
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:2: no object with step and loss",
                 dsvi_metrics_summarise(path, &summary));
    write_text("{\"step\": 9e33, \"loss\": 3}\n"); /* larger than any C integer */
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:1: no object with step and loss",
                 dsvi_metrics_summarise(path, &summary));
}

/* Several lines of one step, as in blocks.jsonl, are kept or removed together. */
static void test_lines_of_one_step(void **unused)
{
    (void)unused;
    write_text("{\"step\": 10}\n{\"step\": 10}\n{\"step\": 20}\n{\"step\": 20}\n");
    DsviMetrics *metrics = open_after(15);
    dsvi_metrics_close(&metrics);
    assert_text("{\"step\": 10}\n{\"step\": 10}\n");
}

static void assert_kept(const char *name, const char *wanted)
{
    char kept[DSVI_PATH_MAX], *text;
    size_t bytes;
    assert_ok(dsvi_path_join(kept, folder, name));
    assert_ok(dsvi_file_read(kept, 1 << 20, &text, &bytes));
    assert_string_equal(text, wanted);
    free(text);
}

static void forget_superseded(void)
{
    char kept[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(kept, folder, "superseded"));
    assert_ok(dsvi_folder_remove(kept));
}

/* Each cut stores the removed bytes in a separate folder; without a cut no folder is made. */
static void test_cut_lines_are_kept(void **unused)
{
    (void)unused;
    DsviMetrics *metrics;
    forget_superseded();
    write_text("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"st");
    assert_ok(dsvi_metrics_open(path, 1, &metrics));
    dsvi_metrics_close(&metrics);
    assert_text("{\"step\": 1}\n{\"step\": 2}\n{\"step\": 3}\n{\"st");
    for (int64_t step = 2; step >= 0; step--) {
        metrics = open_after(step);
        dsvi_metrics_close(&metrics);
    }
    assert_text("");
    assert_kept("superseded/1/metrics.jsonl", "{\"step\": 3}\n{\"st");
    assert_kept("superseded/2/metrics.jsonl", "{\"step\": 2}\n");
    assert_kept("superseded/3/metrics.jsonl", "{\"step\": 1}\n");
    metrics = open_after(0);
    dsvi_metrics_close(&metrics);
    char next[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(next, folder, "superseded/4"));
    assert_false(dsvi_path_exists(next));
}

/* As after a power failure: zeros and torn lines in place of the lines after the checkpoint. */
static void test_unreadable_end(void **unused)
{
    (void)unused;
    static const char left[] = "{\"step\": 1}\n{\"step\": 2}\n\0\0\0\n\": 3}\n{\"step\": 4}\n\0\0";
    forget_superseded();
    assert_ok(dsvi_file_write(path, left, sizeof left));
    DsviMetrics *metrics = open_after(2);
    assert_int_equal(dsvi_metrics_last_step(metrics), 2);
    dsvi_metrics_close(&metrics);
    assert_text("{\"step\": 1}\n{\"step\": 2}\n");
}

/* A link may lead to a file of another owner, so links are refused. */
static void test_links_are_not_followed(void **unused)
{
    (void)unused;
    DsviMetrics *metrics;
    DsviSuperseded superseded = {.root = folder};
    char other[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(other, folder, "other"));
    assert_ok(dsvi_file_write(other, "{\"step\": 9}\n", 12));
    unlink(path);
    assert_int_equal(symlink(other, path), 0);
    assert_fails(DSV_E_IO, "metrics.jsonl: cannot be written: it is a link",
                 dsvi_metrics_open(path, 0, &metrics));
    unlink(path);
    assert_ok(dsvi_metrics_open(path, 0, &metrics));
    assert_int_equal(symlink(other, path), 0);
    assert_fails(DSV_E_IO, "metrics.jsonl: cannot be written", dsvi_metrics_begin(metrics, &superseded));
    dsvi_metrics_close(&metrics);
    assert_kept("other", "{\"step\": 9}\n");
    unlink(path);
}

/* A file that was removed or replaced during the run is restored with all lines. */
static void test_a_lost_file_comes_back(void **unused)
{
    (void)unused;
    DsviSuperseded superseded = {.root = folder};
    forget_superseded();
    write_text("{\"step\": 1}\n");
    DsviMetrics *metrics = open_after(1);
    assert_ok(dsvi_metrics_decision(metrics, 2, "so"));
    assert_true(dsvi_metrics_in_place(metrics));
    assert_ok(dsvi_metrics_restore(metrics, &superseded));
    unlink(path);
    assert_false(dsvi_metrics_in_place(metrics));
    assert_ok(dsvi_metrics_restore(metrics, &superseded));
    assert_text("{\"step\": 1}\n{\"step\": 2, \"reason\": \"so\"}\n");
    assert_int_equal(superseded.folder[0], 0);
    assert_ok(dsvi_file_replace(path, "another", 7));
    assert_ok(dsvi_metrics_restore(metrics, &superseded));
    assert_text("{\"step\": 1}\n{\"step\": 2, \"reason\": \"so\"}\n");
    assert_kept("superseded/1/metrics.jsonl", "another");
    dsvi_metrics_close(&metrics);
}

static void test_refusals(void **unused)
{
    (void)unused;
    DsviMetrics *metrics;
    char inside[DSVI_PATH_MAX];
    write_text("{\"step\": 1}\nnonsense\n{\"step\": 2}\n");
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:2: no JSON object with a step",
                 dsvi_metrics_open(path, 5, &metrics));
    assert_null(metrics);
    assert_text("{\"step\": 1}\nnonsense\n{\"step\": 2}\n");
    write_text("{\"step\": -9e33}\n{\"step\": 2}\n");
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:1: no JSON object with a step",
                 dsvi_metrics_open(path, 5, &metrics));
    assert_ok(dsvi_path_join(inside, path, "under-a-file"));
    assert_fails(DSV_E_IO, "cannot be written", dsvi_metrics_open(inside, 0, &metrics));
    dsvi_metrics_close(&metrics);
}

/* A step is an integer from 0 to 2^53 - 1; other numbers are refused and not rounded. */
static void test_steps_out_of_range(void **unused)
{
    (void)unused;
    static const char *const steps[] = {"9e33", "-1", "1.5", "1e400", "9007199254740992"};
    DsviMetricsSummary summary;
    DsviMetrics *metrics;
    char text[64];
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        snprintf(text, sizeof text, "{\"step\": %s, \"loss\": 1}\n", steps[i]);
        write_text(text);
        assert_fails(DSV_E_FORMAT, "metrics.jsonl:1: no object with step and loss",
                     dsvi_metrics_summarise(path, &summary));
        snprintf(text, sizeof text, "{\"step\": %s, \"loss\": 1}\n{\"step\": 2}\n", steps[i]);
        write_text(text); /* a valid line follows: only an invalid last line is a crash's */
        assert_fails(DSV_E_FORMAT, "metrics.jsonl:1: no JSON object with a step",
                     dsvi_metrics_open(path, 5, &metrics));
    }
    write_text("{\"step\": 9007199254740991, \"loss\": 1}\n");
    assert_ok(dsvi_metrics_summarise(path, &summary));
    assert_true(summary.last_step == (INT64_C(1) << 53) - 1);
}

/* A limit on the size of files simulates a full disk. */
static void test_full_disk(void **unused)
{
    (void)unused;
    DsviMetricsStep line = line_of(1);
    struct rlimit before, small;
    unlink(path);
    DsviMetrics *metrics = open_after(0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    DsvStatus status = dsvi_metrics_step(metrics, &line);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(DSV_E_IO, "metrics.jsonl: cannot be written", status);
    dsvi_metrics_close(&metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),
        cmocka_unit_test(test_numbers_survive),
        cmocka_unit_test(test_block),
        cmocka_unit_test(test_held_out),
        cmocka_unit_test(test_decision),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_summary),
        cmocka_unit_test(test_lines_of_one_step),
        cmocka_unit_test(test_cut_lines_are_kept),
        cmocka_unit_test(test_unreadable_end),
        cmocka_unit_test(test_links_are_not_followed),
        cmocka_unit_test(test_a_lost_file_comes_back),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_steps_out_of_range),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
