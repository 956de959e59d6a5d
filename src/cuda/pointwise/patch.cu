/* patch_gather copies the patches of a latent video to rows, one row per token; patch_scatter copies the
 * rows back. A block copies a tile of some tokens and some channels through shared memory, so that both the
 * latent and the rows are accessed in order. In the latent, neighbouring threads access neighbouring
 * elements of a patch, then the patches of neighbouring tokens, which are mostly neighbours; in the rows,
 * they access neighbouring elements of a row. */
#include "cuda/common/cuda.h"
#include "cuda/common/kernel.cuh"

using namespace dsvi;

namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int TOKENS = 32, CHANNELS = 32; /* largest tile, in tokens and channels */
constexpr int64_t TILE_BYTES = 48 << 10;  /* largest tile, in bytes of shared memory */
constexpr int IN_FLIGHT = 8;              /* elements of the latent whose loads a thread has in flight */

/* The grid of patches in a latent. */
struct PatchGrid {
    const int32_t *order; /* (tokens) the patch of each token, as its number in raster order */
    int64_t tokens;
    unsigned cols, rows;                    /* number of patches along a row of a frame, and along a column */
    int64_t frame_step, row_step, col_step; /* elements of the latent from a patch to the next on each axis */
};

/* How a tile of tokens and channels is stored in shared memory: token t begins at float t * pitch. A token's
 * elements are in segments, which are contiguous in a row of the tensor of rows, too: one segment for all
 * channels or, with channel_last, one segment per element of a patch, `segment` floats apart. */
struct Tile {
    int tokens, channels, inside; /* inside: elements of a patch in one channel */
    int segment, pitch;
};

/* Returns the index of the first element of the patch of `token`, relative to the beginning of its sample
 * and channel in the latent. */
__device__ __forceinline__ int64_t patch_origin(const PatchGrid &patches, int64_t token)
{
    unsigned position = (unsigned)patches.order[token];
    unsigned line = position / patches.cols, col = position - line * patches.cols;
    unsigned frame = line / patches.rows, row = line - frame * patches.rows;
    return frame * patches.frame_step + row * patches.row_step + col * patches.col_step;
}

/* Returns the index in the latent of element `offset` of a patch, relative to the first element of the
 * patch. */
__device__ __forceinline__ int64_t patch_offset(const DsviPatchArgs &args, unsigned offset)
{
    unsigned ph = (unsigned)args.patch[1], pw = (unsigned)args.patch[2];
    return ((int64_t)(offset / (ph * pw)) * args.height + offset / pw % ph) * args.width + offset % pw;
}

/* Copies one element of a patch in channels begin, begin + step, ... below `channels`: with GATHER from the
 * latent to the tile in shared memory, else from the tile to the latent. Consecutive channels are `plane`
 * elements apart in the latent and `apart` floats apart in the tile. */
template <typename Latent, bool GATHER>
__device__ __forceinline__ void move_channels(Latent *latent, int64_t plane, float *tile, int apart,
                                              int begin, int channels, int step)
{
    for (int first = begin; first < channels; first += IN_FLIGHT * step) {
        float x[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            int c = first + i * step;
            if (c < channels)
                x[i] = GATHER ? to_float(latent[c * plane]) : tile[c * apart];
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
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

/* Copies between the latent and the tile in shared memory, with GATHER to the tile, else to the latent.
 * `latent` points to the first channel of the tile. */
template <typename Latent, bool GATHER>
__device__ __forceinline__ void latent_side(const DsviPatchArgs &args, const PatchGrid &patches,
                                            const Tile &cut, int64_t token, int channels, Latent *latent,
                                            float *tile)
{
    int64_t plane = args.frames * args.height * args.width;
    int elements = cut.tokens * cut.inside, abreast = THREADS / elements > 1 ? THREADS / elements : 1;
    int threads = abreast > 1 ? elements : THREADS;
    if ((int)threadIdx.x >= threads * abreast)
        return;
    for (int element = (int)threadIdx.x % threads; element < elements; element += threads) {
        int t = element / cut.inside, offset = element % cut.inside;
        if (token + t >= patches.tokens)
            break;
        Latent *place = latent + patch_origin(patches, token + t) + patch_offset(args, (unsigned)offset);
        float *at = tile + t * cut.pitch + offset * (args.channel_last ? cut.segment : 1);
        move_channels<Latent, GATHER>(place, plane, at, args.channel_last ? 1 : cut.inside,
                                      (int)threadIdx.x / threads, channels, abreast);
    }
}

/* Copies between the tile in shared memory and the rows of tokens, one warp per token, with GATHER to the
 * rows, else to the tile. `rows` points to the first token and channel of the tile. */
template <typename Row, bool GATHER>
__device__ __forceinline__ void rows_side(const DsviPatchArgs &args, const PatchGrid &patches,
                                          const Tile &cut, int64_t token, int channels, Row *rows,
                                          float *tile)
{
    int64_t row_size = args.channels * cut.inside;
    int segments = args.channel_last ? cut.inside : 1;
    int length = args.channel_last ? channels : channels * cut.inside;
    for (int t = (int)threadIdx.x / WARP; t < cut.tokens && token + t < patches.tokens; t += WARPS) {
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
    move_patches(const DsviPatchArgs args, const PatchGrid patches, const Tile cut)
{
    extern __shared__ float tile[];
    int64_t row_size = args.channels * cut.inside, plane = args.frames * args.height * args.width;
    int64_t token = (int64_t)blockIdx.x * cut.tokens;
    for (int64_t sample = blockIdx.z; sample < args.batch; sample += gridDim.z) {
        for (int64_t c = (int64_t)blockIdx.y * cut.channels; c < args.channels;
             c += (int64_t)gridDim.y * cut.channels) {
            int channels = (int)(args.channels - c < cut.channels ? args.channels - c : cut.channels);
            Latent *latent = (Latent *)args.latent + (sample * args.channels + c) * plane;
            Row *rows = (Row *)args.rows + (sample * patches.tokens + token) * row_size +
                        c * (args.channel_last ? 1 : cut.inside);
            if (GATHER)
                latent_side<Latent, true>(args, patches, cut, token, channels, latent, tile);
            else
                rows_side<Row, false>(args, patches, cut, token, channels, rows, tile);
            __syncthreads();
            if (GATHER)
                rows_side<Row, true>(args, patches, cut, token, channels, rows, tile);
            else
                latent_side<Latent, false>(args, patches, cut, token, channels, latent, tile);
            __syncthreads(); /* because the next tile overwrites this one in shared memory */
        }
    }
}

static PatchGrid patch_grid(const DsviPatchArgs *args)
{
    const int64_t *patch = args->patch;
    int64_t cols = args->width / patch[2], rows = args->height / patch[1];
    PatchGrid patches;
    patches.order = args->order;
    patches.tokens = args->tokens;
    patches.cols = (unsigned)cols;
    patches.rows = (unsigned)rows;
    patches.frame_step = patch[0] * args->height * args->width;
    patches.row_step = patch[1] * args->width;
    patches.col_step = patch[2];
    return patches;
}

static int64_t tile_bytes(const Tile *cut)
{
    return (int64_t)cut->tokens * cut->pitch * (int64_t)sizeof(float);
}

/* Returns the largest tile that fits into TILE_BYTES. The tile's pitch and segment are such that a warp that
 * copies between latent and tile, 8 tokens with 4 elements of their patches each, accesses 32 different
 * banks. */
static Tile patch_tile_of(int64_t inside)
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
static DsvStatus launch_move(DsviStream *stream, const DsviPatchArgs *args)
{
    PatchGrid patches = patch_grid(args);
    Tile cut = patch_tile_of(args->patch[0] * args->patch[1] * args->patch[2]);
    if (args->batch * patches.tokens * args->channels * cut.inside == 0)
        return DSV_OK;
    if (tile_bytes(&cut) > TILE_BYTES)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "patch: this variant supports patches whose tile has at most "
                         "%lld bytes, not %lld (%d elements)",
                         (long long)TILE_BYTES, (long long)tile_bytes(&cut), cut.inside);
    dim3 grid((unsigned)ceil_div(patches.tokens, cut.tokens),
              blocks_in_turn(ceil_div(args->channels, (int64_t)cut.channels)), blocks_in_turn(args->batch));
    DSVI_CUDA_LAUNCH(stream, "patch", (move_patches<Latent, Row, GATHER>), grid, THREADS,
                     (size_t)tile_bytes(&cut), *args, patches, cut);
    return DSV_OK;
}

template <bool GATHER> static DsvStatus move_of_latent_type(DsviStream *stream, const DsviPatchArgs *args)
{
    if (args->latent_dtype == DSVI_BF16)
        DSVI_FOR_ACT("patch", args->row_dtype, return (launch_move<__nv_bfloat16, T, GATHER>(stream, args)));
    if (args->latent_dtype == DSVI_F32)
        DSVI_FOR_ACT("patch", args->row_dtype, return (launch_move<float, T, GATHER>(stream, args)));
    return DSVI_FAIL(DSV_E_UNSUPPORTED, "patch: this variant takes latents of F32 and BF16, not %s",
                     dsvi_dtype_name(args->latent_dtype));
}

static DsvStatus cuda_patch_gather(DsviStream *stream, const DsviPatchArgs *args)
{
    return move_of_latent_type<true>(stream, args);
}

static DsvStatus cuda_patch_scatter(DsviStream *stream, const DsviPatchArgs *args)
{
    return move_of_latent_type<false>(stream, args);
}

} // namespace

void dsvi_cuda_fill_patch(DsviOps *ops)
{
    DSVI_OPS_SET(ops, patch_gather, cuda_patch_gather, "cuda");
    DSVI_OPS_SET(ops, patch_scatter, cuda_patch_scatter, "cuda");
}
