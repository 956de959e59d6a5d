/* dsv_train with models that make clips of pictures: what they learn from, and what is refused. */
#include "wan_case.h"

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
    set(settings, "data.cache", data_of("cache"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ti2v_continues_the_first_frame),
    };
    return cmocka_run_group_tests(tests, make_data, scratch_remove);
}
