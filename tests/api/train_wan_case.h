/* Training runs with a published model on small clips with captions. */
#ifndef DSVI_TEST_TRAIN_WAN_CASE_H
#define DSVI_TEST_TRAIN_WAN_CASE_H

#include "base/scratch.h"
#include "golden/golden_files.h"
#include "train/run_rig.h"

/* The folder of the published model. */
static char wan_model[DSVI_PATH_MAX];

/* As scratch_path, but the path stays valid for the next 63 calls. */
static inline const char *folder_named(const char *name)
{
    enum { PATHS = 64 };
    static char made[PATHS][DSVI_PATH_MAX];
    static int count;
    char *path = made[count++ % PATHS];
    snprintf(path, DSVI_PATH_MAX, "%s", scratch_path(name));
    return path;
}

static inline void write_caption(const char *name, const char *text)
{
    assert_ok(dsvi_file_write(scratch_path(name), text, strlen(text)));
}

/* Writes clips that go to three sizes: two of 12 frames, two of 5, and one of a single frame. An epoch has
 * five samples, so that no checkpoint of the tests is at its end. */
static inline void make_sized_clips(void)
{
    static float pixels[3 * 5 * 40 * 56];
    for (int i = 0; i < 3 * 5 * 40 * 56; i++)
        pixels[i] = (float)sin(0.3 * (i % 56) + 0.01 * i);
    tiny_clips(scratch_path("sized"), 2);
    assert_ok(dsvi_video_write(scratch_path("sized/wide.mp4"), pixels, 5, 40, 56, 8));
    assert_ok(dsvi_video_write(scratch_path("sized/wide-2.mp4"), pixels, 5, 40, 56, 8));
    assert_ok(dsvi_video_write(scratch_path("sized/still.mp4"), pixels, 1, 40, 40, 8));
    write_caption("sized/wide.txt", "A cat walks on the grass");
    write_caption("sized/still.txt", "rain");
}

static inline int make_data(void **state)
{
    if (scratch_make(state) != 0 || dsvi_folder_make(scratch_path("clips")) != DSV_OK ||
        dsvi_folder_make(scratch_path("sized")) != DSV_OK)
        return 1;
    make_sized_clips();
    snprintf(wan_model, sizeof wan_model, "%s", golden_path("pipe_a"));
    tiny_clips(scratch_path("clips"), 2);
    write_caption("clips/waves-0.txt", "A cat walks on the grass");
    write_caption("clips/waves-1.txt", "rain");
    return 0;
}

/* Options with which a LoRA of the model at `path` is trained in F32 with dense attention. */
static inline void wan_model_settings(DsvConfig *settings, const char *path)
{
    tiny_settings(settings);
    set(settings, "codec.name", "wan");
    set(settings, "model.num_layers", "0");
    set(settings, "model.num_attention_heads", "0");
    set(settings, "model.attention_head_dim", "0");
    set(settings, "model.ffn_dim", "0");
    set(settings, "model.path", path);
    set(settings, "lora_rank", "4");
    set(settings, "mixed_precision", "no");
    set(settings, "sparse.enabled", "false");
    set(settings, "threads", "2");
}

static inline void wan_settings(DsvConfig *settings, const char *folder)
{
    wan_model_settings(settings, wan_model);
    set(settings, "data.path", scratch_path("clips"));
    set(settings, "data.cache", folder_named("cache"));
    set(settings, "output_dir", folder);
    set(settings, "max_train_steps", "10");
    set(settings, "lr", "1e-2");
    set(settings, "caption_dropout", "0.3");
}

static inline void sized_settings(DsvConfig *settings, const char *folder)
{
    wan_settings(settings, folder);
    set(settings, "data.path", scratch_path("sized"));
    set(settings, "data.cache", scratch_path("sized-cache"));
    set(settings, "data.buckets", "9x32x32,5x32x48,1x32x32");
    set(settings, "gradient_accumulation_steps", "2");
    set(settings, "train_batch_size", "1");
    set(settings, "sparse.enabled", "true");
    set(settings, "sparse.min_keys", "0");
    set(settings, "validation.data", scratch_path("clips"));
    set(settings, "validation.clips", "2");
}

/* The loss of step `step` on record. */
static inline double loss_of_step(const char *folder, int step)
{
    FILE *file = open_metrics(folder);
    double loss = NAN;
    for (int line = 1; line <= step; line++) {
        cJSON *object = next_line(file);
        assert_non_null(object);
        loss = cJSON_GetObjectItem(object, "loss")->valuedouble;
        cJSON_Delete(object);
    }
    fclose(file);
    return loss;
}

/* Trains, and keeps the log in `heard`. */
static inline void train(const DsvConfig *settings, Stopper *heard)
{
    DsvEvents events;
    memset(&events, 0, sizeof events);
    memset(heard, 0, sizeof *heard);
    events.context = heard;
    events.log = keep_log;
    heard->steps = 1000;
    assert_ok(dsv_train(settings, &events, NULL));
}

#endif
