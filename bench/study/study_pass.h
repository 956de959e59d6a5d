/* A trained model that looks at noisy clips: forward passes whose attention can be watched. */
#ifndef STUDY_PASS_H
#define STUDY_PASS_H

#include "data/dataset.h"
#include "model/dit.h"

typedef struct StudyPass StudyPass;

/* model: whatever dsvi_model_find takes; clips: whatever a data set may be made of. Settings are those of
 * the model's run with the caller's changes; attention is dense and its tokens lie in raster order. */
DsvStatus study_pass_open(const char *model, const char *clips, const DsvConfig *settings, StudyPass **out);
void study_pass_close(StudyPass **pass);

DsvBackend *study_pass_backend(StudyPass *pass);
const DsvSparseShape *study_pass_shape(const StudyPass *pass);
int64_t study_pass_clips(const StudyPass *pass);
const char *study_pass_clip_name(const StudyPass *pass, int64_t clip);

/* Draws a window of the clip and its noise. */
DsvStatus study_pass_draw(StudyPass *pass, int64_t clip);
/* One forward pass of the clip drawn last, at this noise level; `watch` sees each block. *loss: mean squared
 * error of the velocity. */
DsvStatus study_pass_run(StudyPass *pass, double sigma, DsvSparseWatch *watch, void *context, double *loss);

#endif
