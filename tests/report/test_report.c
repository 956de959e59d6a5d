/* dsv_report: the page of a run with known numbers, of runs with missing files, and of a very long run. */
#include "test.h"

#include <unistd.h>

#include <cjson/cJSON.h>

#include "fake_run.h"
#include "sample/video_writer.h"

static const char *const section[] = {
    "loss",      "noise", "optimizer", "sparsity", "blocks",   "heads",
    "decisions", "time",  "memory",    "clips",    "settings",
};

static void assert_whole(const char *page)
{
    char opening[64];
    for (size_t i = 0; i < sizeof section / sizeof *section; i++) {
        snprintf(opening, sizeof opening, "<section id=\"%s\">", section[i]);
        assert_int_equal(count_of(page, opening), 1);
    }
    assert_int_equal(strncmp(page, "<!DOCTYPE html>", 15), 0);
    assert_string_equal(page + strlen(page) - 8, "</html>\n");
    assert_lacks(page, "{{");
    assert_lacks(page, "}}");
    assert_lacks(page, "http:"); /* it needs no network */
    assert_lacks(page, "https:");
    assert_lacks(page, "nan");
}

static void test_sections(void **unused)
{
    (void)unused;
    DsvReportSummary summary;
    const char *folder = fake_folder("some-run");
    fake_metrics(folder, 100);
    fake_rest(folder);
    char *page = fake_report(folder, &summary);
    assert_whole(page);
    assert_int_equal(summary.steps, 100);
    assert_int_equal(summary.bytes, strlen(page));
    assert_int_equal(strncmp(summary.path, folder, strlen(folder)), 0);
    assert_holds(page, "<h1>some-run</h1>");
    assert_holds(page, "of 12 million parameters (3 blocks, 2 heads of 64), trained on 5 clips");
    assert_holds(page, "on some processor");
    assert_holds(page, "Finished after 100 steps, which took 25 s.");
    assert_holds(page, "block 1 turns sparse: for &quot;good&quot; reasons");
    assert_holds(page, "captured mass required of a sparse block: 0.7");
    assert_holds(page, "only while its lists hold at least 0.20 of each head's attention");
    assert_holds(page, "Planned before the first step: 150 MiB.");
    assert_holds(page, "about a run of dsv 0.9.7");
    free(page);
    fake_remove(folder);
}

/* Mean loss of the steps first to last. */
static double mean_loss(int64_t first, int64_t last)
{
    double sum = 0;
    for (int64_t step = first; step <= last; step++)
        sum += fake_loss(step);
    return sum / (double)(last - first + 1);
}

static void test_headline(void **unused)
{
    (void)unused;
    char figure[64];
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100);
    fake_rest(folder);
    char *page = fake_report(folder, NULL);
    char *tiles = strdup(text_between(page, "<div class=\"tiles\">", "<section"));
    snprintf(figure, sizeof figure, "<b>%.4f</b>", mean_loss(81, 100)); /* below 1: four digits */
    assert_holds(tiles, figure);
    snprintf(figure, sizeof figure, "%.3f over the first 10; held out 0.6250", mean_loss(1, 10));
    assert_holds(tiles, figure);
    assert_holds(tiles, "<b>100</b><span>of 100<");
    assert_holds(tiles, "<b>250 ms</b><span>4.0 k tokens/s");
    assert_holds(tiles, "<b>2</b><span>of 3<");
    assert_holds(tiles, "<b>0.400</b>");
    assert_holds(tiles, "<b>0.900</b>");
    assert_holds(tiles, "<b>200 MiB</b><span>planned 150 MiB");
    free(tiles);
    free(page);
    fake_remove(folder);
}

/* The first four numbers of an attribute. */
static void read_four(const char *svg, const char *attribute, double out[4])
{
    char before[32];
    snprintf(before, sizeof before, "%s=\"", attribute);
    const char *at = text_between(svg, before, "\"");
    assert_int_equal(sscanf(at, "%lf %lf %lf %lf", &out[0], &out[1], &out[2], &out[3]), 4);
}

/* The points of the loss curve, converted back with the axes, are the losses. A drawing has 1,000 x 1,000
 * units. Points have one decimal horizontally, enough to distinguish steps, and two vertically, so rounding
 * moves them by at most half a hundredth of a unit. */
static void test_loss_curve(void **unused)
{
    (void)unused;
    double box[4], scale[4], x, y;
    int length;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100);
    char *page = fake_report(folder, NULL);
    char *svg = strdup(text_between(page, "<section id=\"loss\">", "</section>"));
    read_four(svg, "viewBox", box);
    read_four(svg, "data-scale", scale);
    assert_true(scale[0] == 1 && scale[1] == 100);
    char *points = strdup(text_between(svg, "data-name=\"training, each step\" points=\"", "\""));
    const char *at = points;
    for (int64_t step = 1; step <= 100; step++, at += length) {
        assert_int_equal(sscanf(at, "%lf,%lf %n", &x, &y, &length), 2);
        assert_error_below(fabs(scale[0] + x / box[2] * (scale[1] - scale[0]) - (double)step), 0.1,
                           "x of step %lld", (long long)step);
        assert_error_below(fabs(scale[2] + (1 - y / box[3]) * (scale[3] - scale[2]) - fake_loss(step)),
                           0.0051 / box[3] * (scale[3] - scale[2]), "loss of step %lld", (long long)step);
    }
    assert_string_equal(at, "");
    assert_holds(svg, "<span class=\"s0\">");
    assert_lacks(svg, "held out"); /* there is no validation.jsonl */
    free(points);
    free(svg);
    free(page);
    fake_remove(folder);
}

/* The values of the maps are the measured ones, in thousandths, for every position of the slider. */
static void test_head_maps(void **unused)
{
    (void)unused;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100);
    char *page = fake_report(folder, NULL);
    char *heads = strdup(text_between(page, "<section id=\"heads\">", "</section>"));
    assert_holds(heads, "data-steps=\"10 20 30 40 50 60 70 80 90 100\"");
    assert_int_equal(count_of(heads, "<rect "), 3 * FAKE_BLOCKS * FAKE_HEADS);
    assert_holds(heads, "Output error");
    cJSON *map = cJSON_Parse(text_between(heads, "<script type=\"application/json\">", "</script>"));
    assert_non_null(map);
    const cJSON *frames = cJSON_GetObjectItem(map, "frames");
    assert_int_equal(cJSON_GetArraySize(frames), 10);
    for (int f = 0; f < 10; f++) {
        const cJSON *values = cJSON_GetArrayItem(frames, f);
        assert_int_equal(cJSON_GetArraySize(values), FAKE_BLOCKS * FAKE_HEADS);
        for (int i = 0; i < FAKE_BLOCKS * FAKE_HEADS; i++) {
            double wanted = 1000 * fake_captured(10 * (f + 1), i / FAKE_HEADS, i % FAKE_HEADS);
            double found = cJSON_GetArrayItem(values, i)->valuedouble;
            assert_error_below(fabs(found - wanted), 0.51, "block %d, head %d", i / FAKE_HEADS,
                               i % FAKE_HEADS);
        }
    }
    cJSON_Delete(map);
    free(heads);
    free(page);
    fake_remove(folder);
}

/* A dense block counts as density 1 even if lists were selected: blocks 1 and 2 become sparse after step 50.
 */
static void test_block_maps(void **unused)
{
    (void)unused;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100);
    char *page = fake_report(folder, NULL);
    char *blocks = strdup(text_between(page, "<section id=\"blocks\">", "</section>"));
    assert_string_equal(text_between(blocks, "<script type=\"application/json\">", "</script>"),
                        "{\"rows\":3,\"columns\":10,\"labels\":[10,20,30,40,50,60,70,80,90,100],\"frames\":[["
                        "1000,1000,1000,1000,1000,1000,1000,1000,1000,1000,"
                        "1000,1000,1000,1000,1000,100,100,100,100,100,"
                        "1000,1000,1000,1000,1000,100,100,100,100,100]]}");
    free(blocks);
    free(page);
    fake_remove(folder);
}

static void test_noise_levels(void **unused)
{
    (void)unused;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100);
    fake_rest(folder);
    char *page = fake_report(folder, NULL);
    char *noise = strdup(text_between(page, "<section id=\"noise\">", "</section>"));
    assert_holds(noise, "data-name=\"held out, newest\"");
    cJSON *map = cJSON_Parse(text_between(noise, "<script type=\"application/json\">", "</script>"));
    assert_non_null(map);
    const cJSON *values = cJSON_GetArrayItem(cJSON_GetObjectItem(map, "frames"), 0);
    /* The first of 60 columns is step 1, which has no loss in the last bin; the second is steps 2 and 3. */
    assert_int_equal(cJSON_GetObjectItem(map, "columns")->valueint, 60);
    assert_int_equal(cJSON_GetArrayItem(values, 0)->valueint, 2000);
    assert_int_equal(cJSON_GetArrayItem(values, 9 * 60)->valueint, -1);
    assert_true(cJSON_GetArrayItem(values, 9 * 60 + 1)->valueint > 0);
    cJSON_Delete(map);
    free(noise);
    free(page);
    fake_remove(folder);
}

static void test_settings(void **unused)
{
    (void)unused;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100);
    fake_rest(folder);
    char *page = fake_report(folder, NULL);
    char *settings = strdup(text_between(page, "<section id=\"settings\">", "</section>"));
    char *differing = strdup(text_between(settings, "<table>", "</table>"));
    assert_int_equal(count_of(differing, "<tr>"), 6); /* the head and five options of config.yaml */
    assert_holds(differing, "<code>lr</code></td><td><code>0.003</code></td><td><code>");
    assert_holds(settings, "<code>sparse.<wbr>group</code>");
    assert_lacks(differing, "<code>sparse.<wbr>group</code>");
    free(differing);
    free(settings);
    free(page);
    fake_remove(folder);
}

/* Each optional file of a run is missing once, and one file is incomplete. */
static void test_missing_pieces(void **unused)
{
    (void)unused;
    static const char *const file[] = {
        "blocks.jsonl", "decisions.jsonl", "validation.jsonl", "run.json", "config.yaml",
    };
    char path[DSVI_PATH_MAX];
    for (size_t i = 0; i < sizeof file / sizeof *file; i++) {
        const char *folder = fake_folder("run");
        fake_metrics(folder, 100);
        fake_rest(folder);
        assert_ok(dsvi_path_join(path, folder, file[i]));
        assert_int_equal(unlink(path), 0);
        char *page = fake_report(folder, NULL);
        assert_whole(page);
        free(page);
        fake_remove(folder);
    }
    const char *folder = fake_folder("run");
    fake_file(folder, "metrics.jsonl", "{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"lo");
    fake_file(folder, "config.yaml", "max_train_steps: 1000\n");
    char *page = fake_report(folder, NULL);
    assert_whole(page);
    assert_holds(page, "Not finished: at step 1 of 1,000");
    assert_holds(page, "Left out because it is incomplete: the last line of metrics.jsonl.");
    free(page);
    fake_file(folder, "metrics.jsonl", "");
    fake_file(folder, "config.yaml", "from_another_version: 1\n");
    page = fake_report(folder, NULL);
    assert_whole(page);
    assert_holds(page, "No step has finished yet.");
    assert_holds(page, "The configuration cannot be read: ");
    free(page);
    fake_remove(folder);
}

static int digit(char c)
{
    static const char all[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(all, c) : NULL;
    return at ? (int)(at - all) : 0;
}

/* Of six clips the newest three and the first are shown, as five frames of 40 x 24. */
static void test_clips(void **unused)
{
    (void)unused;
    enum { CLIPS = 6, FRAMES = 5, HEIGHT = 24, WIDTH = 40 };
    static float pixels[3 * FRAMES * HEIGHT * WIDTH];
    char samples[DSVI_PATH_MAX], path[DSVI_PATH_MAX], name[32];
    unsigned char picture[24];
    const char *folder = fake_folder("run");
    fake_metrics(folder, 20);
    assert_ok(dsvi_path_join(samples, folder, "samples"));
    assert_ok(dsvi_folder_make(samples));
    for (int clip = 1; clip <= CLIPS; clip++) {
        snprintf(name, sizeof name, "step-%06d.mp4", clip);
        assert_ok(dsvi_path_join(path, samples, name));
        assert_ok(dsvi_video_write(path, pixels, FRAMES, HEIGHT, WIDTH, 8));
    }
    fake_file(samples, "notes.txt", "no clip");
    char *page = fake_report(folder, NULL);
    char *clips = strdup(text_between(page, "<section id=\"clips\">", "</section>"));
    assert_int_equal(count_of(clips, "<h3>"), 4);
    assert_int_equal(count_of(clips, "src=\"data:image/png;base64,"), 4 * FRAMES);
    assert_holds(clips, "<h3>step-000001.mp4</h3>");
    assert_lacks(clips, "<h3>step-000003.mp4</h3>");
    assert_true(strstr(clips, "step-000006") < strstr(clips, "step-000004"));
    const char *base64 = text_between(clips, "src=\"data:image/png;base64,", "\"");
    for (int i = 0; i < 8; i++) {
        unsigned three = (unsigned)digit(base64[4 * i]) << 18 | (unsigned)digit(base64[4 * i + 1]) << 12 |
                         (unsigned)digit(base64[4 * i + 2]) << 6 | (unsigned)digit(base64[4 * i + 3]);
        for (int b = 0; b < 3; b++)
            picture[3 * i + b] = (unsigned char)(three >> (16 - 8 * b));
    }
    /* PNG: signature, length of the header, IHDR, width, height (big-endian) */
    assert_memory_equal(picture, "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
    assert_int_equal(picture[18] << 8 | picture[19], WIDTH);
    assert_int_equal(picture[22] << 8 | picture[23], HEIGHT);
    free(clips);
    free(page);
    fake_remove(folder);
}

/* With 100,000 steps the page stays small, and a single spike remains in the curve. */
static void test_long_run(void **unused)
{
    (void)unused;
    DsvReportSummary summary;
    double box[4], scale[4], x, y, nearest = INFINITY;
    int points = 0, length;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 100000);
    fake_rest(folder);
    char *page = fake_report(folder, &summary);
    assert_whole(page);
    assert_int_equal(summary.steps, 100000);
    assert_true(summary.bytes < 2000000);
    char *svg = strdup(text_between(page, "<section id=\"loss\">", "</section>"));
    read_four(svg, "viewBox", box);
    read_four(svg, "data-scale", scale);
    /* The loss falls from 2 to 0.0004, so the axis is logarithmic. Two decimals of a unit resolve values to
     * 5e-5. */
    const char *at = text_between(svg, "data-name=\"training, each step\" points=\"", "\"");
    for (; sscanf(at, "%lf,%lf %n", &x, &y, &length) == 2; at += length, points++)
        if (fabs(x - box[2] / 2) < 1) { /* step 50,000 is in the middle */
            double loss = scale[2] * pow(scale[3] / scale[2], 1 - y / box[3]);
            nearest = fmin(nearest, fabs(loss / fake_loss(50000) - 1));
        }
    assert_true(points > 400 && points <= 800);
    assert_error_below(nearest, 1e-4, "the spike");
    free(svg);
    free(page);
    fake_remove(folder);
}

static void test_where_it_goes(void **unused)
{
    (void)unused;
    char path[DSVI_PATH_MAX];
    DsvReportSummary summary;
    const char *folder = fake_folder("run");
    fake_metrics(folder, 20);
    assert_ok(dsvi_path_join(path, folder, "page.html"));
    assert_ok(dsv_report(folder, path, &summary));
    assert_string_equal(summary.path, path);
    assert_true(dsvi_path_exists(path));
    assert_ok(dsvi_path_join(path, folder, "report.html"));
    assert_false(dsvi_path_exists(path));
    assert_fails(DSV_E_NOT_FOUND, "nowhere: no such folder", dsv_report("nowhere", NULL, NULL));
    assert_ok(dsvi_path_join(path, folder, "metrics.jsonl"));
    assert_int_equal(unlink(path), 0);
    assert_fails(DSV_E_NOT_FOUND, "no metrics.jsonl there, so this is not a run's folder",
                 dsv_report(folder, NULL, NULL));
    fake_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sections),      cmocka_unit_test(test_headline),
        cmocka_unit_test(test_loss_curve),    cmocka_unit_test(test_head_maps),
        cmocka_unit_test(test_block_maps),    cmocka_unit_test(test_noise_levels),
        cmocka_unit_test(test_settings),      cmocka_unit_test(test_missing_pieces),
        cmocka_unit_test(test_clips),         cmocka_unit_test(test_long_run),
        cmocka_unit_test(test_where_it_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
