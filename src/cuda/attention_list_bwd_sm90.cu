/* Attention backward over lists in bf16 on Hopper: one pass of five products for each pair of a query tile
 * and a chunk of its keys (Dao et al. 2022), products of warpgroups, keys gathered row by row, dK and dV
 * added up in memory by the copy engine.
 *
 *     S^T = K Q^T, dP^T = V dO^T      P = exp(scale S - lse), dS = P (dP - delta)
 *     dV = P^T dO, dK = dS^T Q        added to the sums of their keys (attention_list.cuh)
 *     dQ += dS K                      in registers
 * delta is the diagonal of O dO^T, made by products as dP is: where one key has all the weight, p is 1 and
 * dp - delta is 0 to the bit. How scores are rounded: attention_gather.cuh.
 *
 * One block of threads stays on a multiprocessor and takes tile after tile of queries of one group
 * (attention_schedule.cuh): Q and dO in shared memory, keys 64 at a time, a chunk, beginning in
 * its list where other blocks are in theirs: K, V and sums of a (batch, head) of 32768 keys would fill the L2
 * cache. Three warpgroups:
 *     the house       gathers O, then rows of K and V, into a ring of STAGES stages; makes dQ
 *     two sharers     take every other chunk, from its scores to its sums: P^T and dS^T, as registers hold
 *                     them, are left factors of dV and dK as they stand; dS also goes to shared memory, for
 *                     dQ. They meet only at the tensor cores.
 *
 *     Wide    128 queries    groups of more than 64: a larger one is several tiles
 *     Narrow   64 queries    groups to 64
 *
 * Time; chunk 3 comes into the stage that dQ of chunk 1 leaves, when STAGES is 2:
 *     house        K, V 1 | K, V 2 |               dQ 1 | K, V 3 | dQ 2 | K, V 4 |                  dQ 3 ...
 *     sharer 0                scores 1 | dV 1 to memory | dK 1 to memory | scores 3 | dV 3 ...
 *     sharer 1                     scores 2 | dV 2 to memory | dK 2 to memory | scores 4 | dV 4 ...
 * dV and dK are made 64 columns at a time: two sets of 32 registers, of which one is on its way to memory
 * while the other is multiplied. Each warp has a buffer of its own for its 16 keys: a row of sums goes as one
 * bulk addition, or all 16 in one where they are neighbours in memory (blocks of keys).
 *
 *     shared memory    Q, dO; STAGES x (K, V); dS of either sharer, lines of keys; sums on their way; lse and
 *                      delta of the queries; tiles, barriers, tickets
 *     DIM = 128        Wide 64 + 2 x 32 + 2 x 16 + 8 x 8.1 KiB, Narrow 32 + 3 x 32 + 2 x 8 + 8 x 8.1, of 227
 *     registers        168 of 65536 / 384: of a sharer S and dP QUERIES / 2 each, later P and dS half of that
 *                      and 2 x 32 of sums; of the house dQ, QUERIES / 64 x DIM / 2
 *     barriers         stage full; dS full and empty for either sharer; queries full and empty, delta made; a
 *                      tile told, for each that is kept. A stage and a tile have no barrier for being empty:
 *                      the house learns that from dS and delta.
 *
 * What bounds it, DIM = 128, in cycles of a multiprocessor for 128 queries and 128 keys: products 5120, reads
 * of shared memory 3300, K and V from the L2 cache 1900 at 8 TB/s over the GPU, dK and dV added up in the L2
 * cache 10000 at 3 TB/s: the additions, 1 KiB for each key of each tile. Measured on one H200 at commit
 * aefb6b1 (lab/README.md), with tiles in fixed order, 32768 tokens, 16 heads, lists of single random keys,
 * zeroing and rounding of the sums left out: 413 TFLOP/s at groups of 128 and 10 % of the keys, 359 at 5 %;
 * 197 and 185 at groups of 64. Additions alone take 90 % of that time. */
#include "cuda/attention_bwd_sm90.cuh"
#include "cuda/attention_scores_sm90.cuh"

namespace dsvi {
namespace {

template <int DIM> using Wide = Plan<DIM, 128, DIM == 128 ? 2 : 4, DIM == 128 ? 1 : 2>;
template <int DIM> using Narrow = Plan<DIM, 64, DIM == 128 ? 3 : 4, DIM == 128 ? 1 : 2>;

/* A sharer: what it knows of its block of threads. */
template <typename P> struct Sharer {
    Memory<P> memory;
    int number;      /* 0 or 1 */
    int warp, lane;  /* of the warpgroup, of the warp */
    bool issues;     /* for its warp, what goes to memory */
    bool neighbours; /* 16 rows of a warp are in one piece in the sums */
    uint32_t sent;   /* of buffers of its warp */

    __device__ uint32_t buffer() const
    {
        uint32_t buffers = memory.base + P::BUFFERS_AT + (number * 4 + warp) * P::BUFFERS * P::BUFFER_BYTES;
        return buffers + sent % P::BUFFERS * P::BUFFER_BYTES;
    }

    __device__ void say(uint32_t barrier) const
    {
        if (lane == 0)
            barrier_arrive(barrier);
    }
};

/* lse and delta of the tile's queries, by the sharer of 64 of them; beyond the last one lse is infinite and p
 * zero. O is in stage `stage`. */
template <typename P>
__device__ __forceinline__ void prepare_queries(const AttentionProblem &a, const Sharer<P> &m,
                                                const Tile &tile, int stage)
{
    int first = 64 * m.number, lane = anew(m.lane), base = anew(m.memory.base), row = 16 * m.warp + lane / 4;
    /* Neither reads those of the tile before any longer. That its queries came says so too, by way of the
     * house and its copies, where racecheck does not see it. */
    named_sync(SHARERS_BARRIER, P::SHARING);
    if (first < P::QUERIES) {
        float d[32];
        leave_unset(d);
        products_begin();
        begin_scores<P::DIM, P::QUERIES>(d, m.memory.stage_at(stage) + m.number * P::KEY_BYTES,
                                    m.memory.base + P::DOUT_AT + first * LINE_BYTES);
        products_wait<0>();
        hold(d);
        float delta[2];
        take_diagonal(delta, d, m.warp, lane);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (on_diagonal(lane))
                store_float(base + P::DELTA_AT + 4 * (first + row + 8 * half), delta[half]);
        if (lane < 16) {
            int query = first + 16 * m.warp + lane;
            const float *lse = a.lse + (int64_t)tile.pair * a.queries + tile.first;
            store_float(base + P::LSE_AT + 4 * query, query < tile.rows ? lse[query] : INFINITY);
        }
    }
    named_sync(SHARERS_BARRIER, P::SHARING);
    m.say(m.memory.barriers.delta_made());
}

/* A warp's 16 keys of a chunk in the sums. */
struct Place {
    int pair, number; /* lanes r and r + 16 have the number of key r */
    int count;        /* the first of them are there */
};

/* A buffer's rows to memory. Their numbers are handed round before one thread goes on alone, so that it has
 * nothing to wait for between one addition and the next. */
template <typename P>
__device__ __forceinline__ void send_sums(const AttentionProblem &a, const Sharer<P> &m, uint32_t buffer,
                                          const Place &place, bool dv)
{
    char *sums = anew(reinterpret_cast<char *>(sums_of(a, 0, dv, place.pair)));
    uint32_t pitch = a.pitch * 4, keys[16];
    __syncwarp();
    if (m.neighbours) {
        keys[0] = __shfl_sync(0xffffffffu, place.number, 0);
        if (m.issues && place.count > 0)
            add_bulk(sums + (uint64_t)keys[0] * pitch, buffer, min(place.count, 16) * P::ROW_BYTES);
    } else {
#pragma unroll
        for (int row = 0; row < 16; row++)
            keys[row] = __shfl_sync(0xffffffffu, place.number, row);
        if (m.issues)
#pragma unroll
            for (int row = 0; row < 16; row++)
                if (row < place.count)
                    add_bulk(sums + (uint64_t)keys[row] * pitch,
                             buffer + row / 2 * P::ROW_BYTES + row % 2 * P::ODD_ROWS, pitch);
    }
    if (m.issues)
        bulk_commit();
}

/* 64 columns of dK or dV, to the buffer; after the last ones the rows go to memory. */
template <typename P>
__device__ __forceinline__ void add_sums(const AttentionProblem &a, Sharer<P> &m, const float (&x)[32],
                                         const Place &place, bool dv, int part)
{
    uint32_t buffer = m.buffer();
    int even = m.neighbours ? 2 * P::ROW_BYTES : P::ROW_BYTES;
    int odd = m.neighbours ? P::ROW_BYTES : P::ODD_ROWS;
    if (part == 0) {
        if (m.issues)
            bulk_wait_read<P::BUFFERS - 1>();
        __syncwarp();
    }
    uint32_t to = buffer + m.lane / 8 * even + m.lane / 4 % 2 * odd + part * 256 + m.lane % 4 * 16;
#pragma unroll
    for (int n = 0; n < 2; n++, to += 4 * even)
#pragma unroll
        for (int i = 2 * n; i < 32; i += 8)
            store_four(to + 8 * (i - 2 * n), x[i], x[i + 1], x[i + 4], x[i + 5]);
    if (part + 1 < P::PARTS)
        return;
    fence_for_products();
    send_sums(a, m, buffer, place, dv);
    m.sent++;
}

/* P and dS of a chunk, left factors of its sums. */
template <typename P> struct Factors {
    uint32_t p[P::QUERIES / 4], ds[P::QUERIES / 4];
};

/* The sums of a chunk are made 64 columns at a time, in 2 PARTS steps: those of dV, then those of dK. */
template <int STEP, typename P>
__device__ __forceinline__ void begin_step(const Sharer<P> &m, float (&x)[32], const Factors<P> &factors)
{
    constexpr bool DV = STEP < P::PARTS;
    const uint32_t *left = DV ? factors.p : factors.ds;
    uint32_t rows = m.memory.base + (DV ? P::DOUT_AT : 0) + STEP % P::PARTS * P::QUERIES * LINE_BYTES;
    uint64_t right = matrix_at(rows, ATOM_BYTES, ATOM_BYTES);
    products_begin();
#pragma unroll
    for (int query = 0; query < P::QUERIES; query += 16)
        multiply_left(x, left + query / 4, right + query * LINE_BYTES / 16, query > 0);
    products_commit();
}

template <int STEP, typename P>
__device__ __forceinline__ void add_step(const AttentionProblem &a, Sharer<P> &m, const float (&x)[32],
                                         const Place &place)
{
    add_sums(a, m, x, place, STEP < P::PARTS, STEP % P::PARTS);
}

/* dV and dK of a chunk; `last`: of this sharer's in the tile. */
template <typename P>
__device__ __forceinline__ void make_sums(const AttentionProblem &a, Sharer<P> &m, const Factors<P> &factors,
                                          const Place &place, bool last)
{
    constexpr int STEPS = 2 * P::PARTS;
    float x[32], y[32];
    m.lane = anew(m.lane);
    leave_unset(x);
    leave_unset(y);
    begin_step<0>(m, x, factors);
    begin_step<1>(m, y, factors);
    if constexpr (STEPS == 4) {
        products_wait<1>();
        hold(x);
        add_step<0>(a, m, x, place);
        hold(x);
        begin_step<2>(m, x, factors);
        products_wait<1>();
        hold(y);
        add_step<1>(a, m, y, place);
        hold(y);
        begin_step<3>(m, y, factors);
    }
    products_wait<1>();
    hold(x);
    add_step<STEPS - 2>(a, m, x, place);
    products_wait<0>();
    hold(y);
    if (last)
        m.say(m.memory.barriers.queries_empty());
    add_step<STEPS - 1>(a, m, y, place);
}

/* A piece that came through the stages: `turn` counts them from the beginning. */
template <typename P> __device__ __forceinline__ Ring<P::STAGES> ring_at(uint32_t turn)
{
    return {(int)(turn % P::STAGES), turn / P::STAGES & 1};
}

/* One chunk, from its rows in a stage to its share of the sums: the `written`-th of this sharer; of its keys
 * `count` are there. */
template <typename P>
__device__ __forceinline__ void take_chunk(const AttentionProblem &a, Sharer<P> &m, Ring<P::STAGES> ring,
                                           Factors<P> *factors, int count, uint32_t written)
{
    const Barriers<P> barriers = m.memory.barriers;
    float s[P::QUERIES / 2], dp[P::QUERIES / 2];
    uint32_t stage = m.memory.stage_at(ring.stage);
    m.lane = anew(m.lane);
    barrier_wait(barriers.stage_full(ring.stage), ring.parity);
    fence_for_products();
    leave_unset(s);
    leave_unset(dp);
    products_begin();
    begin_scores<P::DIM, P::QUERIES>(s, stage, m.memory.base);
    begin_scores<P::DIM, P::QUERIES>(dp, stage + P::KEY_BYTES, m.memory.base + P::DOUT_AT);
    products_wait<1>();
    hold(s);
    weigh(s, m.memory.base + P::LSE_AT, m.warp, m.lane, a.scale, count);
    hold(s);
    products_wait<0>();
    hold(dp);
    differentiate(factors->p, factors->ds, s, dp, m.memory.base + P::DELTA_AT, m.lane);
    barrier_wait(barriers.ds_empty(m.number), written & 1 ^ 1);
    store_ds(m.memory.ds_at(m.number), factors->ds, m.warp, m.lane);
    fence_for_products();
    __syncwarp();
    m.say(barriers.ds_full(m.number));
}

/* This sharer's chunks of tile number `told`, before which `turn` chunks were dealt out: by turns, across all
 * tiles. Returns how many they are with its own. The walk stays where it was told and is looked up each time,
 * since registers are for products. */
template <typename P>
__device__ __forceinline__ uint32_t take_tile(const AttentionProblem &a, Sharer<P> &m, uint32_t told,
                                              uint32_t turn)
{
    int left = (chunks_of<P>(agreed(m.memory.tile(told)->keys)) - 1 - ((turn ^ m.number) & 1)) * P::KEYS;
    turn += (turn ^ m.number) & 1;
    if (left < 0)
        m.say(m.memory.barriers.queries_empty());
    for (; left >= 0; left -= 2 * P::KEYS, turn += 2) {
        Factors<P> factors;
        const Walk *walk = m.memory.walk(anew(told));
        int begin = chunk_begin<P>(*walk, left), count = agreed(walk->tile.keys - begin);
        Listed listed = fetch_listed(a, walk->tile, begin + min(16 * m.warp + m.lane % 16, count - 1));
        take_chunk<P>(a, m, ring_at<P>(turn + told + 1), &factors, count, turn >> 1);
        listed.run = anew(listed.run);
        walk = m.memory.walk(anew(told));
        count = agreed(walk->tile.keys - chunk_begin<P>(*walk, left));
        Place place = {walk->tile.pair, listed_key(a, listed), count - 16 * m.warp};
        make_sums<P>(a, m, factors, place, left < 2 * P::KEYS);
    }
    return turn + left / P::KEYS + 1;
}

template <typename P>
__device__ __forceinline__ void share_work(const AttentionProblem &a, const Memory<P> &memory, int number)
{
    int warp = agreed(threadIdx.x % WARPGROUP / WARP);
    bool neighbours = a.pitch == P::DIM && (!a.offsets || a.grain % 16 == 0);
    Sharer<P> m = {memory, number, warp, (int)threadIdx.x % WARP, elected(), neighbours, 0};
    uint32_t turn = 0;
    for (uint32_t told = 0;; told++) {
        barrier_wait(memory.barriers.told(told % TILES), told / TILES & 1);
        if (agreed(memory.tile(told)->keys) == 0)
            break;
        Ring<P::STAGES> ring = ring_at<P>(turn + told);
        barrier_wait(memory.barriers.queries_full(), told & 1);
        barrier_wait(memory.barriers.stage_full(ring.stage), ring.parity);
        fence_for_products();
        prepare_queries<P>(a, m, *memory.tile(told), ring.stage);
        turn = take_tile(a, m, told, turn);
    }
    if (m.issues)
        bulk_wait();
}

/* Grid: a block of threads for each multiprocessor, or tile. */
template <typename P>
__global__ void __launch_bounds__(P::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Schedule schedule)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared);
    Memory<P> memory = {shared, base, {base + P::BARRIERS_AT}};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if (threadIdx.x == 0) {
        if (base % ATOM_BYTES != 0)
            __trap();
        make_barriers(memory.barriers);
    }
    __syncthreads();
    if (warpgroup == 0)
        keep_house(a, schedule, memory);
    else
        share_work(a, memory, warpgroup - 1);
#endif
}

template <typename P> DsvStatus launch(DsvStream *stream, const AttentionProblem &problem)
{
    Schedule schedule;
    DSVI_TRY(make_schedule(stream, problem, P::QUERIES, true, &schedule));
    DSVI_CUDA_TRY(cudaFuncSetAttribute(backward_kernel<P>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       P::SHARED));
    int blocks = min(stream->multiprocessors, schedule.all);
    backward_kernel<P><<<(unsigned)blocks, P::THREADS, P::SHARED, stream->handle>>>(problem, schedule);
    DSVI_CUDA_LAUNCHED("attention backward on Hopper");
    return DSV_OK;
}

} // namespace

DsvStatus attention_backward_sm90(DsvStream *stream, const AttentionProblem &problem)
{
    bool narrow = problem.group <= Narrow<64>::QUERIES;
    if (problem.dim <= 64)
        return narrow ? launch<Narrow<64>>(stream, problem) : launch<Wide<64>>(stream, problem);
    return narrow ? launch<Narrow<128>>(stream, problem) : launch<Wide<128>>(stream, problem);
}

} // namespace dsvi
