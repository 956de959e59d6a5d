/* Sizes of clips and latents of a published model. */
#ifndef DSVI_WAN_SHAPE_H
#define DSVI_WAN_SHAPE_H

#include "model/codec/codec.h"
#include "model/folder/wan_folder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A codec that knows the shapes of the VAE's latents, and has no functions to encode and decode. */
typedef struct DsviWanShape {
    DsviCodec codec;           /* first, so that a pointer to it is a pointer to the whole */
    int64_t channels;          /* of a latent */
    int64_t temporal, spatial; /* factors by which a latent is smaller than its clip */
    int64_t patch[3];          /* of the transformer */
} DsviWanShape;

/* Takes the factors from the VAE's config.json, where it has one, and otherwise those of the published VAE.
 * The codec refuses sizes that the transformer cannot take, with DSV_E_SHAPE and the nearest sizes that it
 * can. */
DsvStatus dsvi_wan_shape(const DsviWanFolder *folder, const DsviDitConfig *config, DsviWanShape *out);

#ifdef __cplusplus
}
#endif
#endif
