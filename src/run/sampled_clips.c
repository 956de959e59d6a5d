/* Implements sampled_clips.h: samples validation clips during training. */
#include "run/sampled_clips.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

static int64_t rounds_of(const DsviTrainer *t, int64_t prompts)
{
    return prompts > 0 ? (prompts + t->mesh.data_ranks - 1) / t->mesh.data_ranks : 1;
}

DsvStatus dsvi_sampled_texts_make(const DsviTrainer *t, int64_t prompts, DsviSampledTexts *out)
{
    size_t rows = (size_t)(t->config.text_len * t->config.text_dim);
    *out = (DsviSampledTexts){.prompts = prompts,
                              .count = rounds_of(t, prompts),
                              .text_len = t->config.text_len,
                              .dim = t->config.text_dim};
    out->at = calloc((size_t)out->count, sizeof *out->at);
    out->text = calloc(rows, sizeof *out->text);
    out->negative = calloc(rows, sizeof *out->negative);
    return out->at && out->text && out->negative
               ? DSV_OK
               : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the texts of sampled clips");
}

void dsvi_sampled_texts_free(DsviSampledTexts *texts)
{
    for (int64_t i = 0; texts->at && i < texts->count; i++)
        free(texts->at[i].states);
    free(texts->at);
    free(texts->text);
    free(texts->negative);
    *texts = (DsviSampledTexts){0};
}

int64_t dsvi_sampled_prompt(const DsviTrainer *t, const DsviSampledTexts *texts, int64_t i)
{
    return (i * t->mesh.data_ranks + t->mesh.data_rank) % texts->prompts;
}

DsvStatus dsvi_sampled_texts_store(DsviSampledTexts *texts, int64_t i, int64_t rows)
{
    size_t bytes = (size_t)(rows * texts->dim) * sizeof(float);
    DsviSampledText *text = &texts->at[i];
    text->states = malloc(bytes + 1);
    if (!text->states)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the %" PRId64 " rows of a prompt", rows);
    text->rows = rows;
    memcpy(text->states, texts->text, bytes);
    return DSV_OK;
}

/* Makes text number `i` the present one. Returns the rows, or NULL if there is no text. */
static const float *use_text(const DsviSampledTexts *texts, int64_t i)
{
    if (texts->count == 0)
        return NULL;
    const DsviSampledText *text = &texts->at[i];
    memset(texts->text, 0, (size_t)(texts->text_len * texts->dim) * sizeof(float));
    memcpy(texts->text, text->states, (size_t)(text->rows * texts->dim) * sizeof(float));
    return texts->text;
}

/* ---- clips ---- */

void dsvi_prompt_folder(int64_t prompt, char name[DSVI_PROMPT_FOLDER_BYTES])
{
    snprintf(name, DSVI_PROMPT_FOLDER_BYTES, "prompt-%03" PRId64, prompt + 1);
}

/* One clip of each cp group, which the groups sample at the same time. */
typedef struct Round {
    DsviTrainer *trainer;
    const DsviSampledTexts *texts;
    const DsviSampledPictures *pictures;
    const char *folder;
    int64_t number;
    int64_t *bound; /* (ranks + 1) scratch of send_clip */
} Round;

/* Returns the number of clips of the round that are written: one of each group, but in the last round
 * only as many as prompts are left. */
static int64_t clips_of(const Round *round)
{
    int64_t groups = round->trainer->mesh.data_ranks, left = round->texts->prompts - round->number * groups;
    return round->texts->prompts > 0 && left < groups ? left : groups;
}

/* Returns the prompt of a group's clip, or -1. */
static int64_t prompt_of(const Round *round, int64_t group)
{
    return round->texts->prompts > 0 ? round->number * round->trainer->mesh.data_ranks + group : -1;
}

/* Sets `path` to the file of the clip that cp group number `group` has sampled, and creates its folder. */
static DsvStatus name_clip(const Round *round, int64_t group, char path[DSVI_PATH_MAX])
{
    const DsviTrainer *t = round->trainer;
    char name[64], inner[DSVI_PATH_MAX], owner[64];
    int64_t prompt = prompt_of(round, group);
    snprintf(name, sizeof name, "step-%06" PRId64 ".mp4", t->step);
    if (prompt < 0 && group == 0)
        return dsvi_path_join(path, round->folder, name);
    if (prompt >= 0)
        dsvi_prompt_folder(prompt, owner);
    else
        snprintf(owner, sizeof owner, "seed-%" PRId64, t->settings->seed + group);
    DSVI_TRY(dsvi_path_join(inner, round->folder, owner));
    DSVI_TRY(dsvi_folder_make(inner));
    return dsvi_path_join(path, inner, name);
}

/* Sends the pixels of a cp group's clip from the group's first rank to rank 0, where they replace those of
 * the clip before. Called by all ranks. */
static DsvStatus send_clip(const Round *round, int64_t group)
{
    DsviTrainer *t = round->trainer;
    int64_t count;
    float *pixels = dsvi_generator_pixels(t->generator, &count);
    for (int64_t r = 0; r <= dsvi_comm_size(t->comm); r++)
        round->bound[r] = r <= group * t->mesh.cp_ranks ? 0 : count;
    return dsvi_comm_gather(t->comm, 0, pixels, sizeof *pixels, round->bound);
}

static DsvStatus write_clip(const Round *round, int64_t group, char path[DSVI_PATH_MAX])
{
    DSVI_TRY(name_clip(round, group, path));
    return dsvi_generator_write(round->trainer->generator, path);
}

static DsvStatus write_clips(const Round *round, const DsvEvents *events, DsviClipWritten *written,
                             void *context)
{
    DsviTrainer *t = round->trainer;
    char path[DSVI_PATH_MAX];
    for (int64_t group = 0; group < clips_of(round); group++) {
        if (group > 0)
            DSVI_TRY(send_clip(round, group));
        if (dsvi_comm_rank(t->comm) != 0)
            continue;
        if (write_clip(round, group, path) != DSV_OK) {
            if (events->log)
                events->log(events->context, DSV_LOG_WARNING, dsv_error_message());
        } else if (group == 0 || prompt_of(round, group) >= 0) {
            written(context, prompt_of(round, group), path);
        }
    }
    return DSV_OK;
}

/* Samples this group's clip of the round. */
static DsvStatus sample_clip(const Round *round, const DsvEvents *events)
{
    DsviTrainer *t = round->trainer;
    DsviGeneratorClip clip = {
        .seed = (uint64_t)(t->settings->seed + (round->texts->prompts > 0 ? 0 : t->mesh.data_rank)),
        .text = use_text(round->texts, round->number),
        .negative = round->texts->negative,
    };
    dsvi_sampled_pictures_use(round->pictures, t, round->number, &clip);
    if (dsvi_generator_sparse(t->generator))
        DSVI_TRY(dsvi_sparse_copy(dsvi_generator_sparse(t->generator), t->sparse));
    return dsvi_generator_run(t->generator, &clip, events);
}

static DsvStatus sample_rounds(Round *round, const DsvEvents *events, DsviClipWritten *written, void *context)
{
    for (; round->number < rounds_of(round->trainer, round->texts->prompts); round->number++) {
        DSVI_TRY(sample_clip(round, events));
        DSVI_TRY(write_clips(round, events, written, context));
    }
    return DSV_OK;
}

/* Samples with the weights or, with validation.ema, with their moving average, which takes the place of the
 * weights meanwhile. */
static DsvStatus sample_weights(Round *round, const DsvEvents *events, DsviClipWritten *written,
                                void *context)
{
    DsviTrainer *t = round->trainer;
    if (!t->settings->validation_ema)
        return sample_rounds(round, events, written, context);
    DSVI_TRY(dsvi_zero_swap_ema(&t->zero));
    DsvStatus status = sample_rounds(round, events, written, context);
    if (status == DSV_OK || status == DSV_E_INTERRUPTED) /* after other failures the run ends */
        DSVI_TRY(dsvi_zero_swap_ema(&t->zero));
    return status;
}

DsvStatus dsvi_sample_clips(DsviTrainer *t, const DsviSampledTexts *texts,
                            const DsviSampledPictures *pictures, const char *folder, const DsvEvents *events,
                            DsviClipWritten *written, void *context)
{
    Round round = {.trainer = t, .texts = texts, .pictures = pictures, .folder = folder};
    round.bound = calloc((size_t)dsvi_comm_size(t->comm) + 1, sizeof *round.bound);
    if (!round.bound)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to gather clips");
    DsvStatus status = sample_weights(&round, events, written, context);
    free(round.bound);
    if (t->experts && (status == DSV_OK || status == DSV_E_INTERRUPTED))
        DSVI_TRY(dsvi_trainer_use_expert(t, t->experts->trained));
    return status;
}

/* A folder of clips: samples/, or a folder seed-<n>/ or prompt-<n>/ in it. */
typedef struct ClipFolder {
    const char *path, *name; /* full path; path relative to the run folder */
    int64_t after;           /* clips of steps later than this are moved into superseded/ */
    DsviSuperseded *superseded;
} ClipFolder;

static DsvStatus set_aside_clip(void *context, const char *name)
{
    const ClipFolder *in = context;
    char path[DSVI_PATH_MAX], below[DSVI_PATH_MAX];
    int64_t step;
    int end = 0;
    DSVI_TRY(dsvi_path_join(path, in->path, name));
    DSVI_TRY(dsvi_path_join(below, in->name, name));
    if (sscanf(name, "step-%" SCNd64 ".mp4%n", &step, &end) == 1 && end > 0 && !name[end])
        return step > in->after ? dsvi_superseded_move(in->superseded, below, below) : DSV_OK;
    bool inner_folder = strncmp(name, "seed-", 5) == 0 || strncmp(name, "prompt-", 7) == 0;
    if (!inner_folder || !dsvi_path_is_folder(path))
        return DSV_OK;
    ClipFolder inner = {path, below, in->after, in->superseded};
    return dsvi_folder_list(path, set_aside_clip, &inner);
}

DsvStatus dsvi_sampled_clips_set_aside(const char *folder, int64_t after, DsviSuperseded *superseded)
{
    ClipFolder samples = {folder, "samples", after, superseded};
    return dsvi_folder_list(folder, set_aside_clip, &samples);
}
