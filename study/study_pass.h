/* Forward passes of a trained model on noisy clips, with a callback that sees each block's attention. */
#ifndef STUDY_PASS_H
#define STUDY_PASS_H

#include "data/dataset.h"
#include "model/dit/dit.h"

typedef struct StudyPass StudyPass;

/* model: a path that dsvi_model_find accepts. clips: a path that dsvi_dataset_open accepts, but no latent
 * cache. settings: the configuration of the model's run, with the caller's changes. Attention is dense, and
 * its tokens are in raster order. */
DsvStatus study_pass_open(const char *model, const char *clips, const DsvConfig *settings, StudyPass **out);
void study_pass_close(StudyPass **pass);

DsviBackend *study_pass_backend(StudyPass *pass);
const DsviSparseShape *study_pass_shape(const StudyPass *pass);
int64_t study_pass_clips(const StudyPass *pass);
const char *study_pass_clip_name(const StudyPass *pass, int64_t clip);

/* Draws a window of the clip and the noise for it. The seed and the clip's number determine both. */
DsvStatus study_pass_draw(StudyPass *pass, int64_t clip);
/* Runs one forward pass on the window drawn last, at noise level `sigma`, and calls `watch` for each block.
 * *loss is the mean squared error of the predicted velocity. */
DsvStatus study_pass_run(StudyPass *pass, double sigma, DsviSparseWatch *watch, void *context, double *loss);

#endif
