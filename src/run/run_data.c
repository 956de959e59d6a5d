/* The data of a training run: clips, sizes, text states, held-out windows, and the threads that read
 * samples. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "data/dataset_sources.h"
#include "run/run_internal.h"
#include "train/ranks_agree.h"

static DsvStatus run_encode(void *context, int64_t size, const float *pixels, float *latent)
{
    const DsviRun *run = context;
    return run->codec->encode(run->codec, run->trainer->sizes[size].video, pixels, latent);
}

bool dsvi_run_has_text(const DsviRun *run)
{
    return run->dataset->text.folder[0] != 0;
}

static DsvStatus next_sample(void *context, DsviSample *sample)
{
    return dsvi_prefetch_next(context, sample);
}

DsviSampleSource dsvi_run_source(const DsviRun *run)
{
    return (DsviSampleSource){.context = run->prefetch, .next = next_sample, .text = dsvi_run_has_text(run)};
}

/* Checks that the model takes text states of the size that the data has. Without text states there is
 * nothing to check, unless the latents are a published VAE's: its models have learned to follow prompts. */
static DsvStatus check_text(const DsviRun *run, const char *key, const char *path, const DsviTextStore *text)
{
    bool has = text->folder[0] != 0;
    if (!has && strcmp(run->settings->codec_name, "wan") == 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s=%s has no text states, which codec.name=wan needs: encode its clips with "
                         "dsv encode --model",
                         key, path);
    if (has != dsvi_run_has_text(run))
        return DSVI_FAIL(DSV_E_USAGE, "%s=%s %s text states, and data.path=%s %s", key, path,
                         has ? "has" : "has no", run->settings->data_path, has ? "has none" : "has some");
    if (!has || text->dim == run->config.text_dim)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "%s=%s: text states of %" PRId64 " elements, but the model takes rows of %" PRId64
                     ": they were made by another text encoder",
                     key, path, text->dim, run->config.text_dim);
}

/* Checks that the windows have the states of pictures that the model takes, and no others. */
static DsvStatus check_image(const DsviRun *run, const char *key, const char *path,
                             const DsviDataset *dataset)
{
    const DsviImageStates found = dataset->image;
    const DsviImageStates wanted = {dsvi_dit_image_len(&run->config), run->config.image_dim};
    if (found.rows == wanted.rows && found.dim == wanted.dim)
        return DSV_OK;
    if (found.rows == 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s=%s has no states of pictures, of which the model takes %" PRId64
                         " for each window: encode its clips with dsv encode --model into another folder",
                         key, path, wanted.rows);
    return DSVI_FAIL(DSV_E_USAGE,
                     "%s=%s has %" PRId64 " states of pictures of %" PRId64
                     " elements for each window, and the model takes %" PRId64 " of %" PRId64,
                     key, path, found.rows, found.dim, wanted.rows, wanted.dim);
}

/* Opens the clips at `path` for the sizes of `settings`. */
static DsvStatus open_data(const DsviRun *run, const char *path, const DsvConfig *settings,
                           DsviDataset **dataset)
{
    DSVI_TRY(dsvi_dataset_open(path, settings, dataset));
    for (int64_t i = 0; i < (*dataset)->left_out_count && dsvi_run_is_first(run); i++)
        dsvi_run_log(run, DSV_LOG_WARNING, "left out: %s", (*dataset)->left_out[i].reason);
    for (int64_t i = 0; i < (*dataset)->remark_count && dsvi_run_is_first(run); i++)
        dsvi_run_log(run, DSV_LOG_WARNING, "%s", (*dataset)->remarks[i]);
    char left_out[64] = "";
    if ((*dataset)->left_out_count > 0)
        snprintf(left_out, sizeof left_out, ", %" PRId64 " left out", (*dataset)->left_out_count);
    dsvi_run_log(run, DSV_LOG_INFO, "%s: %" PRId64 " %s%s%s", path, (*dataset)->count,
                 (*dataset)->latents ? "cached window" : "clip", (*dataset)->count == 1 ? "" : "s", left_out);
    return DSV_OK;
}

DsvStatus dsvi_run_open_data(DsviRun *run)
{
    return open_data(run, run->settings->data_path, run->settings, &run->dataset);
}

DsvStatus dsvi_run_assign_sizes(DsviRun *run)
{
    DsviDataset *d = run->dataset;
    int64_t known = d->left_out_count;
    DSVI_TRY(check_text(run, "data.path", run->settings->data_path, &d->text));
    DSVI_TRY(check_image(run, "data.path", run->settings->data_path, d));
    DsvStatus status = dsvi_run_sizes_assign(d, run->settings, run->codec, &run->config);
    for (int64_t i = known; i < d->left_out_count && dsvi_run_is_first(run); i++)
        dsvi_run_log(run, DSV_LOG_WARNING, "left out: %s", d->left_out[i].reason);
    DSVI_TRY(status);
    dsvi_dataset_sources_report(d, dsvi_run_log_line, run);
    dsvi_run_sizes_report(d, run->settings, run->codec, &run->config, dsvi_run_log_line, run);
    run->sizes = (DsviRunSizes){d, run->settings};
    return DSV_OK;
}

DsvStatus dsvi_run_list_inputs(const DsviRun *run)
{
    char path[DSVI_PATH_MAX];
    if (!dsvi_run_is_first(run))
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(path, run->folder.root, "inputs.csv"));
    return dsvi_dataset_write_list(run->dataset, run->settings, path);
}

DsvStatus dsvi_run_list_prompts(const DsviRun *run)
{
    char name[DSVI_PROMPT_FOLDER_BYTES], folder[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    for (int64_t i = 0; run->prompts && dsvi_run_is_first(run) && i < run->prompts->list.count; i++) {
        const char *text = run->prompts->list.at[i].text;
        dsvi_prompt_folder(i, name);
        DSVI_TRY(dsvi_path_join(folder, run->folder.samples, name));
        DSVI_TRY(dsvi_folder_make(folder));
        DSVI_TRY(dsvi_path_join(path, folder, "prompt.txt"));
        DSVI_TRY(dsvi_file_write(path, text, strlen(text)));
    }
    return DSV_OK;
}

DsvStatus dsvi_run_open_held_out(const DsviRun *run)
{
    DsviDataset *dataset;
    DsviHeldOut *held_out = run->trainer->held_out;
    DsvConfig settings = *run->settings;
    if (!held_out)
        return DSV_OK;
    settings.data_buckets[0] = 0;
    DSVI_TRY(open_data(run, settings.validation_data, &settings, &dataset));
    DsvStatus status = check_text(run, "validation.data", settings.validation_data, &dataset->text);
    if (status == DSV_OK)
        status = check_image(run, "validation.data", settings.validation_data, dataset);
    if (status == DSV_OK)
        status = dsvi_ranks_agree_on_data(run->comm, "validation.data", dataset);
    if (status == DSV_OK)
        status = dsvi_held_out_fill(held_out, dataset, run->settings, run->codec, dsvi_run_warn_line,
                                    (void *)run);
    dsvi_dataset_close(&dataset);
    if (status == DSV_OK)
        dsvi_run_log(run, DSV_LOG_INFO, "held out: %" PRId64 " windows, %.1f MiB of them on this rank",
                     run->settings->validation_clips, (double)dsvi_held_out_bytes(held_out) / 1048576.0);
    return status;
}

DsvStatus dsvi_run_start_prefetch(DsviRun *run)
{
    const DsvConfig *settings = run->settings;
    const DsviTrainer *t = run->trainer;
    uint64_t batch = (uint64_t)settings->train_batch_size;
    dsvi_run_sizes_begin(run->trainer, &run->numbers);
    DsviSampleSeries series = {
        .first = dsvi_trainer_first_sample(run->trainer),
        .run = batch,
        .stride = dsvi_trainer_samples(run->trainer),
    };
    DsviPrefetchResources share = {
        .computes = run->backend->device->kind == DSVI_DEVICE_CPU,
        .cores = dsvi_usable_cores(),
        .memory = dsvi_memory_bytes(),
        .ranks = run->trainer->here.ranks,
    };
    int64_t slots = settings->data_prefetch * settings->train_batch_size,
            elements = t->inputs_max + t->image_elements;
    int64_t workers = dsvi_prefetch_workers(run->dataset, settings, slots, elements, &share);
    for (int64_t i = 0; i < t->size_count; i++)
        run->size_elements[i] = t->sizes[i].inputs + t->image_elements;
    dsvi_run_log(run, DSV_LOG_INFO, "samples come from %" PRId64 " thread%s, up to %" PRId64 " ahead",
                 workers, workers > 1 ? "s" : "", slots);
    DsviPrefetchArgs args = {
        .dataset = run->dataset,
        .config = settings,
        .series = series,
        .number = t->dealer ? dsvi_run_sizes_number : NULL,
        .number_context = &run->numbers,
        .size_elements = run->size_elements,
        .workers = workers,
        .slots = slots,
        .latent_elements = elements,
        .text_rows = dsvi_run_has_text(run) ? run->config.text_len : 0,
        .encode = run_encode,
        .encode_context = run,
        .warn = dsvi_run_warn_line,
        .warn_context = run,
    };
    return dsvi_prefetch_start(&args, &run->prefetch);
}

DsvStatus dsvi_run_report_replaced(const DsviRun *run)
{
    /* the ranks of a cp group read the same samples */
    double replaced = run->trainer->mesh.cp_rank == 0 ? (double)dsvi_prefetch_replaced(run->prefetch) : 0;
    DSVI_TRY(dsvi_comm_all_reduce(run->comm, DSVI_F64, &replaced, 1));
    if (replaced > 0 && dsvi_run_is_first(run))
        dsvi_run_log(run, DSV_LOG_WARNING,
                     "%.0f samples of this start took the place of others, whose files could not be read",
                     replaced);
    return DSV_OK;
}

DsvStatus dsvi_run_open_codec(DsviRun *run)
{
    const DsvConfig *settings = run->settings;
    DSVI_TRY(dsvi_codec_open(settings, &run->codec));
    dsvi_codec_decode_on(run->codec, run->backend);
    if (run->codec->decode || (settings->validation_steps == 0 && !settings->validation_at_end))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "model.path=%s has no VAE to decode sampled clips: name one with model.vae, or "
                     "set validation_at_end=false and validation_steps=0",
                     settings->model_path);
}

/* Reads the states of this group's prompts. */
static DsvStatus read_prompts(DsviRun *run)
{
    const DsviRunPrompts *prompts = run->prompts;
    DsviSampledTexts *texts = &run->sampled;
    int64_t rows;
    if (prompts->store.dim != run->config.text_dim)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "validation.prompts: the text encoder computes rows of %" PRId64
                         ", but the model takes rows of %" PRId64,
                         prompts->store.dim, run->config.text_dim);
    DSVI_TRY(dsvi_sampled_texts_make(run->trainer, prompts->list.count, texts));
    DSVI_TRY(dsvi_text_states_read(&prompts->store, &prompts->store.empty, texts->text_len, texts->negative,
                                   &rows));
    for (int64_t i = 0; i < texts->count; i++) {
        const DsviCaption *prompt = &prompts->list.at[dsvi_sampled_prompt(run->trainer, texts, i)];
        DSVI_TRY(
            dsvi_text_states_read(&prompts->store, &prompt->states, texts->text_len, texts->text, &rows));
        DSVI_TRY(dsvi_sampled_texts_store(texts, i, rows));
    }
    dsvi_run_log(run, DSV_LOG_INFO, "sampled clips show the %" PRId64 " prompt%s of %s", prompts->list.count,
                 prompts->list.count == 1 ? "" : "s", run->settings->validation_prompts);
    return DSV_OK;
}

/* Reads the text of this group's clip: the first caption of an item. */
static DsvStatus read_caption(DsviRun *run, const DsviDataset *d, int64_t item)
{
    DsviSampledTexts *texts = &run->sampled;
    int64_t caption = d->items[item].captions.count > 0 ? 0 : -1, rows;
    DSVI_TRY(dsvi_sampled_texts_make(run->trainer, 0, texts));
    DSVI_TRY(dsvi_dataset_text_states(d, item, caption, texts->text_len, texts->text, &rows));
    DSVI_TRY(dsvi_sampled_texts_store(texts, 0, rows));
    DSVI_TRY(dsvi_dataset_text_states(d, item, -1, texts->text_len, texts->negative, &rows));
    dsvi_run_log(run, DSV_LOG_INFO, "sampled clips show: %s",
                 caption < 0 ? "the empty prompt" : d->items[item].captions.at[caption].text);
    return DSV_OK;
}

/* Reads the texts; without prompts, from an item of `d`. */
static DsvStatus open_texts(DsviRun *run, const DsviDataset *d, int64_t item)
{
    if (run->prompts)
        return read_prompts(run);
    return dsvi_run_has_text(run) ? read_caption(run, d, item) : DSV_OK;
}

/* Reads the pictures of this group's clips, one for each prompt. */
static DsvStatus read_pictures(DsviRun *run, const DsviDataset *d)
{
    const DsviTrainer *t = run->trainer;
    const DsviSampledTexts *texts = &run->sampled;
    int64_t count = run->prompts ? texts->count : 1;
    int64_t *numbers = malloc((size_t)count * sizeof *numbers);
    if (!numbers)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the pictures of sampled clips");
    for (int64_t i = 0; i < count; i++)
        numbers[i] = run->prompts ? dsvi_sampled_prompt(t, texts, i) : t->mesh.data_rank;
    DsvStatus status = dsvi_sampled_pictures_read(
        t, d, numbers, count, run->prompts ? texts->prompts : t->mesh.data_ranks, &run->pictures);
    free(numbers);
    return status;
}

/* Opens the windows whose pictures sampled clips begin with, and reads pictures and texts. */
static DsvStatus open_pictures(DsviRun *run)
{
    DsviDataset *d;
    DsvConfig settings = *run->settings;
    bool held_out = settings.validation_data[0] != 0;
    const char *path = held_out ? settings.validation_data : settings.data_path;
    const char *key = held_out ? "validation.data" : "data.path";
    settings.data_buckets[0] = 0;
    DsvStatus status = dsvi_dataset_open(path, &settings, &d);
    if (status != DSV_OK)
        return dsvi_fail_prefix(
            status,
            "sampled clips begin with pictures of windows of %lld x %lld x %lld (num_frames "
            "x height x width): set validation.data to such clips, or "
            "validation_at_end=false and validation_steps=0 to sample none",
            (long long)settings.num_frames, (long long)settings.height, (long long)settings.width);
    status = dsvi_ranks_agree_on_data(run->comm, key, d);
    if (status == DSV_OK && run->prompts)
        status = read_prompts(run);
    if (status == DSV_OK)
        status = read_pictures(run, d);
    if (status == DSV_OK && !run->prompts)
        status = open_texts(run, d, run->pictures.ref[0].item);
    if (status == DSV_OK)
        dsvi_run_log(run, DSV_LOG_INFO, "sampled clips begin with pictures of %s, the first of %s", path,
                     d->items[run->pictures.ref[0].item].path);
    dsvi_dataset_close(&d);
    return status;
}

DsvStatus dsvi_run_open_sampled(DsviRun *run)
{
    const DsviDataset *d = run->dataset;
    if (!run->trainer->generator)
        return DSV_OK;
    if (dsvi_sampled_pictures_needed(run->trainer))
        return open_pictures(run);
    return open_texts(run, d, run->trainer->mesh.data_rank % d->count);
}
