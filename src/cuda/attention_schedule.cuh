/* In which order tiles of attention over lists are worked on where blocks of threads stay on their
 * multiprocessors: each takes the next tile when it is done with one, from a counter in global memory, so
 * that lists of any lengths keep all of them busy.
 *
 *     tile number n      tile n % tiles of (batch, head) order[n / tiles]
 *
 * Tiles of a (batch, head) stay together, since its K and V stay in the L2 cache then. The (batch, head)s
 * with the most listed keys come first: what is left for the end, when some have nothing more to take, is
 * short. */
#ifndef DSVI_ATTENTION_SCHEDULE_CUH
#define DSVI_ATTENTION_SCHEDULE_CUH

#include "cuda/attention_list.cuh"

namespace dsvi {

struct Schedule {
    int *taken;       /* tiles that were taken beyond the first of each block of threads */
    const int *order; /* (pairs); NULL: as they are numbered */
    int width;        /* queries of a tile */
    int tiles, all;   /* of a (batch, head), of all */
};

/* The number of the tile to go on with; there is none from schedule.all on. A block of threads begins with
 * that of its own number. */
__device__ __forceinline__ int take_tile(const Schedule &schedule)
{
    return (int)gridDim.x + atomicAdd(schedule.taken, 1);
}

__device__ __forceinline__ Tile tile_numbered(const AttentionProblem &a, const Schedule &schedule, int number)
{
    int place = number / schedule.tiles, pair = schedule.order ? schedule.order[place] : place;
    return tile_at(a, pair, number - place * schedule.tiles, schedule.width);
}

namespace {

constexpr int PAIRS_ORDERED = 1024; /* more are taken as they are numbered: their ends matter less */

/* One block: a thread for each (batch, head) finds its place among them. */
__global__ void __launch_bounds__(PAIRS_ORDERED)
    order_kernel(const int64_t *offsets, int groups, int pairs, int *taken, int *order)
{
    __shared__ int64_t runs[PAIRS_ORDERED];
    int pair = (int)threadIdx.x, place = 0;
    if (pair == 0)
        *taken = 0;
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
    int *partials = static_cast<int *>(stream->partials);
    *schedule = {partials, nullptr, width, tiles_of(problem, width), 0};
    schedule->all = schedule->tiles * problem.pairs;
    if (!problem.offsets || problem.pairs > PAIRS_ORDERED) {
        DSVI_CUDA_TRY(cudaMemsetAsync(partials, 0, sizeof *partials, stream->handle));
        return DSV_OK;
    }
    int *order = partials + 1, threads = (int)ceil_div(problem.pairs, WARP) * WARP;
    schedule->order = order;
    order_kernel<<<1, (unsigned)threads, 0, stream->handle>>>(problem.offsets, problem.groups, problem.pairs,
                                                              partials, order);
    DSVI_CUDA_LAUNCHED("attention's order");
    return DSV_OK;
}

} // namespace

} // namespace dsvi

#endif
