/* SIMD variants of patch_gather and patch_scatter. The offsets of a row's elements in the latent, relative to
 * the first element of its patch, are the same for all tokens; they are computed once per piece of work. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

enum { OFFSETS = 1024 }; /* row elements processed at a time, in a local array */

/* Computes the offsets of row elements [first, first + count) in the latent. */
static void patch_offsets(const DsviPatchArgs *args, int64_t first, int64_t count, int64_t *offsets)
{
    int64_t ph = args->patch[1], pw = args->patch[2], inside = args->patch[0] * ph * pw;
    for (int64_t i = 0; i < count; i++) {
        int64_t element = first + i;
        int64_t channel = args->channel_last ? element % args->channels : element / inside;
        int64_t offset = args->channel_last ? element / args->channels : element % inside;
        int64_t frame = channel * args->frames + offset / (ph * pw);
        offsets[i] = (frame * args->height + offset / pw % ph) * args->width + offset % pw;
    }
}

/* Returns the element of the latent that corresponds to element 0 of row `row`. */
static int64_t patch_origin(const DsviPatchArgs *args, int64_t row)
{
    int64_t rows = args->height / args->patch[1], cols = args->width / args->patch[2];
    int64_t tokens = args->tokens;
    int64_t position = args->order[row % tokens];
    int64_t frame = position / (rows * cols) * args->patch[0];
    int64_t y = position / cols % rows * args->patch[1], x = position % cols * args->patch[2];
    return ((row / tokens * args->channels * args->frames + frame) * args->height + y) * args->width + x;
}

static int64_t row_size(const DsviPatchArgs *args)
{
    return args->channels * args->patch[0] * args->patch[1] * args->patch[2];
}

DSVI_SPECIALISED void patch_move_rows(DsviDtype latent_dtype, DsviDtype row_dtype, bool gather,
                                      const DsviPatchArgs *args, int64_t begin, int64_t end)
{
    int64_t size = row_size(args), offsets[OFFSETS];
    for (int64_t first = 0; first < size; first += OFFSETS) {
        int64_t count = dsvi_min(OFFSETS, size - first);
        patch_offsets(args, first, count, offsets);
        for (int64_t row = begin; row < end; row++) {
            void *latent = dsvi_at(latent_dtype, args->latent, patch_origin(args, row));
            void *to = dsvi_at(row_dtype, args->rows, row * size + first);
            for (int64_t i = 0; i < count; i++) {
                if (gather)
                    dsvi_put(row_dtype, to, i, dsvi_get(latent_dtype, latent, offsets[i]));
                else
                    dsvi_put(latent_dtype, latent, offsets[i], dsvi_get(row_dtype, to, i));
            }
        }
    }
}

DSVI_SPECIALISED void patch_move_piece(bool gather, const DsviPatchArgs *args, int64_t begin, int64_t end)
{
    if (args->latent_dtype == DSVI_BF16 && args->row_dtype == DSVI_BF16)
        patch_move_rows(DSVI_BF16, DSVI_BF16, gather, args, begin, end);
    else if (args->latent_dtype == DSVI_BF16)
        patch_move_rows(DSVI_BF16, DSVI_F32, gather, args, begin, end);
    else if (args->row_dtype == DSVI_BF16)
        patch_move_rows(DSVI_F32, DSVI_BF16, gather, args, begin, end);
    else
        patch_move_rows(DSVI_F32, DSVI_F32, gather, args, begin, end);
}

static void gather_piece(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    patch_move_piece(true, context, begin, end);
}

static void scatter_piece(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    patch_move_piece(false, context, begin, end);
}

static DsvStatus patch_move(const DsviPatchArgs *args, dsvi_range_fn *piece)
{
    DSVI_TRY(dsvi_simd_check("patch", args->latent_dtype, DSVI_F32));
    DSVI_TRY(dsvi_simd_check("patch", args->row_dtype, DSVI_F32));
    dsvi_parallel_for(args->batch * args->tokens, dsvi_rows_per_piece(row_size(args)), piece, (void *)args);
    return DSV_OK;
}

static DsvStatus cpu_patch_gather(DsviStream *stream, const DsviPatchArgs *args)
{
    (void)stream;
    DSVI_TRY(patch_move(args, gather_piece));
    return DSV_OK;
}

static DsvStatus cpu_patch_scatter(DsviStream *stream, const DsviPatchArgs *args)
{
    (void)stream;
    DSVI_TRY(patch_move(args, scatter_piece));
    return DSV_OK;
}

void DSVI_SIMD(fill_patch)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, patch_gather, cpu_patch_gather, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, patch_scatter, cpu_patch_scatter, DSVI_SIMD_NAME);
}
