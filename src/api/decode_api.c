/* dsv_decode (include/dsv/decode.h): decodes stored latents to a clip. */
#include "dsv/decode.h"

#include <stdio.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "base/config_abi.h"
#include "base/memory_limit.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"
#include "model/folder/wan_folder.h"
#include "model/vae/vae.h"
#include "sample/clip_writer.h"

static const char LATENTS[] = "latents";

typedef struct Decoding {
    const DsvConfig *settings;
    DsviBackend backend;
    DsviVae *vae;
    DsvDecoded size;
    int64_t positions; /* of a channel of the latents */
    float *latents, *pixels;
} Decoding;

/* Finds the VAE that `path` names. */
static DsvStatus decode_find_vae(const char *path, const DsvConfig *settings, char vae[DSVI_PATH_MAX])
{
    DsviWanFolder folder;
    bool published;
    snprintf(vae, DSVI_PATH_MAX, "%s", path);
    if (dsvi_vae_is(path))
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_find(path, settings, &folder, &published));
    if (!published)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no VAE, expected a published Wan folder, or a VAE", path);
    DSVI_TRY(dsvi_wan_folder_require(&folder, DSVI_WAN_VAE));
    snprintf(vae, DSVI_PATH_MAX, "%s", folder.part[DSVI_WAN_VAE]);
    return DSV_OK;
}

/* Reads the latents, undoes their normalisation and computes the sizes of the clip. */
static DsvStatus decode_read(Decoding *d, const DsviSafetensors *file)
{
    const DsviVaeConfig *config = dsvi_vae_config(d->vae);
    const int64_t wanted[5] = {1, config->z_dim, -1, -1, -1};
    const DsviStoredTensor *tensor = dsvi_safetensors_find(file, LATENTS);
    int64_t temporal, spatial;
    int first = tensor && tensor->ndim == 4 ? 1 : 0;
    DSVI_TRY(dsvi_safetensors_require_floating(file, LATENTS, 5 - first, wanted + first, &tensor));
    const int64_t *shape = tensor->shape + 2 - first;
    dsvi_vae_factors(config, &temporal, &spatial);
    if (tensor->count == 0)
        return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is empty, expected a frame or more",
                         dsvi_safetensors_path(file), LATENTS);
    d->size = (DsvDecoded){1 + (shape[0] - 1) * temporal, shape[1] * spatial, shape[2] * spatial};
    DSVI_TRY(dsvi_vae_check_size(config, d->size.frames, d->size.height, d->size.width));
    d->positions = shape[0] * shape[1] * shape[2];
    d->latents = malloc((size_t)tensor->count * sizeof *d->latents);
    d->pixels = malloc((size_t)(3 * d->size.frames * d->size.height * d->size.width) * sizeof *d->pixels);
    if (!d->latents || !d->pixels)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld frames of %lld x %lld",
                         (long long)d->size.frames, (long long)d->size.height, (long long)d->size.width);
    dsvi_convert(DSVI_F32, d->latents, tensor->dtype, tensor->data, tensor->count);
    dsvi_vae_denormalize(config, d->positions, d->latents);
    return DSV_OK;
}

static DsvStatus decode_write(const Decoding *d, const char *path)
{
    const DsviVideoFrames frames = {.pixels = d->pixels,
                                    .frames = d->size.frames,
                                    .height = d->size.height,
                                    .width = d->size.width,
                                    .fps = d->settings->fps};
    return dsvi_clip_write(path, &frames);
}

DsvStatus dsv_decode(const char *model_path, const char *latents_path, const char *output_path,
                     const DsvConfig *settings, DsvDecoded *decoded)
{
    DsvStatus status;
    char vae[DSVI_PATH_MAX];
    DsviSafetensors *file = NULL;
    Decoding d = {.settings = settings};
    DSVI_TRY(dsvi_config_check_abi(settings));
    const DsviVaeOptions options = {
        .act = dsvi_dit_act(settings), .decode = true, .memory_bytes = dsvi_memory_limit(settings)};
    DSVI_TRY(decode_find_vae(model_path, settings, vae));
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(latents_path, &file), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &d.backend), done);
    DSVI_TRY_GOTO(status, dsvi_vae_open(&d.backend, vae, &options, &d.vae), done);
    DSVI_TRY_GOTO(status, decode_read(&d, file), done);
    DSVI_TRY_GOTO(status, dsvi_clip_check_path(output_path, d.size.frames), done);
    DSVI_TRY_GOTO(status,
                  dsvi_vae_decode(d.vae, d.size.frames, d.size.height, d.size.width, d.latents, d.pixels),
                  done);
    DSVI_TRY_GOTO(status, decode_write(&d, output_path), done);
    if (decoded)
        *decoded = d.size;
done:
    dsvi_vae_close(&d.vae);
    dsvi_backend_close(&d.backend);
    dsvi_safetensors_close(&file);
    free(d.latents);
    free(d.pixels);
    return status;
}
