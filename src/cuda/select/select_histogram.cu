/* select_histogram: computes lse, the logarithm of the sum of exp(scores), of every proxy, and then
 * histograms of the count and the mass of spans over log2 of their estimates e_gr (interface: ops/select.h).
 *
 * For the lse, a warp handles LSE_TILES or LSE_BOUNDED_TILES tiles of proxies (each a part of a set of
 * groups) instead of a whole set. For each of its proxies a lane sums 2^(score - reference); the reference
 * is about the largest of the first scores and seldom changes later. If all scores are known to be small the
 * reference is 0. The sums of the slices of the spans are then combined in order. A second pass computes the
 * estimates of the counted spans (ops/select_counted.h) and adds them to bins. A bin holds two whole
 * numbers, whose sums do not depend on the order: how many spans, and the sum of their positions inside the
 * bin. The estimates in a bin differ by at most 1.1 %, so a position with 20 bits is more exact than the
 * estimates are. */
#include "cuda/common/cuda.h"
#include "cuda/select/select_layout.cuh"

namespace {

enum {
    PLACE_BITS = 20, /* number of bits of the position of an estimate in its bin, which is (estimate / lower
                        edge - 1) 2^20 */
    PLACE_BITS_LOWEST = 13, /* bin 0 has no lower edge: there the position is estimate / upper edge, from 0 to
                               1, times 2^13 */
    PLACE_MAX = (1 << 14) - 1,
    BINS_SHARED = 2 * DSVI_SELECT_BINS * sizeof(uint32_t) / sizeof(uint4), /* size of HistogramSink.bins in
                                                                              shared memory, in uint4 */
    VALUES_MAX =
        1 << 18 /* estimates that a thread block may add: the sum of their positions fits into 32 bits */
};

/* If a sum of powers 2^(score - reference) gets larger than SUM_MAX, the reference is raised. If all |score|,
 * in units of log2, are within SCORE_MAX, the reference is 0, because the sum of 2^27 such powers is finite.
 */
#define SUM_MAX 0x1p64f
#define SCORE_MAX 100.f

extern __shared__ uint4 shared_memory[];

/* ---- lse: log of the sum of exp(scores) of each proxy ---- */

/* The running sums of the two proxies (which stand for queries) that a lane has in a tile: the sum of
 * 2^(score - reference) over the candidates. The sum is infinite before the first score. References are whole
 * numbers, so that subtracting them is exact and only scales dsvi_select_power(score). */
struct LaneSums {
    float start[PAIR]; /* minus the reference, the number that is subtracted from scores */
    float sum[PAIR];
};

template <bool LINEAR> __device__ __forceinline__ float four_powers(float a, float b, float c, float d)
{
    return (power<LINEAR>(a) + power<LINEAR>(b)) + (power<LINEAR>(c) + power<LINEAR>(d));
}

/* Raises the reference of the lane's proxy `g` to about the largest of four scores, which are given relative
 * to the present reference, and adds 2^(score - reference) of the four, so that the sum becomes about 1. If
 * none of the four columns has a candidate, the sum becomes 0 with the lowest reference. */
template <bool LINEAR>
__device__ __forceinline__ void move_reference(float a, float b, float c, float d, LaneSums &s, int g)
{
    bool first = s.sum[g] > SUM_MAX;
    float higher = ceilf(fmaxf(fmaxf(fmaxf(a, b), fmaxf(c, d)), first ? -3e38f : 64.f));
    float before = first ? 0.f : s.sum[g] * exp2_approx(-higher);
    s.sum[g] = before + four_powers<LINEAR>(a - higher, b - higher, c - higher, d - higher);
    s.start[g] -= higher;
}

/* Adds 2^x for all x to the lane's sums, where x are the scores of one layer (one candidate of each span of a
 * block) minus the references. */
template <bool LINEAR> __device__ __forceinline__ void add_lane_scores(const float (&x)[2][4], LaneSums &s)
{
    float sum[PAIR];
#pragma unroll
    for (int g = 0; g < PAIR; g++)
        sum[g] = s.sum[g] + four_powers<LINEAR>(x[0][g], x[0][2 + g], x[1][g], x[1][2 + g]);
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        if (sum[g] <= SUM_MAX)
            s.sum[g] = sum[g];
        else
            move_reference<LINEAR>(x[0][g], x[0][2 + g], x[1][g], x[1][2 + g], s, g);
    }
}

/* Sets to -inf the scores of spans with number `spans` or higher, which have no candidate. */
__device__ __forceinline__ void mask_scores(int block, int spans, float (&x)[2][4])
{
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
#pragma unroll
        for (int g = 0; g < PAIR; g++)
            if (select_span(block, j) >= spans)
                x[j / 2][j % 2 * 2 + g] = -INFINITY;
}

/* Combines the sums of 2^(score - reference) of a proxy over the lanes that share the proxy, which are lanes
 * 4 k + q for all k. Returns the common reference (x) and the sum of 2^(score - reference) (y). */
__device__ __forceinline__ float2 combine_sums(float reference, float sum)
{
    float largest = reference;
#pragma unroll
    for (int step = 4; step < WARP; step *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    sum *= exp2_approx(reference - largest);
#pragma unroll
    for (int step = 4; step < WARP; step *= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return make_float2(largest, sum);
}

/* Writes to `sums`, for each proxy in tile `tile`, the reference and the sum of 2^(score - reference); a
 * (batch, head) has `tiles` tiles. */
__device__ __forceinline__ void store_sums(const SelectTiles &t, const SelectPlace &at, int tile, int tiles,
                                           const LaneSums &s, float2 *sums)
{
#pragma unroll
    for (int g = 0; g < PAIR; g++) {
        int group = threadIdx.x % WARP * PAIR + g;
        float2 all = combine_sums(-s.start[g], s.sum[g]);
        if (tile < tiles && group < SET_GROUPS)
            sums[(((int64_t)at.pair * tiles + tile) * SET_GROUPS + group) * t.slices + at.slice] = all;
    }
}

/* Computes the scores, minus the references, of one tile of proxies (which stand for queries) with one layer
 * of a block (one candidate key of each span). ONE: the features are one chunk of 16. */
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

/* Sums 2^(score - reference) for tiles [begin, begin + LSE_TILES), with scores of any size. The products of
 * a tile are started before the powers of the previous tile, so that the tensor cores work while powers are
 * computed. Otherwise all warps, which wait at the same barriers, would compute products at the same time
 * and then powers at the same time. */
template <bool ONE, bool LINEAR>
__device__ __forceinline__ void sum_unbounded(const SelectTiles &t, const SelectPlace &at, int begin,
                                              int tiles, float2 *sums)
{
    SelectFeed f = feed_begin(t, at, AllSpans{}, shared_memory);
    LaneSums lane[LSE_TILES];
    const uint2 *rows = t.rows + (int64_t)at.pair * tiles * t.depths * WARP + threadIdx.x % WARP;
    int whole = select_whole(t);
    int from[LSE_TILES]; /* offset in `rows` of this lane's features of each tile of proxies */
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
                    mask_scores(block, layer_spans(t, layer), x[n % 2]);
                add_lane_scores<LINEAR>(x[n % 2], lane[n]);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < LSE_TILES; n++)
        store_sums(t, at, begin + n, tiles, lane[n], sums);
    __syncthreads(); /* the caller may then load other columns into the same shared memory */
}

/* The proxies of tiles n and n + 1 as the left factor of tensor-core products whose right factor is a tile
 * of candidates. The memory layout of a left factor also suits a right factor, and vice versa. */
struct BoundedSums {
    uint4 rows;
    float sum[4]; /* lanes 4 k + q hold the sum of column k of tile n, twice, then of column k of tile n + 1,
                     twice */
};

/* Operands that are the same for all tensor-core products. Each word is combined with a zero that ptxas
 * cannot recognise (zero_of), so that ptxas does not copy the words into place for each product. */
struct BoundedConstants {
    uint32_t zero;
    float start[4];
    uint2 minus_ones;
};

__device__ __forceinline__ BoundedConstants bounded_constants(const SelectTiles &t)
{
    uint32_t start = __float_as_uint(BF16_CUT), ones = BF16_MINUS_ONE << 16 | BF16_MINUS_ONE;
    return {zero_of(t.spans),
            {__uint_as_float(start | zero_of(t.blocks)), __uint_as_float(start | zero_of(t.layers)),
             __uint_as_float(start | zero_of(t.sets)), __uint_as_float(start | zero_of(t.parts))},
            {ones | zero_of(t.stage), ones | zero_of(t.slices)}};
}

/* The candidate keys of one layer (one candidate of each span of a block) as right factors of tensor-core
 * products: one factor for each of the 4 spans (slots) that a lane has in the block. */
struct BoundedColumns {
    uint2 slot[SLOTS];
};

__device__ __forceinline__ BoundedColumns bounded_columns(const uint4 *columns, uint32_t zero)
{
    SelectColumns a = load_columns(columns);
    BoundedColumns near;
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        const uint4 &two = a.product[j / 2];
        near.slot[j] = j % 2 == 0 ? make_uint2(two.x | zero, two.z | zero)
                                  : make_uint2(two.y | zero, two.w | zero);
    }
    return near;
}

/* Computes 2^score of column k of both tiles of proxies with this lane's candidates in slot j (the j-th of
 * the lane's 4 spans of a block). MASKED: spans with number `spans` or higher have no candidate and give 0.
 */
template <bool MASKED>
__device__ __forceinline__ void slot_powers(const BoundedColumns &columns, int j, int block, int spans,
                                            const uint4 &rows, const BoundedConstants &constants,
                                            uint32_t (&power)[2])
{
    float x[4];
    multiply_add(x, rows, columns.slot[j], constants.start);
#pragma unroll
    for (int i = 0; MASKED && i < 4; i++)
        if (span_of_lanes(block, threadIdx.x % 4 * 2 + i % 2, j) >= spans)
            x[i] = -INFINITY;
    power[0] = cut_powers(x[0], x[1]);
    power[1] = cut_powers(x[2], x[3]);
}

/* Adds 2^score, for the scores of one layer (one candidate of each span of a block), to the sums of all tiles
 * of proxies. MASKED: spans with number `spans` or higher have no candidate and add 0. */
template <bool MASKED>
__device__ __forceinline__ void add_linear_powers(const uint4 *columns, int block, int spans,
                                                  const BoundedConstants &constants,
                                                  BoundedSums (&lane)[LSE_BOUNDED_TILES / 2])
{
    BoundedColumns near = bounded_columns(columns, constants.zero);
#pragma unroll
    for (int n = 0; n < LSE_BOUNDED_TILES / 2; n++) {
        uint32_t powers[4];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t power[2], more[2];
            slot_powers<MASKED>(near, j, block, spans, lane[n].rows, constants, power);
            slot_powers<MASKED>(near, j + 2, block, spans, lane[n].rows, constants, more);
            powers[2 * j] = add_bf16(power[0], more[0]);
            powers[2 * j + 1] = add_bf16(power[1], more[1]);
        }
        add_powers_up<false>(lane[n].sum, powers, constants.minus_ones);
    }
}

/* Sums 2^score over the candidates for tiles [begin, begin + LSE_BOUNDED_TILES) of proxies. All scores are
 * within SCORE_MAX, so that no reference needs to be subtracted from them. */
__device__ __forceinline__ void sum_bounded(const SelectTiles &t, const SelectPlace &at, int begin, int tiles,
                                            float2 *sums)
{
    SelectFeed f = feed_begin(t, at, AllSpans{}, shared_memory);
    BoundedSums lane[LSE_BOUNDED_TILES / 2] = {};
    BoundedConstants constants = bounded_constants(t);
    int whole = select_whole(t);
    whole = whole < at.begin ? at.begin : whole < at.end ? whole : at.end;
    const uint2 *rows = t.rows + (int64_t)at.pair * tiles * WARP + threadIdx.x % WARP;
#pragma unroll
    for (int n = 0; n < LSE_BOUNDED_TILES; n += 2) {
        uint2 upper = rows[(begin + n < tiles ? begin + n : tiles - 1) * WARP];
        uint2 lower = rows[(begin + n + 1 < tiles ? begin + n + 1 : tiles - 1) * WARP];
        lane[n / 2].rows = make_uint4(upper.x, lower.x, upper.y, lower.y);
    }
    for (int n = (whole - at.begin) * t.layers; n > 0; n--)
        add_linear_powers<false>(feed_next(t, shared_memory, 1, f), 0, 0, constants, lane);
    for (int block = whole; block < at.end; block++)
        for (int layer = 0; layer < t.layers; layer++)
            add_linear_powers<true>(feed_next(t, shared_memory, 1, f), block, layer_spans(t, layer),
                                    constants, lane);
    int64_t column = (int64_t)at.pair * tiles * SET_GROUPS + threadIdx.x % WARP / 4;
#pragma unroll
    for (int n = 0; n < LSE_BOUNDED_TILES; n++)
        if (begin + n < tiles && threadIdx.x % 4 == 0)
            sums[(column + (begin + n) * SET_GROUPS) * t.slices + at.slice] = make_float2(
                0.f, lane[n / 2].sum[n % 2 * 2]);
}

/* Computes `sums`, the references and the sums of 2^(score - reference), of all proxies for one slice of the
 * spans. ONE_CHUNK: the features are coarse (one half-precision number each) and one chunk of 16. `tiles` is
 * the number of tiles of a (batch, head). */
template <bool ONE_CHUNK, bool LINEAR>
__global__ __launch_bounds__(SCORE_THREADS,
                             SCORE_BLOCKS) void lse_kernel(const __grid_constant__ SelectTiles t, int tiles,
                                                           float2 *sums)
{
    SelectPlace at = select_place(t, blockIdx.x);
    if (!ONE_CHUNK) {
        sum_unbounded<false, LINEAR>(t, at, at.set * LSE_TILES, tiles, sums);
    } else if (select_bound(t, at.pair) <= SCORE_MAX) {
        sum_bounded(t, at, at.set * LSE_BOUNDED_TILES, tiles, sums);
    } else {
#pragma unroll 1
        for (int n = 0; n < LSE_BOUNDED_TILES; n += LSE_TILES)
            sum_unbounded<true, LINEAR>(t, at, at.set * LSE_BOUNDED_TILES + n, tiles, sums);
    }
}

/* ---- histogram bins ---- */

/* A sink, the receiver of estimates that select_walk.cuh describes, which adds the estimates to the
 * histogram bins of a thread block. */
struct HistogramSink {
    uint32_t *bins; /* (2, BINS) in shared memory: how many spans each bin has, then the sum of the positions
                       of their estimates inside the bin */
    int groups;     /* number of groups from this lane's first group on */
    float octaves;  /* DSVI_SELECT_OCTAVES minus the number of octaves (powers of 2) by which received
                       estimates are too large */
};

__device__ __forceinline__ void scale_sink(HistogramSink &sink, int octaves)
{
    sink.octaves -= (float)octaves;
}

__device__ __forceinline__ void add_estimate_to_bin(const HistogramSink &sink, float estimate)
{
    float x = (__log2f(estimate) + sink.octaves) * DSVI_SELECT_PER_OCTAVE;
    /* a NaN estimate is counted in bin 0 */
    int bin = (int)fminf(fmaxf(x, 0.f), (float)(DSVI_SELECT_BINS - 1));
    atomicAdd(sink.bins + bin, 1u);
    float place = estimate * exp2_approx(sink.octaves - (float)bin / DSVI_SELECT_PER_OCTAVE);
    float scaled = bin > 0 ? (place - 1.f) * (1 << PLACE_BITS) : place * (1 << PLACE_BITS_LOWEST);
    atomicAdd(sink.bins + DSVI_SELECT_BINS + bin,
              (uint32_t)__float2int_rn(fminf(fmaxf(scaled, 0.f), (float)PLACE_MAX)));
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
                    add_estimate_to_bin(sink, e[j][g]);
}

__device__ __forceinline__ void end_segment(const HistogramSink &, int) {}

/* Adds the estimates of the counted spans (the sample of spans that the histogram counts) to bins,
 * (bin_heads, 2, BINS). The block numbers of `t` refer to the counted spans only. */
template <int PARTS>
__global__ __launch_bounds__(SCORE_THREADS,
                             SCORE_BLOCKS) void histogram_kernel(const __grid_constant__ SelectTiles t,
                                                                 const __grid_constant__ CountedSpans counted,
                                                                 int groups, int bin_heads,
                                                                 unsigned long long *bins)
{
    SelectPlace at = select_place(t, blockIdx.x);
    uint32_t *count = reinterpret_cast<uint32_t *>(shared_memory);
    HistogramSink sink = {count, groups - at.set * SET_GROUPS - (int)threadIdx.x % 4 * PAIR,
                          DSVI_SELECT_OCTAVES};
    for (int bin = threadIdx.x; bin < 2 * DSVI_SELECT_BINS; bin += SCORE_THREADS)
        count[bin] = 0;
    __syncthreads();
    walk_estimates<PARTS>(t, at, counted, shared_memory + BINS_SHARED, sink);
    __syncthreads();
    for (int bin = threadIdx.x; bin < 2 * DSVI_SELECT_BINS; bin += SCORE_THREADS)
        if (count[bin] > 0)
            atomicAdd(bins + (int64_t)(at.pair % bin_heads) * 2 * DSVI_SELECT_BINS + bin,
                      (unsigned long long)count[bin]);
}

/* Converts the bins' counts and sums of positions to bin_count and bin_mass; one thread per bin. */
__global__ void bins_kernel(const unsigned long long *bins, int64_t all, double *bin_count, double *bin_mass)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, head = n / DSVI_SELECT_BINS;
    int bin = (int)(n % DSVI_SELECT_BINS);
    if (n >= all)
        return;
    const unsigned long long *mine = bins + head * 2 * DSVI_SELECT_BINS + bin;
    double count = (double)mine[0], places = (double)mine[DSVI_SELECT_BINS];
    double start = exp2((double)bin / DSVI_SELECT_PER_OCTAVE - DSVI_SELECT_OCTAVES);
    double relative = bin > 0 ? count + places / (1 << PLACE_BITS) : places / (1 << PLACE_BITS_LOWEST);
    bin_count[n] = count;
    bin_mass[n] = start * relative;
}

/* ---- the op ---- */

size_t cuda_select_histogram_workspace(DsviStream *stream, const DsviSelectArgs *args)
{
    return select_layout(stream, args, nullptr).bytes;
}

DsvStatus compute_lse(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    unsigned blocks = (unsigned)(select_row_blocks(p, p.lse) * p.lse.slices);
    size_t shared = 2 * (size_t)stage_size(p.lse) * sizeof(uint4);
    int tiles = p.rows.sets * p.rows.parts;
    auto kernel = p.lse_tiles == LSE_BOUNDED_TILES ? lse_kernel<true, true>
                  : p.lse.coarse                   ? lse_kernel<false, true>
                                                   : lse_kernel<false, false>;
    DSVI_TRY(select_allow_shared(kernel, shared));
    DSVI_CUDA_LAUNCH(stream, "select lse", kernel, blocks, SCORE_THREADS, shared, p.lse, tiles, p.sums);
    return select_fill_terms(stream, args, p, p.sums);
}

CountedSpans select_counted_spans(const DsviSelectArgs *args, const SelectLayout &p)
{
    const DsviSelectPart &part = args->part;
    return {dsvi_select_stride(args),
            args->bin_turn,
            p.all.blocks,
            (int)args->heads,
            (int)part.heads,
            part.head,
            (int)(part.heads > 0 ? part.first_group / DSVI_COUNTED_GROUPS : 0)};
}

template <int PARTS>
DsvStatus launch_histogram(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    SelectTiles t = p.counted;
    /* With at least this many slices, the estimates that a thread block adds are few enough for 32-bit sums.
     * The limit is a multiple of SEGMENT blocks, so that slices of whole segments keep it too. */
    static_assert(VALUES_MAX / (LISTS_EACH * COLUMNS) % SEGMENT == 0, "the limit must be whole segments");
    int64_t slices = ceil_div(t.blocks, VALUES_MAX / (LISTS_EACH * COLUMNS));
    size_t shared = (BINS_SHARED + shared_rows_size(PARTS)) * sizeof(uint4);
    t.slices = slices > t.slices ? (int)slices : t.slices;
    DSVI_TRY(select_allow_shared(histogram_kernel<PARTS>, shared));
    DSVI_CUDA_LAUNCH(stream, "select histogram", histogram_kernel<PARTS>,
                     (unsigned)(select_row_blocks(p, t) * t.slices), SCORE_THREADS, shared, t,
                     select_counted_spans(args, p), (int)p.groups, (int)args->bin_heads, p.bins);
    return DSV_OK;
}

DsvStatus count_spans(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    switch (select_resident_parts(p.counted)) {
    case 1: return launch_histogram<1>(stream, args, p);
    case 2: return launch_histogram<2>(stream, args, p);
    case 4: return launch_histogram<4>(stream, args, p);
    case 8: return launch_histogram<8>(stream, args, p);
    case SHARED_PARTS: return launch_histogram<SHARED_PARTS>(stream, args, p);
    default: return launch_histogram<0>(stream, args, p);
    }
}

DsvStatus fill_bins(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p)
{
    DSVI_TRY(count_spans(stream, args, p));
    int64_t bins = args->bin_heads * DSVI_SELECT_BINS;
    DSVI_CUDA_LAUNCH(stream, "select bins", bins_kernel, prepare_blocks(bins), PREPARE_THREADS, 0, p.bins,
                     bins, args->bin_count, args->bin_mass);
    return DSV_OK;
}

DsvStatus cuda_select_histogram(DsviStream *stream, const DsviSelectArgs *args)
{
    DSVI_TRY(dsvi_select_check(args, false));
    size_t bytes = (size_t)args->bin_heads * DSVI_SELECT_BINS * sizeof(double);
    if (args->batch * args->heads == 0) {
        DSVI_CUDA_TRY(cudaMemsetAsync(args->bin_count, 0, bytes, stream->handle));
        DSVI_CUDA_TRY(cudaMemsetAsync(args->bin_mass, 0, bytes, stream->handle));
        return DSV_OK;
    }
    SelectLayout p = select_layout(stream, args, args->workspace);
    DSVI_TRY(select_check_workspace(args, p));
    DSVI_TRY(select_fill_tiles(stream, args, p, true));
    DSVI_TRY(compute_lse(stream, args, p));
    return fill_bins(stream, args, p);
}

} // namespace

void dsvi_cuda_fill_select_histogram(DsviOps *ops)
{
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_histogram, cuda_select_histogram, cuda_select_histogram_workspace,
                                "cuda");
}
