/* Validation clips that are sampled during training. */
#ifndef DSVI_SAMPLED_CLIPS_H
#define DSVI_SAMPLED_CLIPS_H

#include "base/fs.h"
#include "dsv/events.h"
#include "run/sampled_pictures.h"
#include "run/superseded.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The text of a clip: true rows only. */
typedef struct DsviSampledText {
    int64_t rows;
    float *states; /* (rows, text_dim) */
} DsviSampledText;

/* What the clips of this rank's cp group (the ranks that share clips) show. */
typedef struct DsviSampledTexts {
    int64_t prompts;     /* of validation.prompts, for all groups together; 0: each group samples one clip */
    int64_t count;       /* texts of this group; 0: its clip is sampled without text */
    DsviSampledText *at; /* (count) */
    int64_t text_len, dim; /* rows that the model takes, and their elements */
    float *text;           /* (text_len, dim) room for the present text, with rows of zeros after its rows */
    float *negative;       /* (text_len, dim) text to steer away from */
} DsviSampledTexts;

/* Allocates room for the texts of this rank's group: one text, or its share of `prompts`. On success and
 * after a failure the caller calls dsvi_sampled_texts_free. */
DsvStatus dsvi_sampled_texts_make(const DsviTrainer *trainer, int64_t prompts, DsviSampledTexts *out);
void dsvi_sampled_texts_free(DsviSampledTexts *texts);
/* Returns which of the prompts text number `i` of this rank's group is. Groups take prompts in turn; a group
 * for which none is left begins again at the first, because all ranks must sample equally often. */
int64_t dsvi_sampled_prompt(const DsviTrainer *trainer, const DsviSampledTexts *texts, int64_t i);
/* Stores the first `rows` rows of texts->text as text number `i`. */
DsvStatus dsvi_sampled_texts_store(DsviSampledTexts *texts, int64_t i, int64_t rows);
/* Names the folder of a prompt's clips in samples/: prompt-001 for prompt 0. */
enum { DSVI_PROMPT_FOLDER_BYTES = 32 };
void dsvi_prompt_folder(int64_t prompt, char name[DSVI_PROMPT_FOLDER_BYTES]);

/* Called for each clip that was written; prompt -1: the clip shows none of validation.prompts. */
typedef void DsviClipWritten(void *context, int64_t prompt, const char *path);

/* Samples clips of the texts and, unless it is empty, of the pictures with the current weights, or with
 * validation.ema their moving average, and the current sparsity of all blocks. Called by all ranks. Rank 0
 * writes the clips and calls `written` for those of prompts, or for group 0's clip.
 *
 * With prompts, each is sampled with the option `seed`, as dsv sample does, and written to
 * folder/prompt-NUMBER/step-NUMBER.mp4. Without, each cp group samples its own clip: group 0 with the option
 * `seed` to folder/step-NUMBER.mp4, and group g with seed + g to folder/seed-<seed + g>/step-NUMBER.mp4.
 *
 * A clip that cannot be written is not a failure: events->log gets a warning. All ranks call events->stop at
 * the same points, and it must return the same on all. */
DsvStatus dsvi_sample_clips(DsviTrainer *trainer, const DsviSampledTexts *texts,
                            const DsviSampledPictures *pictures, const char *folder, const DsvEvents *events,
                            DsviClipWritten *written, void *context);

/* Moves the clips of steps later than `after` from `folder`, which is samples/ of the run, into
 * `superseded`. */
DsvStatus dsvi_sampled_clips_set_aside(const char *folder, int64_t after, DsviSuperseded *superseded);

#ifdef __cplusplus
}
#endif
#endif
