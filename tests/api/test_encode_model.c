/* dsv_encode with a published model: latents by its VAE, text states of captions, repeated calls, bad models.
 */
#include "test.h"

#include <string.h>

#include "backend/backend.h"
#include "base/safetensors.h"
#include "base/scratch.h"
#include "data/dataset.h"
#include "data/latent_cache.h"
#include "dsv/dsv.h"
#include "golden/golden_files.h"
#include "model/vae/vae.h"
#include "train/tiny.h"

enum { CLIPS = 2, WINDOWS_EACH = 2, LATENTS = 16 * 2 * 4 * 4 };

static char model[DSVI_PATH_MAX], cache[DSVI_PATH_MAX];

typedef struct Heard {
    int captions, windows; /* calls of progress */
    char log[8192];
} Heard;

static void hear_line(void *context, DsvLogLevel level, const char *line)
{
    Heard *heard = context;
    (void)level;
    if (strlen(heard->log) + strlen(line) + 2 < sizeof heard->log)
        strcat(strcat(heard->log, line), "\n");
}

static void hear_progress(void *context, const DsvProgress *progress)
{
    Heard *heard = context;
    heard->captions += strcmp(progress->unit, "caption") == 0;
    heard->windows += strcmp(progress->unit, "window") == 0;
}

static DsvConfig make_settings(void)
{
    DsvConfig settings;
    tiny_settings(&settings); /* 5 x 32 x 32 */
    snprintf(settings.data_path, sizeof settings.data_path, "%s", scratch_path("clips"));
    strcpy(settings.codec_name, "wan");
    strcpy(settings.mixed_precision, "no");
    settings.threads = 2;
    return settings;
}

static DsvStatus encode(const char *folder, const DsvConfig *settings, Heard *heard)
{
    const DsvEvents events = {.context = heard, .log = hear_line, .progress = hear_progress};
    *heard = (Heard){0};
    return dsv_encode(cache, folder, settings, &events);
}

static void write_text(const char *name, const char *text)
{
    assert_ok(dsvi_file_write(scratch_path(name), text, strlen(text)));
}

static int make_clips(void **state)
{
    snprintf(model, sizeof model, "%s", golden_path("pipe_a"));
    if (scratch_make(state) != 0 || dsvi_folder_make(scratch_path("clips")) != DSV_OK)
        return 1;
    snprintf(cache, sizeof cache, "%s", scratch_path("cache"));
    tiny_clips(scratch_path("clips"), CLIPS);
    write_text("clips/waves-1.txt", "A cat walks on the grass\n");
    return 0;
}

/* Compares the stored latents with those that the VAE gives here. Both compute the same, so that only the
 * bits of another order of sums could differ. */
static void check_latents(const DsviDataset *d, const DsvConfig *settings)
{
    static float pixels[3 * TINY_FRAMES * TINY_SIDE * TINY_SIDE], moments[2 * LATENTS], stored[LATENTS];
    char path[DSVI_PATH_MAX];
    DsviBackend backend;
    DsviVae *vae;
    const DsviVaeOptions options = {.act = DSVI_F32, .encode = true};
    assert_ok(dsvi_path_join(path, model, "vae"));
    assert_ok(dsvi_backend_open(settings, &backend));
    assert_ok(dsvi_vae_open(&backend, path, &options, &vae));
    for (int64_t i = 0; i < d->count; i++) {
        const DsviClipWindow window = {
            (double)(i % WINDOWS_EACH * TINY_FRAMES) / 8, 8, TINY_FRAMES, TINY_SIDE, TINY_SIDE, 0.5, 0.5};
        assert_ok(dsvi_clip_read(d->items[i].source, &window, pixels));
        assert_ok(dsvi_vae_encode(vae, TINY_FRAMES, TINY_SIDE, TINY_SIDE, pixels, moments));
        dsvi_vae_normalize(dsvi_vae_config(vae), LATENTS / 16, moments);
        assert_ok(dsvi_latent_read(d->items[i].path, LATENTS, stored));
        for (int k = 0; k < LATENTS; k++)
            assert_error_below(fabs(stored[k] - moments[k]), 1e-6, "window %d, element %d", (int)i, k);
    }
    dsvi_vae_close(&vae);
    dsvi_backend_close(&backend);
}

/* Compares stored text states with what dsv_text gives for the same prompt. */
static void check_states(const DsviDataset *d, const DsvConfig *settings, int64_t item, int64_t caption,
                         const char *prompt)
{
    DsviSafetensors *file;
    const DsviStoredTensor *hidden;
    static float rows[512 * 64];
    int64_t count;
    char prompts[128];
    snprintf(prompts, sizeof prompts, "%s\n", prompt);
    write_text("prompts.txt", prompts);
    assert_ok(dsv_text(model, scratch_path("prompts.txt"), scratch_path("text.safetensors"), settings, NULL));
    assert_ok(dsvi_safetensors_open(scratch_path("text.safetensors"), &file));
    assert_ok(dsvi_safetensors_require(file, "hidden.0", 2, (const int64_t[]){-1, d->text.dim}, &hidden));
    assert_ok(dsvi_dataset_text_states(d, item, caption, 512, rows, &count));
    assert_int_equal(count, hidden->shape[0]);
    for (int64_t i = 0; i < hidden->count; i++)
        assert_error_below(fabs(rows[i] - ((const float *)hidden->data)[i]), 1e-5, "element %d", (int)i);
    dsvi_safetensors_close(&file);
}

static void latents_and_text_states_are_those_of_the_model(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviDataset *d;
    Heard heard;
    assert_ok(encode(model, &settings, &heard));
    assert_non_null(strstr(heard.log, "2 of 2 distinct texts encoded"));
    assert_non_null(strstr(heard.log, "4 windows encoded in"));
    const char *busy = strstr(heard.log, "; device busy ");
    assert_non_null(busy);
    double percent = atof(busy + strlen("; device busy "));
    assert_true(percent >= 1 && percent <= 100);
    assert_non_null(strstr(heard.log, "1 caption files: 1 used"));
    assert_ok(dsvi_dataset_open(cache, &settings, &d));
    assert_int_equal(d->count, CLIPS * WINDOWS_EACH);
    check_latents(d, &settings);
    check_states(d, &settings, 0, -1, "");
    check_states(d, &settings, 3, 0, "A cat walks on the grass");
    assert_int_equal(d->items[0].captions.count, 0);
    dsvi_dataset_close(&d);
    /* nothing is done twice: neither windows nor texts */
    assert_ok(encode(model, &settings, &heard));
    assert_int_equal(heard.captions, 0);
    assert_null(strstr(heard.log, "windows encoded in"));
    assert_non_null(strstr(heard.log, "4 windows: 0 encoded, 4 kept"));
    /* a new caption is encoded alone */
    write_text("clips/waves-0.txt", "rain");
    assert_ok(encode(model, &settings, &heard));
    assert_non_null(strstr(heard.log, "1 of 3 distinct texts encoded"));
    assert_null(strstr(heard.log, "windows encoded in"));
    assert_ok(dsvi_dataset_open(cache, &settings, &d));
    check_states(d, &settings, 1, 0, "rain");
    dsvi_dataset_close(&d);
}

static void hear_any(void *context, const char *line)
{
    hear_line(context, DSV_LOG_INFO, line);
}

/* dsv inspect names the models, and finds a damaged file of text states. */
static void inspection_checks_text_states(void **state)
{
    (void)state;
    Heard heard = {0};
    DsvConfig settings = make_settings();
    DsviDataset *d;
    char path[2 * DSVI_PATH_MAX];
    assert_ok(dsv_inspect(cache, hear_any, &heard));
    assert_non_null(strstr(heard.log, "latents of the VAE "));
    assert_non_null(strstr(heard.log, "text states of the text encoder "));
    assert_non_null(strstr(heard.log, "health: every window"));
    assert_ok(dsvi_dataset_open(cache, &settings, &d));
    snprintf(path, sizeof path, "%s/%s.safetensors", d->text.folder, d->items[3].captions.at[0].states.hex);
    assert_ok(dsvi_file_write(path, "spoilt", 6));
    assert_fails(DSV_E_FORMAT, "text states of a caption of", dsv_inspect(cache, hear_any, &heard));
    assert_ok(encode(model, &settings, &heard)); /* they are computed again */
    assert_non_null(strstr(heard.log, "1 of 3 distinct texts encoded"));
    assert_ok(dsv_inspect(cache, hear_any, &heard));
    dsvi_dataset_close(&d);
}

/* Copies a file of a folder, named after it. */
typedef struct FolderCopy {
    const char *from, *to;
} FolderCopy;

static DsvStatus copy_entry(void *context, const char *name)
{
    const FolderCopy *copy = context;
    char from[DSVI_PATH_MAX], to[DSVI_PATH_MAX], *data;
    size_t bytes;
    DSVI_TRY(dsvi_path_join(from, copy->from, name));
    DSVI_TRY(dsvi_path_join(to, copy->to, name));
    DSVI_TRY(dsvi_file_read(from, (size_t)1 << 26, &data, &bytes));
    DsvStatus status = dsvi_file_write(to, data, bytes);
    free(data);
    return status;
}

/* Makes a copy of the model without its transformer and its scheduler. */
static void copy_model(const char *to)
{
    static const char *const FOLDERS[] = {"vae", "text_encoder", "tokenizer"};
    FolderCopy whole = {model, to};
    for (int i = 0; i < 3; i++) {
        char from_part[DSVI_PATH_MAX], to_part[DSVI_PATH_MAX];
        FolderCopy copy = {from_part, to_part};
        assert_ok(dsvi_path_join(from_part, model, FOLDERS[i]));
        assert_ok(dsvi_path_join(to_part, to, FOLDERS[i]));
        assert_ok(dsvi_folder_make(to_part));
        assert_ok(dsvi_folder_list(from_part, copy_entry, &copy));
    }
    assert_ok(copy_entry(&whole, "model_index.json"));
}

/* Changes the last byte of a file. */
static void change_file(const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX], *data;
    size_t bytes;
    assert_ok(dsvi_path_join(path, folder, name));
    assert_ok(dsvi_file_read(path, (size_t)1 << 26, &data, &bytes));
    data[bytes - 1] ^= 1;
    assert_ok(dsvi_file_write(path, data, bytes));
    free(data);
}

/* A cache of one model takes nothing of another; a model at another place is the same. */
static void another_model_is_refused(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    Heard heard;
    char copy[DSVI_PATH_MAX];
    snprintf(copy, sizeof copy, "%s", scratch_path("copy"));
    copy_model(copy);
    assert_ok(encode(copy, &settings, &heard));
    assert_null(strstr(heard.log, "windows encoded in"));
    change_file(copy, "vae/diffusion_pytorch_model.safetensors");
    assert_fails(DSV_E_USAGE, "cache: made with the VAE", encode(copy, &settings, &heard));
    change_file(copy, "vae/diffusion_pytorch_model.safetensors");
    change_file(copy, "text_encoder/model.safetensors");
    assert_fails(DSV_E_USAGE, "cache: made with the text encoder", encode(copy, &settings, &heard));
    strcpy(settings.mixed_precision, "bf16");
    assert_fails(DSV_E_USAGE, "in F32, expected BF16: change mixed_precision",
                 encode(model, &settings, &heard));
    assert_fails(DSV_E_USAGE, "codec.name is wan, which needs the VAE", encode(NULL, &settings, &heard));
}

static void bad_sizes_and_missing_parts_are_named(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    Heard heard;
    char copy[DSVI_PATH_MAX];
    settings.num_frames = 8;
    assert_fails(DSV_E_SHAPE, "num_frames=8: expected 4k + 1; the nearest is 9",
                 encode(model, &settings, &heard));
    settings = make_settings();
    settings.height = 40;
    assert_fails(DSV_E_SHAPE, "height=40: expected a multiple of 16", encode(model, &settings, &heard));
    settings = make_settings();
    snprintf(copy, sizeof copy, "%s", scratch_path("partial"));
    copy_model(copy);
    assert_ok(dsvi_folder_remove(scratch_path("partial/text_encoder")));
    assert_fails(DSV_E_NOT_FOUND, "text encoder", encode(copy, &settings, &heard));
    assert_ok(dsvi_folder_remove(scratch_path("partial/vae")));
    assert_fails(DSV_E_NOT_FOUND, "VAE", encode(copy, &settings, &heard));
    assert_fails(DSV_E_NOT_FOUND, "clips: no published model",
                 encode(scratch_path("clips"), &settings, &heard));
}

/* With the codec haar the model gives the text states alone, to a cache without them. */
static void text_states_come_with_any_codec(void **state)
{
    (void)state;
    DsvConfig settings = make_settings();
    DsviDataset *d;
    Heard heard;
    snprintf(cache, sizeof cache, "%s", scratch_path("haar"));
    strcpy(settings.codec_name, "haar");
    assert_ok(encode(NULL, &settings, &heard));
    assert_ok(encode(model, &settings, &heard));
    assert_non_null(strstr(heard.log, "4 windows: 0 encoded, 4 kept"));
    assert_ok(dsvi_dataset_open(cache, &settings, &d));
    check_states(d, &settings, 3, 0, "A cat walks on the grass");
    dsvi_dataset_close(&d);
    assert_fails(DSV_E_USAGE, "expected none", encode(NULL, &settings, &heard));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(latents_and_text_states_are_those_of_the_model),
        cmocka_unit_test(inspection_checks_text_states),
        cmocka_unit_test(another_model_is_refused),
        cmocka_unit_test(bad_sizes_and_missing_parts_are_named),
        cmocka_unit_test(text_states_come_with_any_codec),
    };
    return cmocka_run_group_tests(tests, make_clips, scratch_remove);
}
