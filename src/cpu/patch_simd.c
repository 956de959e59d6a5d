/* Patches to rows and back. Where a row's elements lie in the latent, counted from its patch's first, is the
 * same for all tokens: a table of places, made once per piece of work. */
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

enum { PLACES = 1024 }; /* row elements handled at a time: a local array */

/* The places of row elements [first, first + count). */
static void list_places(const DsvPatchArgs *args, int64_t first, int64_t count, int64_t *place)
{
    int64_t ph = args->patch[1], pw = args->patch[2], inside = args->patch[0] * ph * pw;
    for (int64_t i = 0; i < count; i++) {
        int64_t element = first + i;
        int64_t channel = args->channel_last ? element % args->channels : element / inside;
        int64_t offset = args->channel_last ? element / args->channels : element % inside;
        int64_t frame = channel * args->frames + offset / (ph * pw);
        place[i] = (frame * args->height + offset / pw % ph) * args->width + offset % pw;
    }
}

/* The latent's element of row element 0 of row `row`. */
static int64_t origin_of(const DsvPatchArgs *args, int64_t row)
{
    int64_t rows = args->height / args->patch[1], cols = args->width / args->patch[2];
    int64_t tokens = args->tokens;
    int64_t position = args->order[row % tokens];
    int64_t frame = position / (rows * cols) * args->patch[0];
    int64_t y = position / cols % rows * args->patch[1], x = position % cols * args->patch[2];
    return ((row / tokens * args->channels * args->frames + frame) * args->height + y) * args->width + x;
}

static int64_t row_size(const DsvPatchArgs *args)
{
    return args->channels * args->patch[0] * args->patch[1] * args->patch[2];
}

DSVI_SPECIALISED void move_rows(DsvDtype latent_dtype, DsvDtype row_dtype, bool gather,
                                const DsvPatchArgs *args, int64_t begin, int64_t end)
{
    int64_t size = row_size(args), place[PLACES];
    for (int64_t first = 0; first < size; first += PLACES) {
        int64_t count = dsvi_least(PLACES, size - first);
        list_places(args, first, count, place);
        for (int64_t row = begin; row < end; row++) {
            void *latent = dsvi_at(latent_dtype, args->latent, origin_of(args, row));
            void *to = dsvi_at(row_dtype, args->rows, row * size + first);
            for (int64_t i = 0; i < count; i++) {
                if (gather)
                    dsvi_put(row_dtype, to, i, dsvi_get(latent_dtype, latent, place[i]));
                else
                    dsvi_put(latent_dtype, latent, place[i], dsvi_get(row_dtype, to, i));
            }
        }
    }
}

DSVI_SPECIALISED void move_piece(bool gather, const DsvPatchArgs *args, int64_t begin, int64_t end)
{
    if (args->latent_dtype == DSV_BF16 && args->row_dtype == DSV_BF16)
        move_rows(DSV_BF16, DSV_BF16, gather, args, begin, end);
    else if (args->latent_dtype == DSV_BF16)
        move_rows(DSV_BF16, DSV_F32, gather, args, begin, end);
    else if (args->row_dtype == DSV_BF16)
        move_rows(DSV_F32, DSV_BF16, gather, args, begin, end);
    else
        move_rows(DSV_F32, DSV_F32, gather, args, begin, end);
}

static void gather_piece(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    move_piece(true, context, begin, end);
}

static void scatter_piece(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    move_piece(false, context, begin, end);
}

static DsvStatus move(const DsvPatchArgs *args, dsvi_range_fn *piece)
{
    DSVI_TRY(dsvi_simd_takes("patch", args->latent_dtype, DSV_F32));
    DSVI_TRY(dsvi_simd_takes("patch", args->row_dtype, DSV_F32));
    dsvi_parallel_for(args->batch * args->tokens, dsvi_rows_per_piece(row_size(args)), piece,
                      (void *)args);
    return DSV_OK;
}

static DsvStatus patch_gather(DsvStream *stream, const DsvPatchArgs *args)
{
    (void)stream;
    DSVI_TRY(move(args, gather_piece));
    return DSV_OK;
}

static DsvStatus patch_scatter(DsvStream *stream, const DsvPatchArgs *args)
{
    (void)stream;
    DSVI_TRY(move(args, scatter_piece));
    return DSV_OK;
}

void DSVI_SIMD(fill_patch)(DsvOps *ops)
{
    DSVI_OPS_SET(ops, patch_gather, patch_gather, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, patch_scatter, patch_scatter, DSVI_SIMD_NAME);
}
