/* The pictures with which the sampled clips of a run begin, if its model makes clips of pictures: those of
 * windows of the data. */
#ifndef DSVI_SAMPLED_PICTURES_H
#define DSVI_SAMPLED_PICTURES_H

#include "data/dataset.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All bytes 0: clips are made of text alone. */
typedef struct DsviSampledPictures {
    int64_t count;       /* clips of this rank's cp group (the ranks that share clips) */
    DsviSampleRef *ref;  /* (count) the window of each clip */
    int64_t stride;      /* elements from one sample to the next */
    float *samples;      /* (count, stride) each as DsviSample.latent */
    float *first_frames; /* (count, C, 1, H, W) with model.first_frame=given; NULL otherwise */
} DsviSampledPictures;

/* Returns whether the run samples clips that begin with a picture. */
bool dsvi_sampled_pictures_needed(const DsviTrainer *trainer);
/* Reads `count` windows of `dataset`, whose windows have the size num_frames x height x width: clip i of this
 * group gets window numbers[i] of `total`, which are spread over the data as held-out windows are. A window
 * that cannot be read is replaced by the next. Ranks that share clips call this together and get the same
 * windows. On success and after a failure the caller calls dsvi_sampled_pictures_free. */
DsvStatus dsvi_sampled_pictures_read(const DsviTrainer *trainer, const DsviDataset *dataset,
                                     const int64_t *numbers, int64_t count, int64_t total,
                                     DsviSampledPictures *out);
void dsvi_sampled_pictures_free(DsviSampledPictures *pictures);
/* Makes picture number `i` that of a clip; does nothing without pictures. */
void dsvi_sampled_pictures_use(const DsviSampledPictures *pictures, const DsviTrainer *trainer, int64_t i,
                               DsviGeneratorClip *clip);

#ifdef __cplusplus
}
#endif
#endif
