/* Values that a run writes for TensorBoard: times of parts of a step, memory, losses by noise level, figures
 * of each block, and the sampled clip. */
#include "test.h"

#include "dsv/dsv.h"
#include "event_file.h"
#include "tiny.h"

enum { STEPS = 4, RECORDS_MAX = 64 };

static Record record[RECORDS_MAX];
static int records;

static void set(DsvConfig *settings, const char *key, const char *value)
{
    char assignment[DSVI_PATH_MAX + 64];
    snprintf(assignment, sizeof assignment, "%s=%s", key, value);
    assert_ok(dsv_config_set(settings, assignment));
}

static DsvStatus find_events(void *path, const char *name)
{
    if (strncmp(name, "events.out.", strlen("events.out.")) == 0)
        snprintf(path, DSVI_PATH_MAX, "%s", name);
    return DSV_OK;
}

/* Two blocks that profile at steps 1, 2 and 4, a held-out loss at step 4, and a sampled clip at the end. */
static int train(void **unused)
{
    (void)unused;
    DsvConfig settings;
    DsvTrainSummary summary;
    char name[DSVI_PATH_MAX] = "", path[DSVI_PATH_MAX];
    const char *clips = tiny_folder(), *folder = tiny_folder();
    tiny_clips(clips, 2);
    tiny_settings(&settings);
    set(&settings, "data.path", clips);
    set(&settings, "output_dir", folder);
    set(&settings, "max_train_steps", "4");
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "2");
    set(&settings, "validation.data", clips);
    set(&settings, "validation.clips", "2");
    assert_ok(dsv_train(&settings, NULL, &summary));
    assert_ok(dsvi_folder_list(folder, find_events, name));
    assert_ok(dsvi_path_join(path, folder, name));
    records = read_file(path, record, RECORDS_MAX);
    assert_ok(dsvi_folder_remove(clips));
    assert_ok(dsvi_folder_remove(folder));
    return 0;
}

/* The value of a tag at a step, or NaN if there is none. */
static float value_of(const char *tag, int64_t step)
{
    for (int r = 0; r < records; r++)
        for (int i = 0; i < record[r].scalars; i++)
            if (record[r].step == step && strcmp(record[r].tag[i], tag) == 0)
                return record[r].value[i];
    return NAN;
}

/* The wait for samples is left out of the sum: the part of it that falls into the backward pass, in which the
 * next batch is drawn, is in backward_ms as well. */
static void parts_of_a_step_and_memory(void **unused)
{
    (void)unused;
    static const char *const part[] = {"speed/forward_ms", "speed/backward_ms", "speed/optimizer_ms"};
    for (int step = 1; step <= STEPS; step++) {
        float whole = value_of("speed/step_ms", step), wait = value_of("speed/data_wait_ms", step), sum = 0;
        for (int i = 0; i < 3; i++) {
            assert_true(value_of(part[i], step) > 0);
            sum += value_of(part[i], step);
        }
        assert_true(sum <= whole * 1.01f);
        assert_true(wait >= 0 && wait <= whole * 1.01f);
        assert_true(value_of("memory/used_MiB", step) > 1 && value_of("memory/used_MiB", step) < 1e5f);
    }
}

/* A step has two samples, each with a loss in the bin of its noise level; their mean is the step's loss. */
static void training_loss_by_noise_level(void **unused)
{
    (void)unused;
    char tag[32];
    for (int step = 1; step <= STEPS; step++) {
        float low = INFINITY, high = -INFINITY, loss = value_of("train/loss", step);
        int levels = 0;
        for (int bin = 0; bin < 10; bin++) {
            snprintf(tag, sizeof tag, "train/loss_at_0.%d5", bin);
            float value = value_of(tag, step);
            levels += !isnan(value);
            low = fminf(low, value);
            high = fmaxf(high, value);
        }
        assert_true(levels >= 1 && levels <= 2);
        assert_true(loss >= low * 0.9999f && loss <= high * 1.0001f);
    }
    assert_true(value_of("validation/loss_at_0.05", STEPS) > 0);
    assert_true(value_of("validation/loss", STEPS) > 0);
}

static void density_mass_and_error_by_block(void **unused)
{
    (void)unused;
    int below = 0;
    for (int block = 0; block < 2; block++) {
        char density[64], captured[64], error[64];
        snprintf(density, sizeof density, "density_by_block/block_%02d", block);
        snprintf(captured, sizeof captured, "captured_mass_by_block/block_%02d", block);
        assert_true(value_of(density, STEPS) > 0 && value_of(density, STEPS) <= 1);
        assert_true(value_of(captured, STEPS) > 0 && value_of(captured, STEPS) <= 1);
        snprintf(error, sizeof error, "output_error_by_block/block_%02d", block);
        assert_true(value_of(error, STEPS) > 0 && value_of(error, STEPS) < 10);
        assert_true(isnan(value_of(density, 3))); /* no profile at this step */
        below += value_of(density, STEPS) < 1;
    }
    assert_true(below > 0); /* a block is sparse by then, which its curve shows */
}

static void the_sampled_clip(void **unused)
{
    (void)unused;
    int pictures = 0;
    for (int r = 0; r < records; r++) {
        if (!record[r].image_tag[0])
            continue;
        pictures++;
        assert_string_equal(record[r].image_tag, "samples/clip");
        assert_int_equal(record[r].step, STEPS);
        assert_true(record[r].image_height == TINY_SIDE && record[r].image_width == TINY_SIDE);
        assert_memory_equal(record[r].image, "\x89PNG\r\n\x1a\n", 8);
        const unsigned char *frames = memmem(record[r].image, record[r].image_bytes, "acTL", 4);
        assert_non_null(frames);
        assert_int_equal(frames[7], TINY_FRAMES);
    }
    assert_int_equal(pictures, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_step_and_memory),
        cmocka_unit_test(training_loss_by_noise_level),
        cmocka_unit_test(density_mass_and_error_by_block),
        cmocka_unit_test(the_sampled_clip),
    };
    return cmocka_run_group_tests(tests, train, NULL);
}
