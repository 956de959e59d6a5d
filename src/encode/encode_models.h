/* The models of a published folder with which dsv encode works: first tokenizer and text encoder, then the
 * VAE and, if the transformer takes its states, the image encoder. The device holds the text encoder, or the
 * other two. */
#ifndef DSVI_ENCODE_MODELS_H
#define DSVI_ENCODE_MODELS_H

#include "data/latent_index.h"
#include "encode/encode_pictures.h"
#include "encode/encode_texts.h"
#include "encode/encode_windows.h"
#include "model/codec/codec.h"
#include "model/folder/wan_folder.h"
#include "model/umt5/umt5.h"
#include "model/vae/vae.h"
#include "pipeline/wan_shape.h"
#include "text/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviEncodeModels {
    DsviBackend *backend;
    const DsvConfig *config;
    DsviWanFolder folder;
    DsviLatentModel
        identity; /* without the key of the empty prompt; the VAE unknown unless codec.name is wan */
    DsviDitConfig transformer; /* with a VAE only; of a folder without one, that of a published T2V model */
    DsviWanShape shape;        /* with a VAE only */
    int64_t
        condition_channels; /* of a stored window after those of the latent (identity.condition); 0: none */
    bool pictures;          /* the transformer makes clips of pictures */
    const DsviVideoShape *videos; /* of the windows of each size; set by the caller before the VAE encodes */
    DsviTokenizer *tokenizer;
    DsviUmt5 *text_encoder;             /* NULL: not loaded */
    DsviPictureEncoder picture_encoder; /* of the states after the condition; all bytes 0: none */
    DsviVae *vae;                       /* NULL: not loaded */
    DsviCodec *codec;                   /* of the VAE */
} DsviEncodeModels;

/* Finds the parts of the model at `path`, checks them and, without data.buckets, the size of the windows, and
 * opens the tokenizer.
 * Loads neither text encoder nor VAE. `backend` and `config` must outlive *out, which the caller closes, also
 * after a failure. */
DsvStatus dsvi_encode_models_open(const char *path, const DsvConfig *config, DsviBackend *backend,
                                  DsviEncodeModels *out);
void dsvi_encode_models_close(DsviEncodeModels *models);

/* Returns what converts texts to ids, with the open tokenizer. */
DsviTextIds dsvi_encode_models_ids(DsviEncodeModels *models);

/* Loads the text encoder; `rows` is the number of ids of all texts together. */
DsvStatus dsvi_encode_models_load_text(DsviEncodeModels *models, int64_t rows, DsviTextEncoder *out);
void dsvi_encode_models_free_text(DsviEncodeModels *models);

/* Loads the VAE and the image encoder. The caller sets the shapes in *out. The latents are the normalised
 * means of the VAE's posterior. For an image-to-video transformer, the channels of mask and encoded picture
 * follow them (wan_condition.h), and these the states of the pictures that a transformer of Wan 2.1 attends
 * (encode_pictures.h). For TI2V-5B, if a list names a picture for the clip, the first latent frame is the
 * encoded picture. */
DsvStatus dsvi_encode_models_load_vae(DsviEncodeModels *models, DsviWindowEncoder *out);

#ifdef __cplusplus
}
#endif
#endif
