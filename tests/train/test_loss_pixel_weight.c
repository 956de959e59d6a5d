/* loss_pixel_weight: each latent channel is weighted in the loss by the codec's pixel error. */
#include "test.h"

#include "cpu/cpu.h"
#include "train/step.h"

enum { CHANNELS = 2, FRAMES = 3, HEIGHT = 4, WIDTH = 6 };

static double channel_error[CHANNELS]; /* pixel errors that the codec reports */

static DsvStatus fixed_latent_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    (void)codec;
    (void)video;
    *latent = (DsviVideoShape){CHANNELS, FRAMES, HEIGHT, WIDTH};
    return DSV_OK;
}

static void fixed_pixel_errors(const DsviCodec *codec, double *error)
{
    (void)codec;
    memcpy(error, channel_error, sizeof channel_error);
}

static const DsviCodec FIXED = {
    .name = "fixed",
    .latent_shape = fixed_latent_shape,
    .pixel_errors = fixed_pixel_errors,
};

static DsvStatus next_latent(void *context, DsviSample *sample)
{
    int *number = context;
    ++*number;
    for (int i = 0; i < CHANNELS * FRAMES * HEIGHT * WIDTH; i++)
        sample->latent[i] = (float)sin(0.37 * i + *number);
    return DSV_OK;
}

static DsvStatus fill_bucket(void *context, int64_t bucket, void *data)
{
    const DsviParamTable *table = context;
    float *weights = data;
    for (int64_t i = table->begin[bucket]; i < table->begin[bucket + 1]; i++)
        weights[i - table->begin[bucket]] = (float)(0.02 * sin(1.7 * (double)i));
    return DSV_OK;
}

/* Runs the first step; all calls use the same weights, latents and noise. */
static DsviStepResult first_step(const char *pixel_weight, double first, double second)
{
    static const char *const SMALL[] = {
        "model.num_layers=1",   "model.num_attention_heads=2", "model.attention_head_dim=32",
        "model.ffn_dim=64",     "mixed_precision=no",          "train_batch_size=2",
        "sparse.enabled=false", "validation_at_end=false",
    };
    DsvConfig settings;
    DsviDitConfig config;
    DsviBackend backend;
    DsviTrainer *trainer;
    DsviStepResult result;
    int sample = 0;
    DsviSampleSource source = {.context = &sample, .next = next_latent};
    channel_error[0] = first;
    channel_error[1] = second;
    dsv_config_defaults(&settings);
    for (size_t i = 0; i < sizeof SMALL / sizeof *SMALL; i++)
        assert_ok(dsv_config_set(&settings, SMALL[i]));
    assert_ok(dsv_config_set(&settings, pixel_weight));
    assert_ok(dsvi_dit_config_make(&settings, &config));
    config.in_channels = config.out_channels = CHANNELS;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){.settings = &settings, .backend = &backend, .codec = &FIXED, .config = &config},
        &trainer));
    assert_ok(dsvi_trainer_start(trainer, &(DsviBucketIo){fill_bucket, &trainer->table}));
    assert_ok(dsvi_train_step(trainer, &source, &result));
    dsvi_trainer_free(&trainer);
    dsvi_cpu_close(&backend);
    return result;
}

/* Pixel errors of (2, 0) select the first channel, with weight 2, since weights have mean 1. So the losses
 * of the two single channels have the unweighted loss as their mean. Losses are means of F32 squares. */
static void weighted_losses_add_up(void **state)
{
    (void)state;
    DsviStepResult all = first_step("loss_pixel_weight=0", 2, 0);
    DsviStepResult same = first_step("loss_pixel_weight=1", 3, 3);
    DsviStepResult first = first_step("loss_pixel_weight=1", 2, 0);
    DsviStepResult second = first_step("loss_pixel_weight=1", 0, 5);
    assert_error_below(fabs((first.loss + second.loss) / 2 - all.loss) / all.loss, 1e-6, "channels alone");
    assert_true(fabs(first.loss - second.loss) > 1e-3 * all.loss);
    assert_true(fabs(first.grad_norm - second.grad_norm) > 1e-3 * all.grad_norm);
    assert_error_below(fabs(same.loss - all.loss) / all.loss, 1e-6, "equal errors");
}

/* Errors of 4 and 1 to the power 1/2 give weights of 4/3 and 2/3. */
static void a_weight_between_is_a_power(void **state)
{
    (void)state;
    DsviStepResult first = first_step("loss_pixel_weight=1", 1, 0);
    DsviStepResult second = first_step("loss_pixel_weight=1", 0, 1);
    DsviStepResult root = first_step("loss_pixel_weight=0.5", 4, 1);
    double expected = first.loss / 2 * 4 / 3 + second.loss / 2 * 2 / 3;
    assert_error_below(fabs(root.loss - expected) / expected, 1e-6, "power 1/2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weighted_losses_add_up),
        cmocka_unit_test(a_weight_between_is_a_power),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
