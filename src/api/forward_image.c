/* A pass of an image encoder on prepared pictures from a file. */
#include <stdlib.h>

#include "api/forward_parts.h"
#include "backend/backend.h"
#include "base/safetensors.h"
#include "model/vit/vit.h"
#include "model/dit/dit.h"

enum { BATCH = 2 }; /* pictures on the device at a time */

static DsvStatus image_pass_write(const DsviVitConfig *config, int64_t count, const float *states,
                                  const char *path)
{
    DsviStoredTensor result = {
        .name = "hidden_states",
        .dtype = DSVI_F32,
        .ndim = 3,
        .shape = {count, dsvi_vit_rows(config), config->hidden_size},
        .count = count * dsvi_vit_rows(config) * config->hidden_size,
        .data = states,
    };
    result.bytes = (size_t)result.count * sizeof *states;
    return dsvi_safetensors_replace(path, &result, 1, NULL, 0);
}

static DsvStatus image_pass_encode(DsviVit *encoder, const DsviStoredTensor *pictures, const char *path)
{
    const DsviVitConfig *config = dsvi_vit_config(encoder);
    const int64_t count = pictures->shape[0], states = count * dsvi_vit_rows(config) * config->hidden_size;
    float *host = malloc((size_t)(pictures->count + states + 1) * sizeof *host);
    if (!host)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld pictures", (long long)count);
    dsvi_convert(DSVI_F32, host, pictures->dtype, pictures->data, pictures->count);
    DsvStatus status = dsvi_vit_encode(encoder, count, host, host + pictures->count);
    if (status == DSV_OK)
        status = image_pass_write(config, count, host + pictures->count, path);
    free(host);
    return status;
}

DsvStatus dsvi_forward_image(const DsviForwardFiles *files, bool grad, const DsvConfig *settings)
{
    DsvStatus status;
    DsviBackend backend = {0};
    DsviVit *encoder = NULL;
    DsviSafetensors *in = NULL;
    const DsviStoredTensor *pictures;
    if (grad)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: an image encoder, which has no backward pass", files->model);
    DSVI_TRY_GOTO(status, dsvi_safetensors_open(files->in, &in), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &backend), done);
    DSVI_TRY_GOTO(status, dsvi_vit_open(&backend, files->model, dsvi_dit_act(settings), BATCH, &encoder),
                  done);
    const DsviVitConfig *config = dsvi_vit_config(encoder);
    const int64_t shape[] = {-1, config->num_channels, config->image_size, config->image_size};
    DSVI_TRY_GOTO(status, dsvi_safetensors_require_floating(in, "pixel_values", 4, shape, &pictures), done);
    DSVI_TRY_GOTO(status, image_pass_encode(encoder, pictures, files->out), done);
done:
    dsvi_vit_close(&encoder);
    dsvi_backend_close(&backend);
    dsvi_safetensors_close(&in);
    return status;
}
