/* How a request of selection is laid out for select_score.cuh: sizes, workspace, and the kernels that put
 * proxies and candidates into tiles. */
#ifndef DSVI_SELECT_PLAN_CUH
#define DSVI_SELECT_PLAN_CUH

#include <math.h>

#include "cuda/select_score.cuh"
#include "ops/select.h"

namespace {

using namespace dsvi;

enum {
    SCORE_BLOCKS = 2048,  /* blocks of threads that a pass is cut into at least, where it can be */
    PREPARE_THREADS = 256
};

#define DSVI_LOG2_E 1.4426950408889634

/* The largest estimate of a list in a slice of the runs. */
struct SelectBest {
    float value;
    int run;
};

/* The rows of a register tile: where each comes from. */
struct SelectRows {
    int64_t proxies, queries, group, chunk; /* as in DsvSelectArgs */
    int64_t per_group;                      /* proxies of a full group */
    int rows_each;                          /* of a tile, that a group takes */
    int parts, sets, features, depths;
};

struct SelectPlan {
    int64_t pairs, groups, lists;
    SelectRows rows;
    SelectTiles all, counted; /* over all runs; over those that the histogram counts */
    SelectTiles lse;          /* over all runs, parts as sets: each tile by itself */
    float2 *sums; /* histogram: (pairs, sets of lse, TILE_ROWS, slices) largest score, sum of powers */
    unsigned long long *bins; /* histogram: (heads, 2, BINS) counts, sums of places inside the bin */
    uint32_t *bits;           /* lists: (lists, blocks of runs, SLOTS) */
    double *slice_mass;       /* lists: (lists, slices) of the winners */
    SelectBest *slice_best;   /* lists: (lists, slices) */
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

inline int64_t select_lists_of_block(const SelectPlan &p)
{
    return WARPS * (TILE_ROWS / p.rows.rows_each);
}

/* Enough slices of the runs for SCORE_BLOCKS when `row_blocks` blocks of threads hold all rows. */
inline int select_slices(int64_t row_blocks, int64_t column_blocks)
{
    int64_t wanted = ceil_div(SCORE_BLOCKS, row_blocks > 0 ? row_blocks : 1);
    return (int)(wanted < column_blocks ? wanted : column_blocks);
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
    int64_t most = r.per_group < r.proxies ? r.per_group : r.proxies;
    r.rows_each = most <= 4 ? 4 : 8;
    r.parts = (int)ceil_div(most, r.rows_each);
    r.sets = (int)(ceil_div(groups * r.rows_each, TILE_ROWS * WARPS) * WARPS);
    r.features = (int)args->features;
    r.depths = (int)ceil_div(args->features, DEPTH);
    return r;
}

inline SelectTiles select_tiles(const DsvSelectArgs *args, const SelectRows &r, int64_t runs,
                                int64_t last_run)
{
    SelectTiles t = {};
    int64_t layers = args->grain / args->candidate_keys;
    int64_t left = dsvi_select_candidates(args) - last_run * layers;
    t.runs = (int)runs;
    t.layers = (int)(layers < dsvi_select_candidates(args) ? layers : dsvi_select_candidates(args));
    t.last_layers = (int)(left < t.layers ? left : t.layers);
    t.blocks = (int)ceil_div(runs, COLUMNS);
    t.depths = r.depths;
    t.parts = r.parts;
    t.sets = r.sets;
    return t;
}

inline int64_t select_column_floats(const SelectPlan &p, const SelectTiles &t)
{
    return p.pairs * t.blocks * t.layers * t.depths * COLUMN_FLOATS;
}

/* What only the histogram wants. */
inline void select_plan_histogram(const DsvSelectArgs *args, void *base, size_t *used, SelectPlan *p)
{
    float *columns = nullptr;
    p->counted.slices = select_slices(select_row_blocks(*p, p->counted), p->counted.blocks);
    p->lse.sets = p->rows.sets * p->rows.parts;
    p->lse.parts = 1;
    p->lse.slices = select_slices(select_row_blocks(*p, p->lse), p->lse.blocks);
    if (args->bin_skip > 0)
        select_take(base, used, select_column_floats(*p, p->counted), &columns);
    p->counted.columns = args->bin_skip > 0 ? columns : p->all.columns;
    select_take(base, used, p->pairs * p->lse.sets * TILE_ROWS * p->lse.slices, &p->sums);
    select_take(base, used, args->heads * 2 * DSV_SELECT_BINS, &p->bins);
}

/* What only the lists want. */
inline void select_plan_lists(void *base, size_t *used, SelectPlan *p)
{
    int64_t row = (int64_t)p->all.blocks * COLUMNS * select_lists_of_block(*p);
    select_take(base, used, p->lists * p->all.blocks * SLOTS, &p->bits);
    select_take(base, used, p->lists * p->all.slices, &p->slice_mass);
    select_take(base, used, p->lists * p->all.slices, &p->slice_best);
    select_take(base, used, p->lists, &p->mass);
    select_take(base, used, (size_t)row * sizeof(float) > DSVI_CUDA_PARTIALS ? row : 0, &p->estimates);
}

/* Lays the workspace out from `base` on (NULL: only counts its bytes). Histogram and lists never run at once:
 * beyond what both want they share the room. */
inline SelectPlan select_plan(const DsvSelectArgs *args, void *base)
{
    SelectPlan p = {};
    size_t used = 0;
    float *columns, *rows, *terms;
    int64_t runs = dsvi_select_runs(args), counted = dsvi_select_counted_runs(args);
    p.pairs = args->batch * args->heads;
    p.groups = dsvi_select_groups(args);
    p.lists = p.pairs * p.groups;
    p.rows = select_rows(args);
    p.all = select_tiles(args, p.rows, runs, runs - 1);
    p.all.slices = select_slices(select_row_blocks(p, p.all), p.all.blocks);
    int64_t tiles = p.pairs * p.rows.sets * p.rows.parts;
    select_take(base, &used, select_column_floats(p, p.all), &columns);
    select_take(base, &used, tiles * p.rows.depths * TILE_FLOATS, &rows);
    select_take(base, &used, tiles * 2 * TILE_ROWS, &terms);
    p.all.columns = columns;
    p.all.rows = rows;
    p.all.terms = terms;
    p.lse = p.all;
    p.counted = select_tiles(args, p.rows, counted, dsvi_select_counted(args, counted - 1));
    p.counted.rows = rows;
    p.counted.terms = terms;
    size_t histogram = used, lists = used;
    select_plan_histogram(args, base, &histogram, &p);
    select_plan_lists(base, &lists, &p);
    p.bytes = histogram > lists ? histogram : lists;
    return p;
}

/* The proxy of row i of a tile, -1 where there is none. */
__device__ __forceinline__ int64_t row_proxy(const SelectRows &r, int64_t set, int part, int i)
{
    int64_t group = set * (TILE_ROWS / r.rows_each) + i / r.rows_each;
    int64_t member = (int64_t)part * r.rows_each + i % r.rows_each, proxy = group * r.per_group + member;
    return member < r.per_group && proxy < r.proxies ? proxy : -1;
}

/* A thread an element of (pairs, sets, parts, depths, DEPTH, TILE_ROWS). */
__global__ void rows_kernel(SelectRows r, const float *proxies, float factor, int64_t elements, float *rows)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= elements)
        return;
    int i = (int)(n % TILE_ROWS);
    int64_t rest = n / TILE_ROWS;
    int feature = (int)(rest % (r.depths * DEPTH));
    rest /= r.depths * DEPTH;
    int part = (int)(rest % r.parts);
    rest /= r.parts;
    int64_t proxy = row_proxy(r, rest % r.sets, part, i), pair = rest / r.sets;
    rows[n] = proxy >= 0 && feature < r.features
                  ? proxies[(pair * r.proxies + proxy) * r.features + feature] * factor : 0.f;
}

/* A thread a row of (pairs, sets, parts, TILE_ROWS): its term and its weight. */
__global__ void terms_kernel(SelectRows r, const float *lse, int64_t elements, float *terms)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= elements)
        return;
    int i = (int)(n % TILE_ROWS);
    int64_t tile = n / TILE_ROWS, set = tile / r.parts;
    int64_t proxy = row_proxy(r, set % r.sets, (int)(tile % r.parts), i), pair = set / r.sets;
    float term = 0.f, weight = 0.f;
    if (proxy >= 0) {
        int64_t first = proxy * r.chunk, begin = first / r.group * r.group;
        int64_t of_proxy = r.queries - first < r.chunk ? r.queries - first : r.chunk;
        int64_t of_group = r.queries - begin < r.group ? r.queries - begin : r.group;
        term = -lse[pair * r.proxies + proxy] * (float)DSVI_LOG2_E;
        weight = (float)of_proxy / (float)of_group;
    }
    terms[tile * 2 * TILE_ROWS + i] = term;
    terms[tile * 2 * TILE_ROWS + TILE_ROWS + i] = weight;
}

/* dsvi_select_counted; skip 0 counts every run. */
__device__ __forceinline__ int64_t counted_run(int64_t i, int64_t skip, int64_t runs)
{
    int64_t stride = 1 + skip, run = i * stride + ((uint32_t)i * 0x9E3779B1u >> 16) % stride;
    return run < runs ? run : runs - 1;
}

/* A block of threads a layer of a block of columns, a thread a place in it. */
__global__ void columns_kernel(SelectTiles t, const float *candidates, int64_t count, int64_t per_run,
                               int features, int64_t skip, int64_t runs, float *columns)
{
    int place = threadIdx.x;
    int64_t layer = blockIdx.x % t.layers, rest = blockIdx.x / t.layers;
    int64_t block = rest % t.blocks, pair = rest / t.blocks;
    int slot = place / (COLUMNS / 2) * 4 + place % 4, lane = place % (COLUMNS / 2) / 4;
    int64_t column = block * COLUMNS + slot * WARP + lane;
    bool exists = column < t.runs - (layer >= t.last_layers);
    const float *row = candidates +
                       (pair * count + counted_run(column, skip, runs) * per_run + layer) * features;
    float *out = columns + (int64_t)blockIdx.x * t.depths * COLUMN_FLOATS + place;
    for (int r = 0; r < t.depths * DEPTH; r++)
        out[r * COLUMNS] = exists && r < features ? row[r] : 0.f;
}

/* The candidates of the runs of `t` into tiles; `skip`: of one run of each 1 + skip. */
inline DsvStatus select_put_columns(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p,
                                    const SelectTiles &t, int64_t skip)
{
    int64_t blocks = p.pairs * t.blocks * t.layers;
    columns_kernel<<<(unsigned)blocks, COLUMNS, 0, stream->handle>>>(
        t, args->candidates, dsvi_select_candidates(args), args->grain / args->candidate_keys,
        (int)args->features, skip, dsvi_select_runs(args), const_cast<float *>(t.columns));
    DSVI_CUDA_LAUNCHED("select columns");
    return DSV_OK;
}

/* The proxies and all candidates into tiles. */
inline DsvStatus select_prepare(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    int64_t elements = p.pairs * p.rows.sets * p.rows.parts * p.rows.depths * TILE_FLOATS;
    if (args->workspace_bytes < p.bytes)
        return DSVI_FAIL(DSV_E_SHAPE, "select: workspace has %zu bytes, wanted %zu", args->workspace_bytes,
                         p.bytes);
    rows_kernel<<<(unsigned)ceil_div(elements, PREPARE_THREADS), PREPARE_THREADS, 0, stream->handle>>>(
        p.rows, args->proxies, (float)(args->scale * DSVI_LOG2_E), elements, const_cast<float *>(p.all.rows));
    DSVI_CUDA_LAUNCHED("select rows");
    return select_put_columns(stream, args, p, p.all, 0);
}

/* Terms and weights of the rows from args->lse. */
inline DsvStatus select_put_terms(DsvStream *stream, const DsvSelectArgs *args, const SelectPlan &p)
{
    int64_t rows = p.pairs * p.rows.sets * p.rows.parts * TILE_ROWS;
    terms_kernel<<<(unsigned)ceil_div(rows, PREPARE_THREADS), PREPARE_THREADS, 0, stream->handle>>>(
        p.rows, args->lse, rows, const_cast<float *>(p.all.terms));
    DSVI_CUDA_LAUNCHED("select terms");
    return DSV_OK;
}

} // namespace

#endif
