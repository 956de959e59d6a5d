/* Attention forward over lists for Hopper, D = 128, bf16, with a producer warpgroup and consumer warpgroups.
 *
 * A persistent block of threads processes one tile of queries after another: 64 WARPGROUPS queries of one
 * group of one (batch, head). Its first warpgroup is the producer, which gathers the rows of K and V of the
 * listed keys, KEYS at a time, into a ring of STAGES stages. Each consumer warpgroup computes 64 queries: S
 * = Q K^T from shared memory, softmax in registers, O += P V with P in the registers of S.
 *
 *     shared memory   Q, STAGES x K, STAGES x V, each as two matrices of 64 columns (cuda/common/hopper.cuh),
 *                     barriers
 *     barriers        keys full, keys empty, values full, values empty for each stage; queries full and empty
 *     Plan<2, 128, 3> 128 queries, 128 keys: 224 KiB, one block of threads on a multiprocessor
 *     Plan<1, 64, 3>  64 queries, 64 keys: 112 KiB, two blocks on a multiprocessor
 *
 * If the list is not a multiple of KEYS, the first step is the incomplete one, so that no later step needs a
 * mask.
 *
 * cp.async writes shared memory through the generic proxy; wgmma reads it through the async proxy. Consumers
 * wait at the barrier at which the copies arrive, and then issue a proxy fence. The sequence write, barrier,
 * fence, read is ordered across both proxies (PTX: Memory Consistency Model, proxy-preserved base causality
 * order). A fence in the producer would have to wait for its copies to complete, which cp.async with a
 * barrier avoids. In the other direction, wgmma.wait_group returns when the reads are done, and the consumer
 * then arrives at the empty barrier. */
#ifndef LAB_FWD_KERNEL_CUH
#define LAB_FWD_KERNEL_CUH

#include <math.h>

#include "fwd_gather.cuh"

/* How products and softmax are scheduled; the variants of lab/README.md. */
enum Order { IN_TURN, AHEAD, BY_TURNS, BY_TURNS_SKIPPING };

/* Softmax state of rows lane / 4 and lane / 4 + 8 of a warp's 16 rows. `total` sums this lane's columns
 * only. */
struct Softmax {
    float largest[2], total[2];
};

/* Masks the scores of columns `count` and later. */
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int count)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = i / 4 * 8 + column + i % 2 < count ? s[i] : -INFINITY;
}

/* Updates the softmax with new scores: replaces s by p, and sets `shrink` to the factor for the sums so far.
 * `scale` includes log2 e. Each row is summed in two chains, to shorten the dependency of the additions. The
 * subtracted value is the rounded product, the same in every step, so the factor is exactly 1 while the
 * largest score stays. */
template <int N>
__device__ __forceinline__ void soften(float (&s)[N], Softmax *softmax, float (&shrink)[2], float scale)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float before = softmax->largest[half], now = before, other = s[2 * half + 1], sum[2] = {0, 0};
#pragma unroll
        for (int i = 2 * half; i < N; i += 4) {
            now = fmaxf(now, s[i]);
            other = fmaxf(other, s[i + 1]);
        }
        now = fmaxf(now, other);
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 1));
        now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, 2));
        float origin = __fmul_rn(now, scale);
#pragma unroll
        for (int i = 2 * half; i < N; i += 4)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                s[i + k] = power_of_two(fmaf(s[i + k], scale, -origin));
                sum[k] += s[i + k];
            }
        shrink[half] = power_of_two(__fsub_rn(__fmul_rn(before, scale), origin));
        softmax->largest[half] = now;
        softmax->total[half] = fmaf(softmax->total[half], shrink[half], sum[0] + sum[1]);
    }
}

__device__ __forceinline__ void shrink_sums(float (&out)[DIM / 2], const float (&shrink)[2])
{
#pragma unroll
    for (int i = 0; i < DIM / 2; i++)
        out[i] *= shrink[i / 2 % 2];
}

template <int N> __device__ __forceinline__ void pack(uint32_t (&p)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        p[i] = pair_bits(s[2 * i], s[2 * i + 1]);
    hold(p);
}

/* Issues s = Q K^T for a warpgroup's 64 queries and a stage's keys, without waiting. */
template <typename P>
__device__ __forceinline__ void begin_scores(float (&s)[P::KEYS / 2], uint32_t queries, uint32_t keys)
{
    uint64_t q = matrix_at(queries, ATOM_BYTES, ATOM_BYTES), k = matrix_at(keys, ATOM_BYTES, ATOM_BYTES);
#pragma unroll
    for (int d = 0; d < DIM; d += 16) {
        uint32_t half = d / HALF_COLUMNS * LINE_BYTES, inside = d % HALF_COLUMNS * 2;
        multiply(s, q + (half * P::QUERIES + inside) / 16, k + (half * P::KEYS + inside) / 16, d > 0);
    }
    products_commit();
}

/* Issues out += P V for a stage's keys, without waiting. */
template <typename P>
__device__ __forceinline__ void begin_sums(float (&out)[DIM / 2], const uint32_t (&p)[P::KEYS / 4],
                                           uint32_t values)
{
    uint64_t v = matrix_at(values, P::KEYS * LINE_BYTES, ATOM_BYTES);
#pragma unroll
    for (int key = 0; key < P::KEYS; key += 16)
        multiply_add(out, p + key / 4, v + key * LINE_BYTES / 16);
    products_commit();
}

/* Writes a warpgroup's output rows of the tile, from `first_row`. An empty list gives zeros and an lse of
 * -inf. */
__device__ __forceinline__ void store_tile(const Problem &a, const Tile &tile, const float (&out)[DIM / 2],
                                           const Softmax &softmax, float scale, int first_row)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x % WARPGROUP / WARP;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first_row + 16 * warp + 8 * half + lane / 4;
        float total = softmax.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (row >= tile.rows)
            continue;
        float factor = tile.keys > 0 ? 1 / total : 0;
        __nv_bfloat16 *to = a.out.data + (int64_t)(tile.first + row) * a.out.token + tile.head * a.out.head;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
            *reinterpret_cast<uint32_t *>(to + 8 * j + lane % 4 * 2) = pair_bits(
                out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
        if (lane % 4 == 0)
            a.lse[(int64_t)tile.head * a.queries + tile.first + row] =
                tile.keys > 0 ? (__fmul_rn(softmax.largest[half], scale) + log2f(total)) * 0.693147180559945f
                              : -INFINITY;
    }
}

/* State of a consumer warpgroup. */
template <typename P, Carrier CARRIER> struct Multiplier {
    uint32_t base, queries; /* `queries`: its 64 rows of Q in shared memory */
    Barriers<P> barriers;
    int number;  /* of the consumer; number 0 has the first turn */
    bool speaks; /* this lane arrives at barriers for its warp */
    float scale;

    /* TMA writes through the proxy by which wgmma reads, so only cp.async needs the fence. */
    __device__ void fence() const
    {
        if (CARRIER == CHUNKS)
            fence_for_products();
    }
    __device__ uint32_t keys_at(int stage) const { return base + P::KEYS_AT + stage * P::KEY_BYTES; }
    __device__ uint32_t values_at(int stage) const { return base + P::VALUES_AT + stage * P::KEY_BYTES; }
    __device__ void release(uint32_t barrier) const
    {
        if (speaks)
            barrier_arrive(barrier);
    }
};

/* IN_TURN: products and softmax of a step wait for one another. They overlap only by chance with the other
 * consumer warpgroup. */
template <typename P, Carrier CARRIER>
__device__ __forceinline__ void attend_in_turn(const Multiplier<P, CARRIER> &m, float (&out)[DIM / 2],
                                               Softmax *softmax, int steps, int count, Ring *ring)
{
    float s[P::KEYS / 2] = {}, shrink[2];
    uint32_t p[P::KEYS / 4];
    for (int step = 0; step < steps; step++, advance<P>(ring)) {
        barrier_wait(m.barriers.keys_full(ring->stage), ring->parity);
        m.fence();
        hold(s);
        products_begin();
        begin_scores<P>(s, m.queries, m.keys_at(ring->stage));
        products_wait<0>();
        hold(s);
        m.release(m.barriers.keys_empty(ring->stage));
        if (step == steps - 1)
            m.release(m.barriers.queries_empty());
        if (step == 0)
            mask(s, count);
        soften(s, softmax, shrink, m.scale);
        shrink_sums(out, shrink);
        pack(p, s);
        barrier_wait(m.barriers.values_full(ring->stage), ring->parity);
        m.fence();
        hold(out);
        products_begin();
        begin_sums<P>(out, p, m.values_at(ring->stage));
        products_wait<0>();
        hold(out);
        m.release(m.barriers.values_empty(ring->stage));
    }
}

/* Waits for the values of the step at `ring`, and for the keys of the next step if there is one. */
template <typename P, Carrier CARRIER>
__device__ __forceinline__ void await_next(const Multiplier<P, CARRIER> &m, Ring ring, bool more)
{
    barrier_wait(m.barriers.values_full(ring.stage), ring.parity);
    advance<P>(&ring);
    if (more)
        barrier_wait(m.barriers.keys_full(ring.stage), ring.parity);
}

/* AHEAD: the products P V of a step overlap with the softmax of the next step (Shah et al. 2024). BY_TURNS:
 * also, the two consumers issue products in turns, so that one multiplies while the other computes its
 * softmax; both have the same number of steps. SKIPPING: also, sums whose scale does not change are not
 * multiplied by 1, which is most of them once the largest score was seen.
 *
 * The wait for the barriers of the next step is between softmax and products_wait<0>. Without this branch
 * ptxas moves most of the softmax after products_wait<0>, where no products overlap with it. */
template <Order ORDER, typename P, Carrier CARRIER>
__device__ __forceinline__ void attend_ahead(const Multiplier<P, CARRIER> &m, float (&out)[DIM / 2],
                                             Softmax *softmax, int steps, int count, Ring *ring)
{
    constexpr bool TURNS = ORDER == BY_TURNS || ORDER == BY_TURNS_SKIPPING;
    float s[P::KEYS / 2] = {}, shrink[2];
    uint32_t p[P::KEYS / 4];
    int mine = 1 + m.number, others = 2 - m.number;
    barrier_wait(m.barriers.keys_full(ring->stage), ring->parity);
    m.fence();
    hold(s);
    products_begin();
    begin_scores<P>(s, m.queries, m.keys_at(ring->stage));
    products_wait<0>();
    hold(s);
    m.release(m.barriers.keys_empty(ring->stage));
    if (steps == 1)
        m.release(m.barriers.queries_empty());
    mask(s, count);
    soften(s, softmax, shrink, m.scale);
    pack(p, s);
    await_next(m, *ring, steps > 1);
    for (int step = 1; step < steps; step++) {
        Ring last = *ring;
        advance<P>(ring);
        m.fence();
        if (TURNS)
            named_sync(mine, P::MULTIPLYING);
        hold(s);
        hold(out);
        products_begin();
        begin_scores<P>(s, m.queries, m.keys_at(ring->stage));
        begin_sums<P>(out, p, m.values_at(last.stage));
        if (TURNS)
            named_arrive(others, P::MULTIPLYING);
        products_wait<1>();
        hold(s);
        m.release(m.barriers.keys_empty(ring->stage));
        if (step == steps - 1)
            m.release(m.barriers.queries_empty());
        soften(s, softmax, shrink, m.scale);
        hold(s);
        await_next(m, *ring, step + 1 < steps);
        products_wait<0>();
        hold(out);
        m.release(m.barriers.values_empty(last.stage));
        if (ORDER != BY_TURNS_SKIPPING || __any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1))
            shrink_sums(out, shrink);
        pack(p, s);
    }
    m.fence();
    hold(out);
    products_begin();
    begin_sums<P>(out, p, m.values_at(ring->stage));
    products_wait<0>();
    hold(out);
    m.release(m.barriers.values_empty(ring->stage));
    advance<P>(ring);
}

/* GATHER_ONLY: releases gathered stages without using them. */
template <typename P, Carrier CARRIER>
__device__ __forceinline__ void take_only(const Multiplier<P, CARRIER> &m, int steps, Ring *ring)
{
    for (int step = 0; step < steps; step++, advance<P>(ring)) {
        barrier_wait(m.barriers.keys_full(ring->stage), ring->parity);
        m.release(m.barriers.keys_empty(ring->stage));
        barrier_wait(m.barriers.values_full(ring->stage), ring->parity);
        m.release(m.barriers.values_empty(ring->stage));
    }
    m.release(m.barriers.queries_empty());
}

template <typename P, Carrier CARRIER, Order ORDER, Part PART>
__device__ __forceinline__ void multiply_all(const Problem &a, uint32_t base, int number)
{
    Multiplier<P, CARRIER> m = {base,   base + number * 64 * LINE_BYTES, {base + P::BARRIERS_AT},
                                number, threadIdx.x % WARP == 0,         a.scale * 1.44269504088896f};
    Ring ring = {0, 0};
    uint32_t visits = 0;
    int tiles = tiles_of<P>(a);
    if ((ORDER == BY_TURNS || ORDER == BY_TURNS_SKIPPING) && number == 1)
        named_arrive(1, P::MULTIPLYING);
    for (int tile_number = blockIdx.x; tile_number < tiles; tile_number += gridDim.x) {
        Tile tile = tile_at<P>(a, tile_number);
        int steps = (tile.keys + P::KEYS - 1) / P::KEYS, count = tile.keys - (steps - 1) * P::KEYS;
        float out[DIM / 2] = {};
        Softmax softmax = {{-INFINITY, -INFINITY}, {0, 0}};
        if (steps > 0) {
            barrier_wait(m.barriers.queries_full(), visits++ & 1);
            if (PART == GATHER_ONLY)
                take_only(m, steps, &ring);
            else if (ORDER == IN_TURN)
                attend_in_turn(m, out, &softmax, steps, count, &ring);
            else
                attend_ahead<ORDER>(m, out, &softmax, steps, count, &ring);
        }
        store_tile(a, tile, out, softmax, m.scale, 64 * number);
    }
}

template <typename P, Carrier CARRIER, Order ORDER, Part PART>
__global__ void __launch_bounds__(P::THREADS, P::RESIDENT) forward(const __grid_constant__ Problem a)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared);
    Barriers<P> barriers = {base + P::BARRIERS_AT};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    int gathering = CARRIER == CHUNKS ? WARPGROUP : WARPGROUP / WARP;
    if (threadIdx.x == 0) {
        if (base % ATOM_BYTES != 0)
            __trap();
        for (int stage = 0; stage < P::STAGES; stage++) {
            barrier_init(barriers.keys_full(stage), gathering);
            barrier_init(barriers.values_full(stage), gathering);
            barrier_init(barriers.keys_empty(stage), P::MULTIPLYING / WARP);
            barrier_init(barriers.values_empty(stage), P::MULTIPLYING / WARP);
        }
        barrier_init(barriers.queries_full(), gathering);
        barrier_init(barriers.queries_empty(), P::MULTIPLYING / WARP);
        fence_fresh_barriers();
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<P::GATHER_REGISTERS>();
        gather_all<P, CARRIER, PART>(a, base);
    } else {
        take_registers<P::MULTIPLY_REGISTERS>();
        multiply_all<P, CARRIER, ORDER, PART>(a, base, warpgroup - 1);
    }
}

#endif
