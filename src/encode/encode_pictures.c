/* Implements encode_pictures.h. */
#include "encode/encode_pictures.h"

#include <math.h>
#include <stdlib.h>

#include "model/weights/weights_identity.h"
#include "pipeline/wan_image_rows.h"

DsvStatus dsvi_picture_encoder_find(DsviBackend *backend, const DsviWanFolder *folder,
                                    const DsviDitConfig *transformer, DsviPictureEncoder *out,
                                    DsviLatentModel *identity)
{
    *out = (DsviPictureEncoder){.backend = backend};
    if (transformer->image_dim == 0)
        return DSV_OK;
    out->path = folder->part[DSVI_WAN_IMAGE_ENCODER];
    out->pictures = transformer->pos_embed_seq_len > 0 ? 2 : 1;
    DSVI_TRY(dsvi_wan_image_encoder_find(folder, transformer, out->pictures, &out->config, &out->processor));
    out->rows = dsvi_vit_rows(&out->config);
    identity->image = (DsviImageStates){out->pictures * out->rows, out->config.hidden_size};
    return dsvi_weights_identity(out->path, &identity->image_encoder);
}

DsvStatus dsvi_picture_encoder_load(DsviPictureEncoder *e, DsviDtype act, uint64_t *bytes)
{
    *bytes = 0;
    if (e->pictures == 0)
        return DSV_OK;
    *bytes = dsvi_vit_plan(e->backend, &e->config, act, e->pictures);
    e->pixels = malloc((size_t)(e->pictures * 3 * e->processor.crop * e->processor.crop) * sizeof *e->pixels);
    if (!e->pixels)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the pixels of a window's pictures");
    return dsvi_vit_open(e->backend, e->path, act, e->pictures, &e->encoder);
}

void dsvi_picture_encoder_close(DsviPictureEncoder *e)
{
    dsvi_vit_close(&e->encoder);
    free(e->pixels);
    free(e->rgb);
    *e = (DsviPictureEncoder){0};
}

/* Prepares picture number `i`. Pixels in [-1, 1] were made of bytes, to which they return. */
static DsvStatus picture_prepare(DsviPictureEncoder *e, DsviVideoShape video, const float *picture, int64_t i)
{
    size_t frame = (size_t)(video.height * video.width), channels = (size_t)video.channels;
    for (size_t c = 0; c < channels; c++)
        for (size_t p = 0; p < frame; p++)
            e->rgb[p * channels + c] = (uint8_t)lrintf(
                fminf(fmaxf((picture[c * frame + p] + 1) * 127.5F, 0), 255));
    return dsvi_vit_prepare(&e->processor, video.height, video.width, e->rgb,
                            e->pixels + i * 3 * e->processor.crop * e->processor.crop);
}

DsvStatus dsvi_picture_encoder_run(DsviPictureEncoder *e, DsviVideoShape video, const float *first,
                                   const float *last, float *states)
{
    size_t bytes = (size_t)(video.channels * video.height * video.width);
    if (bytes > e->rgb_bytes) {
        free(e->rgb);
        e->rgb = malloc(bytes);
        e->rgb_bytes = e->rgb ? bytes : 0;
    }
    if (!e->rgb)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a picture of %zu bytes", bytes);
    DSVI_TRY(picture_prepare(e, video, first, 0));
    if (e->pictures > 1)
        DSVI_TRY(picture_prepare(e, video, last, 1));
    return dsvi_vit_encode(e->encoder, e->pictures, e->pixels, states);
}
