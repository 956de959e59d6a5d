/* Writes run folders with known numbers and searches the report; interface: fake_run.h. */
#include "fake_run.h"

#include <inttypes.h>
#include <unistd.h>

const char *fake_folder(const char *name)
{
    static char path[8][DSVI_PATH_MAX];
    static int next;
    char *out = path[next++ % 8], above[] = "/tmp/dsv-report-XXXXXX";
    assert_non_null(mkdtemp(above));
    assert_ok(dsvi_path_join(out, above, name));
    assert_ok(dsvi_folder_make(out));
    return out;
}

void fake_remove(const char *folder)
{
    char above[DSVI_PATH_MAX];
    snprintf(above, sizeof above, "%s", folder);
    *strrchr(above, '/') = 0;
    assert_ok(dsvi_folder_remove(above));
}

void fake_file(const char *folder, const char *name, const char *text)
{
    char path[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(path, folder, name));
    assert_ok(dsvi_file_write(path, text, strlen(text)));
}

double fake_loss(int64_t step)
{
    return 2 / (1 + 0.05 * (double)(step - 1)) + (step == 77 || step == 50000 ? 0.25 : 0);
}

double fake_captured(int64_t step, int64_t block, int64_t head)
{
    return 0.3 + 0.125 * (double)block + 0.0625 * (double)head + 0.25 * (1 - 1 / (double)step);
}

static FILE *open_in(const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    assert_ok(dsvi_path_join(path, folder, name));
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    return file;
}

static void write_step(FILE *to, int64_t step)
{
    double loss = fake_loss(step);
    fprintf(to,
            "{\"step\": %" PRId64 ", \"loss\": %.17g, \"grad_norm\": %.17g, \"lr\": 0.001, "
            "\"step_ms\": 250, \"tokens_per_s\": 4000, \"density\": %s, \"sparse_blocks\": %d, "
            "\"captured_mass\": %s, \"output_error\": 0.25, "
            "\"data_wait_ms\": 1, \"forward_ms\": 80, \"backward_ms\": 150, "
            "\"optimizer_ms\": 10, \"memory_bytes\": 209715200, \"loss_bins\": [",
            step, loss, loss / 8, step > 50 ? "0.4" : "1", step > 50 ? 2 : 0, step > 50 ? "0.9" : "null");
    for (int bin = 0; bin < 10; bin++)
        fprintf(to, bin == 9 && step % 2 ? "%snull" : "%s%.3f", bin ? ", " : "", loss + 0.1 * bin);
    fputs("]}\n", to);
}

static void write_block(FILE *to, int64_t step, int64_t block)
{
    fprintf(to,
            "{\"step\": %" PRId64 ", \"block\": %" PRId64 ", \"sparse\": %s, \"density\": 0.1, "
            "\"captured_mass\": %.17g, \"output_error\": 0.25, "
            "\"estimated_mass\": 0.9, \"share90\": 0.25, \"head_captured\": [",
            step, block, step > 50 && block > 0 ? "true" : "false", fake_captured(step, block, 0));
    for (int head = 0; head < FAKE_HEADS; head++)
        fprintf(to, "%s%.17g", head ? ", " : "", fake_captured(step, block, head));
    fputs("], \"head_error\": [0.125, 0.375], \"head_share90\": [0.2, 0.3]}\n", to);
}

void fake_metrics(const char *folder, int64_t steps)
{
    FILE *metrics = open_in(folder, "metrics.jsonl"), *blocks = open_in(folder, "blocks.jsonl");
    for (int64_t step = 1; step <= steps; step++) {
        write_step(metrics, step);
        for (int64_t block = 0; block < FAKE_BLOCKS && step % FAKE_MEASURE_EVERY == 0; block++)
            write_block(blocks, step, block);
    }
    assert_int_equal(fclose(metrics), 0);
    assert_int_equal(fclose(blocks), 0);
}

void fake_rest(const char *folder)
{
    fake_file(folder, "decisions.jsonl",
              "{\"step\": 1, \"reason\": \"lists are faster up to density 0.50\"}\n"
              "{\"step\": 50, \"reason\": \"block 1 turns sparse: for \\\"good\\\" reasons\"}\n");
    fake_file(folder, "validation.jsonl",
              "{\"step\": 50, \"loss\": 0.75, \"bins\": [{\"sigma\": 0.25, \"loss\": 1}], "
              "\"dense_loss\": null}\n"
              "{\"step\": 100, \"loss\": 0.625, \"bins\": [{\"sigma\": 0.25, \"loss\": 0.5}, "
              "{\"sigma\": 0.75, \"loss\": 0.875}], \"dense_loss\": 0.5}\n");
    fake_file(folder, "run.json",
              "{\"dsv\": \"0.9.7\", \"device\": \"some processor\", \"parameters\": 12345678, \"blocks\": 3, "
              "\"heads\": 2, \"head_dim\": 64, \"tokens\": 720, \"clips\": 5, \"memory_bytes\": "
              "{\"weights\": 104857600, \"scratch\": 52428800}, \"memory_planned_bytes\": 157286400}");
    fake_file(folder, "config.yaml",
              "max_train_steps: 100\nlr: 0.003\n"
              "sparse.tail: none\nsparse.min_mass: 0.7\nsparse.min_head_mass: 0.2\n");
}

char *fake_report(const char *folder, DsvReportSummary *summary)
{
    char path[DSVI_PATH_MAX], *text;
    size_t bytes;
    assert_ok(dsv_report(folder, NULL, summary));
    assert_ok(dsvi_path_join(path, folder, "report.html"));
    assert_ok(dsvi_file_read(path, 64 << 20, &text, &bytes));
    return text;
}

const char *text_between(const char *text, const char *before, const char *behind)
{
    static char piece[1 << 20];
    const char *start = strstr(text, before);
    if (!start)
        fail_msg("the page lacks '%s'", before);
    start += strlen(before);
    const char *end = strstr(start, behind);
    if (!end || end - start >= (ptrdiff_t)sizeof piece)
        fail_msg("the page lacks '%s' after '%s'", behind, before);
    snprintf(piece, sizeof piece, "%.*s", (int)(end - start), start);
    return piece;
}

int count_of(const char *text, const char *words)
{
    int count = 0;
    for (const char *at = text; (at = strstr(at, words)); at += strlen(words))
        count++;
    return count;
}

void assert_holds(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("the page lacks '%s'", words);
}

void assert_lacks(const char *text, const char *words)
{
    if (strstr(text, words))
        fail_msg("the page holds '%s'", words);
}
