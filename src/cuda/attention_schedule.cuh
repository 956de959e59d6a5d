/* In which order tiles of attention over lists are worked on where blocks of threads stay on their
 * multiprocessors: each takes the next tile when it is done with one, from a counter in global memory, so
 * that lists of any lengths keep all of them busy.
 *
 *     tile number n      of (batch, head) order[n / tiles], whose groups come as lists[] has them
 *
 * Tiles of a (batch, head) stay together, since its K and V stay in the L2 cache then. The (batch, head)s
 * with the most listed keys come first, and in each the longest lists: what is left for the end, when some
 * have nothing more to take, is short.
 *
 * A walk over a list may begin anywhere in it and go round. Where all blocks of threads are near the same
 * keys at the same time, the rows in use stay in the L2 cache; lists of unequal lengths, each walked from its
 * end, drift apart. So lists that are walked at the same time are to be of one length, as they are in order
 * of their lengths. But lists of near keys share most with those of neighbouring groups, and are put in order
 * only among the groups of two waves of tiles. A simulation of the L2 cache (lab/README.md) is where this
 * comes from, and at which distance of their middles, WANDERING, lists count as such.
 *
 * And there is a clock, the mean of how far all blocks have walked, in rounds, and a walk begins where the
 * clock is. A list shorter than the mean is passed in less than a round of the clock, and gains on it: it
 * begins behind by half of what it will gain, a longer one ahead. Places are shares of a list rather than
 * keys, so that lists which have most of their keys in one region keep together too, and nothing is searched.
 * That a walk begins where some other one is would not do: errors add up from walk to walk. */
#ifndef DSVI_ATTENTION_SCHEDULE_CUH
#define DSVI_ATTENTION_SCHEDULE_CUH

#include "cuda/attention_list.cuh"

namespace dsvi {

struct Counters {
    int taken;       /* tiles that were taken beyond the first of each block of threads */
    unsigned walked; /* the clock: 2^32 for a round; only where walks keep together */
};

struct Schedule {
    Counters *counters;
    const int *order; /* (pairs); NULL: as they are numbered */
    const int *lists; /* (pairs, groups), groups of a (batch, head); NULL: as they are numbered */
    int width;        /* queries of a tile */
    int tiles, all;   /* of a (batch, head), of all */
};

/* The number of the tile to go on with; there is none from schedule.all on. A block of threads begins with
 * that of its own number. */
__device__ __forceinline__ int take_tile(const Schedule &schedule)
{
    return (int)gridDim.x + atomicAdd(&schedule.counters->taken, 1);
}

__device__ __forceinline__ Tile tile_numbered(const AttentionProblem &a, const Schedule &schedule, int number)
{
    int place = number / schedule.tiles, pair = schedule.order ? schedule.order[place] : place;
    int tile = number - place * schedule.tiles;
    if (schedule.lists) {
        int of_group = schedule.tiles / a.groups, group = tile / of_group;
        tile += (schedule.lists[(int64_t)pair * a.groups + group] - group) * of_group;
    }
    return tile_at(a, pair, tile, schedule.width);
}

/* What a step, of `steps` that a list has, moves the clock. */
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

/* The step, of `steps`, with which a walk over a list begins when the clock is at `clock`; `share`: how long
 * the list is, the mean one being 1. */
__device__ __forceinline__ int first_step(float share, int steps, unsigned clock)
{
    float behind = fminf(fmaxf((1 - share) / 2, -0.49f), 0.49f); /* rounds */
    unsigned place = clock - (unsigned)(int)(behind * 4294967296.f);
    return (int)__umulhi(place, (unsigned)steps);
}

/* The same of the tile's list. */
__device__ __forceinline__ int first_step(const AttentionProblem &a, const Tile &tile, int steps,
                                          unsigned clock)
{
    float share = 1;
    if (a.offsets) {
        const int64_t *offset = a.offsets + (int64_t)tile.pair * a.groups;
        float listed = (float)(offset[a.groups] - offset[0]) * (float)a.grain;
        share = __fdividef((float)tile.keys * (float)a.groups, listed);
    }
    return first_step(share, steps, clock);
}

namespace {

constexpr int ORDERING_THREADS = 256;
constexpr int PAIRS_ORDERED = 1024; /* more are taken as they are numbered: their ends matter less */
constexpr int WAVES_ORDERED = 2;    /* of tiles, whose groups' lists of near keys are put in order */
constexpr float WANDERING = 0.1f;   /* of all keys, the deviation of lists' middles */

struct Ordering {
    const int64_t *offsets;
    const int32_t *runs;
    int pairs, groups, full; /* runs of all keys */
    int window;              /* groups, of lists of near keys */
    Counters *counters;
    int *order, *lists;
};

/* By one block of threads. */
__device__ void place_pair(const Ordering &o, int pair)
{
    __shared__ int place;
    const int64_t *offsets = o.offsets;
    int64_t runs = offsets[(int64_t)(pair + 1) * o.groups] - offsets[(int64_t)pair * o.groups];
    if (threadIdx.x == 0)
        place = 0;
    __syncthreads();
    for (int other = threadIdx.x; other < o.pairs; other += ORDERING_THREADS) {
        int64_t of = offsets[(int64_t)(other + 1) * o.groups] - offsets[(int64_t)other * o.groups];
        if (of > runs || (of == runs && other < pair))
            atomicAdd(&place, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        o.order[place] = pair;
}

/* Whether the middles of the lists lie apart, as those of near keys do. The whole block of threads asks. */
__device__ bool lists_wander(const Ordering &o, const int64_t *offset)
{
    __shared__ float shared[3][ORDERING_THREADS / WARP];
    float lists = 0, sum = 0, squares = 0;
    for (int group = threadIdx.x; group < o.groups; group += ORDERING_THREADS) {
        int64_t begin = offset[group], count = offset[group + 1] - begin;
        if (count == 0)
            continue;
        float middle = (float)o.runs[begin + count / 2] / (float)o.full - 0.5f;
        lists += 1, sum += middle, squares += middle * middle;
    }
    lists = block_sum(lists, shared[0]), sum = block_sum(sum, shared[1]);
    squares = block_sum(squares, shared[2]);
    float mean = sum / lists;
    return squares / lists - mean * mean > WANDERING * WANDERING;
}

/* Grid: groups, then (batch, head)s; a thread finds its group's place among those of its window. */
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
    int window = o.window < o.groups && !lists_wander(o, offset) ? o.groups : o.window;
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

/* What it takes of the stream's partials. */
static size_t schedule_bytes(const AttentionProblem &a)
{
    return sizeof(Counters) + (size_t)a.pairs * (size_t)(a.groups + 1) * sizeof(int);
}

/* Enqueues what makes the schedule of tiles of `width` queries, in the stream's partials. `groups`: their
 * order is asked for too. */
static DsvStatus make_schedule(DsvStream *stream, const AttentionProblem &problem, int width, bool groups,
                               Schedule *schedule)
{
    Counters *counters = static_cast<Counters *>(stream->partials);
    int tiles = tiles_of(problem, width), of_group = tiles / problem.groups;
    *schedule = {counters, nullptr, nullptr, width, tiles, tiles * problem.pairs};
    if (!problem.offsets || problem.pairs > PAIRS_ORDERED) {
        DSVI_CUDA_TRY(cudaMemsetAsync(counters, 0, sizeof *counters, stream->handle));
        return DSV_OK;
    }
    int *order = reinterpret_cast<int *>(counters + 1), *lists = order + problem.pairs;
    int full = (int)ceil_div(problem.keys, problem.grain);
    int window = (int)ceil_div(WAVES_ORDERED * stream->multiprocessors, of_group);
    if (!groups || schedule_bytes(problem) > DSVI_CUDA_PARTIALS)
        lists = nullptr;
    schedule->order = order;
    schedule->lists = lists;
    dim3 grid((unsigned)(lists ? ceil_div(problem.groups, ORDERING_THREADS) : 1), (unsigned)problem.pairs);
    Ordering ordering = {problem.offsets, problem.runs, problem.pairs, problem.groups, full,
                         window,          counters,     order,         lists};
    order_kernel<<<grid, ORDERING_THREADS, 0, stream->handle>>>(ordering);
    DSVI_CUDA_LAUNCHED("attention's order");
    return DSV_OK;
}

} // namespace

} // namespace dsvi

#endif
