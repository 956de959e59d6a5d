/* The codec of the latents of a published model's VAE, which training uses: it knows the shapes of latents
 * without the VAE's weights, and loads the VAE for each clip that it decodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory_limit.h"
#include "model/codec/codec.h"
#include "model/folder/wan_folder.h"

enum { PUBLISHED_Z = 16, PUBLISHED_TEMPORAL = 4, PUBLISHED_SPATIAL = 8 };

typedef struct FolderCodec {
    DsviCodec codec;           /* first, so that a pointer to it is a pointer to the whole */
    int64_t z_dim;             /* channels of a latent */
    int64_t temporal, spatial; /* factors by which a latent is smaller than its clip */
    char vae[DSVI_PATH_MAX];   /* "": not found */
    DsviBackend *backend;      /* that decodes; NULL: none */
    uint64_t memory_bytes;     /* limit of the VAE's device memory; 0: none */
    DsviDtype act;
} FolderCodec;

static DsvStatus folder_codec_check(const char *key, int64_t found, int64_t first, int64_t unit)
{
    if (found >= first && (found - first) % unit == 0)
        return DSV_OK;
    int64_t nearest = found < first ? first : found - (found - first) % unit;
    return DSVI_FAIL(DSV_E_SHAPE, "%s=%lld, expected %lldk%s for codec.name=wan; the nearest is %lld", key,
                     (long long)found, (long long)unit, first == unit ? "" : " + 1", (long long)nearest);
}

static DsvStatus folder_codec_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    const FolderCodec *c = (const FolderCodec *)codec;
    DSVI_TRY(folder_codec_check("num_frames", video.frames, 1, c->temporal));
    DSVI_TRY(folder_codec_check("height", video.height, c->spatial, c->spatial));
    DSVI_TRY(folder_codec_check("width", video.width, c->spatial, c->spatial));
    *latent = (DsviVideoShape){c->z_dim, 1 + (video.frames - 1) / c->temporal, video.height / c->spatial,
                               video.width / c->spatial};
    return DSV_OK;
}

static DsvStatus folder_codec_decode(const DsviCodec *codec, DsviVideoShape video, const float *latent,
                                     float *pixels)
{
    const FolderCodec *c = (const FolderCodec *)codec;
    const DsviVaeOptions options = {.act = c->act, .decode = true, .memory_bytes = c->memory_bytes};
    DsviVae *vae;
    DsviCodec *wan = NULL;
    DSVI_TRY(dsvi_vae_open(c->backend, c->vae, &options, &vae));
    DsvStatus status = dsvi_codec_wan_open(vae, &wan);
    if (status == DSV_OK)
        status = wan->decode(wan, video, latent, pixels);
    if (wan)
        wan->close(wan);
    dsvi_vae_close(&vae);
    return status;
}

/* The decoder is not linear, and its channels matter about equally. */
static void folder_codec_errors(const DsviCodec *codec, double *error)
{
    for (int64_t i = 0; i < ((const FolderCodec *)codec)->z_dim; i++)
        error[i] = 1;
}

static void folder_codec_close(DsviCodec *codec)
{
    free(codec);
}

/* Reads the factors from the VAE's config.json, if model.path or model.vae leads to one. */
static DsvStatus folder_codec_find(FolderCodec *c, const DsvConfig *settings)
{
    char path[DSVI_PATH_MAX];
    DsviWanFolder folder;
    DsviVaeConfig config;
    bool found = false;
    if (settings->model_path[0] && dsvi_path_exists(settings->model_path))
        DSVI_TRY(dsvi_wan_folder_find(settings->model_path, settings, &folder, &found));
    if (!found)
        snprintf(c->vae, sizeof c->vae, "%s", settings->model_vae);
    else {
        DSVI_TRY(dsvi_wan_folder_check(&folder));
        snprintf(c->vae, sizeof c->vae, "%s", folder.part[DSVI_WAN_VAE]);
    }
    if (!c->vae[0])
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(path, c->vae, "config.json"));
    if (!dsvi_path_exists(path))
        return DSV_OK;
    DSVI_TRY(dsvi_vae_config_read(path, &config));
    dsvi_vae_factors(&config, &c->temporal, &c->spatial);
    c->z_dim = config.z_dim;
    return DSV_OK;
}

DsvStatus dsvi_codec_wan_folder_open(const DsvConfig *settings, DsviCodec **out)
{
    FolderCodec *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a codec");
    c->codec = (DsviCodec){.name = "wan",
                           .latent_shape = folder_codec_shape,
                           .pixel_errors = folder_codec_errors,
                           .close = folder_codec_close};
    c->z_dim = PUBLISHED_Z;
    c->temporal = PUBLISHED_TEMPORAL;
    c->spatial = PUBLISHED_SPATIAL;
    c->memory_bytes = dsvi_memory_limit(settings);
    c->act = strcmp(settings->mixed_precision, "bf16") == 0 ? DSVI_BF16 : DSVI_F32;
    DsvStatus status = folder_codec_find(c, settings);
    if (status == DSV_OK)
        *out = &c->codec;
    else
        free(c);
    return status;
}

void dsvi_codec_decode_on(DsviCodec *codec, DsviBackend *backend)
{
    FolderCodec *c = (FolderCodec *)codec;
    if (codec->latent_shape != folder_codec_shape || !c->vae[0])
        return;
    c->backend = backend;
    codec->decode = folder_codec_decode;
}

/* Plans with the limit c->memory_bytes. */
static DsvStatus folder_codec_plan(const FolderCodec *c, DsviBackend *backend, DsviVideoShape video,
                                   uint64_t *bytes)
{
    const DsviVaeOptions options = {.act = c->act, .decode = true, .memory_bytes = c->memory_bytes};
    DsviVae *vae;
    DSVI_TRY(dsvi_vae_open(backend, c->vae, &options, &vae));
    DsvStatus status = dsvi_vae_plan(vae, true, video.frames, video.height, video.width, bytes);
    dsvi_vae_close(&vae);
    return status;
}

DsvStatus dsvi_codec_decode_plan(DsviCodec *codec, DsviBackend *backend, DsviVideoShape video, uint64_t room,
                                 uint64_t *bytes)
{
    FolderCodec *c = (FolderCodec *)codec;
    *bytes = 0;
    if (codec->latent_shape != folder_codec_shape || !c->vae[0])
        return DSV_OK;
    c->memory_bytes = 0; /* the VAE's own choice */
    DSVI_TRY(folder_codec_plan(c, backend, video, bytes));
    if (*bytes <= room)
        return DSV_OK;
    c->memory_bytes = room > 0 ? room : 1;
    DsvStatus status = folder_codec_plan(c, backend, video, bytes);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "sampled clips are decoded beside the run");
}
