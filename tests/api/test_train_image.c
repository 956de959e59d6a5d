/* dsv_train with models that make clips of pictures: what they learn from, and what is refused. */
#include "wan_case.h"

#include "data/clip.h"

#include "train/run_rig.h"

static const char *data_of(const char *name)
{
    static char path[4][DSVI_PATH_MAX];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, DSVI_PATH_MAX, "%s", scratch_path(name));
    return out;
}

static int make_data(void **state)
{
    if (scratch_make(state) != 0 || dsvi_folder_make(scratch_path("clips")) != DSV_OK)
        return 1;
    tiny_clips(scratch_path("clips"), 2);
    assert_ok(dsvi_file_write(scratch_path("clips/waves-0.txt"), "rain", 4));
    return 0;
}

/* Trains a LoRA of the folder "model" for three steps. */
static void image_settings(DsvConfig *settings, const char *run)
{
    tiny_settings(settings);
    set(settings, "codec.name", "wan");
    set(settings, "model.num_layers", "0");
    set(settings, "model.num_attention_heads", "0");
    set(settings, "model.attention_head_dim", "0");
    set(settings, "model.ffn_dim", "0");
    set(settings, "model.path", data_of("model"));
    set(settings, "data.path", data_of("clips"));
    set(settings, "data.cache",
        data_of(strncmp(run, "i2v", 3) == 0 || strcmp(run, "refused") == 0 ? "cache" : "ti2v-cache"));
    set(settings, "output_dir", data_of(run));
    set(settings, "validation.data", data_of("clips"));
    set(settings, "validation.clips", "2");
    set(settings, "max_train_steps", "3");
    set(settings, "checkpointing_steps", "3");
    set(settings, "lora_rank", "4");
    set(settings, "mixed_precision", "no");
    set(settings, "sparse.enabled", "false");
    set(settings, "threads", "2");
}

/* Trains, and returns the first step's loss and the held-out loss. */
static void train(const DsvConfig *settings, Stopper *heard, double loss[2])
{
    const DsvEvents events = {.context = heard, .log = keep_log};
    *heard = (Stopper){.steps = 1000};
    assert_ok(dsv_train(settings, &events, NULL));
    FILE *file = open_metrics(settings->output_dir);
    cJSON *first = next_line(file);
    assert_non_null(first);
    loss[0] = cJSON_GetObjectItem(first, "loss")->valuedouble;
    cJSON_Delete(first);
    fclose(file);
    const char *held_out = strstr(heard->log, "held-out loss");
    assert_non_null(held_out);
    assert_int_equal(sscanf(held_out, "held-out loss %lf", &loss[1]), 1);
}

/* TI2V-5B learns to continue the first frame of its clips, or everything with model.first_frame=noise. */
static void ti2v_continues_the_first_frame(void **state)
{
    DsvConfig settings;
    Stopper heard;
    double given[2], again[2], noise[2];
    char *text;
    size_t bytes;
    (void)state;
    wan_case_make("pipe_ti2v");
    wan_case_link("pipe_ti2v/vae", "model/vae");
    image_settings(&settings, "given");
    set(&settings, "validation_at_end", "true");
    set(&settings, "num_inference_steps", "1");
    train(&settings, &heard, given);
    assert_non_null(strstr(heard.log, "model.first_frame=given: TI2V-5B of Wan 2.2 learns to continue"));
    assert_ok(dsvi_file_read(scratch_path("given/config.yaml"), 1 << 20, &text, &bytes));
    assert_non_null(strstr(text, "first_frame: given"));
    free(text);
    image_settings(&settings, "again");
    set(&settings, "model.first_frame", "given");
    train(&settings, &heard, again);
    assert_null(strstr(heard.log, "learns to continue"));
    assert_true(again[0] == given[0] && again[1] == given[1]);
    image_settings(&settings, "noise");
    set(&settings, "model.first_frame", "noise");
    train(&settings, &heard, noise);
    for (int i = 0; i < 2; i++)
        assert_true(isfinite(given[i]) && isfinite(noise[i]) && given[i] != noise[i]);
    image_settings(&settings, "still");
    set(&settings, "num_frames", "1");
    assert_fails(DSV_E_SHAPE, "needs at least 2 frames", dsv_train(&settings, NULL, NULL));
}

/* Reads tensor "latent" of the cache's only window file whose name begins with `stem`. */
static DsviSafetensors *window_of(const char *stem, const DsviStoredTensor **latent)
{
    DsviSafetensors *file;
    char path[DSVI_PATH_MAX], command[2 * DSVI_PATH_MAX];
    snprintf(command, sizeof command, "ls '%s'/%s-*.safetensors | head -1", data_of("cache/train"), stem);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_non_null(fgets(path, sizeof path, list));
    pclose(list);
    path[strcspn(path, "\n")] = 0;
    assert_ok(dsvi_safetensors_open(path, &file));
    *latent = dsvi_safetensors_find(file, "latent");
    assert_non_null(*latent);
    return file;
}

/* Compares what the cache has beside a latent with mask and latent of the video of the first frame and grey
 * frames, which `dsv forward` encodes. */
static void check_condition(void)
{
    enum { T = 5, SIDE = 32, FRAME = SIDE * SIDE, Z = 16, MASK = 4, F = 2, PLACES = 16, PLANE = F * PLACES };
    static float pixels[3 * T * FRAME];
    const DsviClipWindow window = {
        .fps = 8, .frames = T, .height = SIDE, .width = SIDE, .crop_x = 0.5, .crop_y = 0.5};
    const DsviStoredTensor *stored, *wanted;
    DsviSafetensors *file = window_of("waves_0", &stored), *encoded;
    DsvConfig settings;
    assert_int_equal(stored->shape[0], 2 * Z + MASK);
    assert_int_equal(stored->count, (2 * Z + MASK) * PLANE);
    assert_ok(dsvi_clip_read(scratch_path("clips/waves-0.mp4"), &window, pixels));
    for (int i = 0; i < 3 * T * FRAME; i++)
        if (i / FRAME % T > 0)
            pixels[i] = 0;
    DsviStoredTensor video = {.name = "video",
                              .dtype = DSVI_F32,
                              .ndim = 5,
                              .shape = {1, 3, T, SIDE, SIDE},
                              .count = 3 * T * FRAME,
                              .bytes = sizeof pixels,
                              .data = pixels};
    assert_ok(dsvi_safetensors_replace(scratch_path("video.safetensors"), &video, 1, NULL, 0));
    dsv_config_defaults(&settings);
    set(&settings, "mixed_precision", "no");
    assert_ok(dsv_forward(data_of("model/vae"), data_of("video.safetensors"), data_of("moments.safetensors"),
                          false, &settings));
    assert_ok(dsvi_safetensors_open(scratch_path("moments.safetensors"), &encoded));
    wanted = dsvi_safetensors_find(encoded, "latents_normalized");
    assert_non_null(wanted);
    const float *condition = (const float *)stored->data + Z * PLANE;
    for (int i = 0; i < MASK * PLANE; i++)
        assert_true(condition[i] == (i % PLANE < PLACES ? 1 : 0));
    assert_error_below(relative_l2(DSVI_F32, condition + MASK * PLANE, DSVI_F32, wanted->data, Z * PLANE),
                       1e-6, "latent of the first frame and grey frames");
    dsvi_safetensors_close(&encoded);
    dsvi_safetensors_close(&file);
}

/* An expert of I2V-A14B learns from the first frame of its clips, which the cache holds encoded. */
static void i2v_learns_from_the_first_frame(void **state)
{
    DsvConfig settings;
    Stopper heard;
    double loss[2], again[2];
    (void)state;
    wan_case_make("pipe_i2v");
    image_settings(&settings, "i2v");
    set(&settings, "data.cache", data_of("cache"));
    set(&settings, "model.expert", "high");
    assert_ok(dsvi_folder_make(scratch_path("cache")));
    train(&settings, &heard, loss);
    assert_non_null(strstr(heard.log, "the Wan repository uses 5 for I2V-A14B"));
    check_condition();
    image_settings(&settings, "i2v-again");
    set(&settings, "model.expert", "high");
    train(&settings, &heard, again);
    assert_non_null(strstr(heard.log, "0 encoded"));
    assert_true(loss[0] == again[0] && loss[1] == again[1] && isfinite(loss[0]) && isfinite(loss[1]));
}

static void what_does_not_fit_is_refused(void **state)
{
    DsvConfig settings;
    (void)state;
    wan_case_make("pipe_i2v");
    image_settings(&settings, "refused");
    set(&settings, "model.expert", "high");
    set(&settings, "model.first_frame", "given");
    assert_fails(DSV_E_USAGE, "the model takes the picture in channels beside the latent",
                 dsv_train(&settings, NULL, NULL));
    set(&settings, "model.first_frame", "auto");
    set(&settings, "model.expert", "none");
    set(&settings, "model.path", data_of("model/transformer"));
    set(&settings, "data.path", data_of("cache/train"));
    set(&settings, "validation.data", "");
    set(&settings, "validation_at_end", "true");
    assert_fails(DSV_E_USAGE, "samples clips of pictures, which a run does not have",
                 dsv_train(&settings, NULL, NULL));
    wan_case_make("pipe_experts");
    image_settings(&settings, "refused");
    set(&settings, "model.expert", "high");
    set(&settings, "data.path", data_of("cache/train"));
    assert_fails(DSV_E_USAGE,
                 "was made for image-to-video models, and model.path=", dsv_train(&settings, NULL, NULL));
    set(&settings, "data.path", data_of("clips"));
    assert_fails(DSV_E_USAGE, "made for image-to-video models, expected text-to-video",
                 dsv_train(&settings, NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ti2v_continues_the_first_frame),
        cmocka_unit_test(i2v_learns_from_the_first_frame),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, make_data, scratch_remove);
}
