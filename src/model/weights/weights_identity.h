/* A hash that tells models apart, to notice that stored results are those of another model. */
#ifndef DSVI_WEIGHTS_IDENTITY_H
#define DSVI_WEIGHTS_IDENTITY_H

#include "base/hash_key.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Computes the identity of the model at `path`, a folder with weights or a safetensors file: a hash of
 * config.json, if the folder has one, and of samples of all its weights (dsvi_file_sample_key). It does not
 * depend on where the model is stored. Fails as dsvi_weight_files_find. */
DsvStatus dsvi_weights_identity(const char *path, DsviHashKey *out);

#ifdef __cplusplus
}
#endif
#endif
