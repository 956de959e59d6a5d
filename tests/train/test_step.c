/* Steps of AdamW on small models compared with PyTorch (golden files of dit_a, dit_clip, dit_flf, dit_i2v and
 * dit_ti2v): losses, gradient norms, and afterwards the weights and both moments. */
#include "test.h"

#include "base/safetensors.h"
#include "cpu/cpu.h"
#include "golden/golden_files.h"
#include "train/step.h"

enum { BATCH = 2, FRAMES = 3, HEIGHT = 4, WIDTH = 6, CHANNELS = 16 };

/* The fixture has latents, not pixels; this codec only gives their shape, and that of the published VAE. */
static DsvStatus published_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    (void)codec;
    *latent = (DsviVideoShape){CHANNELS, 1 + (video.frames - 1) / 4, video.height / 8, video.width / 8};
    return DSV_OK;
}

static const DsviCodec PUBLISHED = {.name = "wan", .latent_shape = published_shape};

typedef struct Fixture {
    DsvConfig settings;
    DsviBackend backend;
    DsviTrainer *trainer;
    DsviSafetensors *inputs, *expected, *weights, *moments;
    int steps; /* steps that PyTorch did */
} Fixture;

static void open_stored(const char *model, const char *name, DsviSafetensors **out)
{
    char path[128];
    snprintf(path, sizeof path, "%s/train/%s.safetensors", model, name);
    assert_ok(dsvi_safetensors_open(golden_path(path), out));
}

static void open_fixture(Fixture *f, const char *isa, const char *model, const char *first_frame)
{
    DsviDitConfig config;
    const DsviStoredTensor *text, *image;
    char path[128];
    memset(f, 0, sizeof *f);
    dsv_config_defaults(&f->settings);
    assert_ok(dsv_config_set(&f->settings, "mixed_precision=no"));
    assert_ok(dsv_config_set(&f->settings, "train_batch_size=2"));
    assert_ok(dsv_config_set(&f->settings, "lr=1e-3"));
    assert_ok(dsv_config_set(&f->settings, "sparse.enabled=false"));
    assert_ok(dsv_config_set(&f->settings, "validation_at_end=false"));
    assert_ok(dsv_config_set(&f->settings, first_frame));
    f->settings.num_frames = 1 + 4 * (FRAMES - 1);
    f->settings.height = 8 * HEIGHT;
    f->settings.width = 8 * WIDTH;
    snprintf(path, sizeof path, "%s/config.json", model);
    assert_ok(dsvi_dit_config_read(golden_path(path), &config));
    open_stored(model, "inputs", &f->inputs);
    open_stored(model, "expected", &f->expected);
    f->steps = (int)dsvi_safetensors_find(f->expected, "losses")->count;
    text = dsvi_safetensors_find(f->inputs, "encoder_hidden_states");
    image = dsvi_safetensors_find(f->inputs, "encoder_hidden_states_image");
    config.text_len = text->shape[2];
    config.image_len = image ? image->count / (f->steps * BATCH * config.image_dim) : 0;
    assert_ok(dsvi_cpu_open(isa, 2, &f->backend));
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &f->settings, .backend = &f->backend, .codec = &PUBLISHED, .config = &config},
        &f->trainer));
    assert_ok(dsvi_trainer_start_from(f->trainer, golden_path(model)));
}

static void close_fixture(Fixture *f)
{
    dsvi_safetensors_close(&f->inputs);
    dsvi_safetensors_close(&f->expected);
    dsvi_safetensors_close(&f->weights);
    dsvi_safetensors_close(&f->moments);
    dsvi_trainer_free(&f->trainer);
    dsvi_cpu_close(&f->backend);
}

/* Uploads the part of a stacked input that belongs to one step. */
static void load_input(Fixture *f, const char *name, int step, void *device_memory)
{
    const DsviStoredTensor *tensor = dsvi_safetensors_find(f->inputs, name);
    assert_non_null(tensor);
    size_t bytes = tensor->bytes / (size_t)f->steps;
    assert_ok(f->backend.device->upload(f->backend.device->stream, device_memory,
                                        (const char *)tensor->data + (size_t)step * bytes, bytes));
}

static void run_steps(Fixture *f)
{
    DsviTrainer *t = f->trainer;
    const DsviStoredTensor *losses = dsvi_safetensors_find(f->expected, "losses");
    const DsviStoredTensor *norms = dsvi_safetensors_find(f->expected, "grad_norms");
    for (int step = 0; step < f->steps; step++) {
        DsviStepResult result = {.step = step + 1, .lr = f->settings.lr};
        load_input(f, "latents_clean", step, t->latents);
        load_input(f, "noise", step, t->noise);
        load_input(f, "sigma", step, t->sigma);
        load_input(f, "sigma", step, t->host_sigma); /* for the bins of the loss */
        load_input(f, "timestep", step, t->timestep);
        load_input(f, "encoder_hidden_states", step, t->text);
        if (t->image_elements > 0)
            load_input(f, "encoder_hidden_states_image", step, t->image);
        assert_ok(dsvi_sparse_step_begin(t->sparse, step + 1, true));
        assert_ok(dsvi_zero_clear_gradients(&t->zero));
        assert_ok(dsvi_train_gradients(t, true, NULL, &result));
        assert_ok(dsvi_train_update(t, &result));
        double loss = ((const double *)losses->data)[step], norm = ((const double *)norms->data)[step];
        assert_error_below(fabs(result.loss - loss) / loss, 1e-5, "loss of step %d", step + 1);
        assert_error_below(fabs(result.grad_norm - norm) / norm, 1e-4, "gradient norm of step %d", step + 1);
    }
}

/* Compares a flat array with stored tensors named prefix + parameter. AdamW divides by the root of the
 * second moment, so a rounding error in a tiny gradient can change a weight by up to lr. The tolerance of
 * weights is therefore relative to their total movement, lr per step. */
static void compare_flat(const Fixture *f, const DsviSafetensors *file, const char *prefix, const float *flat,
                         double bound)
{
    char name[160];
    for (int64_t i = 0; i < f->trainer->table.count; i++) {
        const DsviParam *param = &f->trainer->table.params[i];
        snprintf(name, sizeof name, "%s%s", prefix, param->name);
        const DsviStoredTensor *tensor = dsvi_safetensors_find(file, name);
        assert_non_null(tensor);
        assert_error_below(relative_l2(DSVI_F32, flat + param->offset, tensor->dtype, tensor->data,
                                       param->count),
                           bound, "%s", name);
    }
}

static void follows_pytorch(void **state)
{
    const char *isa = *state;
    Fixture f;
    open_fixture(&f, isa, "dit_a", "model.first_frame=auto");
    open_stored("dit_a", "weights_after", &f.weights);
    open_stored("dit_a", "adam_after", &f.moments);
    run_steps(&f);
    compare_flat(&f, f.weights, "", f.trainer->zero.master.data, 1e-4);
    compare_flat(&f, f.moments, "exp_avg.", (float *)f.trainer->zero.moments.moment[0].data, 1e-3);
    compare_flat(&f, f.moments, "exp_avg_sq.", (float *)f.trainer->zero.moments.moment[1].data, 1e-3);
    close_fixture(&f);
}

/* The first latent frame has no noise, timestep 0 and no loss. */
static void follows_pytorch_from_a_given_frame(void **state)
{
    Fixture f;
    open_fixture(&f, *state, "dit_ti2v", "model.first_frame=given");
    run_steps(&f);
    close_fixture(&f);
}

/* The model takes 20 channels beside the latent's, which stay as they are. */
static void follows_pytorch_beside_a_condition(void **state)
{
    Fixture f;
    open_fixture(&f, *state, "dit_i2v", "model.first_frame=auto");
    assert_int_equal(f.trainer->inputs, (CHANNELS + 20) * FRAMES * HEIGHT * WIDTH);
    run_steps(&f);
    close_fixture(&f);
}

/* The model attends states of one picture, or of two. */
static void follows_pytorch_with_states_of_pictures(void **state)
{
    static const char *const MODELS[] = {"dit_clip", "dit_flf"};
    for (int i = 0; i < 2; i++) {
        Fixture f;
        open_fixture(&f, *state, MODELS[i], "model.first_frame=auto");
        assert_int_equal(f.trainer->image_elements, 20 * (i ? 6 : 9));
        run_steps(&f);
        close_fixture(&f);
    }
}

static void a_given_frame_has_no_pixel_weight(void **state)
{
    Fixture f;
    DsviArena device, host;
    (void)state;
    open_fixture(&f, "auto", "dit_ti2v", "model.first_frame=given");
    f.settings.loss_pixel_weight = 0.5;
    assert_fails(DSV_E_USAGE, "loss_pixel_weight=0.5: expected 0 with model.first_frame=given",
                 dsvi_trainer_plan(f.trainer, &f.settings, &device, &host));
    close_fixture(&f);
}

/* A non-finite loss must not change the weights. */
static void divergence_leaves_the_weights(void **state)
{
    Fixture f;
    (void)state;
    open_fixture(&f, "auto", "dit_a", "model.first_frame=auto");
    DsviTrainer *t = f.trainer;
    size_t bytes = (size_t)t->table.elements * sizeof(float);
    float *before = malloc(bytes);
    assert_non_null(before);
    memcpy(before, t->zero.master.data, bytes);
    DsviStepResult result = {.step = 1, .lr = 1e-3, .loss = 1};
    t->zero.grad.data[3] = NAN;
    assert_fails(DSV_E_DIVERGED, "step 1", dsvi_train_update(t, &result));
    assert_memory_equal(before, t->zero.master.data, bytes);
    assert_int_equal(t->step, 0);
    free(before);
    close_fixture(&f);
}

/* The data set fails after this many samples. */
static DsvStatus next_of_few(void *context, DsviSample *sample)
{
    int *left = context;
    float *latent = sample->latent;
    if (*left == 0)
        return DSVI_FAIL(DSV_E_IO, "the disk is gone");
    --*left;
    for (int i = 0; i < CHANNELS * FRAMES * HEIGHT * WIDTH; i++)
        latent[i] = (float)sin(0.37 * i + *left);
    return DSV_OK;
}

/* Samples are drawn ahead. A failure to get one is reported only by the step that needs the sample, and this
 * step changes nothing. */
static void no_step_is_lost_for_want_of_the_next(void **state)
{
    (void)state;
    for (int odd = 0; odd < 2; odd++) {
        int left = 2 * BATCH + odd;
        Fixture f;
        DsviStepResult result;
        open_fixture(&f, "auto", "dit_a", "model.first_frame=auto");
        DsviSampleSource source = {.context = &left, .next = next_of_few};
        for (int step = 1; step <= 2; step++) {
            assert_ok(dsvi_train_step(f.trainer, &source, &result));
            assert_true(result.begun);
        }
        for (int again = 0; again < 2; again++) {
            assert_fails(DSV_E_IO, "the disk is gone", dsvi_train_step(f.trainer, &source, &result));
            assert_false(result.begun);
            assert_int_equal(f.trainer->step, 2);
            assert_int_equal(f.trainer->sample, 2 * BATCH);
        }
        close_fixture(&f);
    }
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(follows_pytorch, "ref"),
        cmocka_unit_test_prestate(follows_pytorch, "auto"),
        cmocka_unit_test(divergence_leaves_the_weights),
        cmocka_unit_test(no_step_is_lost_for_want_of_the_next),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

static void drawn_samples_have_time_0_in_the_given_frame(void **state)
{
    int left = 4 * BATCH;
    Fixture f;
    DsviStepResult result;
    DsviSampleSource source = {.context = &left, .next = next_of_few};
    (void)state;
    open_fixture(&f, "auto", "dit_ti2v", "model.first_frame=given");
    assert_ok(dsvi_train_step(f.trainer, &source, &result));
    assert_true(f.trainer->drawn);
    for (int b = 0; b < BATCH; b++) {
        const float *times = f.trainer->host_timestep + 2 * b;
        assert_true(times[0] == 0);
        assert_error_below(fabs(times[1] / (1000 * f.trainer->host_sigma[b]) - 1), 1e-6, "sample %d", b);
    }
    close_fixture(&f);
}

/* Writes sample number *context: its elements are small numbers that tell them apart. */
static DsvStatus next_numbered(void *context, DsviSample *sample)
{
    int *number = context;
    for (int i = 0; i < (CHANNELS + 20) * FRAMES * HEIGHT * WIDTH + 9 * 20; i++)
        sample->latent[i] = (float)(++*number % 997) * 1e-3F;
    return DSV_OK;
}

/* The states of pictures follow the input of each sample. */
static void samples_end_with_states_of_pictures(void **state)
{
    enum { INPUTS = (CHANNELS + 20) * FRAMES * HEIGHT * WIDTH, IMAGE = 9 * 20 };
    int number = 0;
    Fixture f;
    DsviStepResult result;
    DsviSampleSource source = {.context = &number, .next = next_numbered};
    (void)state;
    open_fixture(&f, "auto", "dit_clip", "model.first_frame=auto");
    f.settings.max_train_steps = 1;
    assert_ok(dsvi_train_step(f.trainer, &source, &result));
    for (int b = 0; b < BATCH; b++)
        for (int i = 0; i < IMAGE; i++) {
            int wanted = b * (INPUTS + IMAGE) + INPUTS + i + 1;
            assert_true(f.trainer->image[b * IMAGE + i] == (float)(wanted % 997) * 1e-3F);
        }
    close_fixture(&f);
}

static int run_image(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(follows_pytorch_from_a_given_frame, "ref"),
        cmocka_unit_test_prestate(follows_pytorch_from_a_given_frame, "auto"),
        cmocka_unit_test_prestate(follows_pytorch_beside_a_condition, "ref"),
        cmocka_unit_test_prestate(follows_pytorch_beside_a_condition, "auto"),
        cmocka_unit_test_prestate(follows_pytorch_with_states_of_pictures, "ref"),
        cmocka_unit_test_prestate(follows_pytorch_with_states_of_pictures, "auto"),
        cmocka_unit_test(drawn_samples_have_time_0_in_the_given_frame),
        cmocka_unit_test(samples_end_with_states_of_pictures),
        cmocka_unit_test(a_given_frame_has_no_pixel_weight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    int failed = golden_run("dit_a", run);
    return failed + golden_run("dit_ti2v", run_image);
}
