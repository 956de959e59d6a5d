/* Patches to rows and back. A block has a tile of some tokens and some channels, which goes through shared
 * memory: on the latent's side neighbouring threads have the elements of a patch, then neighbouring tokens,
 * whose patches are mostly neighbours; on the rows' side they have neighbouring elements of a row. */
#include "cuda/cuda.h"
#include "cuda/kernel.cuh"

using namespace dsvi;

namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int TOKENS = 32, CHANNELS = 32; /* of a tile, at most */
constexpr int64_t TILE_BYTES = 48 << 10;  /* at most */
constexpr int FLIGHT = 8;                 /* elements of the latent that a thread has in flight */

/* Where patches lie: patches of a frame's row, rows of a frame, and elements of the latent from one patch to
 * the next along each axis. */
struct Raster {
    const int32_t *order;
    int64_t tokens;
    unsigned cols, rows;
    int64_t frame_step, row_step, col_step;
};

/* In the tile tokens are `pitch` apart; their elements lie in segments that are segments of a row as well:
 * one for all channels, or with channel_last one for each element of a patch, `segment` apart. */
struct Tile {
    int tokens, channels, inside; /* inside: elements of a patch and channel */
    int segment, pitch;
};

/* The latent's element, in its sample and channel, with which the patch of `token` begins. */
__device__ __forceinline__ int64_t origin_of(const Raster &raster, int64_t token)
{
    unsigned position = (unsigned)raster.order[token];
    unsigned line = position / raster.cols, col = position - line * raster.cols;
    unsigned frame = line / raster.rows, row = line - frame * raster.rows;
    return frame * raster.frame_step + row * raster.row_step + col * raster.col_step;
}

/* Where element `offset` of a patch lies, counted from its first. */
__device__ __forceinline__ int64_t place_of(const DsvPatchArgs &args, unsigned offset)
{
    unsigned ph = (unsigned)args.patch[1], pw = (unsigned)args.patch[2];
    return ((int64_t)(offset / (ph * pw)) * args.height + offset / pw % ph) * args.width + offset % pw;
}

/* One element of a patch in `channels` channels, from `begin` on each `step`-th; channels lie `plane` apart
 * in the latent, `apart` in the tile. */
template <typename Latent, bool GATHER>
__device__ __forceinline__ void move_channels(Latent *latent, int64_t plane, float *tile, int apart,
                                              int begin, int channels, int step)
{
    for (int first = begin; first < channels; first += FLIGHT * step) {
        float x[FLIGHT];
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            int c = first + i * step;
            if (c < channels)
                x[i] = GATHER ? to_float(latent[c * plane]) : tile[c * apart];
        }
#pragma unroll
        for (int i = 0; i < FLIGHT; i++) {
            int c = first + i * step;
            if (c >= channels)
                continue;
            if (GATHER)
                tile[c * apart] = x[i];
            else
                latent[c * plane] = from_float<Latent>(x[i]);
        }
    }
}

/* Between the latent, from the tile's first channel on, and the tile. */
template <typename Latent, bool GATHER>
__device__ __forceinline__ void latent_side(const DsvPatchArgs &args, const Raster &raster, const Tile &cut,
                                            int64_t token, int channels, Latent *latent, float *tile)
{
    int64_t plane = args.frames * args.height * args.width;
    int elements = cut.tokens * cut.inside, abreast = THREADS / elements > 1 ? THREADS / elements : 1;
    int threads = abreast > 1 ? elements : THREADS;
    if ((int)threadIdx.x >= threads * abreast)
        return;
    for (int element = (int)threadIdx.x % threads; element < elements; element += threads) {
        int t = element / cut.inside, offset = element % cut.inside;
        if (token + t >= raster.tokens)
            break;
        Latent *place = latent + origin_of(raster, token + t) + place_of(args, (unsigned)offset);
        float *at = tile + t * cut.pitch + offset * (args.channel_last ? cut.segment : 1);
        move_channels<Latent, GATHER>(place, plane, at, args.channel_last ? 1 : cut.inside,
                                      (int)threadIdx.x / threads, channels, abreast);
    }
}

/* Between the tile and the rows, from its first token and channel on: a warp for a token. */
template <typename Row, bool GATHER>
__device__ __forceinline__ void rows_side(const DsvPatchArgs &args, const Raster &raster, const Tile &cut,
                                          int64_t token, int channels, Row *rows, float *tile)
{
    int64_t row_size = args.channels * cut.inside;
    int segments = args.channel_last ? cut.inside : 1;
    int length = args.channel_last ? channels : channels * cut.inside;
    for (int t = (int)threadIdx.x / WARP; t < cut.tokens && token + t < raster.tokens; t += WARPS) {
        for (int segment = 0; segment < segments; segment++) {
            Row *row = rows + t * row_size + segment * args.channels;
            float *at = tile + t * cut.pitch + segment * cut.segment;
#pragma unroll 4
            for (int i = (int)threadIdx.x % WARP; i < length; i += WARP) {
                if (GATHER)
                    row[i] = from_float<Row>(at[i]);
                else
                    at[i] = to_float(row[i]);
            }
        }
    }
}

template <typename Latent, typename Row, bool GATHER>
__global__ void __launch_bounds__(THREADS)
move_patches(const DsvPatchArgs args, const Raster raster, const Tile cut)
{
    extern __shared__ float tile[];
    int64_t row_size = args.channels * cut.inside, plane = args.frames * args.height * args.width;
    int64_t token = (int64_t)blockIdx.x * cut.tokens;
    for (int64_t sample = blockIdx.z; sample < args.batch; sample += gridDim.z) {
        for (int64_t c = (int64_t)blockIdx.y * cut.channels; c < args.channels;
             c += (int64_t)gridDim.y * cut.channels) {
            int channels = (int)(args.channels - c < cut.channels ? args.channels - c : cut.channels);
            Latent *latent = (Latent *)args.latent + (sample * args.channels + c) * plane;
            Row *rows = (Row *)args.rows + (sample * raster.tokens + token) * row_size +
                        c * (args.channel_last ? 1 : cut.inside);
            if (GATHER)
                latent_side<Latent, true>(args, raster, cut, token, channels, latent, tile);
            else
                rows_side<Row, false>(args, raster, cut, token, channels, rows, tile);
            __syncthreads();
            if (GATHER)
                rows_side<Row, true>(args, raster, cut, token, channels, rows, tile);
            else
                latent_side<Latent, false>(args, raster, cut, token, channels, latent, tile);
            __syncthreads(); /* the next tile goes there */
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

static int64_t tile_bytes(const Tile *cut)
{
    return (int64_t)cut->tokens * cut->pitch * (int64_t)sizeof(float);
}

/* As large as there is room. Pitch and segment are such that the threads of a warp on the latent's side,
 * 8 tokens with 4 elements of their patches, meet 32 banks. */
static Tile tile_of(int64_t inside)
{
    Tile cut = {TOKENS, CHANNELS, (int)inside, 0, 0};
    for (;;) {
        cut.segment = cut.channels + 1;
        cut.pitch = cut.inside * cut.segment;
        cut.pitch += (WARP + 4 - cut.pitch % WARP) % WARP;
        if (tile_bytes(&cut) <= TILE_BYTES || cut.tokens == 1)
            return cut;
        if (cut.channels > 1)
            cut.channels /= 2;
        else
            cut.tokens /= 2;
    }
}

template <typename Latent, typename Row, bool GATHER>
static DsvStatus launch_move(DsvStream *stream, const DsvPatchArgs *args)
{
    Raster raster = raster_of(args);
    Tile cut = tile_of(args->patch[0] * args->patch[1] * args->patch[2]);
    if (args->batch * raster.tokens * args->channels * cut.inside == 0)
        return DSV_OK;
    if (tile_bytes(&cut) > TILE_BYTES)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "patch: this variant takes patches of which a tile is at "
                         "most %lld bytes, not %lld (%d elements)", (long long)TILE_BYTES,
                         (long long)tile_bytes(&cut), cut.inside);
    dim3 grid((unsigned)ceil_div(raster.tokens, cut.tokens),
              blocks_in_turn(ceil_div(args->channels, (int64_t)cut.channels)), blocks_in_turn(args->batch));
    move_patches<Latent, Row, GATHER>
        <<<grid, THREADS, (size_t)tile_bytes(&cut), stream->handle>>>(*args, raster, cut);
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
