/* Which kernel convolves: that for Hopper where it serves, else the portable one. The choice depends on the
 * kernel, its channels and strides, and on whether x, its frames and rows, and the weight begin at multiples
 * of 16 bytes.
 *
 * cuDNN does not convolve here. It makes a plan for each set of sizes, by a compilation at run time where the
 * bias is added; the pieces of a video have hundreds of sizes. On an H200 5 frames of 480 x 832 were not
 * encoded and decoded within 60 s, which take 0.07 s here. Its sums may also depend on all sizes of x and y,
 * which conv.h forbids on deterministic devices.
 *
 * Convolutions from or to 3 channels are not padded to 8: padding would make the largest tensor, the video,
 * 8 / 3 times as large and copy it once. They are 3 / 96 of the products of one convolution between the 96
 * channels of the same level, of which a half of the VAE has more than four. */
#include <stdio.h>

#include "cuda/common/cuda.h"
#include "cuda/conv/conv.cuh"
#include "cuda/conv/conv_ways.h"

namespace dsvi {
namespace {

/* Returns whether n is in the range [least, largest of int]. */
bool fits(int64_t n, int64_t least)
{
    return n >= least && n <= INT32_MAX;
}

DsvStatus check_axis(const char *axis, int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t pad)
{
    /* The last bound keeps the numbers of frames, rows and columns that taps read in the range of int, and
     * away from NOWHERE. */
    if (fits(in, 0) && fits(out, 0) && fits(kernel, 1) && fits(stride, 1) && fits(pad, 0) &&
        pad <= -(int64_t)NOWHERE / 2 && out * stride + kernel <= -(int64_t)NOWHERE)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_SHAPE,
        "conv: %s: %lld of x, %lld of y, kernel %lld, stride %lld, padding %lld, expected a kernel "
        "and a stride of at least 1, and less than 2^30 of each",
        axis, (long long)in, (long long)out, (long long)kernel, (long long)stride, (long long)pad);
}

template <typename T> bool is_chunked(const DsviConvArgs *args)
{
    return aligned((const T *)args->x, args->x_frame, 16) && aligned((const T *)nullptr, args->x_row, 16) &&
           aligned((const T *)args->weight, args->channels, 16);
}

bool is_coupled(const DsviConvArgs *args)
{
    const __nv_bfloat16 *y = (const __nv_bfloat16 *)args->y, *add = (const __nv_bfloat16 *)args->add;
    return aligned(y, args->y_frame, 4) && aligned(add, args->y_row, 4) && args->out_channels % 2 == 0;
}

} // namespace

DsvStatus conv_problem(const DsviConvArgs *args, ConvProblem *p)
{
    const int64_t *k = args->kernel;
    static const char *const axes[3] = {"frames", "rows", "columns"};
    const int64_t in[3] = {args->frames, args->height, args->width};
    const int64_t out[3] = {args->out_frames, args->out_height, args->out_width};
    if (args->acc != DSVI_F32 || (args->act != DSVI_F32 && args->act != DSVI_BF16))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "conv: this variant takes F32 and BF16 with a bias in F32, not %s",
                         dsvi_dtype_name(args->act));
    for (int i = 0; i < 3; i++)
        DSVI_TRY(check_axis(axes[i], in[i], out[i], k[i], args->stride[i], args->pad[i]));
    if (!fits(args->channels, 1) || !fits(args->out_channels, 0) ||
        (double)k[0] * (double)k[1] * (double)k[2] * (double)args->channels > -(double)NOWHERE)
        return DSVI_FAIL(DSV_E_SHAPE,
                         "conv: %lld channels of x and %lld of y, kernel (%lld, %lld, %lld), "
                         "expected at least one channel of x and fewer than 2^30 products of an "
                         "element",
                         (long long)args->channels, (long long)args->out_channels, (long long)k[0],
                         (long long)k[1], (long long)k[2]);
    *p = ConvProblem();
    p->frames = (int)in[0];
    p->height = (int)in[1];
    p->width = (int)in[2];
    p->out_frames = (int)out[0];
    p->out_height = (int)out[1];
    p->out_width = (int)out[2];
    p->channels = (int)args->channels;
    p->out_channels = (int)args->out_channels;
    for (int i = 0; i < 3; i++) {
        p->kernel[i] = (int)k[i];
        p->stride[i] = (int)args->stride[i];
        p->pad[i] = (int)args->pad[i];
    }
    p->depth = (int)(k[0] * k[1] * k[2] * args->channels);
    p->pixels = out[0] * out[1] * out[2];
    p->x = args->x;
    p->weight = args->weight;
    p->add = args->add;
    p->bias = (const float *)args->bias;
    p->y = args->y;
    p->x_frame = args->x_frame;
    p->x_row = args->x_row;
    p->y_frame = args->y_frame;
    p->y_row = args->y_row;
    p->chunks = args->act == DSVI_F32 ? is_chunked<float>(args) : is_chunked<__nv_bfloat16>(args);
    p->couples = is_coupled(args);
    return DSV_OK;
}

namespace {

/* Returns whether Hopper's kernel may serve a convolution in BF16. */
bool is_for_hopper(const DsviStream *stream)
{
#ifdef DSVI_CUDA_SM90A
    return stream->capability == 90;
#else
    (void)stream;
    return false;
#endif
}

DsvStatus conv_on_hopper(DsviStream *stream, const DsviConvArgs *args, const ConvProblem &p, bool *served)
{
    bool refused = true;
    if (args->act == DSVI_BF16 && is_for_hopper(stream))
        DSVI_TRY(conv_sm90(stream, p, &refused));
    *served = !refused;
    return DSV_OK;
}

DsvStatus conv_by(DsviStream *stream, const DsviConvArgs *args, const ConvProblem &p, DsviConvWay way,
                  bool *served)
{
    if (way == DSVI_CONV_HOPPER)
        return conv_on_hopper(stream, args, p, served);
    *served = true;
    return args->act == DSVI_F32 ? conv_f32(stream, p) : conv_bf16(stream, p);
}

DsvStatus cuda_conv(DsviStream *stream, const DsviConvArgs *args)
{
    static const char *const names[] = {"cuda, Hopper", "cuda, portable"};
    ConvProblem p;
    bool served = false;
    DSVI_TRY(conv_problem(args, &p));
    if (p.pixels == 0 || p.out_channels == 0)
        return DSV_OK;
    for (int way = DSVI_CONV_HOPPER; way <= DSVI_CONV_PORTABLE && !served; way++) {
        DSVI_TRY(conv_by(stream, args, p, (DsviConvWay)way, &served));
        snprintf(stream->conv_variant, sizeof stream->conv_variant, "%s", names[way]);
    }
    return DSV_OK;
}

} // namespace
} // namespace dsvi

DsvStatus dsvi_conv_by(DsviStream *stream, const DsviConvArgs *args, DsviConvWay way, bool *served)
{
    dsvi::ConvProblem p;
    *served = false;
    DSVI_TRY(dsvi::conv_problem(args, &p));
    return dsvi::conv_by(stream, args, p, way, served);
}

void dsvi_cuda_fill_conv(DsviStream *stream, DsviOps *ops)
{
    snprintf(stream->conv_variant, sizeof stream->conv_variant, "cuda");
    DSVI_OPS_SET_WITH_WORKSPACE(ops, conv, dsvi::cuda_conv, nullptr, stream->conv_variant);
}
