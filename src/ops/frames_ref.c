/* Reference implementation of the ops on frames. See frames.h. */
#include "ops/frames.h"

#include <math.h>

static const double NORM_FLOOR = 1e-12;

static void norm_pixel(const DsviChannelNormArgs *args, int64_t x_at, int64_t y_at)
{
    double squares = 0;
    for (int64_t c = 0; c < args->channels; c++) {
        double x = dsvi_load(args->act, args->x, x_at + c);
        squares += x * x;
    }
    double factor = sqrt((double)args->channels) / fmax(sqrt(squares), NORM_FLOOR);
    for (int64_t c = 0; c < args->channels; c++) {
        double y = dsvi_load(args->act, args->x, x_at + c) * factor * dsvi_load(args->acc, args->gamma, c);
        dsvi_store(args->act, args->y, y_at + c, args->silu ? y / (1 + exp(-y)) : y);
    }
}

DsvStatus dsvi_channel_norm_ref(DsviStream *stream, const DsviChannelNormArgs *args)
{
    (void)stream;
    for (int64_t t = 0; t < args->frames; t++)
        for (int64_t h = 0; h < args->height; h++)
            for (int64_t w = 0; w < args->width; w++)
                norm_pixel(args, t * args->x_frame + h * args->x_row + w * args->channels,
                           t * args->y_frame + h * args->y_row + w * args->channels);
    return DSV_OK;
}

static int64_t element_at(const DsviFrames *f, int64_t t, int64_t h, int64_t w, int64_t c)
{
    return t * f->frame + h * f->row + w * f->pixel + c * f->channel;
}

static double moved_value(const DsviFramesMoveArgs *args, double value, int64_t c)
{
    if (args->scale)
        value *= dsvi_load(args->acc, args->scale, c);
    if (args->shift)
        value += dsvi_load(args->acc, args->shift, c);
    return args->limit > 0 ? fmin(fmax(value, -args->limit), args->limit) : value;
}

static void move_pixel(const DsviFramesMoveArgs *args, int64_t t, int64_t h, int64_t w)
{
    const DsviFrames *x = &args->x, *y = &args->y;
    int64_t u = args->upscale;
    for (int64_t c = 0; c < args->channels; c++) {
        double value = moved_value(args, dsvi_load(x->dtype, x->data, element_at(x, t, h, w, c)), c);
        for (int64_t i = 0; i < u * u; i++)
            dsvi_store(y->dtype, y->data, element_at(y, t, h * u + i / u, w * u + i % u, c), value);
    }
}

DsvStatus dsvi_frames_move_ref(DsviStream *stream, const DsviFramesMoveArgs *args)
{
    (void)stream;
    for (int64_t t = 0; t < args->frames; t++)
        for (int64_t h = 0; h < args->height; h++)
            for (int64_t w = 0; w < args->width; w++)
                move_pixel(args, t, h, w);
    return DSV_OK;
}
