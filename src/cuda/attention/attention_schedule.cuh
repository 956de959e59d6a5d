/* The order in which persistent thread blocks of attention over lists process tiles. A thread block takes the
 * next tile from a counter in global memory when it is done with one, so that lists of any lengths keep all
 * multiprocessors busy.
 *
 *     tile number n      of (batch, head) order[n / tiles], whose groups come in the order of lists[]
 *
 * Tiles of a (batch, head) are neighbours in this order, because its K and V then stay in the L2 cache. The
 * (batch, head)s with the most listed keys come first, and within each the longest lists, so that only short
 * tiles are left at the end, when some thread blocks have no more tiles to take.
 *
 * A walk over a list may begin anywhere in the list and wrap around at its end. The rows in use stay in the
 * L2 cache where all thread blocks are near the same keys at the same time. Walks over lists of unequal
 * lengths drift apart when each begins at the end of its list. So lists that are walked at the same time
 * should have similar lengths, which sorting them by length achieves. But a list of keys near its queries has
 * most keys in common with lists of neighbouring groups; such lists are sorted only within windows of two
 * waves of tiles. Lists count as such if the standard deviation of their middles is above LOCAL_DEVIATION of
 * all keys. These rules come from a simulation of the L2 cache (lab/README.md).
 *
 * Backward walks also follow a clock: the mean distance that all thread blocks have walked, in rounds over
 * their lists. A walk begins at the clock's position. A list shorter than the mean is walked in less than one
 * round of the clock and so gains on it: such a walk begins half of its gain before the clock, and a walk
 * over a longer list begins after the clock. Positions are fractions of a list, not keys. So lists that have
 * most of their keys in one region also stay together, and nothing has to be searched. Beginning where some
 * other walk happens to be would not do, because errors add up from walk to walk. */
#ifndef DSVI_ATTENTION_SCHEDULE_CUH
#define DSVI_ATTENTION_SCHEDULE_CUH

#include "cuda/attention/attention_list.cuh"

namespace dsvi {

struct Counters {
    int taken; /* number of tiles of queries taken so far, not counting the first of each thread block */
    unsigned walked; /* the clock: mean distance that thread blocks have walked over their lists, 2^32 for one
                      * round over a list; used by backward kernels only */
};

struct Schedule {
    Counters *counters;
    const int *order; /* (pairs) the (batch, head)s in order; NULL: ascending */
    const int *lists; /* (pairs, groups) the groups of each (batch, head) in order; NULL: ascending */
    int width;        /* number of queries in a tile */
    int tiles, all;   /* tiles: number of tiles of queries of one (batch, head); all: number of all tiles */
};

/* Takes the next tile of queries and returns its number; a number of schedule.all or more means that no tile
 * is left. The first tile of a thread block is blockIdx.x, which is not taken here. */
__device__ __forceinline__ int take_tile(const Schedule &schedule)
{
    return (int)gridDim.x + atomicAdd(&schedule.counters->taken, 1);
}

__device__ __forceinline__ Tile tile_numbered(const AttentionProblem &a, const Schedule &schedule, int number)
{
    int place = number / schedule.tiles, pair = schedule.order ? schedule.order[place] : place;
    int tile = number - place * schedule.tiles;
    if (schedule.lists) {
        int tiles_per_group = schedule.tiles / a.groups, group = tile / tiles_per_group;
        tile += (schedule.lists[(int64_t)pair * a.groups + group] - group) * tiles_per_group;
    }
    return tile_at(a, pair, tile, schedule.width);
}

/* Returns by how much the clock (Counters.walked) advances when a thread block has processed one of the
 * `steps` steps of a list. */
__device__ __forceinline__ unsigned pace_of(int steps)
{
    return 0xffffffffu / ((unsigned)steps * gridDim.x);
}

__device__ __forceinline__ void move_clock(const Schedule &schedule, unsigned pace)
{
    atomicAdd(&schedule.counters->walked, pace);
}

__device__ __forceinline__ unsigned clock_of(const Schedule &schedule)
{
    return *static_cast<volatile unsigned *>(&schedule.counters->walked);
}

/* Returns the step, from 0 to `steps` - 1, with which a thread block begins to process a list when the clock
 * (Counters.walked) is at `clock`. `relative_length` is the length of the list divided by the mean length. */
__device__ __forceinline__ int first_step(float relative_length, int steps, unsigned clock)
{
    /* How far before the clock the list begins, in rounds over the list. */
    float lead = fminf(fmaxf((1 - relative_length) / 2, -0.49f), 0.49f);
    unsigned place = clock - (unsigned)(int)(lead * 4294967296.f);
    return (int)__umulhi(place, (unsigned)steps);
}

/* Returns the step with which to begin the tile's key list when Counters.walked is at `clock`. */
__device__ __forceinline__ int first_step(const AttentionProblem &a, const Tile &tile, int steps,
                                          unsigned clock)
{
    float relative_length = 1;
    if (a.offsets) {
        const int64_t *offset = a.offsets + (int64_t)tile.pair * a.groups;
        float listed = (float)(offset[a.groups] - offset[0]) * (float)a.grain;
        relative_length = __fdividef((float)tile.keys * (float)a.groups, listed);
    }
    return first_step(relative_length, steps, clock);
}

namespace {

constexpr int ORDERING_THREADS = 256;
constexpr int PAIRS_ORDERED = 1024; /* more (batch, head)s than this are not sorted: with so many, idle thread
                                     * blocks at the end cost little */
constexpr int WAVES_ORDERED = 2; /* number of waves of tiles in a window of groups; local lists are sorted by
                                  * length only within such windows */
/* Lists are local if the standard deviation of their middles exceeds this fraction of all keys. */
constexpr float LOCAL_DEVIATION = 0.1f;

struct Ordering {
    const int64_t *offsets;
    const int32_t *spans;
    int pairs, groups, full; /* full: number of spans of all keys */
    int window; /* number of groups in a window; local lists are sorted by length only within windows */
    Counters *counters;
    int *order, *lists;
};

/* Writes the (batch, head) `pair` to its place in o.order, in which (batch, head)s with more listed keys come
 * first. Called by all threads of one thread block. */
__device__ void place_pair(const Ordering &o, int pair)
{
    __shared__ int place;
    const int64_t *offsets = o.offsets;
    int64_t spans = offsets[(int64_t)(pair + 1) * o.groups] - offsets[(int64_t)pair * o.groups];
    if (threadIdx.x == 0)
        place = 0;
    __syncthreads();
    for (int other = threadIdx.x; other < o.pairs; other += ORDERING_THREADS) {
        int64_t of = offsets[(int64_t)(other + 1) * o.groups] - offsets[(int64_t)other * o.groups];
        if (of > spans || (of == spans && other < pair))
            atomicAdd(&place, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        o.order[place] = pair;
}

/* Returns whether the lists of a (batch, head) are local: their middles differ, as they do where groups list
 * keys near their queries. All threads of the block must call. */
__device__ bool lists_are_local(const Ordering &o, const int64_t *offset)
{
    __shared__ float shared[3][ORDERING_THREADS / WARP];
    float lists = 0, sum = 0, squares = 0;
    for (int group = threadIdx.x; group < o.groups; group += ORDERING_THREADS) {
        int64_t begin = offset[group], count = offset[group + 1] - begin;
        if (count == 0)
            continue;
        float middle = (float)(o.spans[begin + count / 2] & SPAN_BITS) / (float)o.full - 0.5f;
        lists += 1, sum += middle, squares += middle * middle;
    }
    lists = block_sum(lists, shared[0]), sum = block_sum(sum, shared[1]);
    squares = block_sum(squares, shared[2]);
    float mean = sum / lists;
    return squares / lists - mean * mean > LOCAL_DEVIATION * LOCAL_DEVIATION;
}

/* Sorts (batch, head)s and their groups, and clears the counters. Grid: x, groups; y, (batch, head)s. A
 * thread finds the place of its group of queries among the groups of a window (groups that are sorted
 * together). */
__global__ void __launch_bounds__(ORDERING_THREADS) order_kernel(const __grid_constant__ Ordering o)
{
    int pair = (int)blockIdx.y, group = (int)blockIdx.x * ORDERING_THREADS + (int)threadIdx.x;
    const int64_t *offset = o.offsets + (int64_t)pair * o.groups;
    if (blockIdx.x == 0)
        place_pair(o, pair);
    if (blockIdx.x == 0 && pair == 0 && threadIdx.x == 0)
        *o.counters = {0, 0};
    if (!o.lists)
        return;
    int window = o.window < o.groups && !lists_are_local(o, offset) ? o.groups : o.window;
    if (group >= o.groups)
        return;
    int first = group / window * window, end = min(first + window, o.groups), place = first;
    int64_t mine = offset[group + 1] - offset[group], begin = offset[first];
    for (int other = first; other < end; other++) {
        int64_t next = offset[other + 1], of = next - begin;
        place += of > mine || (of == mine && other < group);
        begin = next;
    }
    o.lists[(int64_t)pair * o.groups + place] = group;
}

/* Bytes that the counters and the sorted orders take in stream->partials, a scratch buffer of the stream. */
static size_t schedule_bytes(const AttentionProblem &a)
{
    return sizeof(Counters) + (size_t)a.pairs * (size_t)(a.groups + 1) * sizeof(int);
}

/* Fills *schedule for tiles of `width` queries, and enqueues the kernel that writes its arrays to the
 * stream's partials. `groups`: sort groups by the lengths of their lists too. */
static DsvStatus make_schedule(DsviStream *stream, const AttentionProblem &problem, int width, bool groups,
                               Schedule *schedule)
{
    Counters *counters = static_cast<Counters *>(stream->partials);
    int tiles = tiles_of(problem, width), tiles_per_group = tiles / problem.groups;
    *schedule = {counters, nullptr, nullptr, width, tiles, tiles * problem.pairs};
    if (!problem.offsets || problem.pairs > PAIRS_ORDERED) {
        DSVI_CUDA_TRY(cudaMemsetAsync(counters, 0, sizeof *counters, stream->handle));
        return DSV_OK;
    }
    int *order = reinterpret_cast<int *>(counters + 1), *lists = order + problem.pairs;
    int full = (int)ceil_div(problem.keys, problem.grain);
    int window = (int)ceil_div(WAVES_ORDERED * stream->multiprocessors, tiles_per_group);
    if (!groups || schedule_bytes(problem) > DSVI_CUDA_PARTIALS)
        lists = nullptr;
    schedule->order = order;
    schedule->lists = lists;
    dim3 grid((unsigned)(lists ? ceil_div(problem.groups, ORDERING_THREADS) : 1), (unsigned)problem.pairs);
    Ordering ordering = {problem.offsets, problem.spans, problem.pairs, problem.groups, full,
                         window,          counters,      order,         lists};
    DSVI_CUDA_LAUNCH(stream, "attention: order of tiles", order_kernel, grid, ORDERING_THREADS, 0, ordering);
    return DSV_OK;
}

} // namespace

} // namespace dsvi

#endif
