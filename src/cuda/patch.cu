/* Patches to rows and back. A thread keeps to one element of the rows, whose place in its patch is the same
 * for all tokens, and walks tokens: threadIdx.x along a row, in order of memory; threadIdx.y along tokens,
 * whose patches are mostly neighbours, so that what they share of the latent meets in the caches. */
#include "cuda/cuda.h"
#include "cuda/kernel.cuh"

using namespace dsvi;

namespace {

constexpr int THREADS = 256;
constexpr int TOKENS = 2; /* that a thread has in flight */

/* Where element `element` of a row lies in the latent, counted from its patch's first. */
__device__ __forceinline__ int64_t place_of(const DsvPatchArgs &args, unsigned element)
{
    unsigned channels = (unsigned)args.channels, ph = (unsigned)args.patch[1], pw = (unsigned)args.patch[2];
    unsigned inside = (unsigned)args.patch[0] * ph * pw;
    unsigned channel = args.channel_last ? element % channels : element / inside;
    unsigned offset = args.channel_last ? element / channels : element % inside;
    int64_t frame = channel * args.frames + offset / (ph * pw);
    return (frame * args.height + offset / pw % ph) * args.width + offset % pw;
}

/* Where patches lie: patches of a frame's row, rows of a frame, and elements of the latent from one patch to
 * the next along each axis. */
struct Raster {
    const int32_t *order;
    int64_t tokens;
    unsigned cols, rows;
    int64_t frame_step, row_step, col_step;
};

/* The latent's element, in its sample, with which the patch of `token` begins. */
__device__ __forceinline__ int64_t origin_of(const Raster &raster, int64_t token)
{
    unsigned position = (unsigned)raster.order[token];
    unsigned line = position / raster.cols, col = position - line * raster.cols;
    unsigned frame = line / raster.rows, row = line - frame * raster.rows;
    return frame * raster.frame_step + row * raster.row_step + col * raster.col_step;
}

/* One element of every row of a sample: `rows` is token 0's, `latent` that of the patch at position 0. */
template <typename Latent, typename Row, bool GATHER>
__device__ __forceinline__ void move_element(const Raster &raster, int64_t row_size, Latent *latent,
                                             Row *rows)
{
    int64_t step = (int64_t)gridDim.x * blockDim.y;
    int64_t first = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    for (; first < raster.tokens; first += step * TOKENS) {
        Latent *place[TOKENS];
        float x[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            int64_t token = first + t * step;
            place[t] = nullptr;
            if (token >= raster.tokens)
                continue;
            place[t] = latent + origin_of(raster, token);
            x[t] = GATHER ? to_float(*place[t]) : to_float(rows[token * row_size]);
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            if (!place[t])
                continue;
            if (GATHER)
                rows[(first + t * step) * row_size] = from_float<Row>(x[t]);
            else
                *place[t] = from_float<Latent>(x[t]);
        }
    }
}

template <typename Latent, typename Row, bool GATHER>
__global__ void __launch_bounds__(THREADS) move_patches(const DsvPatchArgs args, const Raster raster)
{
    int64_t row_size = args.channels * args.patch[0] * args.patch[1] * args.patch[2];
    int64_t sample_size = args.channels * args.frames * args.height * args.width;
    for (int64_t sample = blockIdx.y; sample < args.batch; sample += gridDim.y) {
        for (int64_t element = threadIdx.x; element < row_size; element += blockDim.x) {
            Latent *latent = (Latent *)args.latent + sample * sample_size + place_of(args, (unsigned)element);
            Row *rows = (Row *)args.rows + sample * raster.tokens * row_size + element;
            move_element<Latent, Row, GATHER>(raster, row_size, latent, rows);
        }
    }
}

static Raster raster_of(const DsvPatchArgs *args)
{
    const int64_t *patch = args->patch;
    int64_t cols = args->width / patch[2], rows = args->height / patch[1];
    Raster raster;
    raster.order = args->order;
    raster.tokens = args->tokens;
    raster.cols = (unsigned)cols;
    raster.rows = (unsigned)rows;
    raster.frame_step = patch[0] * args->height * args->width;
    raster.row_step = patch[1] * args->width;
    raster.col_step = patch[2];
    return raster;
}

template <typename Latent, typename Row, bool GATHER>
static DsvStatus launch_move(DsvStream *stream, const DsvPatchArgs *args)
{
    Raster raster = raster_of(args);
    int64_t row_size = args->channels * args->patch[0] * args->patch[1] * args->patch[2];
    if (args->batch * raster.tokens * row_size == 0)
        return DSV_OK;
    int64_t x = ceil_div(row_size, WARP) * WARP;
    dim3 block((unsigned)(x < THREADS ? x : THREADS), (unsigned)(x < THREADS ? THREADS / x : 1));
    int64_t useful = ceil_div(raster.tokens, (int64_t)block.y * TOKENS), most = 16 * stream->multiprocessors;
    dim3 grid((unsigned)(useful < most ? useful : most), blocks_in_turn(args->batch));
    move_patches<Latent, Row, GATHER><<<grid, block, 0, stream->handle>>>(*args, raster);
    DSVI_CUDA_LAUNCHED("patch");
    return DSV_OK;
}

template <bool GATHER> static DsvStatus move(DsvStream *stream, const DsvPatchArgs *args)
{
    if (args->latent_dtype == DSV_BF16)
        DSVI_FOR_ACT("patch", args->row_dtype, return (launch_move<__nv_bfloat16, T, GATHER>(stream, args)));
    if (args->latent_dtype == DSV_F32)
        DSVI_FOR_ACT("patch", args->row_dtype, return (launch_move<float, T, GATHER>(stream, args)));
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "patch: this variant takes latents of F32 and BF16, not %s",
                     dsvi_dtype_name(args->latent_dtype));
}

static DsvStatus patch_gather(DsvStream *stream, const DsvPatchArgs *args)
{
    return move<true>(stream, args);
}

static DsvStatus patch_scatter(DsvStream *stream, const DsvPatchArgs *args)
{
    return move<false>(stream, args);
}

} // namespace

void dsvi_cuda_fill_patch(DsvOps *ops)
{
    DSVI_OPS_SET(ops, patch_gather, patch_gather, "cuda");
    DSVI_OPS_SET(ops, patch_scatter, patch_scatter, "cuda");
}
