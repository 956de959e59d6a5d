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

/* Samples a clip and returns the checksum of its file. */
static uint64_t sample(const DsvConfig *settings, const char *folder)
{
    char model[DSVI_PATH_MAX], video[DSVI_PATH_MAX];
    uint64_t sum;
    snprintf(model, sizeof model, "%s/checkpoint-%d", folder, STEPS);
    snprintf(video, sizeof video, "%s/sampled.mp4", folder);
    assert_ok(dsv_sample(model, NULL, video, settings, NULL));
    assert_ok(dsvi_file_checksum(video, &sum));
    return sum;
}

static void sampling_uses_the_saved_lists(void **state)
{
    DsvConfig settings, dense, other;
    const char *folder = tiny_folder();
    char path[DSVI_PATH_MAX];
    uint64_t trained;
    (void)state;
    train(&settings, folder);
    snprintf(path, sizeof path, "%s/samples/step-%06d.mp4", folder, STEPS);
    assert_ok(dsvi_file_checksum(path, &trained));
    uint64_t sampled = sample(&settings, folder);
    assert_true(sampled == sample(&settings, folder)); /* equal clips give equal files */
    assert_true(sampled == trained);
    other = settings;
    set(&other, "seed", "8");
    assert_true(sampled != sample(&other, folder)); /* different clips give different files */
    dense = settings;
    set(&dense, "sparse.enabled", "false");
    uint64_t without_lists = sample(&dense, folder);
    assert_true(sampled != without_lists);

    /* Without the saved state every block uses dense attention. */
    snprintf(path, sizeof path, "%s/checkpoint-%d/sparse.safetensors", folder, STEPS);
    assert_int_equal(unlink(path), 0);
    assert_true(sample(&settings, folder) == without_lists);
    assert_ok(dsvi_folder_remove(folder));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampling_uses_the_saved_lists),
    };
    return cmocka_run_group_tests(tests, make_clips, remove_clips);
}
