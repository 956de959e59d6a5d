/* Finding the model a user means by a path. */
#ifndef DSVI_MODEL_PATH_H
#define DSVI_MODEL_PATH_H

#include <stdbool.h>

#include "base/fs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvModelPath {
    char weights[DSVI_PATH_MAX];    /* transformer folder or safetensors file */
    char config[DSVI_PATH_MAX];     /* its config.json */
    char checkpoint[DSVI_PATH_MAX]; /* the checkpoint it belongs to, or "" */
    char sparse[DSVI_PATH_MAX];     /* sparse state of that checkpoint, or "" */
    char settings[DSVI_PATH_MAX];   /* config.yaml of the run or checkpoint, or "" */
    bool verified;                  /* the checkpoint was chosen because all its checksums are right */
} DsvModelPath;

/* path: a run folder (its newest whole checkpoint), a checkpoint, a pipeline folder (with transformer/), a
 * transformer folder, or a safetensors file with config.json beside it. transformer/ and transformer_ema/
 * of a checkpoint belong to it, and so do their files; but such a file comes without sparse state and
 * settings. */
DsvStatus dsvi_model_find(const char *path, DsvModelPath *out);

/* Before the weights, sparse state and settings of a checkpoint are used: whether they are as its manifest
 * says. DSV_E_FORMAT names the first file that is not. Other files of the checkpoint, such as the
 * optimizer's, may be gone. A model without a checkpoint has nothing to be held against. */
DsvStatus dsvi_model_verify(const DsvModelPath *model);
/* DSV_E_UNSUPPORTED where the path's ending is that of a pickle (.pth, .ckpt, ...). */
DsvStatus dsvi_model_refuse_pickle(const char *path);

#ifdef __cplusplus
}
#endif
#endif
