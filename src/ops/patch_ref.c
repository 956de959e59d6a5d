/* Reference implementation of the copies between a latent video and rows of tokens. See patch.h. */
#include "ops/patch.h"

/* Copies one element: element row_at of the rows and element latent_at of the latent. */
typedef void copy_element_fn(const DsviPatchArgs *args, int64_t row_at, int64_t latent_at);

static void copy_to_rows(const DsviPatchArgs *args, int64_t row_at, int64_t latent_at)
{
    dsvi_store(args->row_dtype, args->rows, row_at, dsvi_load(args->latent_dtype, args->latent, latent_at));
}

static void copy_to_latent(const DsviPatchArgs *args, int64_t row_at, int64_t latent_at)
{
    dsvi_store(args->latent_dtype, args->latent, latent_at, dsvi_load(args->row_dtype, args->rows, row_at));
}

static void patch_walk(const DsviPatchArgs *args, copy_element_fn *copy)
{
    int64_t pt = args->patch[0], ph = args->patch[1], pw = args->patch[2];
    int64_t rows = args->height / ph, cols = args->width / pw, tokens = args->tokens;
    int64_t inside = pt * ph * pw, row_size = args->channels * inside;
    for (int64_t i = 0; i < args->batch * tokens * row_size; i++) {
        int64_t token = i / row_size, b = token / tokens, position = args->order[token % tokens];
        int64_t element = i % row_size;
        int64_t c = args->channel_last ? element % args->channels : element / inside;
        int64_t offset = args->channel_last ? element / args->channels : element % inside;
        int64_t f = position / (rows * cols) * pt + offset / (ph * pw);
        int64_t h = position / cols % rows * ph + offset / pw % ph;
        int64_t w = position % cols * pw + offset % pw;
        copy(args, i, (((b * args->channels + c) * args->frames + f) * args->height + h) * args->width + w);
    }
}

DsvStatus dsvi_patch_gather_ref(DsviStream *stream, const DsviPatchArgs *args)
{
    (void)stream;
    patch_walk(args, copy_to_rows);
    return DSV_OK;
}

DsvStatus dsvi_patch_scatter_ref(DsviStream *stream, const DsviPatchArgs *args)
{
    (void)stream;
    patch_walk(args, copy_to_latent);
    return DSV_OK;
}
