/* The data of a training with a published VAE: clips become latent caches before the first step. */
#ifndef DSVI_TRAIN_DATA_H
#define DSVI_TRAIN_DATA_H

#include "dist/comm.h"
#include "dsv/config.h"
#include "dsv/events.h"
#include "ops/ops.h"
#include "run/run.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With codec.name=wan, encodes the clips of data.path and validation.data by rank 0 into the folders train
 * and validation of data.cache, unless they are latent caches already, and replaces both options in `config`
 * by the caches. VAE and text encoder are freed before the function returns. Checks that given caches were
 * made by the VAE and the text encoder of model.path: DSV_E_USAGE. Encodes the prompts of validation.prompts
 * into the folder prompts of data.cache, and lists them in *prompts, which the caller frees with
 * dsvi_captions_free, also after a failure; without the option the list is empty. Does nothing with other
 * codecs. Called by all ranks, of which the others wait for rank 0. DSV_E_INTERRUPTED keeps what was encoded.
 */
DsvStatus dsvi_train_data_prepare(DsvConfig *config, DsviBackend *backend, DsviComm *comm,
                                  const DsvEvents *events, DsviRunPrompts *prompts);

#ifdef __cplusplus
}
#endif
#endif
