/* Reference implementation of the convolution. See conv.h. */
#include "ops/conv.h"

/* The products of one output element that lie inside x. */
static double conv_sum(const DsviConvArgs *args, int64_t o, const int64_t corner[3])
{
    const int64_t *kernel = args->kernel;
    double sum = 0;
    for (int64_t a = 0; a < kernel[0]; a++) {
        for (int64_t b = 0; b < kernel[1]; b++) {
            for (int64_t c = 0; c < kernel[2]; c++) {
                int64_t t = corner[0] + a, h = corner[1] + b, w = corner[2] + c;
                int64_t tap = ((o * kernel[0] + a) * kernel[1] + b) * kernel[2] + c;
                if (t < 0 || t >= args->frames || h < 0 || h >= args->height || w < 0 || w >= args->width)
                    continue;
                int64_t pixel = t * args->x_frame + h * args->x_row + w * args->channels;
                for (int64_t i = 0; i < args->channels; i++)
                    sum += dsvi_load(args->act, args->x, pixel + i) *
                           dsvi_load(args->act, args->weight, tap * args->channels + i);
            }
        }
    }
    return sum;
}

static void conv_pixel(const DsviConvArgs *args, int64_t t, int64_t h, int64_t w)
{
    int64_t pixel = t * args->y_frame + h * args->y_row + w * args->out_channels;
    const int64_t corner[3] = {t * args->stride[0] - args->pad[0], h * args->stride[1] - args->pad[1],
                               w * args->stride[2] - args->pad[2]};
    for (int64_t o = 0; o < args->out_channels; o++) {
        double sum = conv_sum(args, o, corner);
        if (args->bias)
            sum += dsvi_load(args->acc, args->bias, o);
        if (args->add)
            sum += dsvi_load(args->act, args->add, pixel + o);
        dsvi_store(args->act, args->y, pixel + o, sum);
    }
}

DsvStatus dsvi_conv_ref(DsviStream *stream, const DsviConvArgs *args)
{
    (void)stream;
    for (int64_t t = 0; t < args->out_frames; t++)
        for (int64_t h = 0; h < args->out_height; h++)
            for (int64_t w = 0; w < args->out_width; w++)
                conv_pixel(args, t, h, w);
    return DSV_OK;
}
