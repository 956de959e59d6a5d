/* dsv_train with models that make clips of pictures: what they learn from, and what is refused. */
#include "train_wan_case.h"
#include "wan_case.h"

#include "data/clip.h"
#include "data/picture.h"
#include "backend/backend.h"
#include "model/vit/vit.h"
#include "sample/png_writer.h"

static int make_captioned(void **state)
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
    wan_model_settings(settings, folder_named("model"));
    set(settings, "data.path", folder_named("clips"));
    set(settings, "data.cache",
        folder_named(strncmp(run, "i2v", 3) == 0 || strcmp(run, "refused") == 0 ? "cache" : "ti2v-cache"));
    set(settings, "data.windows", "head");
    set(settings, "output_dir", folder_named(run));
    set(settings, "validation.data", folder_named("clips"));
    set(settings, "validation.clips", "2");
    set(settings, "max_train_steps", "3");
    set(settings, "checkpointing_steps", "3");
}

/* Trains, and returns the first step's loss and the held-out loss. */
static void train_losses(const DsvConfig *settings, Stopper *heard, double loss[2])
{
    train(settings, heard);
    loss[0] = loss_of_step(settings->output_dir, 1);
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
    train_losses(&settings, &heard, given);
    assert_non_null(strstr(heard.log, "model.first_frame=given: TI2V-5B of Wan 2.2 learns to continue"));
    assert_non_null(strstr(heard.log, "sampled clips begin with pictures of"));
    assert_ok(dsvi_file_read(scratch_path("given/config.yaml"), 1 << 20, &text, &bytes));
    assert_non_null(strstr(text, "first_frame: given"));
    free(text);
    image_settings(&settings, "again");
    set(&settings, "model.first_frame", "given");
    train_losses(&settings, &heard, again);
    assert_null(strstr(heard.log, "learns to continue"));
    assert_true(again[0] == given[0] && again[1] == given[1]);
    image_settings(&settings, "noise");
    set(&settings, "model.first_frame", "noise");
    train_losses(&settings, &heard, noise);
    for (int i = 0; i < 2; i++)
        assert_true(isfinite(given[i]) && isfinite(noise[i]) && given[i] != noise[i]);
    image_settings(&settings, "still");
    set(&settings, "num_frames", "1");
    assert_fails(DSV_E_SHAPE, "needs at least 2 frames", dsv_train(&settings, NULL, NULL));
}

enum { T = 5, SIDE = 32, FRAME = SIDE * SIDE };

/* Reads tensor "latent" of the only window in folder `cache` whose name begins with `stem`. */
static DsviSafetensors *window_of(const char *cache, const char *stem, const DsviStoredTensor **latent)
{
    DsviSafetensors *file;
    char path[DSVI_PATH_MAX], command[2 * DSVI_PATH_MAX];
    snprintf(command, sizeof command, "ls '%s'/%s-*.safetensors", folder_named(cache), stem);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_non_null(fgets(path, sizeof path, list));
    assert_int_equal(fgetc(list), EOF);
    pclose(list);
    path[strcspn(path, "\n")] = 0;
    assert_ok(dsvi_safetensors_open(path, &file));
    *latent = dsvi_safetensors_find(file, "latent");
    assert_non_null(*latent);
    return file;
}

/* Returns the normalised latent that `dsv forward` computes of a video (3, frames, SIDE, SIDE). */
static DsviSafetensors *latent_of(float *pixels, int frames, const DsviStoredTensor **latent)
{
    DsviSafetensors *file;
    DsvConfig settings;
    DsviStoredTensor video = {.name = "video",
                              .dtype = DSVI_F32,
                              .ndim = 5,
                              .shape = {1, 3, frames, SIDE, SIDE},
                              .count = 3 * frames * FRAME,
                              .bytes = (size_t)(3 * frames * FRAME) * sizeof *pixels,
                              .data = pixels};
    assert_ok(dsvi_safetensors_replace(scratch_path("video.safetensors"), &video, 1, NULL, 0));
    dsv_config_defaults(&settings);
    set(&settings, "mixed_precision", "no");
    assert_ok(dsv_forward(folder_named("model/vae"), folder_named("video.safetensors"),
                          folder_named("moments.safetensors"), false, &settings));
    assert_ok(dsvi_safetensors_open(scratch_path("moments.safetensors"), &file));
    *latent = dsvi_safetensors_find(file, "latents_normalized");
    assert_non_null(*latent);
    return file;
}

/* Compares what the cache has beside a latent with mask and latent of the video of a picture (3, SIDE, SIDE),
 * grey frames and, unless NULL, a last picture. */
static void check_condition(const char *cache, const char *stem, const float *picture, const float *last)
{
    enum { Z = 16, MASK = 4, F = 2, PLACES = 16, PLANE = F * PLACES };
    static float pixels[3 * T * FRAME];
    const DsviStoredTensor *stored, *wanted;
    DsviSafetensors *file = window_of(cache, stem, &stored), *encoded;
    assert_int_equal(stored->shape[0], 2 * Z + MASK);
    assert_int_equal(stored->count, (2 * Z + MASK) * PLANE);
    for (int i = 0; i < 3 * T * FRAME; i++)
        pixels[i] = i / FRAME % T == 0               ? picture[i / (T * FRAME) * FRAME + i % FRAME]
                    : i / FRAME % T == T - 1 && last ? last[i / (T * FRAME) * FRAME + i % FRAME]
                                                     : 0;
    encoded = latent_of(pixels, T, &wanted);
    const float *condition = (const float *)stored->data + Z * PLANE;
    for (int i = 0; i < MASK * PLANE; i++)
        assert_true(condition[i] == (i % PLANE < PLACES || (last && i / PLANE == MASK - 1) ? 1 : 0));
    assert_error_below(relative_l2(DSVI_F32, condition + MASK * PLANE, DSVI_F32, wanted->data, Z * PLANE),
                       1e-6, "latent of a picture and grey frames");
    dsvi_safetensors_close(&encoded);
    dsvi_safetensors_close(&file);
}

/* Reads frame `at` of a clip's first window. */
static const float *frame_of(const char *clip, int at)
{
    static float all[3 * T * FRAME], pixels[2][3 * FRAME];
    float *out = pixels[at > 0];
    const DsviClipWindow window = {
        .fps = 8, .frames = T, .height = SIDE, .width = SIDE, .crop_x = 0.5, .crop_y = 0.5};
    assert_ok(dsvi_clip_read(folder_named(clip), &window, all));
    for (int c = 0; c < 3; c++)
        memcpy(out + c * FRAME, all + (c * T + at) * FRAME, FRAME * sizeof *out);
    return out;
}

static const float *first_frame_of(const char *clip)
{
    return frame_of(clip, 0);
}

/* Writes a list of both clips, the first of which begins with a picture, and encodes them into `cache`. */
static void encode_list(const char *cache, const char *picture, Stopper *heard)
{
    DsvConfig settings;
    const DsvEvents events = {.context = heard, .log = keep_log};
    char list[512];
    snprintf(list, sizeof list, "video,image\nclips/waves-0.mp4,%s\nclips/waves-1.mp4,\n", picture);
    assert_ok(dsvi_file_write(scratch_path("list.csv"), list, strlen(list)));
    image_settings(&settings, "unused");
    set(&settings, "data.path", folder_named("list.csv"));
    *heard = (Stopper){.steps = 1000};
    assert_ok(dsv_encode(folder_named(cache), folder_named("model"), &settings, &events));
}

static const float *picture_of(const char *name)
{
    static float pixels[3 * FRAME];
    int64_t height, width;
    assert_ok(dsvi_picture_read(folder_named(name), SIDE, SIDE, pixels, &height, &width));
    return pixels;
}

/* A list names the picture with which a clip begins. The picture belongs to the clip: if it changes, the
 * clip's windows are encoded again. */
static void a_list_names_pictures(void **state)
{
    DsvConfig settings;
    Stopper heard;
    char command[4 * DSVI_PATH_MAX];
    (void)state;
    wan_case_make("pipe_i2v");
    snprintf(command, sizeof command, "cp '%s' '%s'", golden_path("pipe_i2v/first.png"),
             folder_named("p.png"));
    assert_int_equal(system(command), 0);
    encode_list("listed", "p.png", &heard);
    assert_non_null(strstr(heard.log, "2 windows: 2 encoded"));
    check_condition("listed", "waves_0", picture_of("p.png"), NULL);
    check_condition("listed", "waves_1", first_frame_of("clips/waves-1.mp4"), NULL);
    encode_list("listed", "p.png", &heard);
    assert_non_null(strstr(heard.log, "2 windows: 0 encoded, 2 kept"));
    snprintf(command, sizeof command, "cp '%s' '%s'", golden_path("pipe_i2v/last.png"),
             folder_named("p.png"));
    assert_int_equal(system(command), 0);
    encode_list("listed", "p.png", &heard);
    assert_non_null(strstr(heard.log, "waves-0.mp4 has changed since it was encoded"));
    assert_non_null(strstr(heard.log, "2 windows: 1 encoded, 1 kept"));
    encode_list("listed", "", &heard);
    assert_non_null(strstr(heard.log, "2 windows: 1 encoded, 1 kept"));
    assert_ok(dsvi_file_write(scratch_path("absent.csv"), "video,image\nclips/waves-0.mp4,no.png\n", 36));
    image_settings(&settings, "unused");
    set(&settings, "data.path", folder_named("absent.csv"));
    assert_fails(DSV_E_NOT_FOUND, "image of ",
                 dsv_encode(folder_named("listed"), folder_named("model"), &settings, NULL));
    assert_non_null(strstr(dsv_error_message(), "no.png"));
}

/* For TI2V-5B the latent of a clip begins with the latent of its picture. */
static void ti2v_begins_with_the_listed_picture(void **state)
{
    enum { Z = 48, F = 2, PLACES = 4 };
    const DsviStoredTensor *with, *without, *picture;
    static float pixels[3 * FRAME];
    Stopper heard;
    (void)state;
    wan_case_make("pipe_ti2v");
    wan_case_link("pipe_ti2v/vae", "model/vae");
    memcpy(pixels, picture_of("p.png"), sizeof pixels);
    encode_list("ti2v-listed", "p.png", &heard);
    encode_list("ti2v-plain", "", &heard);
    DsviSafetensors *a = window_of("ti2v-listed", "waves_0", &with);
    DsviSafetensors *b = window_of("ti2v-plain", "waves_0", &without);
    DsviSafetensors *still = latent_of(pixels, 1, &picture);
    const float *x = with->data, *y = without->data, *first = picture->data;
    assert_int_equal(with->count, Z * F * PLACES);
    for (int i = 0; i < Z * F * PLACES; i++) {
        if (i / PLACES % F > 0)
            assert_true(x[i] == y[i]);
        else
            assert_error_below(fabs(x[i] - first[i / (F * PLACES) * PLACES + i % PLACES]), 1e-5,
                               "element %d of the picture's latent", i);
    }
    dsvi_safetensors_close(&a);
    dsvi_safetensors_close(&b);
    dsvi_safetensors_close(&still);
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
    set(&settings, "data.cache", folder_named("cache"));
    set(&settings, "model.expert", "high");
    assert_ok(dsvi_folder_make(scratch_path("cache")));
    train_losses(&settings, &heard, loss);
    assert_non_null(strstr(heard.log, "the Wan repository uses 5 for I2V-A14B"));
    check_condition("cache/train", "waves_0", first_frame_of("clips/waves-0.mp4"), NULL);
    image_settings(&settings, "i2v-again");
    set(&settings, "model.expert", "high");
    train_losses(&settings, &heard, again);
    assert_non_null(strstr(heard.log, "0 encoded"));
    assert_true(loss[0] == again[0] && loss[1] == again[1] && isfinite(loss[0]) && isfinite(loss[1]));
}

/* Compares the states of pictures in the cache with the image encoder's output for each picture. */
static void check_states(const char *cache, const char *stem, const float *const *pictures, int count)
{
    const DsviStoredTensor *latent, *states;
    DsviVitProcessor processor;
    DsviBackend backend;
    DsviVit *encoder;
    DsvConfig settings;
    uint8_t rgb[3 * FRAME];
    float pixels[3 * 32 * 32], wanted[32 * 32];
    DsviSafetensors *file = window_of(cache, stem, &latent);
    states = dsvi_safetensors_find(file, "image_states");
    assert_non_null(states);
    dsv_config_defaults(&settings);
    assert_ok(dsvi_backend_open(&settings, &backend));
    assert_ok(
        dsvi_vit_processor_read(scratch_path("model/image_processor/preprocessor_config.json"), &processor));
    assert_ok(dsvi_vit_open(&backend, scratch_path("model/image_encoder"), DSVI_F32, 1, &encoder));
    int64_t rows = dsvi_vit_rows(dsvi_vit_config(encoder)), dim = dsvi_vit_config(encoder)->hidden_size;
    assert_true(states->shape[0] == count * rows && states->shape[1] == dim && rows * dim <= 32 * 32);
    for (int k = 0; k < count; k++) {
        for (int i = 0; i < 3 * FRAME; i++)
            rgb[i % FRAME * 3 + i / FRAME] = (uint8_t)lrintf((pictures[k][i] + 1) * 127.5F);
        assert_ok(dsvi_vit_prepare(&processor, SIDE, SIDE, rgb, pixels));
        assert_ok(dsvi_vit_encode(encoder, 1, pixels, wanted));
        assert_error_below(relative_l2(DSVI_F32, (const float *)states->data + k * rows * dim, DSVI_F32,
                                       wanted, rows * dim),
                           1e-5, "states of picture %d", k);
    }
    dsvi_vit_close(&encoder);
    dsvi_backend_close(&backend);
    dsvi_safetensors_close(&file);
}

/* Writes a picture (3, SIDE, SIDE) as PNG. */
static void write_picture(const char *name, const float *picture)
{
    const DsviVideoFrames frames = {.pixels = picture, .frames = 1, .height = SIDE, .width = SIDE};
    assert_ok(dsvi_png_write(folder_named(name), &frames, 0));
}

/* Compares the clip that a run sampled of the prompt "rain" at its end, after step 1, with that of dsv
 * sample: the run's weights, and the pictures of the first held-out window. `count`: of pictures. */
static void check_sampled_clip(const char *run, const DsvConfig *settings, int count)
{
    enum { ELEMENTS = 3 * T * FRAME };
    static float ours[ELEMENTS], theirs[ELEMENTS];
    const DsviClipWindow window = {.fps = 8, .frames = T, .height = SIDE, .width = SIDE};
    char command[2 * DSVI_PATH_MAX], path[DSVI_PATH_MAX], model[DSVI_PATH_MAX];
    DsvSampleArgs args;
    write_picture("first.png", frame_of("clips/waves-0.mp4", 0));
    write_picture("last.png", frame_of("clips/waves-0.mp4", T - 1));
    snprintf(command, sizeof command,
             "cd '%s' && rm -rf trained && cp -rL model trained && rm -r trained/transformer && "
             "cp -r %s/checkpoint-1/transformer trained",
             folder_named("."), run);
    assert_int_equal(system(command), 0);
    dsv_sample_args_defaults(&args);
    snprintf(model, sizeof model, "%s", scratch_path("trained"));
    args.model_path = model;
    args.output_path = folder_named("sampled.mp4");
    args.prompts_path = folder_named("prompts.txt");
    args.image_path = folder_named("first.png");
    args.last_image_path = count > 1 ? folder_named("last.png") : NULL;
    assert_ok(dsv_sample_clips(&args, settings, NULL));
    snprintf(path, sizeof path, "%s/samples/prompt-001/step-000001.mp4", run);
    assert_ok(dsvi_clip_read(folder_named(path), &window, ours));
    assert_ok(dsvi_clip_read(folder_named("sampled-0000.mp4"), &window, theirs));
    assert_memory_equal(ours, theirs, sizeof ours);
}

/* Wan 2.1 I2V learns from the first frame of its clips, FLF2V from the first and the last, with a LoRA and
 * whole: the cache holds the encoded video and the image encoder's states. */
static void wan21_learns_from_states_of_pictures(void **state)
{
    static const char *const SETS[] = {"pipe_clip", "pipe_flf"};
    (void)state;
    for (int two = 0; two < 2; two++) {
        const float *const pictures[2] = {first_frame_of("clips/waves-0.mp4"),
                                          frame_of("clips/waves-0.mp4", T - 1)};
        char run[64], cache[64];
        DsvConfig settings;
        assert_ok(dsvi_file_write(scratch_path("prompts.txt"), "rain\na fox\n", 11));
        Stopper heard;
        double lora[2], whole[2];
        wan_case_make(SETS[two]);
        snprintf(run, sizeof run, "i2v-%s", SETS[two]);
        snprintf(cache, sizeof cache, "cache-%d", two);
        assert_ok(dsvi_folder_make(scratch_path(cache)));
        image_settings(&settings, run);
        set(&settings, "data.cache", folder_named(cache));
        train_losses(&settings, &heard, lora);
        snprintf(cache, sizeof cache, "cache-%d/train", two);
        check_condition(cache, "waves_0", pictures[0], two ? pictures[1] : NULL);
        check_states(cache, "waves_0", pictures, 1 + two);
        snprintf(run, sizeof run, "i2v-%s-whole", SETS[two]);
        image_settings(&settings, run);
        set(&settings, "data.path", folder_named(cache));
        snprintf(cache, sizeof cache, "cache-%d/validation", two);
        set(&settings, "validation.data", folder_named(cache));
        set(&settings, "lora_rank", "0");
        set(&settings, "max_train_steps", "1");
        set(&settings, "validation_at_end", "true");
        set(&settings, "num_inference_steps", "2");
        set(&settings, "guidance_scale", "2");
        set(&settings, "validation.prompts", folder_named("prompts.txt"));
        train_losses(&settings, &heard, whole);
        check_sampled_clip(run, &settings, 1 + two);
        /* before its first update a LoRA changes nothing */
        assert_error_below(fabs(whole[0] / lora[0] - 1), 1e-6, "loss of the first step");
        set(&settings, "resume_from_checkpoint", "latest");
        set(&settings, "max_train_steps", "2");
        train_losses(&settings, &heard, whole);
        assert_non_null(strstr(heard.log, "resuming after step 1 from"));
    }
}

/* A cache must have been made for the states of pictures that the model takes. */
static void caches_of_other_pictures_are_refused(void **state)
{
    static const struct {
        const char *set, *cache, *sentence;
    } CASES[] = {
        {"pipe_clip", "cache/train", " has no states of pictures, which model.path="},
        {"pipe_i2v", "cache-0/train", " has states of pictures, and model.path="},
        {"pipe_flf", "cache-0/train", "was made by another image encoder than that of model.path="},
    };
    DsvConfig settings;
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        wan_case_make(CASES[i].set);
        image_settings(&settings, "refused");
        set(&settings, "validation.data", "");
        set(&settings, "data.path", folder_named(CASES[i].cache));
        if (strcmp(CASES[i].set, "pipe_i2v") == 0)
            set(&settings, "model.expert", "high");
        assert_fails(DSV_E_USAGE, CASES[i].sentence, dsv_train(&settings, NULL, NULL));
    }
}

static void say_nothing(void *context, const char *line)
{
    (void)context;
    (void)line;
}

/* Fails to train clips of these sizes, to plan it and to resume such a run, before any clip is encoded. */
static void refused_before_encoding(DsvConfig *settings, const char *buckets, DsvStatus status,
                                    const char *sentence)
{
    set(settings, "data.buckets", buckets);
    set(settings, "data.cache", folder_named("not-encoded"));
    assert_fails(status, sentence, dsv_train(settings, NULL, NULL));
    assert_fails(status, sentence, dsv_train_preview(settings, say_nothing, NULL));
    set(settings, "resume_from_checkpoint", "latest");
    assert_fails(status, sentence, dsv_train(settings, NULL, NULL));
    set(settings, "resume_from_checkpoint", "");
    assert_false(dsvi_path_exists(scratch_path("not-encoded")));
}

/* Sampled clips begin with pictures of windows of num_frames x height x width, and a given frame needs a
 * second one after it. A run without such windows is refused before its clips are encoded, which can take
 * hours. */
static void sizes_without_pictures_are_refused(void **state)
{
    static const char *const SETS[] = {"pipe_ti2v", "pipe_i2v", "pipe_flf"};
    static const char WINDOWS[] = "sampled clips begin with pictures of windows of ";
    char sentence[256];
    DsvConfig settings;
    (void)state;
    for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++) {
        wan_case_make(SETS[i]);
        if (i == 0)
            wan_case_link("pipe_ti2v/vae", "model/vae");
        image_settings(&settings, "unlike");
        set(&settings, "validation.data", "");
        set(&settings, "validation_at_end", "true");
        set(&settings, "num_frames", "9");
        if (i == 1)
            set(&settings, "model.expert", "high");
        snprintf(sentence, sizeof sentence,
                 "%s9x32x32 (num_frames x height x width), which data.buckets does not list", WINDOWS);
        refused_before_encoding(&settings, "5x32x32", DSV_E_USAGE, sentence);
        set(&settings, "num_frames", "65"); /* no clip has so many */
        snprintf(sentence, sizeof sentence,
                 "%s65x32x32 (num_frames x height x width), which data.buckets=auto gives no clip", WINDOWS);
        refused_before_encoding(&settings, "auto", DSV_E_USAGE, sentence);
    }
    wan_case_make("pipe_ti2v");
    wan_case_link("pipe_ti2v/vae", "model/vae");
    assert_ok(dsvi_folder_make(scratch_path("stills")));
    write_picture("stills/still.png", first_frame_of("clips/waves-0.mp4"));
    image_settings(&settings, "still");
    set(&settings, "data.path", folder_named("stills"));
    refused_before_encoding(&settings, "auto", DSV_E_SHAPE, "needs at least 2 frames");
}

/* FLF2V makes clips between two pictures: dsv train and dsv encode refuse clips of one frame by the same
 * check, before a text or a clip is encoded. */
static void one_frame_between_two_pictures_is_refused(void **state)
{
    static const char SENTENCE[] = "num_frames=1: the model makes clips between two pictures, expected 2";
    static const char *const BUCKETS[] = {"", "5x32x32,1x32x32", "auto"};
    DsvConfig settings;
    (void)state;
    wan_case_make("pipe_flf");
    assert_ok(dsvi_folder_make(scratch_path("mixed")));
    tiny_clips(scratch_path("mixed"), 2);
    write_picture("mixed/still.png", first_frame_of("clips/waves-0.mp4"));
    for (size_t i = 0; i < sizeof BUCKETS / sizeof *BUCKETS; i++) {
        image_settings(&settings, "between");
        set(&settings, "data.path", folder_named("mixed"));
        set(&settings, "num_frames", i == 0 ? "1" : "5");
        refused_before_encoding(&settings, BUCKETS[i], DSV_E_SHAPE, SENTENCE);
        assert_fails(DSV_E_SHAPE, SENTENCE,
                     dsv_encode(folder_named("not-encoded"), folder_named("model"), &settings, NULL));
        assert_true(i == 0 || strncmp(dsv_error_message(), "data.buckets: 1x32x32: ", 23) == 0);
        assert_false(dsvi_path_exists(scratch_path("not-encoded")));
    }
    image_settings(&settings, "between"); /* num_frames is not a size of the clips */
    set(&settings, "data.path", folder_named("mixed"));
    set(&settings, "data.buckets", "5x32x32");
    set(&settings, "num_frames", "1");
    assert_ok(dsv_encode(folder_named("between-cache"), folder_named("model"), &settings, NULL));
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
    wan_case_make("pipe_experts");
    image_settings(&settings, "refused");
    set(&settings, "model.expert", "high");
    set(&settings, "data.path", folder_named("cache/train"));
    assert_fails(DSV_E_USAGE,
                 "was made for image-to-video models, and model.path=", dsv_train(&settings, NULL, NULL));
    set(&settings, "data.path", folder_named("clips"));
    assert_fails(DSV_E_USAGE, "made for image-to-video models, expected text-to-video",
                 dsv_train(&settings, NULL, NULL));
}

enum { SHORT = 2 }; /* steps */

/* Trains the whole transformer of the folder "model" on a device, in F32. The device also encodes clips and
 * pictures. Writes loss and gradient norm of each step, and the held-out loss. */
static void train_on(const char *name, const char *set_name, double figures[2 * SHORT + 1])
{
    DsvConfig settings;
    Stopper heard;
    double loss[2];
    char run[64], cache[64];
    snprintf(run, sizeof run, "%s-%s", set_name, name);
    snprintf(cache, sizeof cache, "cache-%s", run);
    assert_ok(dsvi_folder_make(scratch_path(cache)));
    image_settings(&settings, run);
    set(&settings, "data.cache", folder_named(cache));
    set(&settings, "device", name);
    set(&settings, "lora_rank", "0");
    set(&settings, "max_train_steps", "2");
    set(&settings, "checkpointing_steps", "2");
    train_losses(&settings, &heard, loss);
    FILE *file = open_metrics(settings.output_dir);
    for (int i = 0; i < SHORT; i++) {
        cJSON *line = next_line(file);
        assert_non_null(line);
        figures[2 * i] = cJSON_GetObjectItem(line, "loss")->valuedouble;
        figures[2 * i + 1] = cJSON_GetObjectItem(line, "grad_norm")->valuedouble;
        cJSON_Delete(line);
    }
    fclose(file);
    figures[2 * SHORT] = loss[1];
}

/* Wan 2.1 I2V and FLF2V attend the image encoder's states of pictures, and TI2V-5B has tokens without noise.
 * Only rounding differs between devices, and the difference grows with the steps. */
static void devices_agree(void **state)
{
    static const char *const SETS[] = {"pipe_clip", "pipe_flf", "pipe_ti2v"};
    (void)state;
    for (size_t i = 0; i < sizeof SETS / sizeof *SETS; i++) {
        double cpu[2 * SHORT + 1], gpu[2 * SHORT + 1];
        wan_case_make(SETS[i]);
        if (strcmp(SETS[i], "pipe_ti2v") == 0)
            wan_case_link("pipe_ti2v/vae", "model/vae");
        train_on("cpu", SETS[i], cpu);
        train_on("cuda", SETS[i], gpu);
        for (int k = 0; k < 2 * SHORT + 1; k++)
            assert_error_below(fabs(gpu[k] / cpu[k] - 1), 1e-4, "%s: figure %d", SETS[i], k);
    }
}

static int run_cuda(void)
{
    DsvConfig settings;
    const struct CMUnitTest tests[] = {cmocka_unit_test(devices_agree)};
    image_settings(&settings, "nowhere");
    set(&settings, "device", "cuda");
    set(&settings, "data.path", "nowhere");
    set(&settings, "model.path", "nowhere");
    if (dsv_train(&settings, NULL, NULL) == DSV_E_UNSUPPORTED) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, make_captioned, scratch_remove);
}

static int run_cpu(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ti2v_continues_the_first_frame),
        cmocka_unit_test(sizes_without_pictures_are_refused),
        cmocka_unit_test(one_frame_between_two_pictures_is_refused),
        cmocka_unit_test(i2v_learns_from_the_first_frame),
        cmocka_unit_test(wan21_learns_from_states_of_pictures),
        cmocka_unit_test(caches_of_other_pictures_are_refused),
        cmocka_unit_test(a_list_names_pictures),
        cmocka_unit_test(ti2v_begins_with_the_listed_picture),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, make_captioned, scratch_remove);
}

/* test_train_image [cuda] */
int main(int argc, char **argv)
{
    return argc == 2 && strcmp(argv[1], "cuda") == 0 ? run_cuda() : run_cpu();
}
