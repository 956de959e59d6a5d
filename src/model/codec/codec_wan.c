/* The Wan VAE as a codec (codec.h). */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model/codec/codec.h"

typedef struct WanCodec {
    DsviCodec codec;
    DsviVae *vae;
    pthread_mutex_t lock; /* held while the VAE computes */
} WanCodec;

static WanCodec *wan_of(const DsviCodec *codec)
{
    return (WanCodec *)codec;
}

static DsvStatus wan_codec_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    const DsviVaeConfig *config = dsvi_vae_config(wan_of(codec)->vae);
    int64_t temporal, spatial;
    if (video.channels != 3)
        return DSVI_FAIL(DSV_E_SHAPE, "the VAE takes videos of 3 colours, not %lld",
                         (long long)video.channels);
    DSVI_TRY(dsvi_vae_check_size(config, video.frames, video.height, video.width));
    dsvi_vae_factors(config, &temporal, &spatial);
    *latent = (DsviVideoShape){config->z_dim, 1 + (video.frames - 1) / temporal, video.height / spatial,
                               video.width / spatial};
    return DSV_OK;
}

/* Allocates `times` latents of a video. */
static DsvStatus wan_codec_latents(const DsviCodec *codec, DsviVideoShape video, int64_t times,
                                   int64_t *positions, float **out)
{
    DsviVideoShape latent;
    DSVI_TRY(wan_codec_shape(codec, video, &latent));
    *positions = latent.frames * latent.height * latent.width;
    *out = malloc((size_t)(times * latent.channels * *positions) * sizeof **out);
    return *out
               ? DSV_OK
               : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for latents of %lld positions", (long long)*positions);
}

static DsvStatus wan_codec_encode(const DsviCodec *codec, DsviVideoShape video, const float *pixels,
                                  float *latent)
{
    WanCodec *wan = wan_of(codec);
    const DsviVaeConfig *config = dsvi_vae_config(wan->vae);
    int64_t positions;
    float *moments;
    DSVI_TRY(wan_codec_latents(codec, video, 2, &positions, &moments));
    pthread_mutex_lock(&wan->lock);
    DsvStatus status = dsvi_vae_encode(wan->vae, video.frames, video.height, video.width, pixels, moments);
    pthread_mutex_unlock(&wan->lock);
    if (status == DSV_OK) {
        memcpy(latent, moments, (size_t)(config->z_dim * positions) * sizeof *latent);
        dsvi_vae_normalize(config, positions, latent);
    }
    free(moments);
    return status;
}

static DsvStatus wan_codec_decode(const DsviCodec *codec, DsviVideoShape video, const float *latent,
                                  float *pixels)
{
    WanCodec *wan = wan_of(codec);
    const DsviVaeConfig *config = dsvi_vae_config(wan->vae);
    int64_t positions;
    float *latents;
    DSVI_TRY(wan_codec_latents(codec, video, 1, &positions, &latents));
    memcpy(latents, latent, (size_t)(config->z_dim * positions) * sizeof *latents);
    dsvi_vae_denormalize(config, positions, latents);
    pthread_mutex_lock(&wan->lock);
    DsvStatus status = dsvi_vae_decode(wan->vae, video.frames, video.height, video.width, latents, pixels);
    pthread_mutex_unlock(&wan->lock);
    free(latents);
    return status;
}

/* The decoder is not linear, and its channels matter about equally. */
static void wan_codec_errors(const DsviCodec *codec, double *error)
{
    const DsviVaeConfig *config = dsvi_vae_config(wan_of(codec)->vae);
    for (int64_t i = 0; i < config->z_dim; i++)
        error[i] = 1;
}

static void wan_codec_close(DsviCodec *codec)
{
    pthread_mutex_destroy(&wan_of(codec)->lock);
    free(codec);
}

DsvStatus dsvi_codec_wan_open(DsviVae *vae, DsviCodec **out)
{
    WanCodec *wan = calloc(1, sizeof *wan);
    *out = NULL;
    if (!wan || pthread_mutex_init(&wan->lock, NULL) != 0) {
        free(wan);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the codec of a VAE");
    }
    wan->codec = (DsviCodec){
        "wan", wan_codec_shape, wan_codec_encode, wan_codec_decode, wan_codec_errors, wan_codec_close};
    wan->vae = vae;
    *out = &wan->codec;
    return DSV_OK;
}
