/* How a request of selection is laid out for select_walk.cuh: sizes, workspace, and the kernels that put
 * proxies and candidates into tiles. */
#ifndef DSVI_SELECT_PLAN_CUH
#define DSVI_SELECT_PLAN_CUH

#include <cuda_fp16.h>
#include <math.h>

#include "cuda/select_walk.cuh"
#include "ops/select.h"

namespace {

using namespace dsvi;

enum {
    PREPARE_THREADS = 256,
    SHARED_OF_ANY = 48 << 10, /* bytes of shared memory that a kernel may have without a word */
    SLICES_MOST = 256,      /* into which a pass cuts the runs */
    SLICE_COST = 4,         /* what a block of threads costs beyond its columns, in blocks of them */
    RANGE_SLICES = WARP,    /* a lane each, where they are put together */
    RANGE_ROWS = 4,         /* that a thread asks for at once */
    RANGE_BLOCKS = 4,       /* of threads that a multiprocessor holds then */
    TILE_BLOCKS = 6,        /* likewise, of those that make tiles */
    LSE_TILES = 4,          /* of a warp: parts of sets */
    LSE_NEAR_TILES = 8,     /* where coarse features are one chunk */
    LISTS_EACH = WARPS * SET_GROUPS /* of a block of threads */
};

/* The largest estimate of a list in a slice of the runs. */
struct SelectBest {
    float value;
    int run;
};

/* Where rows come from. */
struct SelectRows {
    int64_t proxies, queries, group, chunk; /* as in DsvSelectArgs */
    int64_t per_group;                      /* proxies of a full group */
    int parts, sets, features, depths;
    int columns_each;                       /* columns that a group has in a tile: see tile_proxy */
    bool coarse;
};

struct SelectPlan {
    int64_t pairs, groups, lists;
    SelectRows rows;
    SelectTiles all;          /* over all runs */
    SelectTiles counted;      /* the same columns; blocks and slices number the runs the histogram counts */
    SelectTiles lse;          /* over all runs, a set lse_tiles tiles */
    int lse_tiles;
    float4 *ranges; /* (pairs, RANGE_SLICES) largest feature of proxies and of candidates, largest square of
                     * the length of each */
    float2 *sums; /* histogram: (pairs, sets, parts, SET_GROUPS, slices) reference, sum of powers over it */
    unsigned long long *bins; /* histogram: (bin_heads, 2, BINS) counts, sums of places inside the bin */
    uint32_t *bits;           /* lists: (lists, blocks of runs) */
    double *slice_mass;       /* lists: (lists, slices) of the winners */
    int *slice_count;         /* lists: (lists, slices) of the winners */
    SelectBest *slice_best;   /* lists: (lists, slices), of lists without winners */
    double *mass;             /* lists: (lists) of everything listed */
    float *estimates; /* lists: of some rows of blocks of threads, where partials are too small for one */
    size_t bytes;
};

/* The next piece of a workspace; `base` NULL only counts. */
template <typename X> inline void select_take(void *base, size_t *used, int64_t count, X **piece)
{
    *piece = base ? reinterpret_cast<X *>(static_cast<char *>(base) + *used) : nullptr;
    *used += ((size_t)count * sizeof(X) + 255) / 256 * 256;
}

inline int64_t select_row_blocks(const SelectPlan &p, const SelectTiles &t)
{
    return p.pairs * (t.sets / WARPS);
}

/* Into how many slices to cut the columns where `row_blocks` blocks of threads hold all rows: those with
 * which the machine is busy for the shortest time. */
inline int select_slices(const DsvStream *stream, int64_t row_blocks, int64_t column_blocks)
{
    int64_t at_once = (int64_t)stream->multiprocessors * SCORE_BLOCKS, least = INT64_MAX;
    int64_t stretches = column_blocks / STRETCH, best = 1;
    int64_t most = stretches < SLICES_MOST ? stretches : (int64_t)SLICES_MOST;
    for (int64_t slices = 1; slices <= most; slices++) {
        int64_t each = ceil_div(stretches, slices) * STRETCH + SLICE_COST;
        int64_t cost = ceil_div(row_blocks * slices, at_once) * each;
        if (cost < least) {
            least = cost;
            best = slices;
        }
    }
    return (int)best;
}

/* Of a row: coarse features are one each, others three. */
inline int64_t select_halves(const DsvSelectArgs *args)
{
    return args->coarse ? args->features : 3 * args->features;
}

inline SelectRows select_rows(const DsvSelectArgs *args)
{
    SelectRows r;
    int64_t groups = dsvi_select_groups(args);
    r.proxies = dsvi_select_proxies(args);
    r.queries = args->queries;
    r.group = args->group;
    r.chunk = args->chunk;
    r.per_group = args->group / args->chunk;
    r.parts = (int)(r.per_group < r.proxies ? r.per_group : r.proxies);
    r.sets = (int)(ceil_div(groups, LISTS_EACH) * WARPS);
    r.features = (int)args->features;
    r.coarse = args->coarse;
    r.depths = (int)ceil_div(select_halves(args), DEPTH);
    r.columns_each = select_columns_each(r.coarse, r.depths, r.parts);
    return r;
}

inline float select_factor(const DsvSelectArgs *args)
{
    return (float)(args->scale * DSVI_LOG2_E);
}

/* Blocks of columns for this many runs, rounded up to whole stretches (STRETCH blocks). */
inline int select_blocks(int64_t runs)
{
    return (int)ceil_div(runs, STRETCH * COLUMNS) * STRETCH;
}

inline SelectTiles select_tiles(const DsvSelectArgs *args, const SelectRows &r)
{
    SelectTiles t = {};
    int64_t layers = args->grain / args->candidate_keys, runs = dsvi_select_runs(args);
    int64_t left = dsvi_select_candidates(args) - (runs - 1) * layers;
    t.runs = (int)runs;
    t.layers = (int)(layers < dsvi_select_candidates(args) ? layers : dsvi_select_candidates(args));
    t.last_layers = (int)(left < t.layers ? left : t.layers);
    t.blocks = select_blocks(runs);
    t.factor = select_factor(args);
    t.depths = r.depths;
    t.coarse = r.coarse;
    t.stage = r.depths < STAGE_CHUNKS ? STAGE_CHUNKS / r.depths : 1;
    t.parts = r.parts;
    t.sets = r.sets;
    return t;
}

inline int64_t select_column_chunks(const SelectPlan &p, const SelectTiles &t)
{
    return p.pairs * t.blocks * t.layers * t.depths;
}

/* What only the histogram wants. */
inline void select_plan_histogram(const DsvStream *stream, const DsvSelectArgs *args, void *base,
                                  size_t *used, SelectPlan *p)
{
    int64_t tiles = (int64_t)p->rows.sets * p->rows.parts;
    p->counted.slices = select_slices(stream, select_row_blocks(*p, p->counted), p->counted.blocks);
    p->lse_tiles = p->lse.coarse && p->lse.depths == 1 ? LSE_NEAR_TILES : LSE_TILES;
    p->lse.sets = (int)(ceil_div(tiles, p->lse_tiles * WARPS) * WARPS);
    p->lse.slices = select_slices(stream, select_row_blocks(*p, p->lse), p->lse.blocks);
    select_take(base, used, p->pairs * tiles * SET_GROUPS * p->lse.slices, &p->sums);
    select_take(base, used, args->bin_heads * 2 * DSV_SELECT_BINS, &p->bins);
}

/* What only the lists want. */
inline void select_plan_lists(void *base, size_t *used, SelectPlan *p)
{
    int64_t row = (int64_t)p->all.blocks * COLUMNS * LISTS_EACH;
    select_take(base, used, p->lists * p->all.blocks, &p->bits);
    select_take(base, used, p->lists * p->all.slices, &p->slice_mass);
    select_take(base, used, p->lists * p->all.slices, &p->slice_count);
    select_take(base, used, p->lists * p->all.slices, &p->slice_best);
    select_take(base, used, p->lists, &p->mass);
    select_take(base, used, (size_t)row * sizeof(float) > DSVI_CUDA_PARTIALS ? row : 0, &p->estimates);
}

/* Lays the workspace out from `base` on (NULL: only counts its bytes). Histogram and lists never run at once:
 * beyond what both want they share the room. */
inline SelectPlan select_plan(const DsvStream *stream, const DsvSelectArgs *args, void *base)
{
    SelectPlan p = {};
    size_t used = 0;
    uint4 *columns;
    uint2 *rows;
    float4 *terms;
    p.pairs = args->batch * args->heads;
    p.groups = dsvi_select_groups(args);
    p.lists = p.pairs * p.groups;
    p.rows = select_rows(args);
    p.all = select_tiles(args, p.rows);
    p.all.slices = select_slices(stream, select_row_blocks(p, p.all), p.all.blocks);
    int64_t tiles = p.pairs * p.rows.sets * p.rows.parts;
    select_take(base, &used, select_column_chunks(p, p.all) * COLUMN_CHUNK, &columns);
    select_take(base, &used, tiles * p.rows.depths * WARP, &rows);
    select_take(base, &used, tiles * TERMS, &terms);
    select_take(base, &used, p.pairs * RANGE_SLICES, &p.ranges);
    p.all.columns = columns;
    p.all.rows = rows;
    p.all.terms = terms;
    p.all.ranges = p.ranges;
    p.lse = p.all;
    p.counted = p.all;
    p.counted.blocks = select_blocks(DSVI_COUNTED_RUNS * dsvi_select_strata(args));
    size_t histogram = used, lists = used;
    select_plan_histogram(stream, args, base, &histogram, &p);
    select_plan_lists(base, &lists, &p);
    p.bytes = histogram > lists ? histogram : lists;
    return p;
}

/* The proxy in a column of a tile of a set, -1 where there is none. Columns of a tile are `columns_each` of
 * each of some groups; the tiles of the same groups come one after the other. */
__device__ __forceinline__ int64_t tile_proxy(const SelectRows &r, int64_t set, int tile, int column)
{
    int same = r.parts / r.columns_each, of_tile = tile / same * (SET_GROUPS / r.columns_each);
    int64_t group = set * SET_GROUPS + of_tile + column / r.columns_each;
    int64_t part = tile % same * r.columns_each + column % r.columns_each;
    int64_t proxy = group * r.per_group + part;
    return part < r.per_group && proxy < r.proxies ? proxy : -1;
}

/* ---- ranges ---- */

/* Where features are read, and what becomes of them. */
struct SelectFeatures {
    const float *data; /* (pairs, count, features) */
    int64_t count;
    int features, halves;
    int rest;          /* which of a feature's three halves is what the others leave; -1: there is one each */
    bool vectors;      /* whether four may be read at once */
    float factor;
};

inline SelectFeatures select_source(const DsvSelectArgs *args, const float *data, int64_t count, int rest,
                                    float factor)
{
    return {data, count, (int)args->features, (int)select_halves(args), args->coarse ? -1 : rest,
            aligned(data, args->features, 16), factor};
}

/* Features [first, first + 4) of a row, zeros beyond the last. */
__device__ __forceinline__ void load_four(const SelectFeatures &f, int64_t row, int first, float (&x)[4])
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

/* The largest |x| and the largest square of a row's length in a slice of RANGE_SLICES of the rows, to all
 * threads of the block; `shared`: one for each warp. Four threads take a row, and RANGE_ROWS of them at a
 * time. */
__device__ __forceinline__ float2 slice_range(const SelectFeatures &f, int64_t pair, int slice,
                                              float2 *shared)
{
    float2 most = {};
    int64_t end = f.count * (slice + 1) / RANGE_SLICES;
    uint32_t four = 0xfu << (threadIdx.x % WARP & ~3u);
    constexpr int APART = PREPARE_THREADS / 4; /* rows of a thread */
    for (int64_t row = f.count * slice / RANGE_SLICES + threadIdx.x / 4; row < end;
         row += RANGE_ROWS * APART) {
        float square[RANGE_ROWS] = {};
        for (int first = threadIdx.x % 4 * 4; first < f.features; first += 16) {
            float x[RANGE_ROWS][4] = {};
#pragma unroll
            for (int r = 0; r < RANGE_ROWS; r++)
                if (row + r * APART < end)
                    load_four(f, pair * f.count + row + r * APART, first, x[r]);
#pragma unroll
            for (int n = 0; n < 4 * RANGE_ROWS; n++) {
                most.x = fmaxf(most.x, fabsf(x[n / 4][n % 4]));
                square[n / 4] = fmaf(x[n / 4][n % 4], x[n / 4][n % 4], square[n / 4]);
            }
        }
#pragma unroll
        for (int r = 0; r < RANGE_ROWS; r++) {
            square[r] += __shfl_xor_sync(four, square[r], 1);
            square[r] += __shfl_xor_sync(four, square[r], 2);
            most.y = fmaxf(most.y, square[r]);
        }
    }
    most = make_float2(warp_max(most.x), warp_max(most.y));
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = most;
    __syncthreads();
    most = threadIdx.x % WARP < PREPARE_THREADS / WARP ? shared[threadIdx.x % WARP] : make_float2(0.f, 0.f);
    return make_float2(warp_max(most.x), warp_max(most.y));
}

/* A block of threads a slice of a (batch, head). */
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

/* By which power of two proxies grow and candidates shrink for equal ranges. A range of 0 or infinity asks
 * for nothing. */
__device__ __forceinline__ int balance(const float4 *ranges, int64_t pair, float factor)
{
    float4 mine = ranges[pair * RANGE_SLICES + threadIdx.x % WARP];
    float rows = warp_max(mine.x) * factor, columns = warp_max(mine.y);
    if (!(rows > 0.f && columns > 0.f && rows < INFINITY && columns < INFINITY))
        return 0;
    int power = ((int)(__float_as_uint(columns) >> 23) - (int)(__float_as_uint(rows) >> 23)) / 2;
    return power > 126 ? 126 : power < -126 ? -126 : power;
}

__device__ __forceinline__ float power_of_two(int power)
{
    return __uint_as_float((uint32_t)(power + 127) << 23);
}

/* ---- tiles ---- */

/* x as a half, or what that leaves; what no half can hold becomes the largest. */
__device__ __forceinline__ __half to_half(float x, bool rest)
{
    const float most = 65504.f;
    x = x > most ? most : x < -most ? -most : x;
    __half nearest = __float2half_rn(x);
    return rest ? __float2half_rn(x - __half2float(nearest)) : nearest;
}

/* Features of halves [first, first + 4) of a row, zeros beyond the last. */
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

/* Those as halves. */
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

/* A warp's chunk of (pairs, sets, parts, depths). */
__device__ __forceinline__ void put_rows(const SelectRows &r, const SelectFeatures &f, const float4 *ranges,
                                         uint32_t chunk, uint2 *rows)
{
    uint32_t depth = chunk % r.depths;
    int lane = threadIdx.x % WARP, first = depth * DEPTH + lane % 4 * 4;
    uint32_t tile = chunk / r.depths, set = tile / r.parts, pair = set / r.sets;
    int64_t proxy = tile_proxy(r, set % r.sets, tile % r.parts, lane / 4);
    float x[4] = {};
    if (proxy >= 0)
        load_features(f, (int64_t)pair * f.count + proxy, first, x);
    float grow = power_of_two(balance(ranges, pair, f.factor));
    rows[(int64_t)chunk * WARP + lane] = make_halves(f, first, x, grow);
}

/* From sums of powers over references of all slices. */
__device__ __forceinline__ float lse_of(const float2 *sums, int slices)
{
    float most = sums[0].x;
    double sum = 0;
    for (int slice = 1; slice < slices; slice++)
        most = fmaxf(most, sums[slice].x);
    for (int slice = 0; slice < slices; slice++)
        sum += (double)sums[slice].y * exp2((double)sums[slice].x - (double)most);
    return (float)(((double)most + log2(sum)) / DSVI_LOG2_E);
}

/* log2 of a proxy's weight, less the lse. */
__device__ __forceinline__ float term_of(const SelectRows &r, int64_t proxy, float lse)
{
    int64_t first = proxy * r.chunk, begin = first / r.group * r.group;
    int64_t of_proxy = r.queries - first < r.chunk ? r.queries - first : r.chunk;
    int64_t of_group = r.queries - begin < r.group ? r.queries - begin : r.group;
    float weight = (float)of_proxy / (float)of_group;
    return (float)(log2((double)weight) - lse * DSVI_LOG2_E);
}

/* A thread a column of a tile: its proxy's term, and first its lse where there are sums (NULL: lse is given).
 * Terms stand in pairs, each pair twice. */
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
            *mine = lse_of(sums + (int64_t)n * slices, slices);
        term = term_of(r, proxy, *mine);
    }
    to[0] = to[PAIR] = term;
}

/* Candidates, and how they become runs. */
struct SelectCandidates {
    SelectFeatures features;
    float factor;    /* of proxies */
    int64_t per_run;
};

/* A warp's chunk of (pairs, blocks, layers, depths). */
__device__ __forceinline__ void put_columns(const SelectTiles &t, const SelectCandidates &c, uint32_t chunk)
{
    const SelectFeatures &f = c.features;
    uint32_t depth = chunk % t.depths;
    uint32_t layer = chunk / t.depths % t.layers, rest = chunk / t.depths / t.layers, pair = rest / t.blocks;
    int block = (int)(rest % t.blocks), feature = depth * DEPTH + threadIdx.x % 4 * 4;
    float x[SLOTS][4] = {}; /* asked for before anything waits */
    uint2 slot[SLOTS];
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        int column = select_run(block, j);
        int64_t row = (int64_t)pair * f.count + column * c.per_run + layer;
        if (column < layer_runs(t, (int)layer))
            load_features(f, row, feature, x[j]);
    }
    float shrink = power_of_two(-balance(t.ranges, pair, c.factor));
#pragma unroll
    for (int j = 0; j < SLOTS; j++)
        slot[j] = make_halves(f, feature, x[j], shrink);
    uint4 *out = const_cast<uint4 *>(t.columns) + (int64_t)chunk * COLUMN_CHUNK + threadIdx.x % WARP;
#pragma unroll
    for (int i = 0; i < 2; i++)
        out[i * WARP] = make_uint4(slot[2 * i].x, slot[2 * i + 1].x, slot[2 * i].y, slot[2 * i + 1].y);
}

/* One launch, once ranges are known: makes chunks of rows, then of columns, and clears the bins. */
struct SelectPreparation {
    SelectRows rows;
    SelectFeatures proxies;
    SelectCandidates candidates;
    SelectTiles all;
    uint32_t row_chunks, column_chunks;
    unsigned long long *bins;
    int bin_words;
};

/* A warp a chunk. */
__global__ __launch_bounds__(PREPARE_THREADS, TILE_BLOCKS) void tiles_kernel(
    const __grid_constant__ SelectPreparation s)
{
    uint32_t thread = blockIdx.x * PREPARE_THREADS + threadIdx.x, chunk = thread / WARP;
    for (uint32_t n = thread; n < (uint32_t)s.bin_words; n += gridDim.x * PREPARE_THREADS)
        s.bins[n] = 0;
    if (chunk < s.row_chunks) {
        put_rows(s.rows, s.proxies, s.all.ranges, chunk, const_cast<uint2 *>(s.all.rows));
        return;
    }
    if (chunk - s.row_chunks < s.column_chunks)
        put_columns(s.all, s.candidates, chunk - s.row_chunks);
}

inline unsigned prepare_blocks(int64_t threads)
{
    return (unsigned)ceil_div(threads, PREPARE_THREADS);
}

inline DsvStatus select_enough(const DsvSelectArgs *args, const SelectPlan &p)
{
    if (args->workspace_bytes < p.bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "select: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         p.bytes);
    return DSV_OK;
}

inline SelectPreparation select_preparation(const DsvSelectArgs *args, const SelectPlan &p, bool counts)
{
    SelectPreparation s = {};
    s.rows = p.rows;
    s.proxies = select_source(args, args->proxies, p.rows.proxies, 1, select_factor(args));
    s.candidates = {select_source(args, args->candidates, dsvi_select_candidates(args), 0, 1.f),
                    select_factor(args), args->grain / args->candidate_keys};
    s.all = p.all;
    s.row_chunks = (uint32_t)(p.pairs * p.rows.sets * p.rows.parts * p.rows.depths);
    s.column_chunks = (uint32_t)select_column_chunks(p, p.all);
    if (!counts)
        return s;
    s.bins = p.bins;
    s.bin_words = (int)args->bin_heads * 2 * DSV_SELECT_BINS;
    return s;
}

/* The proxies and all candidates into tiles; `counts`: and what a histogram begins with. */
inline DsvStatus select_prepare(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p,
                                bool counts)
{
    SelectPreparation s = select_preparation(args, p, counts);
    int64_t chunks = (int64_t)s.row_chunks + s.column_chunks;
    ranges_kernel<<<(unsigned)(p.pairs * RANGE_SLICES), PREPARE_THREADS, 0, stream->handle>>>(
        s.proxies, s.candidates.features, p.ranges);
    DSVI_CUDA_LAUNCHED("select ranges");
    tiles_kernel<<<prepare_blocks(chunks * WARP), PREPARE_THREADS, 0, stream->handle>>>(s);
    DSVI_CUDA_LAUNCHED("select tiles");
    return DSV_OK;
}

/* Lets a kernel have so much shared memory, where that is more than any may have. */
template <typename Kernel> inline DsvStatus select_allow(Kernel *kernel, size_t bytes)
{
    if (bytes > SHARED_OF_ANY)
        DSVI_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
    return DSV_OK;
}

/* Terms of the rows, from args->lse or, where there are, from the sums that make it. */
inline DsvStatus select_put_terms(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p,
                                  const float2 *sums)
{
    int64_t columns = p.pairs * p.rows.sets * p.rows.parts * SET_GROUPS;
    terms_kernel<<<prepare_blocks(columns), PREPARE_THREADS, 0, stream->handle>>>(
        p.rows, sums, p.lse.slices, (uint32_t)columns, args->lse,
        reinterpret_cast<float *>(const_cast<float4 *>(p.all.terms)));
    DSVI_CUDA_LAUNCHED("select terms");
    return DSV_OK;
}

} // namespace

#endif
