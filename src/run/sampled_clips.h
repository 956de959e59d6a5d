/* Validation clips that are sampled during training. */
#ifndef DSVI_SAMPLED_CLIPS_H
#define DSVI_SAMPLED_CLIPS_H

#include "base/fs.h"
#include "dsv/events.h"
#include "run/superseded.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the clip of this rank's cp group shows: host (text_len, text_dim) F32 each. */
typedef struct DsviSampledTexts {
    const float *text;     /* NULL: the model is sampled without text */
    const float *negative; /* text to steer away from; NULL: rows of zeros */
} DsviSampledTexts;

/* Samples clips with the current weights and the current sparsity of all blocks. Called by all ranks.
 * Each cp group (the ranks that share clips) samples its own clip: group 0 with the option `seed`, group
 * g with seed + g. Rank 0 writes them to folder/step-NUMBER.mp4 (group 0) and folder/seed-<seed +
 * g>/step-NUMBER.mp4. On rank 0 `path` receives the path of group 0's clip. A clip that cannot be written
 * is not a failure: events->log gets a warning, and `path` is "" if it was group 0's clip. All ranks call
 * events->stop at the same points, and it must return the same on all. */
DsvStatus dsvi_sample_clips(DsviTrainer *trainer, const DsviSampledTexts *texts, const char *folder,
                            const DsvEvents *events, char path[DSVI_PATH_MAX]);

/* Moves the clips of steps later than `after` from `folder`, which is samples/ of the run, into
 * `superseded`. */
DsvStatus dsvi_sampled_clips_set_aside(const char *folder, int64_t after, DsviSuperseded *superseded);

#ifdef __cplusplus
}
#endif
#endif
