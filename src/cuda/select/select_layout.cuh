/* The data layout that select_histogram and select_lists share for the loops of select_walk.cuh: sizes, the
 * division of the workspace, and the kernels that convert proxies (which stand for queries) and candidates
 * (which stand for keys) to tensor-core tiles. */
#ifndef DSVI_SELECT_LAYOUT_CUH
#define DSVI_SELECT_LAYOUT_CUH

#include <cuda_fp16.h>
#include <math.h>

#include "cuda/select/select_walk.cuh"
#include "ops/select.h"

namespace {

using namespace dsvi;

enum {
    PREPARE_THREADS = 256,
    SHARED_DEFAULT = 48 << 10, /* bytes of shared memory that a kernel may use without cudaFuncSetAttribute */
    SLICES_MAX = 256,          /* largest number of slices into which the spans are divided */
    SLICE_COST = 4,            /* fixed cost of a thread block, as a number of blocks of columns */
    RANGE_SLICES = WARP,       /* slices of ranges_kernel: one lane combines each */
    RANGE_ROWS = 4,            /* rows of features whose loads a thread of ranges_kernel has in flight */
    RANGE_BLOCKS = 4,          /* thread blocks of ranges_kernel that a multiprocessor holds */
    TILE_BLOCKS = 6,           /* thread blocks of tiles_kernel that a multiprocessor holds */
    LSE_TILES = 4,             /* tiles of proxies that a warp of lse_kernel handles */
    LSE_BOUNDED_TILES = 8,     /* as LSE_TILES, if the features are coarse and one chunk of 16 */
    LISTS_EACH = WARPS * SET_GROUPS /* key lists that a thread block handles */
};

/* The largest estimate of one key list within one slice of the spans, and the span that has it. */
struct SelectBest {
    float value;
    int span;
};

/* How the proxies of a (batch, head) are divided into tiles of 8 columns for tensor-core products. */
struct SelectRows {
    int64_t proxies, queries, group, chunk; /* as in DsviSelectArgs (ops/select.h); `proxies` and `queries`
                                               are numbers per (batch, head) */
    int64_t per_group;                      /* proxies of a group that has all its queries */
    int parts, sets, features, depths;      /* as in SelectTiles (select_score.cuh) */
    int columns_each; /* number of columns of a tile that belong to one group of queries: see tile_proxy */
    bool coarse;
};

/* Sizes of one call of select_histogram or select_lists, and where its arrays are in the workspace. A pair
 * is a (batch, head). Arrays marked `histogram` or `lists` are used by select_histogram or select_lists
 * only. */
struct SelectLayout {
    int64_t pairs, groups, lists; /* groups of queries per pair; lists = pairs * groups */
    SelectRows rows;
    SelectTiles all;     /* all spans */
    SelectTiles counted; /* the same candidates as `all`, but block and slice numbers refer only to the spans
                            that the histogram counts */
    SelectTiles lse;     /* as `all`, but a warp handles lse_tiles tiles of proxies instead of 8 groups */
    int lse_tiles;
    float4 *ranges; /* (pairs, RANGE_SLICES) for each slice of the rows: largest |feature| of a proxy and of a
                       candidate, largest squared length of a proxy and of a candidate */
    float2 *sums;   /* histogram: (pairs, sets, parts, SET_GROUPS, slices) reference, and sum of 2^(score -
                       reference) */
    /* histogram: (bin_heads, 2, BINS) how many spans each bin has, then the sum of the positions of their
     * estimates inside the bin */
    unsigned long long *bins;
    uint32_t *bits; /* lists: (lists, blocks of 32 spans) a bit of 1 means that the list contains the span */
    double *slice_mass;     /* lists: (lists, slices) sum of the estimates of the winners (spans that the
                               estimates select) */
    int *slice_count;       /* lists: (lists, slices) number of winners (spans that the estimates select) */
    SelectBest *slice_best; /* lists: (lists, slices) largest estimate in a slice; valid for lists in which no
                               span reached the threshold */
    double *mass;           /* lists: (lists) sum of the estimates of all listed spans */
    float *estimates; /* lists: estimates of the lists of one thread block; used only if stream->partials is
                         too small for them */
    size_t bytes;     /* size of the workspace */
};

/* Takes the next `count` items from the workspace that begins at `base`: sets *piece to the address of the
 * items and advances *used. If `base` is NULL, only counts the bytes and sets *piece to NULL. */
template <typename X> inline void carve_workspace(void *base, size_t *used, int64_t count, X **piece)
{
    *piece = base ? reinterpret_cast<X *>(static_cast<char *>(base) + *used) : nullptr;
    *used += ((size_t)count * sizeof(X) + 255) / 256 * 256;
}

/* Returns how many thread blocks together hold the proxies (which stand for queries) of all sets of groups.
 * The proxies of one thread block are called a row block. */
inline int64_t select_row_blocks(const SelectLayout &p, const SelectTiles &t)
{
    return p.pairs * (t.sets / WARPS);
}

/* Returns into how many slices to divide the candidate keys of `t` if `row_blocks` thread blocks hold all
 * proxies: the number of slices with the shortest estimated time. */
inline int select_slices(const DsviStream *stream, int64_t row_blocks, const SelectTiles &t)
{
    int64_t at_once = (int64_t)stream->multiprocessors * SCORE_BLOCKS, best_cost = INT64_MAX;
    int64_t units = t.blocks / t.unit, best = 1;
    int64_t slices_max = units < SLICES_MAX ? units : (int64_t)SLICES_MAX;
    for (int64_t slices = 1; slices <= slices_max; slices++) {
        int64_t each = ceil_div(units, slices) * t.unit + SLICE_COST;
        int64_t cost = ceil_div(row_blocks * slices, at_once) * each;
        if (cost < best_cost) {
            best_cost = cost;
            best = slices;
        }
    }
    return (int)best;
}

/* Returns how many half-precision numbers store the features of a proxy or candidate: one for each coarse
 * feature, three for each feature that is not coarse. */
inline int64_t select_halves(const DsviSelectArgs *args)
{
    return args->coarse ? args->features : 3 * args->features;
}

inline SelectRows select_rows(const DsviSelectArgs *args)
{
    SelectRows r;
    int64_t groups = dsvi_select_groups(args);
    r.proxies = dsvi_select_proxies(args);
    r.queries = args->queries;
    r.group = args->group;
    r.chunk = args->chunk;
    r.per_group = dsvi_select_per_group(args);
    r.parts = (int)(r.per_group < r.proxies ? r.per_group : r.proxies);
    r.sets = (int)(ceil_div(groups, LISTS_EACH) * WARPS);
    r.features = (int)args->features;
    r.coarse = args->coarse;
    r.depths = (int)ceil_div(select_halves(args), DEPTH);
    r.columns_each = select_columns_each(r.coarse, r.depths, r.parts);
    return r;
}

inline float select_factor(const DsviSelectArgs *args)
{
    return (float)(args->scale * DSVI_LOG2_E);
}

/* Returns the number of blocks of COLUMNS spans for `spans` spans, rounded up to whole segments of SEGMENT
 * blocks. */
inline int select_blocks(int64_t spans)
{
    return (int)ceil_div(spans, SEGMENT * COLUMNS) * SEGMENT;
}

inline SelectTiles select_tiles(const DsviSelectArgs *args, const SelectRows &r)
{
    SelectTiles t = {};
    int64_t layers = dsvi_select_per_span(args), spans = dsvi_select_spans(args);
    int64_t left = dsvi_select_candidates(args) - (spans - 1) * layers;
    t.spans = (int)spans;
    t.layers = (int)(layers < dsvi_select_candidates(args) ? layers : dsvi_select_candidates(args));
    t.last_layers = (int)(left < t.layers ? left : t.layers);
    t.blocks = select_blocks(spans);
    t.unit = SEGMENT;
    t.factor = select_factor(args);
    t.depths = r.depths;
    t.coarse = r.coarse;
    t.stage = r.depths < STAGE_CHUNKS ? STAGE_CHUNKS / r.depths : 1;
    t.parts = r.parts;
    t.sets = r.sets;
    return t;
}

inline int64_t select_column_chunks(const SelectLayout &p, const SelectTiles &t)
{
    return p.pairs * t.blocks * t.layers * t.depths;
}

/* Takes from the workspace the arrays that only select_histogram needs. */
inline void layout_histogram(const DsviStream *stream, const DsviSelectArgs *args, void *base, size_t *used,
                             SelectLayout *p)
{
    int64_t tiles = (int64_t)p->rows.sets * p->rows.parts;
    p->counted.slices = select_slices(stream, select_row_blocks(*p, p->counted), p->counted);
    p->lse_tiles = p->lse.coarse && p->lse.depths == 1 ? LSE_BOUNDED_TILES : LSE_TILES;
    p->lse.sets = (int)(ceil_div(tiles, p->lse_tiles * WARPS) * WARPS);
    p->lse.slices = select_slices(stream, select_row_blocks(*p, p->lse), p->lse);
    carve_workspace(base, used, p->pairs * tiles * SET_GROUPS * p->lse.slices, &p->sums);
    carve_workspace(base, used, args->bin_heads * 2 * DSVI_SELECT_BINS, &p->bins);
}

/* Takes from the workspace the arrays that only select_lists needs. */
inline void layout_lists(void *base, size_t *used, SelectLayout *p)
{
    int64_t row = (int64_t)p->all.blocks * COLUMNS * LISTS_EACH;
    carve_workspace(base, used, p->lists * p->all.blocks, &p->bits);
    carve_workspace(base, used, p->lists * p->all.slices, &p->slice_mass);
    carve_workspace(base, used, p->lists * p->all.slices, &p->slice_count);
    carve_workspace(base, used, p->lists * p->all.slices, &p->slice_best);
    carve_workspace(base, used, p->lists, &p->mass);
    carve_workspace(base, used, (size_t)row * sizeof(float) > DSVI_CUDA_PARTIALS ? row : 0, &p->estimates);
}

/* Returns the layout of the workspace that begins at `base`; if `base` is NULL, the layout is valid only for
 * its size in bytes. select_histogram and select_lists never run at the same time, so the arrays of one op
 * share memory with those of the other. */
inline SelectLayout select_layout(const DsviStream *stream, const DsviSelectArgs *args, void *base)
{
    SelectLayout p = {};
    size_t used = 0;
    uint4 *columns;
    uint2 *rows;
    float4 *terms;
    p.pairs = args->batch * args->heads;
    p.groups = dsvi_select_groups(args);
    p.lists = p.pairs * p.groups;
    p.rows = select_rows(args);
    p.all = select_tiles(args, p.rows);
    p.all.slices = select_slices(stream, select_row_blocks(p, p.all), p.all);
    int64_t tiles = p.pairs * p.rows.sets * p.rows.parts;
    carve_workspace(base, &used, select_column_chunks(p, p.all) * COLUMN_CHUNK, &columns);
    carve_workspace(base, &used, tiles * p.rows.depths * WARP, &rows);
    carve_workspace(base, &used, tiles * TERMS, &terms);
    carve_workspace(base, &used, p.pairs * RANGE_SLICES, &p.ranges);
    p.all.columns = columns;
    p.all.rows = rows;
    p.all.terms = terms;
    p.all.ranges = p.ranges;
    p.lse = p.all;
    p.counted = p.all;
    p.counted.blocks = select_blocks(DSVI_COUNTED_SPANS * dsvi_select_strata(args));
    /* The counted spans are few. Spans of several candidates are walked block by block, so that slices of
     * single blocks give more multiprocessors work. */
    p.counted.unit = p.counted.layers > 1 ? 1 : SEGMENT;
    size_t histogram = used, lists = used;
    layout_histogram(stream, args, base, &histogram, &p);
    layout_lists(base, &lists, &p);
    p.bytes = histogram > lists ? histogram : lists;
    return p;
}

/* Returns the number of the proxy (which stands for some queries of a group) in a column of a tile of a set
 * of groups, or -1 if this column has no proxy. A tile has `columns_each` columns of each of some groups; the
 * tiles of the same groups are consecutive. */
__device__ __forceinline__ int64_t tile_proxy(const SelectRows &r, int64_t set, int tile, int column)
{
    int same = r.parts / r.columns_each, of_tile = tile / same * (SET_GROUPS / r.columns_each);
    int64_t group = set * SET_GROUPS + of_tile + column / r.columns_each;
    int64_t part = tile % same * r.columns_each + column % r.columns_each;
    int64_t proxy = group * r.per_group + part;
    return part < r.per_group && proxy < r.proxies ? proxy : -1;
}

/* ---- ranges of the features, from which their scaling follows ---- */

/* Where features are read, and how they are converted to half-precision numbers ("halves"). */
struct SelectFeatures {
    const float *data; /* (pairs, count, features) */
    int64_t count;
    int features, halves;
    int rest; /* which of a feature's three half-precision numbers holds the rounding error; -1 if features
                 are coarse and stored as one number each */
    bool vectors; /* four features may be read in one access of 16 bytes */
    float factor; /* features are multiplied by this factor */
};

inline SelectFeatures select_features_of(const DsviSelectArgs *args, const float *data, int64_t count,
                                         int rest, float factor)
{
    return {data,
            count,
            (int)args->features,
            (int)select_halves(args),
            args->coarse ? -1 : rest,
            aligned(data, args->features, 16),
            factor};
}

/* Loads features [first, first + 4) of row `row`. Features past the last one become 0. */
__device__ __forceinline__ void load_four_features(const SelectFeatures &f, int64_t row, int first,
                                                   float (&x)[4])
{
    const float *from = f.data + row * f.features + first;
    if (f.vectors) {
        load(from, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x[i] = first + i < f.features ? from[i] : 0.f;
}

/* Returns to all threads the largest |feature| (x of the result) and the largest squared length of a row (y
 * of the result) in one of the RANGE_SLICES slices of the rows. `shared` has one float2 per warp. Four
 * threads handle a row, and RANGE_ROWS rows at a time. All threads of the block must call. */
__device__ __forceinline__ float2 slice_range(const SelectFeatures &f, int64_t pair, int slice,
                                              float2 *shared)
{
    float2 largest = {};
    int64_t end = f.count * (slice + 1) / RANGE_SLICES;
    uint32_t four = 0xfu << (threadIdx.x % WARP & ~3u);
    constexpr int APART = PREPARE_THREADS / 4; /* distance between two rows that one thread handles */
    for (int64_t row = f.count * slice / RANGE_SLICES + threadIdx.x / 4; row < end;
         row += RANGE_ROWS * APART) {
        float square[RANGE_ROWS] = {};
        for (int first = threadIdx.x % 4 * 4; first < f.features; first += 16) {
            float x[RANGE_ROWS][4] = {};
#pragma unroll
            for (int r = 0; r < RANGE_ROWS; r++)
                if (row + r * APART < end)
                    load_four_features(f, pair * f.count + row + r * APART, first, x[r]);
#pragma unroll
            for (int n = 0; n < 4 * RANGE_ROWS; n++) {
                largest.x = fmaxf(largest.x, fabsf(x[n / 4][n % 4]));
                square[n / 4] = fmaf(x[n / 4][n % 4], x[n / 4][n % 4], square[n / 4]);
            }
        }
#pragma unroll
        for (int r = 0; r < RANGE_ROWS; r++) {
            square[r] += __shfl_xor_sync(four, square[r], 1);
            square[r] += __shfl_xor_sync(four, square[r], 2);
            largest.y = fmaxf(largest.y, square[r]);
        }
    }
    largest = make_float2(warp_max(largest.x), warp_max(largest.y));
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = largest;
    __syncthreads();
    largest = threadIdx.x % WARP < PREPARE_THREADS / WARP ? shared[threadIdx.x % WARP]
                                                          : make_float2(0.f, 0.f);
    return make_float2(warp_max(largest.x), warp_max(largest.y));
}

/* Writes SelectLayout.ranges: the largest feature and squared length of proxies and of candidates. One
 * thread block per slice of a (batch, head). */
__global__ __launch_bounds__(PREPARE_THREADS, RANGE_BLOCKS) void ranges_kernel(SelectFeatures proxies,
                                                                               SelectFeatures candidates,
                                                                               float4 *ranges)
{
    __shared__ float2 shared[2][PREPARE_THREADS / WARP];
    int64_t pair = blockIdx.x / RANGE_SLICES;
    int slice = blockIdx.x % RANGE_SLICES;
    float2 rows = slice_range(proxies, pair, slice, shared[0]);
    float2 columns = slice_range(candidates, pair, slice, shared[1]);
    if (threadIdx.x == 0)
        ranges[blockIdx.x] = make_float4(rows.x, columns.x, rows.y, columns.y);
}

/* Returns the exponent n such that proxies times 2^n and candidates times 2^-n have about the same largest
 * feature; 0 if the largest feature of either is 0 or infinite. All lanes of the warp must call. */
__device__ __forceinline__ int balancing_power(const float4 *ranges, int64_t pair, float factor)
{
    float4 mine = ranges[pair * RANGE_SLICES + threadIdx.x % WARP];
    float rows = warp_max(mine.x) * factor, columns = warp_max(mine.y);
    if (!(rows > 0.f && columns > 0.f && rows < INFINITY && columns < INFINITY))
        return 0;
    int power = ((int)(__float_as_uint(columns) >> 23) - (int)(__float_as_uint(rows) >> 23)) / 2;
    return power > 126 ? 126 : power < -126 ? -126 : power;
}

__device__ __forceinline__ float exact_power_of_two(int power)
{
    return __uint_as_float((uint32_t)(power + 127) << 23);
}

/* ---- conversion of features to tensor-core tiles ---- */

/* Returns x rounded to half precision or, with `rest`, the difference between x and x rounded to half
 * precision, itself rounded to half precision. Numbers too large for half precision become the largest finite
 * half. */
__device__ __forceinline__ __half to_half(float x, bool rest)
{
    const float half_max = 65504.f;
    x = x > half_max ? half_max : x < -half_max ? -half_max : x;
    __half nearest = __float2half_rn(x);
    return rest ? __float2half_rn(x - __half2float(nearest)) : nearest;
}

/* Loads the features from which the half-precision numbers [first, first + 4) of row `row` are computed.
 * Features past the end of the row become 0. */
__device__ __forceinline__ void load_features(const SelectFeatures &f, int64_t row, int first, float (&x)[4])
{
    const float *from = f.data + row * f.features;
    bool four = f.vectors && f.rest < 0;
    if (four && first < f.features)
        load(from + first, x);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (!four)
            x[i] = first + i < f.halves ? from[(first + i) % f.features] : 0.f;
        else if (first >= f.features)
            x[i] = 0.f;
}

/* Returns the four features x, multiplied by f.factor and `grow`, as the half-precision numbers [first, first
 * + 4) of their row. */
__device__ __forceinline__ uint2 make_halves(const SelectFeatures &f, int first, const float (&x)[4],
                                             float grow)
{
    uint32_t half[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        bool rest = f.rest >= 0 && (first + i) / f.features == f.rest;
        half[i] = __half_as_ushort(to_half(x[i] * f.factor * grow, rest));
    }
    return make_uint2(half[0] | half[1] << 16, half[2] | half[3] << 16);
}

/* Writes chunk number `chunk` of the tiles of proxies, (pairs, sets, parts, depths). All lanes of one warp
 * must call. */
__device__ __forceinline__ void store_tile_rows(const SelectRows &r, const SelectFeatures &f,
                                                const float4 *ranges, uint32_t chunk, uint2 *rows)
{
    uint32_t depth = chunk % r.depths;
    int lane = threadIdx.x % WARP, first = depth * DEPTH + lane % 4 * 4;
    uint32_t tile = chunk / r.depths, set = tile / r.parts, pair = set / r.sets;
    int64_t proxy = tile_proxy(r, set % r.sets, tile % r.parts, lane / 4);
    float x[4] = {};
    if (proxy >= 0)
        load_features(f, (int64_t)pair * f.count + proxy, first, x);
    float grow = exact_power_of_two(balancing_power(ranges, pair, f.factor));
    rows[(int64_t)chunk * WARP + lane] = make_halves(f, first, x, grow);
}

/* Returns the lse (log of the sum of exp(scores)) of a proxy; `sums`, (slices), holds for each slice of the
 * spans a reference and the sum of 2^(score - reference). */
__device__ __forceinline__ float combine_lse(const float2 *sums, int slices)
{
    float reference = sums[0].x;
    double sum = 0;
    for (int slice = 1; slice < slices; slice++)
        reference = fmaxf(reference, sums[slice].x);
    for (int slice = 0; slice < slices; slice++)
        sum += (double)sums[slice].y * exp2((double)sums[slice].x - (double)reference);
    return (float)(((double)reference + log2(sum)) / DSVI_LOG2_E);
}

/* Returns the number to which a proxy's tensor-core products are added: log2 of the proxy's weight minus its
 * lse times log2 e. The weight is the fraction of the group's queries that the proxy stands for. */
__device__ __forceinline__ float proxy_term(const SelectRows &r, int64_t proxy, float lse)
{
    int64_t first = proxy * r.chunk, begin = first / r.group * r.group;
    int64_t of_proxy = r.queries - first < r.chunk ? r.queries - first : r.chunk;
    int64_t of_group = r.queries - begin < r.group ? r.queries - begin : r.group;
    float weight = (float)of_proxy / (float)of_group;
    return (float)(log2((double)weight) - lse * DSVI_LOG2_E);
}

/* One thread per column of a tile: computes the lse of the column's proxy from `sums` (if `sums` is NULL, lse
 * is already given), then writes the proxy's term log2(weight) - lse log2 e, to which scores are added. Terms
 * are stored in pairs, and each pair twice. */
__global__ void terms_kernel(SelectRows r, const float2 *sums, int slices, uint32_t columns, float *lse,
                             float *terms)
{
    uint32_t n = blockIdx.x * PREPARE_THREADS + threadIdx.x;
    if (n >= columns)
        return;
    uint32_t tile = n / SET_GROUPS, set = tile / r.parts, pair = set / r.sets;
    int64_t proxy = tile_proxy(r, set % r.sets, tile % r.parts, n % SET_GROUPS);
    float *to = terms + (int64_t)n / PAIR * (2 * PAIR) + n % PAIR, term = -INFINITY;
    if (proxy >= 0) {
        float *mine = lse + pair * r.proxies + proxy;
        if (sums)
            *mine = combine_lse(sums + (int64_t)n * slices, slices);
        term = proxy_term(r, proxy, *mine);
    }
    to[0] = to[PAIR] = term;
}

/* The features of all candidates, and how many candidates a span has. */
struct SelectCandidates {
    SelectFeatures features;
    float factor; /* the factor by which proxies, not candidates, are multiplied */
    int64_t per_span;
};

/* Writes chunk number `chunk` of the tiles of candidates, (pairs, blocks, layers, depths). All lanes of one
 * warp must call. */
__device__ __forceinline__ void store_tile_columns(const SelectTiles &t, const SelectCandidates &c,
                                                   uint32_t chunk)
{
    const SelectFeatures &f = c.features;
    uint32_t depth = chunk % t.depths;
    uint32_t layer = chunk / t.depths % t.layers, rest = chunk / t.depths / t.layers, pair = rest / t.blocks;
    int block = (int)(rest % t.blocks), feature = depth * DEPTH + threadIdx.x % 4 * 4;
    float x[SLOTS][4] = {}; /* all loads are issued before the first loaded value is used */
    uint2 slot[SLOTS];
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        int column = select_span(block, j);
        int64_t row = (int64_t)pair * f.count + column * c.per_span + layer;
        if (column < layer_spans(t, (int)layer))
            load_features(f, row, feature, x[j]);
    }
    float shrink = exact_power_of_two(-balancing_power(t.ranges, pair, c.factor));
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
        slot[j] = make_halves(f, feature, x[j], shrink);
    uint4 *out = const_cast<uint4 *>(t.columns) + (int64_t)chunk * COLUMN_CHUNK + threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i * WARP] = make_uint4(slot[2 * i].x, slot[2 * i + 1].x, slot[2 * i].y, slot[2 * i + 1].y);
}

/* What tiles_kernel receives. It runs after ranges_kernel, writes all chunks of the tiles of proxies and
 * candidates, and clears the histogram bins. */
struct SelectPreparation {
    SelectRows rows;
    SelectFeatures proxies;
    SelectCandidates candidates;
    SelectTiles all;
    uint32_t row_chunks, column_chunks;
    unsigned long long *bins;
    int bin_words;
};

/* Converts features to tiles: one warp per chunk of 16 features of a tile. */
__global__ __launch_bounds__(PREPARE_THREADS,
                             TILE_BLOCKS) void tiles_kernel(const __grid_constant__ SelectPreparation s)
{
    uint32_t thread = blockIdx.x * PREPARE_THREADS + threadIdx.x, chunk = thread / WARP;
    for (uint32_t n = thread; n < (uint32_t)s.bin_words; n += gridDim.x * PREPARE_THREADS)
        s.bins[n] = 0;
    if (chunk < s.row_chunks) {
        store_tile_rows(s.rows, s.proxies, s.all.ranges, chunk, const_cast<uint2 *>(s.all.rows));
        return;
    }
    if (chunk - s.row_chunks < s.column_chunks)
        store_tile_columns(s.all, s.candidates, chunk - s.row_chunks);
}

inline unsigned prepare_blocks(int64_t threads)
{
    return (unsigned)ceil_div(threads, PREPARE_THREADS);
}

inline DsvStatus select_check_workspace(const DsviSelectArgs *args, const SelectLayout &p)
{
    if (args->workspace_bytes < p.bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "select: workspace has %zu bytes, expected %zu", args->workspace_bytes,
                         p.bytes);
    return DSV_OK;
}

inline SelectPreparation select_preparation(const DsviSelectArgs *args, const SelectLayout &p, bool counts)
{
    SelectPreparation s = {};
    s.rows = p.rows;
    s.proxies = select_features_of(args, args->proxies, p.rows.proxies, 1, select_factor(args));
    s.candidates = {select_features_of(args, args->candidates, dsvi_select_candidates(args), 0, 1.f),
                    select_factor(args), dsvi_select_per_span(args)};
    s.all = p.all;
    s.row_chunks = (uint32_t)(p.pairs * p.rows.sets * p.rows.parts * p.rows.depths);
    s.column_chunks = (uint32_t)select_column_chunks(p, p.all);
    if (!counts)
        return s;
    s.bins = p.bins;
    s.bin_words = (int)args->bin_heads * 2 * DSVI_SELECT_BINS;
    return s;
}

/* Converts the proxies and all candidates to tiles in the workspace. If select_histogram calls, which passes
 * `counts`, also clears the histogram bins. */
inline DsvStatus select_fill_tiles(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p,
                                   bool counts)
{
    SelectPreparation s = select_preparation(args, p, counts);
    int64_t chunks = (int64_t)s.row_chunks + s.column_chunks;
    DSVI_CUDA_LAUNCH(stream, "select ranges", ranges_kernel, (unsigned)(p.pairs * RANGE_SLICES),
                     PREPARE_THREADS, 0, s.proxies, s.candidates.features, p.ranges);
    DSVI_CUDA_LAUNCH(stream, "select tiles", tiles_kernel, prepare_blocks(chunks * WARP), PREPARE_THREADS, 0,
                     s);
    return DSV_OK;
}

/* Allows a kernel to use `bytes` of dynamic shared memory. CUDA requires this only for more than
 * SHARED_DEFAULT bytes. */
template <typename Kernel> inline DsvStatus select_allow_shared(Kernel *kernel, size_t bytes)
{
    if (bytes > SHARED_DEFAULT)
        DSVI_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return DSV_OK;
}

/* Writes the terms log2(weight) - lse log2 e of all proxies (which stand for queries); scores are added to
 * these terms. If `sums` is NULL, the lse is read from args->lse; otherwise args->lse is first computed from
 * `sums`. */
inline DsvStatus select_fill_terms(DsviStream *stream, const DsviSelectArgs *args, const SelectLayout &p,
                                   const float2 *sums)
{
    int64_t columns = p.pairs * p.rows.sets * p.rows.parts * SET_GROUPS;
    DSVI_CUDA_LAUNCH(stream, "select terms", terms_kernel, prepare_blocks(columns), PREPARE_THREADS, 0,
                     p.rows, sums, p.lse.slices, (uint32_t)columns, args->lse,
                     reinterpret_cast<float *>(const_cast<float4 *>(p.all.terms)));
    return DSV_OK;
}

} // namespace

#endif
