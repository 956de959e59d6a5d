/* Attention backward over lists for Hopper, D = 128, bf16.
 *
 * A persistent block of threads processes one tile after another. A tile is QUERIES queries of one group,
 * whose Q and dO are in shared memory, with the list of keys, 64 at a time (a chunk). Three warpgroups:
 *     0       gathers rows of K and V into a ring of stages; dQ += dS K, in 128 registers (bwd_keep.cuh)
 *     1, 2    process alternate chunks: S^T = K Q^T and dP^T = V dO^T, then P^T and dS^T in registers, in
 *             the layout that the left factors of dV = P^T dO and dK = dS^T Q need. dS is also stored to
 *             shared memory, for dQ
 * One warpgroup processes a chunk from beginning to end, so warpgroups 1 and 2 share nothing but the tensor
 * cores.
 *
 * A chunk's dK and dV are added to the sums in memory, half the columns at a time: two sets of 32 registers,
 * one being added while products fill the other. These additions bound the time: each key sends 1 KiB to the
 * L2 cache, twice the size of its K and V.
 *
 *     shared memory   Q, dO; STAGES x (K, V); dS of either warpgroup, one line per key; buffers of
 *                     each warp for bulk additions; lse and delta of the queries; barriers
 *     delta           the diagonal of O dO^T, computed by the same products as dP. If one key has all the
 *                     weight, p is 1 and dp - delta is exactly 0. O is loaded into a stage before the keys.
 *
 * fwd_kernel.cuh explains the memory order of cp.async and the async proxy. dS is written with ordinary
 * stores, which the writing threads fence. */
#ifndef LAB_BWD_KERNEL_CUH
#define LAB_BWD_KERNEL_CUH

#include <math.h>

#include "bwd_keep.cuh"

/* State of a consumer warpgroup (1 or 2). */
template <typename P> struct Consumer {
    uint32_t base;
    BackwardBarriers<P> barriers;
    int number;       /* of the consumer, 0 or 1 */
    int warp, lane;   /* in the warpgroup */
    bool issues;      /* this lane issues its warp's bulk additions */
    uint32_t buffers; /* shared memory of this warp's buffers */
    int buffer;       /* the buffer to use next */

    __device__ uint32_t stage_at(int stage) const { return base + P::STAGES_AT + stage * P::STAGE_BYTES; }
    __device__ void tell(uint32_t barrier) const
    {
        if (lane == 0)
            barrier_arrive(barrier);
    }
};

/* Issues d = A B^T, summed over D, without waiting. A has 64 lines and B has LINES, each stored as two
 * matrices of half the columns. */
template <int LINES, int N> __device__ __forceinline__ void begin_rows(float (&d)[N], uint32_t a, uint32_t b)
{
    uint64_t left = matrix_at(a, ATOM_BYTES, ATOM_BYTES), right = matrix_at(b, ATOM_BYTES, ATOM_BYTES);
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t half = k / HALF_COLUMNS * LINE_BYTES, inside = k % HALF_COLUMNS * 2;
        multiply(d, left + (half * 64 + inside) / 16, right + (half * LINES + inside) / 16, k > 0);
    }
    products_commit();
}

/* Issues d = A B for half the columns of B, a chunk's dV or dK, without waiting. */
template <typename P>
__device__ __forceinline__ void begin_sums(float (&d)[32], const uint32_t (&a)[P::QUERIES / 4], uint32_t rows,
                                           int half)
{
    uint64_t right = matrix_at(rows + half * P::QUERIES * LINE_BYTES, ATOM_BYTES, ATOM_BYTES);
    products_begin();
#pragma unroll
    for (int query = 0; query < P::QUERIES; query += 16)
        multiply_left(d, a + query / 4, right + query * LINE_BYTES / 16, query > 0);
    products_commit();
}

/* Loads lse and computes delta of the tile's queries. Rows after the last query get an infinite lse, so that
 * p is zero. */
template <typename P>
__device__ __forceinline__ void prepare_queries(const BackwardProblem &a, const Consumer<P> &m,
                                                const Tile &tile, int stage)
{
    int first = 64 * m.number, lane = anew(m.lane), base = anew(m.base), row = 16 * m.warp + lane / 4;
    if (first < P::QUERIES) {
        float d[32];
        leave_unset(d);
        products_begin();
        begin_rows<P::QUERIES>(d, m.stage_at(stage) + m.number * P::KEY_BYTES,
                               m.base + P::DOUT_AT + first * LINE_BYTES);
        products_wait<0>();
        hold(d);
        float delta[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (row + i / 2 % 2 * 8 == i / 4 * 8 + lane % 4 * 2 + i % 2)
                delta[i / 2 % 2] = d[i];
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (lane % 4 == lane / 8)
                store_float(base + P::DELTA_AT + 4 * (first + row + 8 * half), delta[half]);
        if (lane < 16) {
            int query = first + 16 * m.warp + lane;
            const float *lse = a.forward.lse + (int64_t)tile.head * a.forward.queries + tile.first;
            store_float(base + P::LSE_AT + 4 * query, query < tile.rows ? lse[query] : INFINITY);
        }
    }
    named_sync(2, P::MULTIPLYING);
    m.tell(m.barriers.delta_made());
}

/* Replaces scores by weights p, rounded as in the forward pass. */
template <typename P>
__device__ __forceinline__ void weigh(float (&s)[P::QUERIES / 2], const Consumer<P> &m, float scale,
                                      int count)
{
    uint32_t from = m.base + P::LSE_AT + m.lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < P::QUERIES / 8; j++) {
        float2 lse = load_two(from + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i++)
            s[i] = power_of_two((__fmul_rn(s[i], scale) - (i % 2 ? lse.y : lse.x)) * 1.44269504088896f);
    }
    if (count >= P::KEYS)
        return;
    int row = 16 * m.warp + m.lane / 4;
#pragma unroll
    for (int i = 0; i < P::QUERIES / 2; i++)
        s[i] = row + i / 2 % 2 * 8 < count ? s[i] : 0;
}

/* Replaces dp by ds, and packs p and ds to bf16. */
template <typename P>
__device__ __forceinline__ void differentiate(uint32_t (&p)[P::QUERIES / 4], uint32_t (&ds)[P::QUERIES / 4],
                                              const float (&weight)[P::QUERIES / 2],
                                              const float (&dp)[P::QUERIES / 2], const Consumer<P> &m)
{
    uint32_t from = m.base + P::DELTA_AT + m.lane % 4 * 8;
#pragma unroll
    for (int j = 0; j < P::QUERIES / 8; j++) {
        float2 delta = load_two(from + 32 * j);
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i += 2) {
            p[i / 2] = pair_bits(weight[i], weight[i + 1]);
            ds[i / 2] = pair_bits(weight[i] * (dp[i] - delta.x), weight[i + 1] * (dp[i + 1] - delta.y));
        }
    }
    hold(p);
    hold(ds);
}

/* Stores dS to shared memory, one line of 64 queries per key. */
template <typename P>
__device__ __forceinline__ void store_ds(const Consumer<P> &m, const uint32_t (&ds)[P::QUERIES / 4])
{
    int key = 16 * m.warp + m.lane / 8 % 2 * 8 + m.lane % 8;
    uint32_t line = m.base + P::DS_AT + m.number * P::DS_BYTES + key * LINE_BYTES;
#pragma unroll
    for (int n = 0; n < P::QUERIES / 16; n++) {
        int chunk = 2 * n + m.lane / 16;
        store_matrices(line + n / 4 * (P::KEYS * LINE_BYTES) + (chunk % 8 ^ m.lane % 8) * 16, &ds[4 * n]);
    }
}

/* Offset of row r of 16 in a buffer. Lanes that store at the same time use different banks. */
template <typename P> __device__ __forceinline__ uint32_t stage_row(int r)
{
    return r / 2 * P::ROW_BYTES + r % 2 * (8 * P::ROW_BYTES + 64);
}

/* Adds half the columns of dK or dV of a warp's 16 keys to their sums. Lanes r and r + 16 have the number of
 * key r. Only the first `count` keys are added. */
template <typename P>
__device__ __forceinline__ void add_by_lanes(const Consumer<P> &m, const float (&x)[32], float *sums,
                                             int half, int number, int count)
{
#pragma unroll
    for (int n = 0; n < 2; n++) {
        int row = 8 * n + m.lane / 4, key = __shfl_sync(0xffffffffu, number, row);
        float *to = sums + (int64_t)key * DIM + half * HALF_COLUMNS + m.lane % 4 * 4;
        if (row >= count)
            continue;
#pragma unroll
        for (int i = 2 * n; i < 32; i += 8)
            add_four(to + 2 * (i - 2 * n), x[i], x[i + 1], x[i + 4], x[i + 5]);
    }
}

/* Like add_by_lanes, with bulk additions by TMA. With COLUMNS = 128 both halves are added after the second.
 */
template <typename P>
__device__ __forceinline__ void add_in_bulk(Consumer<P> &m, const float (&x)[32], float *sums, int half,
                                            int number, int count)
{
    constexpr bool WHOLE = P::COLUMNS == DIM;
    uint32_t buffer = m.buffers + m.buffer * P::BUFFER_BYTES;
    if (!WHOLE || half == 0) {
        if (m.issues)
            bulk_wait_read<P::BUFFERS - 1>();
        __syncwarp();
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
        uint32_t to = buffer + stage_row<P>(8 * n + m.lane / 4) + (WHOLE ? half * 256 : 0) + m.lane % 4 * 16;
#pragma unroll
        for (int i = 2 * n; i < 32; i += 8)
            store_four(to + 8 * (i - 2 * n), x[i], x[i + 1], x[i + 4], x[i + 5]);
    }
    if (WHOLE && half == 0)
        return;
    fence_for_products();
    __syncwarp();
    sums += WHOLE ? 0 : half * HALF_COLUMNS;
#pragma unroll
    for (int row = 0; row < 16; row++) {
        int key = __shfl_sync(0xffffffffu, number, row);
        if (m.issues && row < count)
            add_bulk(sums + (int64_t)key * DIM, buffer + stage_row<P>(row), P::ROW_BYTES);
    }
    if (m.issues)
        bulk_commit();
    m.buffer = m.buffer + 1 == P::BUFFERS ? 0 : m.buffer + 1;
}

/* The rows of the sums to which a chunk is added. */
struct Sums {
    float *dk;         /* of the head */
    int number, count; /* as in add_by_lanes */
};

/* Uses the results in kernels that do not add them; ptxas would otherwise remove the products. */
__device__ __forceinline__ void look_at(const float (&x)[32], float *sums)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 32; i++)
        sum += x[i];
    if (sum == 12345.678f)
        *sums = sum;
}

template <typename P, Work WORK>
__device__ __forceinline__ void add(const BackwardProblem &a, Consumer<P> &m, const float (&x)[32],
                                    const Sums &to, bool dv, int half)
{
    float *sums = to.dk + (dv ? (int64_t)a.forward.heads * a.keys * DIM : 0);
    if (WORK == PRODUCTS_ONLY) {
        look_at(x, sums);
        return;
    }
    if (P::ADDING == BY_LANES)
        add_by_lanes(m, x, sums, half, to.number, to.count);
    else
        add_in_bulk(m, x, sums, half, to.number, to.count);
}

/* Computes dV and dK of a chunk and adds them to the sums. */
template <typename P, Work WORK>
__device__ __forceinline__ void make_sums(const BackwardProblem &a, Consumer<P> &m,
                                          const uint32_t (&p)[P::QUERIES / 4],
                                          const uint32_t (&ds)[P::QUERIES / 4], const Sums &to, bool last)
{
    float x[32], y[32];
    m.lane = anew(m.lane);
    leave_unset(x);
    leave_unset(y);
    begin_sums<P>(x, p, m.base + P::DOUT_AT, 0);
    begin_sums<P>(y, p, m.base + P::DOUT_AT, 1);
    products_wait<1>();
    hold(x);
    add<P, WORK>(a, m, x, to, true, 0);
    hold(x);
    begin_sums<P>(x, ds, m.base, 0);
    products_wait<1>();
    hold(y);
    add<P, WORK>(a, m, y, to, true, 1);
    hold(y);
    begin_sums<P>(y, ds, m.base, 1);
    products_wait<1>();
    hold(x);
    add<P, WORK>(a, m, x, to, false, 0);
    products_wait<0>();
    hold(y);
    if (last)
        m.tell(m.barriers.queries_empty());
    add<P, WORK>(a, m, y, to, false, 1);
}

/* Processes one chunk, from its rows in a stage to the additions. `written` counts the dS stored so far. */
template <typename P, Work WORK>
__device__ __forceinline__ void take_chunk(const BackwardProblem &a, Consumer<P> &m, Ring ring, int count,
                                           const Sums &to, uint32_t written, bool last)
{
    float s[P::QUERIES / 2], dp[P::QUERIES / 2];
    uint32_t p[P::QUERIES / 4], ds[P::QUERIES / 4];
    uint32_t stage = m.stage_at(ring.stage);
    m.lane = anew(m.lane);
    barrier_wait(m.barriers.stage_full(ring.stage), ring.parity);
    fence_for_products();
    leave_unset(s);
    leave_unset(dp);
    products_begin();
    begin_rows<P::QUERIES>(s, stage, m.base);
    begin_rows<P::QUERIES>(dp, stage + P::KEY_BYTES, m.base + P::DOUT_AT);
    products_wait<1>();
    hold(s);
    weigh<P>(s, m, a.forward.scale, count);
    hold(s);
    products_wait<0>();
    hold(dp);
    differentiate<P>(p, ds, s, dp, m);
    barrier_wait(m.barriers.ds_empty(m.number), written & 1 ^ 1);
    store_ds<P>(m, ds);
    fence_for_products();
    __syncwarp();
    m.tell(m.barriers.ds_full(m.number));
    make_sums<P, WORK>(a, m, p, ds, to, last);
}

/* SUMS_ONLY: adds zeros and computes nothing. */
template <typename P>
__device__ __forceinline__ void add_zeros(const BackwardProblem &a, Consumer<P> &m, const Sums &to)
{
    float x[32] = {};
#pragma unroll 1
    for (int n = 0; n < 4; n++)
        add<P, SUMS_ONLY>(a, m, x, to, n < 2, n % 2);
}

/* Ring position of the n-th item that went through the stages. */
template <typename P> __device__ __forceinline__ Ring ring_at(uint32_t n)
{
    return {(int)(n % P::STAGES), n / P::STAGES & 1};
}

/* The two consumers alternate chunks across all tiles. `turn` counts the chunks so far, `items` the chunks
 * and the rows of O. */
template <typename P, Work WORK>
__device__ __forceinline__ void share_work(const BackwardProblem &a, uint32_t base, int number)
{
    const Problem &f = a.forward;
    int warp = threadIdx.x % WARPGROUP / WARP;
    uint32_t buffers = base + P::BUFFERS_AT + (number * 4 + warp) * P::BUFFERS * P::BUFFER_BYTES;
    Consumer<P> m = {base, {base + P::BARRIERS_AT}, number, warp, (int)threadIdx.x % WARP, elected(), buffers,
                     0};
    uint32_t items = 0, turn = 0;
    for (int tile_number = blockIdx.x; tile_number < tiles_of<P>(f); tile_number += gridDim.x) {
        Tile tile = tile_at<P>(f, tile_number);
        int chunks = chunks_of<P>(tile), first = (turn ^ number) & 1;
        if (chunks == 0)
            continue;
        if (WORK != SUMS_ONLY) {
            Ring ring = ring_at<P>(items);
            barrier_wait(m.barriers.queries_full(), items - turn & 1);
            barrier_wait(m.barriers.stage_full(ring.stage), ring.parity);
            fence_for_products();
            prepare_queries<P>(a, m, tile, ring.stage);
        }
        if (first >= chunks)
            m.tell(m.barriers.queries_empty());
        for (int chunk = first; chunk < chunks; chunk += 2) {
            int from = chunk_at(a, tile_number, chunk, chunks) * P::KEYS;
            int count = tile.keys - from, row = 16 * warp + m.lane % 16;
            Sums to = {a.sums + (int64_t)tile.head * a.keys * DIM, tile.list[from + min(row, count - 1)],
                       count - 16 * warp};
            if (WORK == SUMS_ONLY)
                add_zeros<P>(a, m, to);
            else
                take_chunk<P, WORK>(a, m, ring_at<P>(items + 1 + chunk), count, to, turn + chunk >> 1,
                                    chunk + 2 >= chunks);
        }
        items += 1 + chunks;
        turn += chunks;
    }
    if (m.issues)
        bulk_wait();
}

template <typename P, Work WORK>
__global__ void __launch_bounds__(P::THREADS, 1) backward(const __grid_constant__ BackwardProblem a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared);
    BackwardBarriers<P> barriers = {base + P::BARRIERS_AT};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if (threadIdx.x == 0) {
        if (base % ATOM_BYTES != 0)
            __trap();
        for (int stage = 0; stage < P::STAGES; stage++)
            barrier_init(barriers.stage_full(stage), WARPGROUP);
        for (int n = 0; n < P::WARPGROUPS; n++) {
            barrier_init(barriers.ds_full(n), WARPGROUP / WARP);
            barrier_init(barriers.ds_empty(n), WARPGROUP / WARP);
        }
        barrier_init(barriers.queries_full(), WARPGROUP);
        barrier_init(barriers.queries_empty(), P::WARPS);
        barrier_init(barriers.delta_made(), P::WARPS);
    }
    __syncthreads();
    if (warpgroup > 0)
        share_work<P, WORK>(a, base, warpgroup - 1);
    else if (WORK != SUMS_ONLY)
        produce<P>(a, base);
}

#endif
