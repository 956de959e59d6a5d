/* Attention backward over lists in BF16 on Hopper: one pass of five products for each pair of a query tile
 * and a chunk of its keys (Dao et al. 2022), with warpgroup products, keys gathered row by row, and dK and dV
 * added to global memory by TMA.
 *
 *     S^T = K Q^T, dP^T = V dO^T      P = exp(scale S - lse), dS = P (dP - delta)
 *     dV = P^T dO, dK = dS^T Q        added to the sums of their keys (attention_list.cuh)
 *     dQ += dS K                      in registers
 * delta is the diagonal of O dO^T, computed by the same products as dP: where one key has all the weight, P
 * is exactly 1 and dP - delta exactly 0. How scores are rounded is described in attention_gather.cuh.
 *
 * One thread block stays resident on a multiprocessor and processes one tile of queries of one group after
 * the other (attention_schedule.cuh). Q and dO are in shared memory; keys come in chunks of 64. A walk over a
 * list begins where other thread blocks are in their lists, because K, V and sums of a (batch, head) of 32768
 * keys would fill the L2 cache. There are three warpgroups:
 *     producer        gathers O, then rows of K and V, into a ring of STAGES stages; computes dQ
 *     two consumers   process every other chunk, from its scores to its sums. P^T and dS^T in registers are
 *                     left factors of dV and dK without a copy; dS also goes to shared memory, for dQ.
 *                     The two consumers share nothing but the tensor cores.
 *
 *     Wide    128 queries    groups of more than 64: a group of more than 128 has several tiles; two groups
 *                            of 64 over the union of their lists (attention_union.cuh)
 *     Narrow   64 queries    groups of up to 64
 *
 * Time runs to the right. Chunk 3 uses the stage that is free after dQ of chunk 1, when STAGES is 2:
 *     producer     K, V 1 | K, V 2 |               dQ 1 | K, V 3 | dQ 2 | K, V 4 |                  dQ 3 ...
 *     consumer 0              scores 1 | dV 1 to memory | dK 1 to memory | scores 3 | dV 3 ...
 *     consumer 1                   scores 2 | dV 2 to memory | dK 2 to memory | scores 4 | dV 4 ...
 * dV and dK are computed 64 columns at a time in two sets of 32 registers: one set is stored while the other
 * is multiplied. Each warp has its own staging buffer for its 16 keys. From there one bulk addition adds a
 * row to the sums, or 8 or all 16 rows where these are neighbours in memory (runs and blocks of keys).
 *
 *     shared memory    Q, dO; STAGES x (K, V); dS of both consumers, a line for each key; staging buffers;
 *                      lse and delta of the queries; tiles, barriers, ticket
 *     DIM = 128        Wide 64 + 2 x 32 + 2 x 16 + 8 x 8.1 KiB, Narrow 32 + 3 x 32 + 2 x 8 + 8 x 8.1, of 227
 *     registers        168 of 65536 / 384: in a consumer S and dP take QUERIES / 2 each, later P and dS half
 *                      of that and the sums 2 x 32; in the producer dQ takes QUERIES / 64 x DIM / 2
 *     barriers         stage full; dS full and dS empty for each consumer; queries full and empty; delta
 *                      made; tile full, for each slot. Stages and tiles have no barrier for being empty: the
 *                      producer infers that from the barriers of dS and delta.
 *
 * Limits at DIM = 128, in cycles of a multiprocessor for 128 queries and 128 keys: products 5120; reads of
 * shared memory 3300; K and V from the L2 cache 1900, at 8 TB/s over the whole GPU; additions to dK and dV in
 * the L2 cache 10000, at 3 TB/s. So the additions, 1 KiB for each key of each tile, are the limit. Measured
 * on one H200 at commit aefb6b1 (lab/README.md), with tiles in fixed order, 32768 tokens, 16 heads, lists of
 * single random keys, without clearing and rounding the sums: 413 TFLOP/s at groups of 128 and 10 % of the
 * keys, 359 at 5 %; 197 and 185 at groups of 64. The additions alone take 90 % of that time. */
#include "cuda/attention/attention_bwd_sm90.cuh"
#include "cuda/attention/attention_scores_sm90.cuh"

namespace dsvi {
namespace {

template <int DIM> using Wide = Config<DIM, 128, DIM == 128 ? 2 : 4, DIM == 128 ? 1 : 2>;
template <int DIM> using Narrow = Config<DIM, 64, DIM == 128 ? 3 : 4, DIM == 128 ? 1 : 2>;

/* State of one consumer warpgroup. */
template <typename C> struct Consumer {
    Memory<C> memory;
    int number;     /* 0 or 1: which of the two consumers this is */
    int warp, lane; /* index of the warp in the warpgroup, and of the lane in the warp */
    bool issues;    /* this thread issues its warp's bulk additions */
    int neighbours; /* 1, 8 or 16: so many keys of a warp's 16 have neighbouring F32 sums, so that one bulk
                     * addition covers them */
    uint32_t sent;  /* number of staging buffers whose additions the warp has issued so far */

    __device__ uint32_t buffer() const
    {
        uint32_t buffers = memory.base + C::BUFFERS_AT + (number * 4 + warp) * C::BUFFERS * C::BUFFER_BYTES;
        return buffers + sent % C::BUFFERS * C::BUFFER_BYTES;
    }

    __device__ void arrive(uint32_t barrier) const
    {
        if (lane == 0)
            barrier_arrive(barrier);
    }
};

/* Writes lse and delta of the tile's queries to shared memory; each consumer handles 64 queries. For rows
 * after the last query lse is set to infinity, so that P is 0. The output rows O are read from stage `stage`.
 */
template <typename C>
__device__ __forceinline__ void prepare_queries(const AttentionProblem &a, const Consumer<C> &m,
                                                const Tile &tile, int stage)
{
    int first = 64 * m.number, lane = anew(m.lane), base = anew(m.memory.base), row = 16 * m.warp + lane / 4;
    /* Waits until both consumers are done with lse and delta of the previous tile. A wait for the barrier
     * queries_full would be enough, through the producer and its copies, but compute-sanitizer racecheck
     * cannot infer this. */
    named_sync(CONSUMERS_BARRIER, C::CONSUMER_THREADS);
    if (first < C::QUERIES) {
        float d[32];
        leave_unset(d);
        products_begin();
        begin_scores<C::DIM, C::QUERIES>(d, m.memory.stage_at(stage) + m.number * C::KEY_BYTES,
                                         m.memory.base + C::DOUT_AT + first * LINE_BYTES);
        products_wait<0>();
        hold(d);
        float delta[2];
        take_diagonal(delta, d, m.warp, lane);
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (on_diagonal(lane))
                store_float(base + C::DELTA_AT + 4 * (first + row + 8 * half), delta[half]);
        if (lane < 16) {
            int query = first + 16 * m.warp + lane;
            const float *lse = a.lse + (int64_t)tile.pair * a.queries + tile.first;
            store_float(base + C::LSE_AT + 4 * query, query < tile.rows ? lse[query] : INFINITY);
        }
    }
    named_sync(CONSUMERS_BARRIER, C::CONSUMER_THREADS);
    m.arrive(m.memory.barriers.delta_made());
}

/* The 16 keys of a chunk for which a warp adds dK and dV to the F32 sums in global memory. */
struct Place {
    int pair, number; /* number: lanes r and r + 16 hold the index of the warp's r-th key */
    int count;        /* only the first `count` of the 16 keys exist; may be negative or more than 16 */
};

/* Issues bulk additions (TMA) of the 16 rows in a staging buffer to the F32 sums of dK or dV. One thread
 * issues them; it first receives all key numbers from the other lanes, so that it does not wait between
 * additions. */
template <typename C>
__device__ __forceinline__ void send_buffer(const AttentionProblem &a, const Consumer<C> &m, uint32_t buffer,
                                            const Place &place, bool dv)
{
    char *sums = anew(reinterpret_cast<char *>(sums_of(a, 0, dv, place.pair)));
    uint32_t pitch = a.pitch * 4, keys[16];
    __syncwarp();
    if (m.neighbours > 1) {
        keys[0] = __shfl_sync(0xffffffffu, place.number, 0);
        keys[1] = __shfl_sync(0xffffffffu, place.number, 8);
        if (m.issues && place.count > 0)
            add_bulk(sums + (uint64_t)keys[0] * pitch, buffer, min(place.count, m.neighbours) * C::ROW_BYTES);
        if (m.issues && m.neighbours == 8 && place.count > 8)
            add_bulk(sums + (uint64_t)keys[1] * pitch, buffer + 8 * C::ROW_BYTES,
                     min(place.count - 8, 8) * C::ROW_BYTES);
    } else {
#pragma unroll
        for (int row = 0; row < 16; row++)
            keys[row] = __shfl_sync(0xffffffffu, place.number, row);
        if (m.issues)
#pragma unroll
            for (int row = 0; row < 16; row++)
                if (row < place.count)
                    add_bulk(sums + (uint64_t)keys[row] * pitch,
                             buffer + row / 2 * C::ROW_BYTES + row % 2 * C::ODD_ROWS, pitch);
    }
    if (m.issues)
        bulk_commit();
}

/* Stores 64 columns of a warp's 16 rows of dK or dV in the staging buffer. After the last columns of the
 * rows, issues the additions of the buffer to the sums. */
template <typename C>
__device__ __forceinline__ void add_sums(const AttentionProblem &a, Consumer<C> &m, const float (&x)[32],
                                         const Place &place, bool dv, int part)
{
    uint32_t buffer = m.buffer();
    int even = m.neighbours > 1 ? 2 * C::ROW_BYTES : C::ROW_BYTES;
    int odd = m.neighbours > 1 ? C::ROW_BYTES : C::ODD_ROWS;
    if (part == 0) {
        if (m.issues)
            bulk_wait_read<C::BUFFERS - 1>();
        __syncwarp();
    }
    uint32_t to = buffer + m.lane / 8 * even + m.lane / 4 % 2 * odd + part * 256 + m.lane % 4 * 16;
#pragma unroll
    for (int n = 0; n < 2; n++, to += 4 * even)
#pragma unroll
        for (int i = 2 * n; i < 32; i += 8)
            store_four(to + 8 * (i - 2 * n), x[i], x[i + 1], x[i + 4], x[i + 5]);
    if (part + 1 < C::PARTS)
        return;
    fence_for_products();
    send_buffer(a, m, buffer, place, dv);
    m.sent++;
}

/* P^T and dS^T of a chunk of keys in BF16: the left factors of the products dV = P^T dO and dK = dS^T Q. */
template <typename C> struct Factors {
    uint32_t p[C::QUERIES / 4], ds[C::QUERIES / 4];
};

/* Begins the matrix product that gives 64 columns of dV or dK of a chunk of keys. Steps 0 to PARTS - 1
 * compute the columns of dV, steps PARTS to 2 PARTS - 1 those of dK. */
template <int STEP, typename C>
__device__ __forceinline__ void begin_step(const Consumer<C> &m, float (&x)[32], const Factors<C> &factors)
{
    constexpr bool DV = STEP < C::PARTS;
    const uint32_t *left = DV ? factors.p : factors.ds;
    uint32_t rows = m.memory.base + (DV ? C::DOUT_AT : 0) + STEP % C::PARTS * C::QUERIES * LINE_BYTES;
    uint64_t right = matrix_at(rows, ATOM_BYTES, ATOM_BYTES);
    products_begin();
#pragma unroll
    for (int query = 0; query < C::QUERIES; query += 16)
        multiply_left(x, left + query / 4, right + query * LINE_BYTES / 16, query > 0);
    products_commit();
}

template <int STEP, typename C>
__device__ __forceinline__ void add_step(const AttentionProblem &a, Consumer<C> &m, const float (&x)[32],
                                         const Place &place)
{
    add_sums(a, m, x, place, STEP < C::PARTS, STEP % C::PARTS);
}

/* Computes dV and dK of a chunk of keys and adds them to the F32 sums. `last` means that this consumer
 * processes no further chunk of the tile, so that the shared memory of Q and dO is released. */
template <typename C>
__device__ __forceinline__ void make_sums(const AttentionProblem &a, Consumer<C> &m,
                                          const Factors<C> &factors, const Place &place, bool last)
{
    constexpr int STEPS = 2 * C::PARTS;
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
        m.arrive(m.memory.barriers.queries_empty());
    add_step<STEPS - 1>(a, m, y, place);
}

/* Returns the stage and the barrier parity of piece number `turn` that this thread block copies. A piece is O
 * of a tile, or K and V of a chunk of keys. */
template <typename C> __device__ __forceinline__ Ring<C::STAGES> ring_at(uint32_t turn)
{
    return {(int)(turn % C::STAGES), turn / C::STAGES & 1};
}

/* Computes P and dS of a chunk of keys from the rows of K and V in a stage, and hands dS to the producer.
 * `written` is the number of chunks that this consumer has processed before; only the first `count` keys of
 * the chunk exist. `span` is, in lanes r and r + 16, the list entry of the warp's r-th key. */
template <typename C>
__device__ __forceinline__ void process_chunk(const AttentionProblem &a, Consumer<C> &m, Ring<C::STAGES> ring,
                                              Factors<C> *factors, int span, int count, uint32_t written)
{
    const Barriers<C> barriers = m.memory.barriers;
    float s[C::QUERIES / 2], dp[C::QUERIES / 2];
    uint32_t stage = m.memory.stage_at(ring.stage);
    m.lane = anew(m.lane);
    barrier_wait(barriers.stage_full(ring.stage), ring.parity);
    fence_for_products();
    leave_unset(s);
    leave_unset(dp);
    products_begin();
    begin_scores<C::DIM, C::QUERIES>(s, stage, m.memory.base);
    begin_scores<C::DIM, C::QUERIES>(dp, stage + C::KEY_BYTES, m.memory.base + C::DOUT_AT);
    products_wait<1>();
    hold(s);
    weigh(s, m.memory.base + C::LSE_AT, m.warp, m.lane, a.scale, count);
    if constexpr (C::BLOCKS == 2)
        if (a.united)
            keep_listed(s, span, m.lane);
    hold(s);
    products_wait<0>();
    hold(dp);
    differentiate(factors->p, factors->ds, s, dp, m.memory.base + C::DELTA_AT, m.lane);
    barrier_wait(barriers.ds_empty(m.number), written & 1 ^ 1);
    store_ds(m.memory.ds_at(m.number), factors->ds, m.warp, m.lane);
    fence_for_products();
    __syncwarp();
    m.arrive(barriers.ds_full(m.number));
}

/* Processes this consumer's chunks of keys of tile number `number`. The two consumers take chunks
 * alternately, across all tiles. `turn` is the number of chunks of all earlier tiles; the function returns
 * this number for the next tile. The tile's data are read from shared memory each time, because the registers
 * are full of products. */
template <typename C>
__device__ __forceinline__ uint32_t process_tile(const AttentionProblem &a, Consumer<C> &m, uint32_t number,
                                                 uint32_t turn)
{
    int left = (chunks_of<C>(agreed(m.memory.tile(number)->keys)) - 1 - ((turn ^ m.number) & 1)) * C::KEYS;
    turn += (turn ^ m.number) & 1;
    if (left < 0)
        m.arrive(m.memory.barriers.queries_empty());
    for (; left >= 0; left -= 2 * C::KEYS, turn += 2) {
        Factors<C> factors;
        const Walk *walk = m.memory.walk(anew(number));
        int begin = chunk_begin<C>(*walk, left), count = agreed(walk->tile.keys - begin);
        Listed listed = fetch_listed(a, walk->tile, begin + min(16 * m.warp + m.lane % 16, count - 1));
        process_chunk<C>(a, m, ring_at<C>(turn + number + 1), &factors, listed.span, count, turn >> 1);
        listed.span = anew(listed.span);
        walk = m.memory.walk(anew(number));
        count = agreed(walk->tile.keys - chunk_begin<C>(*walk, left));
        Place place = {walk->tile.pair, listed_key(a, listed), count - 16 * m.warp};
        make_sums<C>(a, m, factors, place, left < 2 * C::KEYS);
    }
    return turn + left / C::KEYS + 1;
}

/* The loop of consumer `number` over tiles of queries, until the producer announces a tile without keys. */
template <typename C>
__device__ __forceinline__ void consume(const AttentionProblem &a, const Memory<C> &memory, int number)
{
    int warp = agreed(threadIdx.x % WARPGROUP / WARP);
    int neighbours = a.pitch != C::DIM ? 1 : !a.offsets || a.grain % 16 == 0 ? 16 : a.grain % 8 == 0 ? 8 : 1;
    Consumer<C> m = {memory, number, warp, (int)threadIdx.x % WARP, elected(), neighbours, 0};
    uint32_t turn = 0;
    for (uint32_t tile = 0;; tile++) {
        barrier_wait(memory.barriers.tile_full(tile % TILES), tile / TILES & 1);
        if (agreed(memory.tile(tile)->keys) == 0)
            break;
        Ring<C::STAGES> ring = ring_at<C>(turn + tile);
        barrier_wait(memory.barriers.queries_full(), tile & 1);
        barrier_wait(memory.barriers.stage_full(ring.stage), ring.parity);
        fence_for_products();
        prepare_queries<C>(a, m, *memory.tile(tile), ring.stage);
        turn = process_tile(a, m, tile, turn);
    }
    if (m.issues)
        bulk_wait();
}

/* Grid: a thread block for each multiprocessor, or for each tile if these are fewer. */
template <typename C>
__global__ void __launch_bounds__(C::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Schedule schedule)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared);
    Memory<C> memory = {shared, base, {base + C::BARRIERS_AT}};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if (threadIdx.x == 0) {
        if (base % ATOM_BYTES != 0)
            __trap();
        init_barriers(memory.barriers);
    }
    __syncthreads();
    if (warpgroup == 0)
        produce(a, schedule, memory);
    else
        consume(a, memory, warpgroup - 1);
#endif
}

template <typename C>
DsvStatus launch_backward_sm90(DsviStream *stream, const AttentionProblem &problem, const Schedule &schedule)
{
    DSVI_CUDA_TRY(
        cudaFuncSetAttribute(backward_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED));
    int blocks = min(stream->multiprocessors, schedule.all);
    DSVI_CUDA_LAUNCH(stream, "attention backward on Hopper", backward_kernel<C>, (unsigned)blocks, C::THREADS,
                     C::SHARED, problem, schedule);
    return DSV_OK;
}

} // namespace

DsvStatus attention_backward_sm90(DsviStream *stream, const AttentionProblem &problem)
{
    bool narrow = problem.group <= Narrow<64>::QUERIES;
    Schedule schedule;
    DSVI_TRY(
        make_schedule(stream, problem, narrow ? Narrow<64>::QUERIES : Wide<64>::QUERIES, true, &schedule));
    auto *launch = problem.dim <= 64
                       ? (narrow ? launch_backward_sm90<Narrow<64>> : launch_backward_sm90<Wide<64>>)
                       : (narrow ? launch_backward_sm90<Narrow<128>> : launch_backward_sm90<Wide<128>>);
    return launch(stream, problem, schedule);
}

} // namespace dsvi
