/* The parts of a published Wan model: transformer, VAE, text encoder, tokenizer and scheduler, found in the
 * layouts in which such models are distributed.
 *
 * - diffusers: model_index.json; transformer/ (and transformer_2/), vae/, text_encoder/, tokenizer/,
 *   scheduler/; image_encoder/ and image_processor/ of models that attend states of pictures
 * - Wan repository: one folder with config.json (WanModel), diffusion_pytorch_model*.safetensors, a file of
 *   the VAE, a file of the text encoder, and google/umt5-xxl/
 * - ComfyUI: diffusion_models/, vae/ and text_encoders/ with one safetensors file per part; also the same
 *   files in one folder, and a file of diffusion_models/ itself
 *
 * In the last two layouts files are recognised by the tensors in them, not by their names. */
#ifndef DSVI_WAN_FOLDER_H
#define DSVI_WAN_FOLDER_H

#include <stdbool.h>

#include "base/fs.h"
#include "model/dit/dit_config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum DsviWanPart {
    DSVI_WAN_TRANSFORMER,
    DSVI_WAN_VAE,
    DSVI_WAN_TEXT_ENCODER,
    DSVI_WAN_TOKENIZER,
    DSVI_WAN_SCHEDULER,
    DSVI_WAN_TRANSFORMER_2,   /* the expert for low noise, of a model of two experts */
    DSVI_WAN_IMAGE_ENCODER,   /* of models that attend states of pictures: Wan 2.1 I2V and FLF2V */
    DSVI_WAN_IMAGE_PROCESSOR, /* how its pictures are prepared */
    DSVI_WAN_PARTS
} DsviWanPart;

typedef struct DsviWanFolder {
    char path[DSVI_PATH_MAX];                 /* as the user named the model */
    const char *layout;                       /* "diffusers", "Wan repository" or "ComfyUI"; static */
    char part[DSVI_WAN_PARTS][DSVI_PATH_MAX]; /* folder or file of each part; "": not found */
    char pickle[DSVI_WAN_PARTS]
               [DSVI_PATH_MAX]; /* a pickle that seems to hold a part that was not found, or "" */
    bool two_experts;           /* Wan 2.2 A14B: the transformer is the expert for high noise */
    double boundary_ratio;      /* two_experts: noise level from 0 to 1 from which on the transformer runs,
                                 * and below which the second one runs */
    bool expand_timesteps;      /* Wan 2.2 TI2V-5B */
    bool refused;               /* the model is of a variant that dsv does not support */
    char refusal[512];          /* the sentence that says which one */
} DsviWanFolder;

/* Name of a part for messages: "transformer", "text encoder", ... */
const char *dsvi_wan_part_name(DsviWanPart part);

/* Finds the parts of the model that `path` names: a folder of one of the layouts, a transformer folder or a
 * safetensors file of a transformer. The options model.vae, model.text_encoder and model.tokenizer of
 * `settings` (NULL: none) replace what was found. *found is false, and *out undefined, for everything else:
 * run folders, checkpoints, and transformers without any other part. Missing parts and unsupported variants
 * are no failure here. DSV_E_USAGE if several files could be the same part; DSV_E_FORMAT for a damaged
 * model_index.json, also if only one of transformer_2 and boundary_ratio is set in it. */
DsvStatus dsvi_wan_folder_find(const char *path, const DsvConfig *settings, DsviWanFolder *out, bool *found);

/* Finds text encoder and tokenizer of `path`, which may also be without any other part: a folder with
 * text_encoder/ and tokenizer/, a text encoder folder in which or beside which the tokenizer is, or a
 * safetensors file, which may contain the tokenizer. Fails as dsvi_wan_folder_require if one of the two is
 * missing. A variant whose transformer is not supported is no failure here. */
DsvStatus dsvi_wan_folder_find_text(const char *path, const DsvConfig *settings, DsviWanFolder *out);

/* Returns whether a file name ends like that of a Python pickle (.pth, .ckpt, ...). */
bool dsvi_wan_is_pickle(const char *name);

/* Fails with DSV_E_UNSUPPORTED if the variant is not supported. */
DsvStatus dsvi_wan_folder_check(const DsviWanFolder *folder);
/* Fails if a part was not found: DSV_E_UNSUPPORTED with a way to convert a pickle, otherwise DSV_E_NOT_FOUND
 * with the place where it is expected and the option that names the part. Also fails with DSV_E_NOT_FOUND if
 * a part that is a folder lacks its config.json in the layout of diffusers. */
DsvStatus dsvi_wan_folder_require(const DsviWanFolder *folder, DsviWanPart part);
/* Reads the sizes of the transformer, which must have been found, from its config.json or, for a file without
 * one, from its tensors. DSV_E_UNSUPPORTED if the variant is not supported; DSV_E_SHAPE if two experts have
 * different sizes. */
DsvStatus dsvi_wan_folder_config(const DsviWanFolder *folder, DsviDitConfig *out);
/* Fails with DSV_E_SHAPE if the text encoder's hidden states do not have the width that the transformer
 * takes. Both parts must have been found. */
DsvStatus dsvi_wan_folder_check_text(const DsviWanFolder *folder, const DsviDitConfig *transformer);

#ifdef __cplusplus
}
#endif
#endif
