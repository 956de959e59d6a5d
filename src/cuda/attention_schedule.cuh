/* In which order tiles of attention over lists are worked on where blocks of threads stay on their
 * multiprocessors: each takes the next tile when it is done with one, from a counter in global memory, so
 * that lists of any lengths keep all of them busy.
 *
 *     tile number n      tile n % tiles of (batch, head) order[n / tiles]
 *
 * Tiles of a (batch, head) stay together, since its K and V stay in the L2 cache then. The (batch, head)s
 * with the most listed keys come first: what is left for the end, when some have nothing more to take, is
 * short.
 *
 * A walk over a list may begin anywhere in it and go round. Where all blocks of threads are near the same
 * keys at the same time, the rows in use stay in the L2 cache; lists of unequal lengths, each walked from its
 * end, drift apart. So there is a clock, the mean of how far all blocks have walked, in rounds, and a walk
 * begins where the clock is. A list shorter than the mean is passed in less than a round of the clock, and
 * gains on it: it begins behind by half of what it will gain, a longer one ahead. Places are shares of a list
 * rather than keys, so that lists which have most of their keys in one region keep together too, and nothing
 * is searched. That a walk begins where some other one is would not do: errors add up from walk to walk. */
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
    return tile_at(a, pair, number - place * schedule.tiles, schedule.width);
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

constexpr int PAIRS_ORDERED = 1024; /* more are taken as they are numbered: their ends matter less */

/* One block: a thread for each (batch, head) finds its place among them. */
__global__ void __launch_bounds__(PAIRS_ORDERED)
    order_kernel(const int64_t *offsets, int groups, int pairs, Counters *counters, int *order)
{
    __shared__ int64_t runs[PAIRS_ORDERED];
    int pair = (int)threadIdx.x, place = 0;
    if (pair == 0)
        *counters = {0, 0};
    if (pair < pairs)
        runs[pair] = offsets[(int64_t)(pair + 1) * groups] - offsets[(int64_t)pair * groups];
    __syncthreads();
    if (pair >= pairs)
        return;
    for (int other = 0; other < pairs; other++)
        place += runs[other] > runs[pair] || (runs[other] == runs[pair] && other < pair);
    order[place] = pair;
}

/* Enqueues what makes the schedule of tiles of `width` queries, in the stream's partials. */
static DsvStatus make_schedule(DsvStream *stream, const AttentionProblem &problem, int width,
                               Schedule *schedule)
{
    Counters *counters = static_cast<Counters *>(stream->partials);
    *schedule = {counters, nullptr, width, tiles_of(problem, width), 0};
    schedule->all = schedule->tiles * problem.pairs;
    if (!problem.offsets || problem.pairs > PAIRS_ORDERED) {
        DSVI_CUDA_TRY(cudaMemsetAsync(counters, 0, sizeof *counters, stream->handle));
        return DSV_OK;
    }
    int *order = reinterpret_cast<int *>(counters + 1), threads = (int)ceil_div(problem.pairs, WARP) * WARP;
    schedule->order = order;
    order_kernel<<<1, (unsigned)threads, 0, stream->handle>>>(problem.offsets, problem.groups, problem.pairs,
                                                              counters, order);
    DSVI_CUDA_LAUNCHED("attention's order");
    return DSV_OK;
}

} // namespace

} // namespace dsvi

#endif
