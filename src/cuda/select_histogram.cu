/* select_histogram: the lse of every proxy, and how count and mass of runs spread over log2 e (ops/select.h).
 *
 * For its lse a warp takes LSE_TILES tiles, each a part of a set, in place of a set. A lane keeps a sum of
 * powers for each of its proxies, over a reference that its first scores set and that later ones seldom move;
 * slices of the runs are put together afterwards, in order. Then the counted runs pass again as estimates.
 * Bins are whole numbers, whose sums depend on no order: how many, and how far into the bin each was. Inside
 * a bin estimates differ by 1.1 %: 20 bits of that place tell more of an estimate than is known. */
#include "cuda/cuda.h"
#include "cuda/select_plan.cuh"

namespace {

enum {
    PLACE_BITS = 20,
    PLACE_BITS_LOWEST = 13, /* of bin 0, whose places run from 0 to 1 */
    PLACE_MOST = (1 << 14) - 1,
    VALUES_MOST = 1 << 18   /* that a block of threads may add: their places fit into 32 bits */
};

#define SUM_MOST 0x1p64f /* of powers over the reference, before that moves */
#define SCORE_MOST 100.f /* as log2: 2^27 powers of such scores, each as large, have a sum */

extern __shared__ uint4 shared_memory[];

/* ---- lse ---- */

/* A lane's proxies of a tile: the sum of powers of (score - reference), infinite until there are scores.
 * References are whole numbers, so that starts are exact, and straight lines move without a change. */
struct LaneSums {
    float start[PAIR]; /* -reference */
    float sum[PAIR];
};

template <bool LINES> __device__ __forceinline__ float four_powers(float a, float b, float c, float d)
{
    return (power<LINES>(a) + power<LINES>(b)) + (power<LINES>(c) + power<LINES>(d));
}

/* Adds the powers of four scores of group g over a reference so much higher that the sum is about one. Where
 * no column has a candidate the sum stays zero, over the lowest reference. */
template <bool LINES>
__device__ __forceinline__ void move_reference(float a, float b, float c, float d, LaneSums &s, int g)
{
    bool first = s.sum[g] > SUM_MOST;
    float higher = ceilf(fmaxf(fmaxf(fmaxf(a, b), fmaxf(c, d)), first ? -3e38f : 64.f));
    float before = first ? 0.f : s.sum[g] * exp2_near(-higher);
    s.sum[g] = before + four_powers<LINES>(a - higher, b - higher, c - higher, d - higher);
    s.start[g] -= higher;
}

/* x: scores of a layer of a block of columns, less the reference. */
template <bool LINES> __device__ __forceinline__ void add_scores(const float (&x)[2][4], LaneSums &s)
{
    float sum[PAIR];
#pragma unroll
    for (int g = 0; g < PAIR; g++)
        sum[g] = s.sum[g] + four_powers<LINES>(x[0][g], x[0][2 + g], x[1][g], x[1][2 + g]);
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        if (sum[g] <= SUM_MOST)
            s.sum[g] = sum[g];
        else
            move_reference<LINES>(x[0][g], x[0][2 + g], x[1][g], x[1][2 + g], s, g);
    }
}

/* Scores of columns that have no candidate become -inf. */
__device__ __forceinline__ void mask_scores(int block, int runs, float (&x)[2][4])
{
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
#pragma unroll
        for (int g = 0; g < PAIR; g++)
            if (select_run(block, j) >= runs)
                x[j / 2][j % 2 * 2 + g] = -INFINITY;
}

/* Sums of the lanes that share proxies, 4 k + q for all k. */
__device__ __forceinline__ float2 gather_sums(float reference, float sum)
{
    float most = reference;
#pragma unroll
    for (int step = 4; step < WARP; step *= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    sum *= exp2_near(reference - most);
#pragma unroll
    for (int step = 4; step < WARP; step *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return make_float2(most, sum);
}

/* A lane's sums of tile number `tile` of the `tiles` of a (batch, head) go to memory. */
__device__ __forceinline__ void put_sums(const SelectTiles &t, const SelectPlace &at, int tile, int tiles,
                                         const LaneSums &s, float2 *sums)
{
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        int group = threadIdx.x % WARP * PAIR + g;
        float2 all = gather_sums(-s.start[g], s.sum[g]);
        if (tile < tiles && group < SET_GROUPS)
            sums[(((int64_t)at.pair * tiles + tile) * SET_GROUPS + group) * t.slices + at.slice] = all;
    }
}

/* The scores of one tile. ONE: features are one chunk. */
template <bool ONE>
__device__ __forceinline__ void score_tile(const SelectTiles &t, const uint4 *columns, const SelectColumns &a,
                                           uint2 first, const uint2 *rows, const LaneSums &s,
                                           float (&x)[2][4])
{
    const float start[4] = {s.start[0], s.start[1], s.start[0], s.start[1]};
    begin_products(x, a, first, start);
#pragma unroll 1
    for (int depth = 1; !ONE && depth < t.depths; depth++)
        add_products(x, load_columns(columns + depth * COLUMN_CHUNK), rows[depth * WARP]);
}

/* Tiles [begin, begin + LSE_TILES) whatever their scores. The products of a tile are begun before the powers
 * of the one before it, so that tensor cores work beside them: warps that wait at the same barriers would do
 * all products first and all powers then. */
template <bool ONE, bool LINES>
__device__ __forceinline__ void sum_far(const SelectTiles &t, const SelectPlace &at, int begin, int tiles,
                                        float2 *sums)
{
    SelectFeed f = feed_begin(t, at, AllRuns{}, shared_memory);
    LaneSums lane[LSE_TILES];
    const uint2 *rows = t.rows + (int64_t)at.pair * tiles * t.depths * WARP + threadIdx.x % WARP;
    int whole = select_whole(t);
    int from[LSE_TILES]; /* this lane's rows of a tile, behind `rows` */
    uint2 first[LSE_TILES];
#pragma unroll
    for (int n = 0; n < LSE_TILES; n++) {
        from[n] = (begin + n < tiles ? begin + n : tiles - 1) * t.depths * WARP;
        first[n] = rows[from[n]];
        lane[n] = {{0.f, 0.f}, {INFINITY, INFINITY}};
    }
    for (int block = at.begin; block < at.end; block++) {
        for (int layer = 0; layer < t.layers; layer++) {
            const uint4 *columns = feed_next(t, shared_memory, ONE ? 1 : t.depths, f);
            SelectColumns a = load_columns(columns);
            float x[2][2][4];
            score_tile<ONE>(t, columns, a, first[0], rows + from[0], lane[0], x[0]);
#pragma unroll
            for (int n = 0; n < LSE_TILES; n++) {
                if (n + 1 < LSE_TILES)
                    score_tile<ONE>(t, columns, a, first[n + 1], rows + from[n + 1], lane[n + 1],
                                    x[(n + 1) % 2]);
                if (block >= whole)
                    mask_scores(block, layer_runs(t, layer), x[n % 2]);
                add_scores<LINES>(x[n % 2], lane[n]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < LSE_TILES; n++)
        put_sums(t, at, begin + n, tiles, lane[n], sums);
    __syncthreads(); /* before others' columns take the place of these */
}

/* Proxies of the tiles n and n + 1 as the left side of products, whose right side are candidates: what either
 * holds lies as the other side wants it, too. */
struct NearSums {
    uint4 rows;
    float sum[4]; /* of lanes 4 k + q: that of column k of tile n, twice, then of tile n + 1 */
};

/* Operands that are the same for all products. What the assembler knows, or knows to be equal, it would move
 * into place for each product again: so each word is made with a zero of its own that it does not know. */
struct NearConstants {
    uint32_t zero;
    float start[4];
    uint2 minus_ones;
};

/* A count is not negative: zero. */
__device__ __forceinline__ uint32_t zero_of(int count)
{
    return (uint32_t)(count >> 31);
}

__device__ __forceinline__ NearConstants near_constants(const SelectTiles &t)
{
    uint32_t start = __float_as_uint(BF16_CUT), ones = BF16_MINUS_ONE << 16 | BF16_MINUS_ONE;
    return {zero_of(t.runs),
            {__uint_as_float(start | zero_of(t.blocks)), __uint_as_float(start | zero_of(t.layers)),
             __uint_as_float(start | zero_of(t.sets)), __uint_as_float(start | zero_of(t.parts))},
            {ones | zero_of(t.stage), ones | zero_of(t.slices)}};
}

/* A layer's candidates as the right side of products, of each slot. */
struct NearColumns {
    uint2 slot[SLOTS];
};

__device__ __forceinline__ NearColumns near_columns(const uint4 *columns, uint32_t zero)
{
    SelectColumns a = load_columns(columns);
    NearColumns near;
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        const uint4 &two = a.product[j / 2];
        near.slot[j] = j % 2 == 0 ? make_uint2(two.x | zero, two.z | zero)
                                  : make_uint2(two.y | zero, two.w | zero);
    }
    return near;
}

/* Powers of both tiles' columns k with this lane's candidates of slot j. */
template <bool MASKED>
__device__ __forceinline__ void slot_powers(const NearColumns &columns, int j, int block, int runs,
                                            const uint4 &rows, const NearConstants &constants,
                                            uint32_t (&power)[2])
{
    float x[4];
    multiply_add(x, rows, columns.slot[j], constants.start);
#pragma unroll
    for (int i = 0; MASKED && i < 4; i++)
        if (run_of_lanes(block, threadIdx.x % 4 * 2 + i % 2, j) >= runs)
            x[i] = -INFINITY;
    power[0] = cut_powers(x[0], x[1]);
    power[1] = cut_powers(x[2], x[3]);
}

/* Adds the powers of a layer's scores. MASKED: some columns have no candidate. */
template <bool MASKED>
__device__ __forceinline__ void add_lines(const uint4 *columns, int block, int runs,
                                          const NearConstants &constants,
                                          NearSums (&lane)[LSE_NEAR_TILES / 2])
{
    NearColumns near = near_columns(columns, constants.zero);
#pragma unroll
    for (int n = 0; n < LSE_NEAR_TILES / 2; n++) {
        uint32_t powers[4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t power[2], more[2];
            slot_powers<MASKED>(near, j, block, runs, lane[n].rows, constants, power);
            slot_powers<MASKED>(near, j + 2, block, runs, lane[n].rows, constants, more);
            powers[2 * j] = add_bf16(power[0], more[0]);
            powers[2 * j + 1] = add_bf16(power[1], more[1]);
        }
        add_powers_up<false>(lane[n].sum, powers, constants.minus_ones);
    }
}

/* Tiles [begin, begin + LSE_NEAR_TILES) whose scores are within SCORE_MOST, over references of zero. */
__device__ __forceinline__ void sum_near(const SelectTiles &t, const SelectPlace &at, int begin, int tiles,
                                         float2 *sums)
{
    SelectFeed f = feed_begin(t, at, AllRuns{}, shared_memory);
    NearSums lane[LSE_NEAR_TILES / 2] = {};
    NearConstants constants = near_constants(t);
    int whole = select_whole(t);
    whole = whole < at.begin ? at.begin : whole < at.end ? whole : at.end;
    const uint2 *rows = t.rows + (int64_t)at.pair * tiles * WARP + threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < LSE_NEAR_TILES; n += 2) {
        uint2 upper = rows[(begin + n < tiles ? begin + n : tiles - 1) * WARP];
        uint2 lower = rows[(begin + n + 1 < tiles ? begin + n + 1 : tiles - 1) * WARP];
        lane[n / 2].rows = make_uint4(upper.x, lower.x, upper.y, lower.y);
    }
    for (int n = (whole - at.begin) * t.layers; n > 0; n--)
        add_lines<false>(feed_next(t, shared_memory, 1, f), 0, 0, constants, lane);
    for (int block = whole; block < at.end; block++)
        for (int layer = 0; layer < t.layers; layer++)
            add_lines<true>(feed_next(t, shared_memory, 1, f), block, layer_runs(t, layer), constants,
                            lane);
    int64_t column = (int64_t)at.pair * tiles * SET_GROUPS + threadIdx.x % WARP / 4;
#pragma unroll
    for (int n = 0; n < LSE_NEAR_TILES; n++)
        if (begin + n < tiles && threadIdx.x % 4 == 0)
            sums[(column + (begin + n) * SET_GROUPS) * t.slices + at.slice] =
                make_float2(0.f, lane[n / 2].sum[n % 2 * 2]);
}

/* NEAR: features are one chunk of coarse ones. `tiles`: of a (batch, head). */
template <bool NEAR, bool LINES>
__global__ __launch_bounds__(SCORE_THREADS, SCORE_BLOCKS) void lse_kernel(
    const __grid_constant__ SelectTiles t, int tiles, float2 *sums)
{
    SelectPlace at = select_place(t, blockIdx.x);
    if (!NEAR) {
        sum_far<false, LINES>(t, at, at.set * LSE_TILES, tiles, sums);
    } else if (select_bound(t, at.pair) <= SCORE_MOST) {
        sum_near(t, at, at.set * LSE_NEAR_TILES, tiles, sums);
    } else {
#pragma unroll 1
        for (int n = 0; n < LSE_NEAR_TILES; n += LSE_TILES)
            sum_far<true, LINES>(t, at, at.set * LSE_NEAR_TILES + n, tiles, sums);
    }
}

/* ---- bins ---- */

struct HistogramSink {
    uint32_t *bins;  /* (2, BINS) counts, places: shared memory */
    int groups;      /* that there are from this lane's first on */
    float octaves;   /* DSV_SELECT_OCTAVES, less by which power of two estimates are too large */
};

__device__ __forceinline__ void lift(HistogramSink &sink, int octaves)
{
    sink.octaves -= (float)octaves;
}

__device__ __forceinline__ void add_to_bin(const HistogramSink &sink, float estimate)
{
    float x = (__log2f(estimate) + sink.octaves) * DSV_SELECT_PER_OCTAVE;
    int bin = (int)fminf(fmaxf(x, 0.f), (float)(DSV_SELECT_BINS - 1)); /* NaN goes to bin 0 */
    atomicAdd(sink.bins + bin, 1u);
    float place = estimate * exp2_near(sink.octaves - (float)bin / DSV_SELECT_PER_OCTAVE);
    float scaled = bin > 0 ? (place - 1.f) * (1 << PLACE_BITS) : place * (1 << PLACE_BITS_LOWEST);
    atomicAdd(sink.bins + DSV_SELECT_BINS + bin,
              (uint32_t)__float2int_rn(fminf(fmaxf(scaled, 0.f), (float)PLACE_MOST)));
}

__device__ __forceinline__ void take(const HistogramSink &sink, int block, const float (&e)[SLOTS][PAIR])
{
    (void)block;
#pragma unroll
    for (int g = 0; g < PAIR; g++)
        if (g < sink.groups)
#pragma unroll
            for (int j = 0; j < SLOTS; j++)
                if (!(e[j][g] < 0.f))
                    add_to_bin(sink, e[j][g]);
}

__device__ __forceinline__ void end_stretch(const HistogramSink &, int)
{
}

/* `t`: blocks are of counted runs. `bins`: (bin_heads, 2, BINS), added to. */
template <int PARTS>
__global__ __launch_bounds__(SCORE_THREADS, SCORE_BLOCKS) void histogram_kernel(
    const __grid_constant__ SelectTiles t, const __grid_constant__ CountedRuns counted, int groups,
    int bin_heads, unsigned long long *bins)
{
    SelectPlace at = select_place(t, blockIdx.x);
    uint32_t *count = reinterpret_cast<uint32_t *>(shared_memory);
    HistogramSink sink = {count, groups - at.set * SET_GROUPS - (int)threadIdx.x % 4 * PAIR,
                          DSV_SELECT_OCTAVES};
    for (int bin = threadIdx.x; bin < 2 * DSV_SELECT_BINS; bin += SCORE_THREADS)
        count[bin] = 0;
    __syncthreads();
    walk_estimates<PARTS>(t, at, counted, nullptr, sink);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 2 * DSV_SELECT_BINS; bin += SCORE_THREADS)
        if (count[bin] > 0)
            atomicAdd(bins + (int64_t)(at.pair % bin_heads) * 2 * DSV_SELECT_BINS + bin,
                      (unsigned long long)count[bin]);
}

/* A thread a bin. */
__global__ void bins_kernel(const unsigned long long *bins, int64_t all, double *bin_count, double *bin_mass)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, head = n / DSV_SELECT_BINS;
    int bin = (int)(n % DSV_SELECT_BINS);
    if (n >= all)
        return;
    const unsigned long long *mine = bins + head * 2 * DSV_SELECT_BINS + bin;
    double count = (double)mine[0], places = (double)mine[DSV_SELECT_BINS];
    double start = exp2((double)bin / DSV_SELECT_PER_OCTAVE - DSV_SELECT_OCTAVES);
    double relative = bin > 0 ? count + places / (1 << PLACE_BITS) : places / (1 << PLACE_BITS_LOWEST);
    bin_count[n] = count;
    bin_mass[n] = start * relative;
}

/* ---- the op ---- */

size_t workspace(DsvStream *stream, const DsvSelectArgs *args)
{
    return select_plan(stream, args, nullptr).bytes;
}

DsvStatus find_lse(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    unsigned blocks = (unsigned)(select_row_blocks(p, p.lse) * p.lse.slices);
    size_t shared = 2 * (size_t)stage_size(p.lse) * sizeof(uint4);
    int tiles = p.rows.sets * p.rows.parts;
    auto kernel = p.lse_tiles == LSE_NEAR_TILES ? lse_kernel<true, true>
                  : p.lse.coarse                ? lse_kernel<false, true>
                                                : lse_kernel<false, false>;
    DSVI_TRY(select_allow(kernel, shared));
    kernel<<<blocks, SCORE_THREADS, shared, stream->handle>>>(p.lse, tiles, p.sums);
    DSVI_CUDA_LAUNCHED("select lse");
    return select_put_terms(stream, args, p, p.sums);
}

CountedRuns select_counted_runs(const DsvSelectArgs *args, const SelectPlan &p)
{
    const DsvSelectPart &part = args->part;
    return {dsvi_select_stride(args), args->bin_turn, p.all.blocks, (int)args->heads, (int)part.heads,
            part.head, (int)(part.heads > 0 ? part.first_group / DSVI_COUNTED_GROUPS : 0)};
}

template <int PARTS>
DsvStatus add_to_bins(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    SelectTiles t = p.counted;
    int64_t slices = ceil_div(t.blocks, VALUES_MOST / (LISTS_EACH * COLUMNS)); /* whole stretches */
    size_t shared = 2 * DSV_SELECT_BINS * sizeof(uint32_t);
    t.slices = slices > t.slices ? (int)slices : t.slices;
    histogram_kernel<PARTS><<<(unsigned)(select_row_blocks(p, t) * t.slices), SCORE_THREADS, shared,
                             stream->handle>>>(t, select_counted_runs(args, p), (int)p.groups,
                                               (int)args->bin_heads, p.bins);
    DSVI_CUDA_LAUNCHED("select histogram");
    return DSV_OK;
}

DsvStatus add_counted(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    switch (select_near_parts(p.counted)) {
    case 1:
        return add_to_bins<1>(stream, args, p);
    case 2:
        return add_to_bins<2>(stream, args, p);
    case 4:
        return add_to_bins<4>(stream, args, p);
    case 8:
        return add_to_bins<8>(stream, args, p);
    default:
        return add_to_bins<0>(stream, args, p);
    }
}

DsvStatus fill_bins(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    DSVI_TRY(add_counted(stream, args, p));
    int64_t bins = args->bin_heads * DSV_SELECT_BINS;
    bins_kernel<<<prepare_blocks(bins), PREPARE_THREADS, 0, stream->handle>>>(p.bins, bins, args->bin_count,
                                                                              args->bin_mass);
    DSVI_CUDA_LAUNCHED("select bins");
    return DSV_OK;
}

DsvStatus histogram(DsvStream *stream, const DsvSelectArgs *args)
{
    DSVI_TRY(dsvi_select_check(args, false));
    size_t bytes = (size_t)args->bin_heads * DSV_SELECT_BINS * sizeof(double);
    if (args->batch * args->heads == 0) {
        DSVI_CUDA_TRY(cudaMemsetAsync(args->bin_count, 0, bytes, stream->handle));
        DSVI_CUDA_TRY(cudaMemsetAsync(args->bin_mass, 0, bytes, stream->handle));
        return DSV_OK;
    }
    SelectPlan p = select_plan(stream, args, args->workspace);
    DSVI_TRY(select_enough(args, p));
    DSVI_TRY(select_prepare(stream, args, p, true));
    DSVI_TRY(find_lse(stream, args, p));
    return fill_bins(stream, args, p);
}

} // namespace

void dsvi_cuda_fill_select_histogram(DsvOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_histogram, histogram, workspace, "cuda");
}
