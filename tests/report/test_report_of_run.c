/* The report reads all records that a training run writes: on the page of a real run nothing is missing. */
#include "test.h"

#include "dsv/dsv.h"
#include "fake_run.h"
#include "train/tiny.h"

static void set(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[DSVI_PATH_MAX + 64];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

/* The value in the newest line of metrics.jsonl. */
static double last_loss(const char *folder)
{
    char path[DSVI_PATH_MAX], *text, *at, *newest = NULL;
    size_t bytes;
    assert_ok(dsvi_path_join(path, folder, "metrics.jsonl"));
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    for (at = text; (at = strstr(at, "\"loss\": ")); at++)
        newest = at;
    assert_non_null(newest);
    double loss = atof(newest + strlen("\"loss\": "));
    free(text);
    return loss;
}

/* Makes a folder with clips, and sets options of a short run over them in a new run folder. */
static void run_over_clips(DsvConfig *settings, const char **clips, const char **folder)
{
    *clips = tiny_folder(), *folder = fake_folder("run");
    tiny_clips(*clips, 2);
    tiny_settings(settings);
    set(settings, "data.path", *clips);
    set(settings, "output_dir", *folder);
}

static void test_page(void **unused)
{
    (void)unused;
    DsvConfig settings;
    DsvTrainSummary trained;
    DsvReportSummary reported;
    char figure[64];
    const char *clips, *folder;
    run_over_clips(&settings, &clips, &folder);
    set(&settings, "max_train_steps", "6");
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "2");
    set(&settings, "validation.data", clips);
    set(&settings, "validation.every", "2");
    set(&settings, "validation.clips", "2");
    assert_ok(dsv_train(&settings, NULL, &trained));
    assert_true(trained.sparse_blocks > 0); /* otherwise there are no decisions to show */
    char *page = fake_report(folder, &reported);
    assert_int_equal(reported.steps, 6);
    assert_lacks(page, "class=\"note\""); /* the text shown if a figure is missing */
    assert_holds(page, "Finished after 6 steps");
    assert_holds(page, "parameters (2 blocks, 2 heads of 32), trained on 2 clips, 5 frames of 32 &times; 32");
    assert_holds(page, "turns sparse: its lists hold");
    assert_holds(page, "<h3>step-000006.mp4</h3>");
    assert_holds(page, "data-name=\"held out\"");
    assert_holds(page, "data-name=\"held out, all blocks dense\"");
    assert_holds(page, "data-name=\"held out, newest\"");
    assert_holds(page, "<span class=\"s0\"><i></i>weights ");
    double loss = last_loss(folder);
    snprintf(figure, sizeof figure, loss < 1 ? "<b>%.4f</b>" : "<b>%.3f</b>", loss); /* four digits in all */
    assert_holds(page, figure);
    for (int part = 1; part <= 2; part++) {
        const char *name = part == 1 ? "forward" : "backward";
        snprintf(figure, sizeof figure, "<span class=\"s%d\"><i></i>%s ", part, name);
        assert_holds(page, figure);
        snprintf(figure, sizeof figure, "%s 0.00 ms", name);
        assert_lacks(page, figure);
    }
    free(page);
    assert_ok(dsvi_folder_remove(clips));
    fake_remove(folder);
}

/* The page of a run in which no block turned sparse says why. */
static void test_reasons_for_staying_dense(void **unused)
{
    (void)unused;
    DsvConfig settings;
    DsvTrainSummary trained;
    DsvReportSummary reported;
    const char *clips, *folder;
    run_over_clips(&settings, &clips, &folder);
    set(&settings, "max_train_steps", "3");
    set(&settings, "sparse.tail", "none");
    set(&settings, "sparse.min_mass", "1");
    assert_ok(dsv_train(&settings, NULL, &trained));
    assert_int_equal(trained.sparse_blocks, 0);
    char *page = fake_report(folder, &reported);
    assert_holds(page, "block 0 stays dense: its lists hold");
    assert_holds(page, "block 1 stays dense: its lists hold");
    free(page);
    assert_ok(dsvi_folder_remove(clips));
    fake_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_reasons_for_staying_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
