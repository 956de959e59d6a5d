/* Runs that trained all weights of a published model: the transformer of a checkpoint among the parts of the
 * model. */
#ifndef DSVI_TRAINED_RUN_H
#define DSVI_TRAINED_RUN_H

#include <stdbool.h>

#include "model/folder/wan_folder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the model of a run folder (of its newest undamaged checkpoint), of a checkpoint or of transformer/ or
 * transformer_ema/ in one: the parts of the run's model.path, with the checkpoint's transformer in the place
 * of the one that was trained. The options model.vae, model.text_encoder and model.tokenizer of `settings`
 * replace parts. *found is false if `path` is none of these, or the run had no published model.
 * DSV_E_NOT_FOUND if the model is not there any more. */
DsvStatus dsvi_trained_run_find(const char *path, const DsvConfig *settings, DsviWanFolder *out, bool *found);

#ifdef __cplusplus
}
#endif
#endif
