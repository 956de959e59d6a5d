/* Sampling a clip from a trained model. */
#ifndef DSV_SAMPLE_H
#define DSV_SAMPLE_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* model_path: a run folder (its latest checkpoint), a checkpoint, a pipeline folder with transformer/, or
 * a transformer folder; transformer_ema of a checkpoint is the moving average of its weights. Size, frames,
 * sampler, guidance, steps and seed come from `config`; where the model lies in a run folder, start from that
 * run's configuration (dsv_config_of_run).
 * text_path: safetensors with encoder_hidden_states (text_len, text_dim), or NULL: unconditional.
 * Writes video_path (.mp4) under a temporary name and renames it. */
DsvStatus dsv_sample(const char *model_path, const char *text_path, const char *video_path,
                     const DsvConfig *config, const DsvEvents *events);

/* Loads the effective configuration stored with the run or checkpoint at `path`, if there is one, over
 * `config`; *found tells. */
DsvStatus dsv_config_of_run(const char *path, DsvConfig *config, bool *found);

#ifdef __cplusplus
}
#endif
#endif
