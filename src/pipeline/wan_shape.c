/* Implements wan_shape.h. */
#include "pipeline/wan_shape.h"

#include <stdio.h>
#include <string.h>

#include "model/vae/vae.h"

enum { COLOURS = 3, PUBLISHED_TEMPORAL = 4, PUBLISHED_SPATIAL = 8 };

/* Checks that found = first + unit * k. The message names the nearest such numbers. */
static DsvStatus check_size(const char *key, int64_t found, int64_t first, int64_t unit)
{
    if (found >= first && (found - first) % unit == 0)
        return DSV_OK;
    int64_t below = found < first ? first : found - (found - first) % unit;
    int64_t nearest = found < first || found - below <= unit / 2 ? below : below + unit;
    if (first == unit)
        return DSVI_FAIL(DSV_E_SHAPE, "%s=%lld: expected a multiple of %lld; the nearest is %lld", key,
                         (long long)found, (long long)unit, (long long)nearest);
    return DSVI_FAIL(DSV_E_SHAPE, "%s=%lld: expected %lldk + %lld; the nearest is %lld", key,
                     (long long)found, (long long)unit, (long long)first, (long long)nearest);
}

static DsvStatus wan_latent_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    const DsviWanShape *shape = (const DsviWanShape *)codec;
    DSVI_ASSERT(video.channels == COLOURS);
    DSVI_TRY(check_size("height", video.height, shape->spatial * shape->patch[1],
                        shape->spatial * shape->patch[1]));
    DSVI_TRY(
        check_size("width", video.width, shape->spatial * shape->patch[2], shape->spatial * shape->patch[2]));
    DSVI_TRY(check_size("num_frames", video.frames, 1 + (shape->patch[0] - 1) * shape->temporal,
                        shape->temporal * shape->patch[0]));
    *latent = (DsviVideoShape){
        .channels = shape->channels,
        .frames = 1 + (video.frames - 1) / shape->temporal,
        .height = video.height / shape->spatial,
        .width = video.width / shape->spatial,
    };
    return DSV_OK;
}

DsvStatus dsvi_wan_shape(const DsviWanFolder *folder, const DsviDitConfig *config, DsviWanShape *out)
{
    char path[DSVI_PATH_MAX];
    DsviVaeConfig vae;
    *out = (DsviWanShape){
        .codec = {.name = "of the VAE", .latent_shape = wan_latent_shape},
        .channels = config->out_channels,
        .temporal = PUBLISHED_TEMPORAL,
        .spatial = PUBLISHED_SPATIAL,
    };
    memcpy(out->patch, config->patch, sizeof out->patch);
    DSVI_TRY(dsvi_path_join(path, folder->part[DSVI_WAN_VAE], "config.json"));
    if (!dsvi_path_exists(path))
        return DSV_OK;
    DSVI_TRY(dsvi_vae_config_read(path, &vae));
    if (vae.z_dim != config->out_channels)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: z_dim is %lld, expected %lld, the transformer's out_channels",
                         path, (long long)vae.z_dim, (long long)config->out_channels);
    dsvi_vae_factors(&vae, &out->temporal, &out->spatial);
    return DSV_OK;
}
