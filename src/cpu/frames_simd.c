/* SIMD variants of channel_norm and frames_move, row by row of the video.
 *
 * frames_move has two paths. If the channels of a pixel are consecutive in both arrays, lines of consecutive
 * elements are moved: a whole row where all channels are treated alike and no pixel is repeated, else one
 * pixel. Otherwise a tile of pixels and channels is loaded into a local array, whose lines are changed, and
 * stored again. Load and store run over the pixels or over the channels, whichever are consecutive in memory.
 */
#include <math.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_math.h"
#include "cpu/simd_rows.h"

enum {
    CHANNELS_CHUNK = 256, /* channels normalised at a time, in a local array of floats */
    TILE_PIXELS = 64,
    TILE_CHANNELS = 16
};

static const float NORM_FLOOR = 1e-12f;

/* ---- channel_norm ---- */

/* Lanes of values[CHANNELS_CHUNK] after the last channel may hold any finite values. */
DSVI_SPECIALISED void channel_norm_pixel(DsviDtype act, bool silu, const DsviChannelNormArgs *args,
                                         const void *x, void *y, float *values)
{
    const float *gamma = args->gamma;
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < args->channels; c++)
        squares += dsvi_get(act, x, c) * dsvi_get(act, x, c);
    float factor = sqrtf((float)args->channels) / fmaxf(sqrtf(squares), NORM_FLOOR);
    if (!silu) {
#pragma omp simd
        for (int64_t c = 0; c < args->channels; c++)
            dsvi_put(act, y, c, dsvi_get(act, x, c) * factor * gamma[c]);
        return;
    }
    for (int64_t first = 0; first < args->channels; first += CHANNELS_CHUNK) {
        int64_t count = dsvi_min(CHANNELS_CHUNK, args->channels - first);
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            values[c] = dsvi_get(act, x, first + c) * factor * gamma[first + c];
        for (int64_t c = 0; c < count; c += DSVI_LANES) {
            DsviVec v = dsvi_vec_load(values + c);
            dsvi_vec_store(values + c, v / (1.0f + dsvi_vec_exp(-v)));
        }
#pragma omp simd
        for (int64_t c = 0; c < count; c++)
            dsvi_put(act, y, first + c, values[c]);
    }
}

DSVI_SPECIALISED void channel_norm_row(DsviDtype act, const DsviChannelNormArgs *args, int64_t row)
{
    int64_t t = row / args->height, h = row % args->height;
    int64_t from = t * args->x_frame + h * args->x_row, to = t * args->y_frame + h * args->y_row;
    float values[CHANNELS_CHUNK] = {0};
    for (int64_t w = 0; w < args->width; w++, from += args->channels, to += args->channels) {
        const void *x = dsvi_at(act, args->x, from);
        if (args->silu)
            channel_norm_pixel(act, true, args, x, dsvi_at(act, args->y, to), values);
        else
            channel_norm_pixel(act, false, args, x, dsvi_at(act, args->y, to), values);
    }
}

static void channel_norm_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviChannelNormArgs *args = context;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        if (args->act == DSVI_BF16)
            channel_norm_row(DSVI_BF16, args, row);
        else
            channel_norm_row(DSVI_F32, args, row);
    }
}

static DsvStatus cpu_channel_norm(DsviStream *stream, const DsviChannelNormArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("channel_norm", args->act, args->acc));
    dsvi_parallel_for(args->frames * args->height, dsvi_rows_per_piece(args->width * args->channels),
                      channel_norm_rows, (void *)args);
    return DSV_OK;
}

/* ---- frames_move ---- */

/* Returns x limited to [-limit, limit] if limit > 0. */
DSVI_SPECIALISED float limited(float x, float limit)
{
    x = limit > 0 && !(x > -limit) ? -limit : x;
    return limit > 0 && x > limit ? limit : x;
}

/* Returns whether values change by more than a conversion. */
static bool changes_values(const DsviFramesMoveArgs *args)
{
    return args->scale || args->shift || args->limit > 0;
}

/* Moves n consecutive elements, which belong to the channels 0 to n - 1 if there is a scale or shift. */
DSVI_SPECIALISED void move_line(DsviDtype from, DsviDtype to, const DsviFramesMoveArgs *args, const void *x,
                                void *y, int64_t n)
{
    const float *scale = args->scale, *shift = args->shift;
    float limit = (float)args->limit;
    if (from == to && !changes_values(args)) {
        memcpy(y, x, (size_t)n * (from == DSVI_BF16 ? 2 : 4));
        return;
    }
    if (!scale && !shift) {
#pragma omp simd
        for (int64_t c = 0; c < n; c++)
            dsvi_put(to, y, c, limited(dsvi_get(from, x, c), limit));
        return;
    }
#pragma omp simd
    for (int64_t c = 0; c < n; c++)
        dsvi_put(to, y, c,
                 limited(dsvi_get(from, x, c) * (scale ? scale[c] : 1) + (shift ? shift[c] : 0), limit));
}

/* Moves n consecutive elements to y and, for an enlargement, to the other u^2 - 1 pixels with this value. */
DSVI_SPECIALISED void move_pixel(DsviDtype from, DsviDtype to, const DsviFramesMoveArgs *args, const void *x,
                                 int64_t y_at, int64_t n)
{
    void *y = dsvi_at(to, args->y.data, y_at);
    move_line(from, to, args, x, y, n);
    for (int64_t i = 1; i < args->upscale * args->upscale; i++) {
        int64_t other = i / args->upscale * args->y.row + i % args->upscale * args->y.pixel;
        memcpy(dsvi_at(to, args->y.data, y_at + other), y, (size_t)n * (to == DSVI_BF16 ? 2 : 4));
    }
}

/* Moves a row of x where the channels of a pixel are consecutive in x and in y. */
DSVI_SPECIALISED void move_row_of_pixels(DsviDtype from, DsviDtype to, const DsviFramesMoveArgs *args,
                                         int64_t x_at, int64_t y_at)
{
    const DsviFrames *x = &args->x, *y = &args->y;
    bool dense = x->pixel == args->channels && y->pixel == args->channels && args->upscale == 1;
    if (dense && !args->scale && !args->shift) {
        move_line(from, to, args, dsvi_at(from, x->data, x_at), dsvi_at(to, y->data, y_at),
                  args->width * args->channels);
        return;
    }
    for (int64_t w = 0; w < args->width; w++)
        move_pixel(from, to, args, dsvi_at(from, x->data, x_at + w * x->pixel),
                   y_at + w * args->upscale * y->pixel, args->channels);
}

/* A tile of a row, one line of pixels for each channel. */
typedef struct MoveTile {
    int64_t channel, channels, pixels;
    float value[TILE_CHANNELS][TILE_PIXELS];
} MoveTile;

/* Loads the tile whose first element is at x_at. */
DSVI_SPECIALISED void move_tile_load(DsviDtype from, const DsviFrames *x, int64_t x_at, MoveTile *tile)
{
    if (x->pixel == 1) {
        for (int64_t c = 0; c < tile->channels; c++)
            for (int64_t w = 0; w < tile->pixels; w++)
                tile->value[c][w] = dsvi_get(from, x->data, x_at + c * x->channel + w);
        return;
    }
    for (int64_t w = 0; w < tile->pixels; w++)
        for (int64_t c = 0; c < tile->channels; c++)
            tile->value[c][w] = dsvi_get(from, x->data, x_at + c * x->channel + w * x->pixel);
}

static void move_tile_change(const DsviFramesMoveArgs *args, MoveTile *tile)
{
    float limit = (float)args->limit;
    for (int64_t c = 0; c < tile->channels; c++) {
        float scale = args->scale ? ((const float *)args->scale)[tile->channel + c] : 1;
        float shift = args->shift ? ((const float *)args->shift)[tile->channel + c] : 0;
        for (int64_t w = 0; w < tile->pixels; w++)
            tile->value[c][w] = limited(tile->value[c][w] * scale + shift, limit);
    }
}

/* Stores the tile from y_at on, with each pixel `repeat` times. */
DSVI_SPECIALISED void move_tile_store(DsviDtype to, const DsviFrames *y, int64_t y_at, int64_t repeat,
                                      const MoveTile *tile)
{
    if (y->pixel == 1 && repeat == 1) {
        for (int64_t c = 0; c < tile->channels; c++)
            for (int64_t w = 0; w < tile->pixels; w++)
                dsvi_put(to, y->data, y_at + c * y->channel + w, tile->value[c][w]);
        return;
    }
    if (y->pixel == 1) {
        for (int64_t c = 0; c < tile->channels; c++)
            for (int64_t w = 0; w < tile->pixels * repeat; w++)
                dsvi_put(to, y->data, y_at + c * y->channel + w, tile->value[c][w / repeat]);
        return;
    }
    for (int64_t w = 0; w < tile->pixels * repeat; w++)
        for (int64_t c = 0; c < tile->channels; c++)
            dsvi_put(to, y->data, y_at + c * y->channel + w * y->pixel, tile->value[c][w / repeat]);
}

static void move_row_of_tiles(const DsviFramesMoveArgs *args, int64_t x_at, int64_t y_at)
{
    const DsviFrames *x = &args->x, *y = &args->y;
    MoveTile tile;
    for (int64_t w = 0; w < args->width; w += TILE_PIXELS) {
        for (tile.channel = 0; tile.channel < args->channels; tile.channel += TILE_CHANNELS) {
            int64_t from = x_at + w * x->pixel + tile.channel * x->channel;
            int64_t to = y_at + w * args->upscale * y->pixel + tile.channel * y->channel;
            tile.pixels = dsvi_min(TILE_PIXELS, args->width - w);
            tile.channels = dsvi_min(TILE_CHANNELS, args->channels - tile.channel);
            if (x->dtype == DSVI_BF16)
                move_tile_load(DSVI_BF16, x, from, &tile);
            else
                move_tile_load(DSVI_F32, x, from, &tile);
            if (changes_values(args))
                move_tile_change(args, &tile);
            for (int64_t i = 0; i < args->upscale; i++, to += y->row) {
                if (y->dtype == DSVI_BF16)
                    move_tile_store(DSVI_BF16, y, to, args->upscale, &tile);
                else
                    move_tile_store(DSVI_F32, y, to, args->upscale, &tile);
            }
        }
    }
}

static void move_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviFramesMoveArgs *args = context;
    const DsviFrames *x = &args->x, *y = &args->y;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        int64_t t = row / args->height, h = row % args->height;
        int64_t from = t * x->frame + h * x->row, to = t * y->frame + h * args->upscale * y->row;
        if (x->channel != 1 || y->channel != 1)
            move_row_of_tiles(args, from, to);
        else if (x->dtype == DSVI_F32 && y->dtype == DSVI_F32)
            move_row_of_pixels(DSVI_F32, DSVI_F32, args, from, to);
        else if (x->dtype == DSVI_F32)
            move_row_of_pixels(DSVI_F32, DSVI_BF16, args, from, to);
        else if (y->dtype == DSVI_F32)
            move_row_of_pixels(DSVI_BF16, DSVI_F32, args, from, to);
        else
            move_row_of_pixels(DSVI_BF16, DSVI_BF16, args, from, to);
    }
}

static DsvStatus cpu_frames_move(DsviStream *stream, const DsviFramesMoveArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("frames_move", args->x.dtype, args->acc));
    DSVI_TRY(dsvi_simd_check("frames_move", args->y.dtype, args->acc));
    dsvi_parallel_for(args->frames * args->height, dsvi_rows_per_piece(args->width * args->channels),
                      move_rows, (void *)args);
    return DSV_OK;
}

void DSVI_SIMD(fill_frames)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, channel_norm, cpu_channel_norm, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, frames_move, cpu_frames_move, DSVI_SIMD_NAME);
}
