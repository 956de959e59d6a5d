/* Finds the model that a path given by the user names. */
#ifndef DSVI_MODEL_PATH_H
#define DSVI_MODEL_PATH_H

#include <stdbool.h>

#include "base/fs.h"
#include "model/codec/codec.h"
#include "model/dit/dit.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviModelPath {
    char weights[DSVI_PATH_MAX];    /* folder with weights, or safetensors file */
    char config[DSVI_PATH_MAX];     /* config.json of the model; "": a file without one */
    char checkpoint[DSVI_PATH_MAX]; /* checkpoint to which the weights belong, or "" */
    char sparse[DSVI_PATH_MAX];     /* sparse state of that checkpoint, or "" */
    char settings[DSVI_PATH_MAX];   /* config.yaml of that checkpoint, or "" */
    bool verified;                  /* all checksums of the checkpoint were already checked */
} DsviModelPath;

/* Finds the files of the model that `path` names. `path` may be: a run folder (its newest undamaged
 * checkpoint is used), a checkpoint, a pipeline folder (with transformer/), a transformer folder, or a
 * safetensors file. transformer/ and transformer_ema/ of a
 * checkpoint, and safetensors files in them, also set `checkpoint`; for such a file `sparse` and
 * `settings` stay empty. Returns DSV_E_NOT_FOUND if there is no model, and DSV_E_FORMAT if the checkpoint
 * lacks one of these files. */
DsvStatus dsvi_model_find(const char *path, DsviModelPath *out);

/* Reads the sizes of the model from its config.json or, without one, from its tensors. */
DsvStatus dsvi_model_config(const DsviModelPath *model, DsviDitConfig *out);
/* Determines the sizes of the model that a run with these options trains, and the shape of its latents: the
 * model at model.path, whose files *model then names, or that of the model.* options with the codec's
 * channels. DSV_E_SHAPE, naming model.path, if its model does not take the codec's latents. */
DsvStatus dsvi_model_of_options(const DsvConfig *settings, const DsviCodec *codec, DsviModelPath *model,
                                DsviVideoShape *latent, DsviDitConfig *out);
/* Reads the sizes of the model in the folder of a checkpoint with which a run that trains all weights goes
 * on. Of model.path, which may be missing, only the image encoder is read, which the checkpoint does not
 * have. */
DsvStatus dsvi_model_of_checkpoint(const DsvConfig *settings, const char *checkpoint, DsviDitConfig *out);
/* Checks the files in `model` against the checkpoint's manifest. Returns DSV_E_FORMAT with the name of the
 * first file that differs. Other files of the checkpoint, such as optimizer/, may be missing. Does nothing if
 * the model does not belong to a checkpoint. */
DsvStatus dsvi_model_verify(const DsviModelPath *model);
/* Returns DSV_E_UNSUPPORTED if the file name ends like a Python pickle (.pth, .ckpt, ...). */
DsvStatus dsvi_model_refuse_pickle(const char *path);

#ifdef __cplusplus
}
#endif
#endif
