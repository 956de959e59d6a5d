/* Clips that a model in training samples, for people to see how it comes on. */
#ifndef DSVI_SAMPLED_CLIPS_H
#define DSVI_SAMPLED_CLIPS_H

#include "base/fs.h"
#include "dsv/events.h"
#include "train/superseded.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From the weights as they are, with the lists the blocks use as they are. Every context group of the mesh
 * samples a clip of its own, all ranks call, and rank 0 writes them: group 0's, of the seed of the settings,
 * to folder/step-NUMBER.mp4, which `path` then names there, and group g's to the same file of the folder
 * seed-(seed + g) in it. A clip that cannot be written is no failure: events->log is warned, and `path` stays
 * empty for group 0's. events->stop is asked by all ranks at once, and has to answer all alike. */
DsvStatus dsvi_sample_clips(DsvTrainer *trainer, const char *folder, const DsvEvents *events,
                            char path[DSVI_PATH_MAX]);

/* Moves the clips of steps above `after` from the run's folder samples/ into `superseded`. */
DsvStatus dsvi_sampled_clips_set_aside(const char *folder, int64_t after, DsvSuperseded *superseded);

#ifdef __cplusplus
}
#endif
#endif
