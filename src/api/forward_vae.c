/* A VAE on tensors from a file: encodes `video`, decodes what was encoded, and decodes `latents_random`. */
#include <stdlib.h>
#include <string.h>

#include "api/forward_parts.h"
#include "backend/backend.h"
#include "base/memory_limit.h"
#include "base/safetensors.h"
#include "model/dit/dit.h"
#include "model/vae/vae.h"

enum { RESULTS_MAX = 5, COLOURS = 3 };

static const char VIDEO[] = "video", LATENTS[] = "latents_random";

typedef struct VaePass {
    DsviVae *vae;
    int64_t temporal, spatial;
    DsviStoredTensor results[RESULTS_MAX];
    float *memory[RESULTS_MAX]; /* of the results */
    size_t count;
} VaePass;

/* Adds a result F32, whose memory the pass frees. `shape`: batch, channels, frames, height, width. */
static DsvStatus vae_pass_add(VaePass *p, const char *name, const int64_t shape[5], float **data)
{
    DsviStoredTensor *result = &p->results[p->count];
    *result = (DsviStoredTensor){.name = name, .dtype = DSVI_F32, .ndim = 5, .count = 1};
    for (int i = 0; i < 5; i++) {
        result->shape[i] = shape[i];
        result->count *= shape[i];
    }
    result->bytes = (size_t)result->count * sizeof(float);
    p->memory[p->count] = malloc(result->bytes);
    if (!p->memory[p->count])
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for tensor %s", name);
    result->data = *data = p->memory[p->count++];
    return DSV_OK;
}

/* Returns a tensor as F32, which the caller frees. */
static DsvStatus vae_pass_read(const DsviStoredTensor *tensor, float **out)
{
    *out = malloc((size_t)tensor->count * sizeof **out);
    if (!*out)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for tensor %s", tensor->name);
    dsvi_convert(DSVI_F32, *out, tensor->dtype, tensor->data, tensor->count);
    return DSV_OK;
}

/* Copies the means out of the moments of each video, and normalises them. */
static void take_means(const VaePass *p, int64_t batch, int64_t positions, const float *moments, float *mode,
                       float *normalized)
{
    const DsviVaeConfig *config = dsvi_vae_config(p->vae);
    int64_t count = config->z_dim * positions;
    for (int64_t b = 0; b < batch; b++) {
        memcpy(mode + b * count, moments + 2 * b * count, (size_t)count * sizeof *mode);
        memcpy(normalized + b * count, mode + b * count, (size_t)count * sizeof *mode);
        dsvi_vae_normalize(config, positions, normalized + b * count);
    }
}

/* Encodes the videos, and decodes the means of their latents. */
static DsvStatus run_video(VaePass *p, const DsviStoredTensor *tensor)
{
    DsvStatus status;
    const int64_t *shape = tensor->shape, batch = shape[0], z = dsvi_vae_config(p->vae)->z_dim;
    const int64_t t = shape[2], h = shape[3], w = shape[4], pixels = COLOURS * t * h * w;
    const int64_t frames = 1 + (t - 1) / p->temporal, height = h / p->spatial, width = w / p->spatial;
    const int64_t positions = frames * height * width, latent[5] = {batch, z, frames, height, width};
    float *video = NULL, *moments, *mode, *normalized, *decoded;
    DSVI_TRY(dsvi_vae_check_size(dsvi_vae_config(p->vae), t, h, w));
    DSVI_TRY_GOTO(status, vae_pass_read(tensor, &video), done);
    DSVI_TRY_GOTO(
        status, vae_pass_add(p, "moments", (int64_t[]){batch, 2 * z, frames, height, width}, &moments), done);
    DSVI_TRY_GOTO(status, vae_pass_add(p, "mode", latent, &mode), done);
    DSVI_TRY_GOTO(status, vae_pass_add(p, "latents_normalized", latent, &normalized), done);
    DSVI_TRY_GOTO(status, vae_pass_add(p, "decoded", (int64_t[]){batch, COLOURS, t, h, w}, &decoded), done);
    for (int64_t b = 0; b < batch; b++)
        DSVI_TRY_GOTO(status,
                      dsvi_vae_encode(p->vae, t, h, w, video + b * pixels, moments + 2 * b * z * positions),
                      done);
    take_means(p, batch, positions, moments, mode, normalized);
    for (int64_t b = 0; b < batch; b++)
        DSVI_TRY_GOTO(status,
                      dsvi_vae_decode(p->vae, t, h, w, mode + b * z * positions, decoded + b * pixels), done);
done:
    free(video);
    return status;
}

static DsvStatus run_latents(VaePass *p, const DsviStoredTensor *tensor)
{
    DsvStatus status;
    const int64_t *shape = tensor->shape, batch = shape[0];
    const int64_t t = 1 + (shape[2] - 1) * p->temporal, h = shape[3] * p->spatial, w = shape[4] * p->spatial;
    float *latents = NULL, *decoded;
    DSVI_TRY(dsvi_vae_check_size(dsvi_vae_config(p->vae), t, h, w));
    DSVI_TRY_GOTO(status, vae_pass_read(tensor, &latents), done);
    DSVI_TRY_GOTO(status, vae_pass_add(p, "decoded_random", (int64_t[]){batch, COLOURS, t, h, w}, &decoded),
                  done);
    for (int64_t b = 0; b < batch; b++)
        DSVI_TRY_GOTO(status,
                      dsvi_vae_decode(p->vae, t, h, w, latents + b * (tensor->count / batch),
                                      decoded + b * COLOURS * t * h * w),
                      done);
done:
    free(latents);
    return status;
}

static DsvStatus run_tensors(VaePass *p, const DsviSafetensors *in)
{
    const DsviStoredTensor *video = dsvi_safetensors_find(in, VIDEO);
    const DsviStoredTensor *latents = dsvi_safetensors_find(in, LATENTS);
    const int64_t z = dsvi_vae_config(p->vae)->z_dim;
    if (!video && !latents)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no tensor %s or %s, expected one of them or both",
                         dsvi_safetensors_path(in), VIDEO, LATENTS);
    if (video)
        DSVI_TRY(
            dsvi_safetensors_require_floating(in, VIDEO, 5, (int64_t[]){-1, COLOURS, -1, -1, -1}, &video));
    if (latents)
        DSVI_TRY(dsvi_safetensors_require_floating(in, LATENTS, 5, (int64_t[]){-1, z, -1, -1, -1}, &latents));
    if ((video && video->count == 0) || (latents && latents->count == 0))
        return DSVI_FAIL(DSV_E_SHAPE, "%s: a tensor is empty, expected one video or more",
                         dsvi_safetensors_path(in));
    dsvi_vae_factors(dsvi_vae_config(p->vae), &p->temporal, &p->spatial);
    if (video)
        DSVI_TRY(run_video(p, video));
    return latents ? run_latents(p, latents) : DSV_OK;
}

DsvStatus dsvi_forward_vae(const DsviForwardFiles *files, bool grad, const DsvConfig *settings)
{
    DsvStatus status;
    VaePass pass = {0};
    DsviBackend backend = {0};
    DsviSafetensors *in = NULL;
    const DsviVaeOptions options = {.act = dsvi_dit_act(settings),
                                    .encode = true,
                                    .decode = true,
                                    .memory_bytes = dsvi_memory_limit(settings)};
    if (grad)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: a VAE, which has no backward pass", files->model);
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(files->in, &in), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &backend), done);
    DSVI_TRY_GOTO(status, dsvi_vae_open(&backend, files->model, &options, &pass.vae), done);
    DSVI_TRY_GOTO(status, run_tensors(&pass, in), done);
    DSVI_TRY_GOTO(status, dsvi_safetensors_replace(files->out, pass.results, pass.count, NULL, 0), done);
done:
    dsvi_vae_close(&pass.vae);
    dsvi_backend_close(&backend);
    dsvi_safetensors_close(&in);
    for (size_t i = 0; i < pass.count; i++)
        free(pass.memory[i]);
    return status;
}
