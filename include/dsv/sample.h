/** @file
 * Sampling a clip from a trained model. */
#ifndef DSV_SAMPLE_H
#define DSV_SAMPLE_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Samples one clip and writes it as a video file.
 *
 * @param model_path a run folder (its newest checkpoint), a checkpoint, a pipeline folder with
 *     transformer/, or a transformer folder. transformer_ema in a checkpoint is the moving average of its
 *     weights.
 * @param text_path  a safetensors file with `encoder_hidden_states` (text_len, text_dim) in a floating
 *     dtype; NULL: the model is sampled unconditionally
 * @param video_path an .mp4 file, written under a temporary name and renamed
 * @param config     width, height, num_frames, fps, sampler, guidance, steps, seed and device. For a model
 *     in a run folder, start from the run's own options: dsv_config_of_run().
 * @param events     may be NULL; `progress` counts sampling steps
 * @return DSV_E_NOT_FOUND; DSV_E_FORMAT for a damaged checkpoint; DSV_E_SHAPE if the model does not fit
 *     the clip or the codec; DSV_E_NO_MEMORY; DSV_E_INTERRUPTED; DSV_E_IO */
DsvStatus dsv_sample(const char *model_path, const char *text_path, const char *video_path,
                     const DsvConfig *config, const DsvEvents *events);

/** Loads the options that a run or checkpoint was trained with over `config`.
 * @param path   a model path as for dsv_sample()
 * @param config changed if options are found
 * @param found  set to whether `path` has options stored with it
 * @return as dsv_config_load(); DSV_E_NOT_FOUND if there is no model at `path` */
DsvStatus dsv_config_of_run(const char *path, DsvConfig *config, bool *found);

#ifdef __cplusplus
}
#endif
#endif
