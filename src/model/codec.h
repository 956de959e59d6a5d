/* Pixels <-> latents, behind one small interface. Host memory; one call at a time per codec object is not
 * required: encode and decode are re-entrant. */
#ifndef DSVI_CODEC_H
#define DSVI_CODEC_H

#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvVideoShape { /* (channels, frames, height, width) */
    int64_t channels, frames, height, width;
} DsvVideoShape;

typedef struct DsvCodec DsvCodec;
struct DsvCodec {
    const char *name;
    /* The latent of a (3, T, H, W) video. DSV_E_SHAPE when the codec cannot take that size: the message
     * names the nearest sizes it can. */
    DsvStatus (*latent_shape)(const DsvCodec *codec, DsvVideoShape video, DsvVideoShape *latent);
    /* video: F32 in [-1, 1]; latent: F32, of about unit variance or less. */
    DsvStatus (*encode)(const DsvCodec *codec, DsvVideoShape video, const float *pixels, float *latent);
    DsvStatus (*decode)(const DsvCodec *codec, DsvVideoShape video, const float *latent, float *pixels);
    /* error: (latent channels). The sum of squared errors in pixels that an error of one in one element of a
     * channel makes. Valid for latent frames after the first; the first covers fewer pictures, and its errors
     * are smaller. */
    void (*pixel_errors)(const DsvCodec *codec, double *error);
    void (*close)(DsvCodec *codec);
};

/* The codec that the codec.* settings name; closed by codec->close. */
DsvStatus dsvi_codec_open(const DsvConfig *settings, DsvCodec **out);

DsvStatus dsvi_codec_haar_open(const DsvConfig *settings, DsvCodec **out);

#ifdef __cplusplus
}
#endif
#endif
