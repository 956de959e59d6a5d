/* The VAEs of Wan 2.1 and Wan 2.2: videos to latents and back. It computes what diffusers' AutoencoderKLWan
 * computes with its cached convolutions, whole or in pieces.
 *
 * A video is processed in strips of rows from top to bottom, and each strip in chunks of frames. Every
 * convolution keeps the last rows of the strip above and the last frames of the chunk before, so nothing is
 * computed twice and no tiles are blended: pieces give the result of the whole. Only the layers at the
 * resolution of the latents see whole frames, because attention in the middle needs them. */
#ifndef DSVI_VAE_H
#define DSVI_VAE_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_VAE_LEVELS_MAX 8
#define DSVI_VAE_Z_MAX 64

typedef struct DsviVaeConfig {
    int64_t base_dim, decoder_base_dim, z_dim;
    int64_t levels, dim_mult[DSVI_VAE_LEVELS_MAX];
    int64_t num_res_blocks;
    int64_t
        patch; /* squares of this many pixels become the channels of the first layer: 1, or 2 for Wan 2.2 */
    bool residual; /* levels that change the size have a shortcut without weights: Wan 2.2 */
    bool attention[DSVI_VAE_LEVELS_MAX];              /* (levels) attention after each residual block of
                                                       * the encoder's level; published: none */
    bool temporal_downsample[DSVI_VAE_LEVELS_MAX];    /* (levels - 1) */
    double mean[DSVI_VAE_Z_MAX], std[DSVI_VAE_Z_MAX]; /* (z_dim) of the latents */
} DsviVaeConfig;

/* Reads config.json of a VAE. DSV_E_UNSUPPORTED names the key of an unsupported variant. */
DsvStatus dsvi_vae_config_read(const char *path, DsviVaeConfig *out);

/* Returns whether `path` is a folder with the config.json of an autoencoder, or a safetensors file with the
 * decoder of one. */
bool dsvi_vae_is(const char *path);

typedef struct DsviVae DsviVae;

typedef struct DsviVaeOptions {
    DsviDtype act;         /* F32 or BF16 */
    bool encode, decode;   /* which half is loaded */
    uint64_t memory_bytes; /* limit of the device memory; 0: what is free on the device when a call begins.
                            * DSV_E_NO_MEMORY names the least that suffices */
} DsviVaeOptions;

/* Opens a VAE: a folder with config.json and weights, or a safetensors file with the names of diffusers or of
 * the Wan repository. Without config.json the shapes of the tensors tell the configuration, and the latents
 * have the published mean and deviation. The backend must outlive the VAE. The caller closes *out. */
DsvStatus dsvi_vae_open(DsviBackend *backend, const char *path, const DsviVaeOptions *options, DsviVae **out);
void dsvi_vae_close(DsviVae **vae); /* *vae may be NULL and becomes NULL */
const DsviVaeConfig *dsvi_vae_config(const DsviVae *vae);
/* Factors by which a latent is smaller than its video, in frames (after the first) and in rows and columns:
 * 4 and 8 for Wan 2.1, 4 and 16 for Wan 2.2. */
void dsvi_vae_factors(const DsviVaeConfig *config, int64_t *temporal, int64_t *spatial);
/* Fails with DSV_E_SHAPE and the nearest possible size unless the VAE takes videos of this size: 1 + temporal
 * k frames, and multiples of `spatial` rows and columns. */
DsvStatus dsvi_vae_check_size(const DsviVaeConfig *config, int64_t frames, int64_t height, int64_t width);
/* Returns a limit for DsviVaeOptions: `wanted`, but at most what is free on the device; 0 if `wanted` is 0.
 */
uint64_t dsvi_vae_memory_limit(DsviDevice *device, uint64_t wanted);
/* Bytes of device memory that encoding or decoding a video (3, frames, height, width) takes under the
 * options' limit, weights included. */
DsvStatus dsvi_vae_plan(const DsviVae *vae, bool decode, int64_t frames, int64_t height, int64_t width,
                        uint64_t *bytes);

/* Encodes a video, host (3, T, H, W) F32 in [-1, 1], to the moments, host (2 z_dim, T', H', W') F32: mean and
 * log-variance of the posterior. The device memory stays allocated for further videos of this size. */
DsvStatus dsvi_vae_encode(DsviVae *vae, int64_t frames, int64_t height, int64_t width, const float *video,
                          float *moments);
/* Decodes latents, host (z_dim, T', H', W') F32, not normalised, to a video, host (3, T, H, W) F32, limited
 * to [-1, 1]. frames, height and width are those of the video. */
DsvStatus dsvi_vae_decode(DsviVae *vae, int64_t frames, int64_t height, int64_t width, const float *latents,
                          float *video);
/* Returns the seconds that the device has worked in all calls so far, by the device's own clock: uploads and
 * operations, without the time in which the device waits for the host. */
double dsvi_vae_worked(const DsviVae *vae);
/* Normalises latents (z_dim, count) in place: (z - mean) / std of each channel; and back: z * std + mean. */
void dsvi_vae_normalize(const DsviVaeConfig *config, int64_t count, float *latents);
void dsvi_vae_denormalize(const DsviVaeConfig *config, int64_t count, float *latents);

#ifdef __cplusplus
}
#endif
#endif
