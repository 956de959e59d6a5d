/* Files that no run writes: texts that contain markup, lines that are truncated, wrong or absurd. */
#include "test.h"

#include "fake_run.h"

#define EVIL "</td></code></h3></p><script>alert(1)</script><img src=x onerror='alert(1)'>\\u0007&\xff"

/* Every text from outside is markup: only the page's own markup may be in effect. */
static void test_markup(void **unused)
{
    (void)unused;
    const char *const clip = "samples/<script>alert(1)<,script><img src=x onerror='alert(1)'>.mp4";
    const char *plain = fake_folder("run"), *folder = fake_folder("<script>alert(1)<img src=x>\"'&");
    char samples[DSVI_PATH_MAX];
    fake_metrics(plain, 20);
    fake_metrics(folder, 20);
    fake_rest(plain);
    fake_rest(folder);
    fake_file(folder, "decisions.jsonl", "{\"step\": 1, \"reason\": \"" EVIL "\"}\n");
    fake_file(folder, "run.json",
              "{\"dsv\": \"" EVIL "\", \"device\": \"" EVIL "\", \"memory_bytes\": {\"" EVIL "\": 1000000}, "
              "\"memory_planned_bytes\": 1}");
    fake_file(folder, "config.yaml", "data.path: \"</code><script>alert(1)</script><img src=x>\"\n");
    assert_ok(dsvi_path_join(samples, folder, "samples"));
    assert_ok(dsvi_folder_make(samples));
    fake_file(folder, clip, "not a clip");
    char *page = fake_report(folder, NULL), *clean = fake_report(plain, NULL);
    assert_lacks(page, "<script>alert");
    assert_lacks(page, "<img src=x");
    assert_lacks(page, "onerror='");
    assert_lacks(page, "\a");
    assert_lacks(page, "\xff");
    assert_int_equal(count_of(page, "<script"), count_of(clean, "<script"));
    assert_int_equal(count_of(page, "&lt;script&gt;alert(1)&lt;/script&gt;") >= 4, 1);
    assert_holds(page, "<h1>&lt;script&gt;alert(1)&lt;img src=x&gt;&quot;&#39;&amp;</h1>");
    assert_holds(page, "<h3>&lt;script&gt;alert(1)&lt;,script&gt;");
    free(page);
    free(clean);
    fake_remove(plain);
    fake_remove(folder);
}

typedef struct Bad {
    const char *file, *line, *sentence;
} Bad;

#define GOOD_BLOCK \
    "{\"step\": 10, \"block\": 1, \"sparse\": true, \"head_captured\": [0.5], \"head_share90\": [1]}"

static const Bad bad[] = {
    {"metrics.jsonl", "nonsense", "not a JSON object"},
    {"metrics.jsonl", "", "not a JSON object"},
    {"metrics.jsonl", "[1]", "not a JSON object"},
    {"metrics.jsonl", "{\"step\": 21", "not a JSON object"},
    {"metrics.jsonl", "{\"step\": 21} {}", "not a JSON object"},
    {"metrics.jsonl", "{\"loss\": 1}", "no step"},
    {"metrics.jsonl", "{\"step\": -1}", "no step"},
    {"metrics.jsonl", "{\"step\": 21.5}", "no step"},
    {"metrics.jsonl", "{\"step\": 1e300}", "no step"},
    {"metrics.jsonl", "{\"step\": \"21\"}", "step is not a number"},
    {"metrics.jsonl", "{\"step\": 3}", "step 3 comes after step 20"},
    {"metrics.jsonl", "{\"step\": 20}", "step 20 a second time"},
    {"metrics.jsonl", "{\"step\": 21, \"loss\": \"<b>\"}", "loss is not a number"},
    {"metrics.jsonl", "{\"step\": 21, \"loss\": 1e999}", "loss is not a number"},
    {"metrics.jsonl", "{\"step\": 21, \"loss_bins\": [1, 2]}", "loss_bins has 2 numbers, expected 10"},
    {"metrics.jsonl", "{\"step\": 21, \"loss_bins\": 7}", "loss_bins is not an array"},
    {"metrics.jsonl", "{\"step\": 21, \"loss_bins\": [1,2,3,4,5,6,7,8,9,\"x\"]}",
     "holds what is not a number"},
    {"blocks.jsonl", "{\"step\": 30, \"block\": 5000, \"sparse\": true}",
     "block is not a whole number from 0 to"},
    {"blocks.jsonl", "{\"step\": 30, \"sparse\": true}", "block is not a whole number"},
    {"blocks.jsonl", "{\"step\": 30, \"block\": 0}", "sparse is neither true nor false"},
    {"blocks.jsonl", "{\"step\": 20, \"block\": 2, \"sparse\": true}", "block 2 of step 20 is out of order"},
    {"blocks.jsonl", "{\"step\": 30, \"block\": 0, \"sparse\": true, \"head_captured\": [1]}",
     "head_captured has 1 numbers, expected 2"},
    {"decisions.jsonl", "{\"step\": 200}", "reason is not a text"},
    {"validation.jsonl", "{\"step\": 200, \"bins\": {}}", "bins is not an array"},
    {"validation.jsonl", "{\"step\": 200, \"bins\": [{\"sigma\": \"x\"}]}", "sigma is not a number"},
};

static int lines_of(const char *folder, const char *file)
{
    char path[DSVI_PATH_MAX], *text;
    size_t bytes;
    assert_ok(dsvi_path_join(path, folder, file));
    assert_ok(dsvi_file_read(path, 1 << 20, &text, &bytes));
    int lines = count_of(text, "\n");
    free(text);
    return lines;
}

static void append(const char *folder, const char *file, const void *data, size_t bytes)
{
    char path[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(path, folder, file));
    FILE *to = fopen(path, "a");
    assert_non_null(to);
    assert_int_equal(fwrite(data, 1, bytes, to), bytes);
    assert_int_equal(fclose(to), 0);
}

static void test_lines(void **unused)
{
    (void)unused;
    char sentence[256], line[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *folder = fake_folder("run");
        fake_metrics(folder, 20);
        fake_rest(folder);
        int lines = lines_of(folder, bad[i].file);
        int length = snprintf(line, sizeof line, "%s\n", bad[i].line);
        append(folder, bad[i].file, line, (size_t)length);
        snprintf(sentence, sizeof sentence, "%s:%d: ", bad[i].file, lines + 1);
        assert_fails(DSV_E_FORMAT, sentence, dsv_report(folder, NULL, NULL));
        assert_fails(DSV_E_FORMAT, bad[i].sentence, dsv_report(folder, NULL, NULL));
        assert_null(strchr(dsv_error_message(), '\n'));
        fake_remove(folder);
    }
}

/* A zero byte, a line without an end, brackets without an end. */
static void test_absurd(void **unused)
{
    (void)unused;
    enum { LONG = (1 << 20) + 100 };
    char *text = malloc(LONG);
    const char *folder = fake_folder("run");
    assert_non_null(text);
    memset(text, '[', LONG);
    fake_metrics(folder, 20);
    append(folder, "metrics.jsonl", text, LONG);
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:21: longer than", dsv_report(folder, NULL, NULL));
    fake_metrics(folder, 20);
    text[99999] = '\n';
    append(folder, "metrics.jsonl", text, 100000);
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:21: not a JSON object", dsv_report(folder, NULL, NULL));
    fake_metrics(folder, 20);
    append(folder, "metrics.jsonl", "{\"step\": 21}\0\n", 14);
    assert_fails(DSV_E_FORMAT, "metrics.jsonl:21: a zero byte", dsv_report(folder, NULL, NULL));
    free(text);
    fake_remove(folder);
}

/* Numbers as far apart as doubles allow, many blocks, many heads, no heads: the page is written and stays
 * small. */
static void test_extremes(void **unused)
{
    (void)unused;
    DsvReportSummary summary;
    const char *folder = fake_folder("run");
    fake_file(folder, "metrics.jsonl",
              "{\"step\": 0, \"loss\": 1e308, \"lr\": 5e-324, \"memory_bytes\": 1e300, \"step_ms\": -1e308}\n"
              "{\"step\": 9007199254740992, \"loss\": -1e308, \"grad_norm\": 0, \"forward_ms\": 1e308}\n");
    fake_file(folder, "blocks.jsonl",
              "{\"step\": 1, \"block\": 0, \"sparse\": true, \"density\": 1e300}\n"
              "{\"step\": 2, \"block\": 1023, \"sparse\": true, \"captured_mass\": -1e300}\n");
    free(fake_report(folder, &summary));
    assert_true(summary.bytes < 1000000);
    fake_file(folder, "metrics.jsonl", "{\"step\": 5}\n");
    fake_file(folder, "blocks.jsonl", GOOD_BLOCK "\n");
    free(fake_report(folder, &summary));
    fake_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_markup),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_absurd),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
