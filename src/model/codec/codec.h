/* Codecs convert pixels to latents and back. All arrays are host memory. Several threads may call one codec
 * object at the same time, except close. */
#ifndef DSVI_CODEC_H
#define DSVI_CODEC_H

#include "base/status.h"
#include "dsv/config.h"
#include "model/vae/vae.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shape of a video or latent, an array (channels, frames, height, width). */
typedef struct DsviVideoShape {
    int64_t channels, frames, height, width;
} DsviVideoShape;

typedef struct DsviCodec DsviCodec;
struct DsviCodec {
    const char *name; /* value of the option codec.name */
    /* Computes the shape of the latent of a (3, T, H, W) video. DSV_E_SHAPE if the codec does not support
     * this size; the message names the nearest supported sizes. */
    DsvStatus (*latent_shape)(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent);
    /* Converts between pixels, F32 in [-1, 1] of shape `video`, and the latent, F32 with a variance of about
     * 1 or less. Both may be NULL in a codec that only gives shapes. */
    DsvStatus (*encode)(const DsviCodec *codec, DsviVideoShape video, const float *pixels, float *latent);
    DsvStatus (*decode)(const DsviCodec *codec, DsviVideoShape video, const float *latent, float *pixels);
    /* Fills error (latent channels): the sum of squared errors over pixels that an error of 1 in one latent
     * element of a channel causes. The values hold for all latent frames except the first, which is decoded
     * to fewer pictures, so that an error causes a smaller sum. */
    void (*pixel_errors)(const DsviCodec *codec, double *error);
    void (*close)(DsviCodec *codec);
};

/* Opens the codec that the codec.* options name; to be closed with codec->close. */
DsvStatus dsvi_codec_open(const DsvConfig *settings, DsviCodec **out);

/* Finds the sizes that the codec supports: frames are 1 + k * *frame_step, height and width are multiples of
 * *pixel_step. */
DsvStatus dsvi_codec_steps(const DsviCodec *codec, int64_t *frame_step, int64_t *pixel_step);

/* Opens the haar codec, with the levels that the codec.* options name. */
DsvStatus dsvi_codec_haar_open(const DsvConfig *settings, DsviCodec **out);
/* Makes a codec of an open VAE, which must outlive the codec: latents are the normalised means of the
 * posterior. Threads that call it wait for one another. */
DsvStatus dsvi_codec_wan_open(DsviVae *vae, DsviCodec **out);

/* Opens the codec of the VAE of the model at model.path (or model.vae), or of the published VAE if neither
 * has a config.json. It has no `encode`, and `decode` only after dsvi_codec_decode_on. The VAE is not loaded.
 */
DsvStatus dsvi_codec_wan_folder_open(const DsvConfig *settings, DsviCodec **out);
/* Gives a codec of dsvi_codec_wan_folder_open the function `decode`, which loads the VAE on `backend` for
 * each clip and frees it again, unless no VAE was found. Other codecs are not changed. */
void dsvi_codec_decode_on(DsviCodec *codec, DsviBackend *backend);
/* Finds the device memory that decoding a video takes beside what is allocated already: *bytes, 0 for codecs
 * that decode on the host. `room` is the most that it may take, and limits the later calls of `decode`, too.
 * Loads the VAE for a moment. DSV_E_NO_MEMORY if its smallest pieces take more. */
DsvStatus dsvi_codec_decode_plan(DsviCodec *codec, DsviBackend *backend, DsviVideoShape video, uint64_t room,
                                 uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
