/* Text states of the prompts whose clips a run samples. */
#ifndef DSVI_ENCODE_PROMPTS_H
#define DSVI_ENCODE_PROMPTS_H

#include "data/captions.h"
#include "data/text_states.h"
#include "dsv/config.h"
#include "dsv/events.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the text states of all prompts and of the empty prompt with the text encoder of the published
 * model at config->model_path, and stores them in `folder`, which is created. States that are there already
 * are kept; if none is missing, the text encoder is not loaded. The text encoder is freed before the function
 * returns. Enters the keys of the states into `prompts`, and sets *store to describe the folder. Prompts that
 * are too long are cut, with a warning. DSV_E_NOT_FOUND if the model lacks a part. */
DsvStatus dsvi_encode_prompts(const DsvConfig *config, DsviBackend *backend, const char *folder,
                              const DsvEvents *events, DsviCaptions *prompts, DsviTextStore *store);

#ifdef __cplusplus
}
#endif
#endif
