/* Samples a clip from a checkpoint with sparse blocks: the clip depends on the saved state of sparse
 * attention, both in training and in `dsv sample`. */
#include "test.h"

#include "train/run_rig.h"

/* Trains until blocks are sparse, and samples a clip at the end. */
static void train(DsvConfig *settings, const char *folder)
{
    DsvTrainSummary summary;
    run_settings(settings, folder);
    set(settings, "validation_at_end", "true");
    set(settings, "num_inference_steps", "3");
    set(settings, "ema_decay", "0");
    assert_ok(dsv_train(settings, NULL, &summary));
    assert_true(summary.sparse_blocks > 0);
}

enum { LOG_BYTES = 4096 };

/* Adds a line to the text of the context, an array of LOG_BYTES. */
static void keep_line(void *context, DsvLogLevel level, const char *line)
{
    size_t used = strlen(context);
    (void)level;
    snprintf((char *)context + used, LOG_BYTES - used, "%s\n", line);
}

/* Samples a clip and returns the checksum of its file. `log` (LOG_BYTES) receives the lines of the log. */
static uint64_t sample_logged(const DsvConfig *settings, const char *folder, char *log)
{
    char model[DSVI_PATH_MAX], video[DSVI_PATH_MAX];
    const DsvEvents events = {.context = log, .log = keep_line};
    uint64_t sum;
    log[0] = 0;
    snprintf(model, sizeof model, "%s/checkpoint-%d", folder, STEPS);
    snprintf(video, sizeof video, "%s/sampled.mp4", folder);
    assert_ok(dsv_sample(model, NULL, video, settings, &events));
    assert_ok(dsvi_file_checksum(video, &sum));
    return sum;
}

static uint64_t sample(const DsvConfig *settings, const char *folder)
{
    char log[LOG_BYTES];
    return sample_logged(settings, folder, log);
}

static void sampling_uses_the_saved_lists(void **state)
{
    DsvConfig settings, dense, other;
    const char *folder = tiny_folder();
    char path[DSVI_PATH_MAX], log[LOG_BYTES];
    uint64_t trained;
    (void)state;
    train(&settings, folder);
    snprintf(path, sizeof path, "%s/samples/step-%06d.mp4", folder, STEPS);
    assert_ok(dsvi_file_checksum(path, &trained));
    uint64_t sampled = sample_logged(&settings, folder, log);
    assert_null(strstr(log, "lists"));
    assert_true(sampled == sample(&settings, folder)); /* equal clips give equal files */
    assert_true(sampled == trained);
    other = settings;
    set(&other, "seed", "8");
    assert_true(sampled != sample(&other, folder)); /* different clips give different files */
    dense = settings;
    set(&dense, "sparse.enabled", "false");
    assert_true(sampled != sample(&dense, folder));

    /* What decides about blocks in training decides nothing in a sample, and the user is told. */
    other = settings;
    set(&other, "sparse.max_error", "0.001");
    assert_true(sampled == sample_logged(&other, folder, log));
    assert_non_null(strstr(log, "sparse.max_error has no effect, because a sample measures nothing"));
    assert_null(strstr(log, "sparse.min_mass"));

    /* Lists of another rule have other errors: all blocks are dense, and the user is told. */
    other = settings;
    set(&other, "sparse.tail", "key");
    assert_true(sampled != sample_logged(&other, folder, log));
    assert_non_null(strstr(log, "decisions about blocks are not used"));
    assert_non_null(strstr(log, "all blocks begin dense"));

    /* A checkpoint without its sparse state is not sampled with other attention. */
    snprintf(path, sizeof path, "%s/checkpoint-%d/sparse.safetensors", folder, STEPS);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/checkpoint-%d", folder, STEPS);
    assert_fails(DSV_E_FORMAT, "sparse.safetensors: the manifest lists it, but it is missing",
                 dsv_sample(path, NULL, "unwritten.mp4", &settings, NULL));
    assert_ok(dsvi_folder_remove(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampling_uses_the_saved_lists),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
