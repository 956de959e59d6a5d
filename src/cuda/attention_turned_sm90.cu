/* Attention backward over lists of blocks of keys in bf16 on Hopper: lists turned about
 * (attention_turned.cuh), so that it is keys that stay and queries that come by, as in dense attention (Dao
 * 2023; Shah et al. 2024). A tile of queries has one row of dQ to add for each where a block of as many keys
 * has two, of dK and dV: half the bytes of attention_list_bwd_sm90.cu, which those additions bound. And
 * nothing is gathered: a block of keys and a tile of queries are boxes.
 *
 *     S^T = K Q^T, dP^T = V dO^T      P = exp(scale S - lse), dS = P (dP - delta)
 *     dV += P^T dO, dK += dS^T Q      in registers, for a block of 128 keys and all tiles that list it
 *     dQ = dS K                       of a tile, added to its sums by the copy engine
 * A kernel before makes delta, the diagonal of O dO^T, by products as dP is: where a key has all the weight,
 * p is 1 and dp - delta is 0 to the bit; and zeros of the sums. One behind rounds dq. How scores are rounded:
 * attention_gather.cuh.
 *
 * One block of threads stays on a multiprocessor and takes block after block of keys; a step is a tile of 64
 * of their queries. It begins where other blocks of threads are in theirs (attention_schedule.cuh). Three
 * warpgroups:
 *     the house       brings K and V, and Q, dO, lse and delta into a ring of stages; makes dQ of each step,
 *                     64 columns at a time, and adds it up
 *     two sharers     have 64 of the keys each: from scores to dK and dV, which stay in their registers. P^T
 *                     and dS^T, as registers hold them, are left factors as they stand; dS goes to shared
 *                     memory besides, for dQ. They meet only at the tensor cores.
 *
 * Time, of either sharer and the house; = is a product, the numbers are of steps:
 *     sharer    .. =S 2= =dK 1=       =dP 2=       =dV 2= =S 3= =dK 2=       =dP 3=
 *                        weights 2          dS 2                weights 3          dS 3 ..
 *     house     .. Q, dO 3   =dQ 1= =dQ 1=         Q, dO 4 (where 1 was)  =dQ 2= =dQ 2=
 *                            adds    adds                                 adds    adds ..
 *
 *     shared memory    K, V 64 KiB; 3 x (Q, dO) 96; 2 x dS 32; dQ on its way 32; lse and delta 1.5; barriers,
 *                      steps: 225.7 of 227
 *     registers        216 of a sharer's thread: dK and dV 128, S or dP 32, weights or P and dS 32. wgmma's
 *                      begin at the 25th, so that S and dP at once, which could be made while there are
 *                      exponentials, would want 224; 72 of the house's, dQ 32. 504 of 512
 *     barriers         stage full; K and V full; dS full and empty for either buffer. A stage, and K and V,
 *                      have none for being empty: the house learns that from dS.
 *
 * What bounds it, in cycles of a multiprocessor for 64 queries and 128 keys: products 2560; shared memory
 * 3070 (products read 256 KiB; dS and dQ on their way are 80, what is brought 32; lse and delta);
 * exponentials 512; dQ added up in the L2 cache 2500 to 3250, at 3.0 to 2.3 TB/s over the GPU; Q and dO from
 * the L2 cache 950 at 8 TB/s. So it is shared memory and the additions, at 750 to 800 TFLOP/s, if all else is
 * hidden behind them. */
#include "cuda/attention_turned_sm90.cuh"

namespace dsvi {
namespace {

/* A sharer: 64 keys of each block, and where it is. What else it wants to know it looks up each time, since
 * registers are for products. */
struct Sharer {
    Memory memory;
    int number;            /* 0 or 1 */
    uint32_t blocks, turn; /* done: blocks of keys, steps */
    Ring<Plan::STAGES> ring;

    __device__ int count() const { return memory.step(ring.stage)->keys - number * CHUNK_KEYS; }
};

/* P and dS, left factors of dV and dK. */
struct Factors {
    uint32_t p[Plan::QUERIES / 4], ds[Plan::QUERIES / 4];
};

/* S^T of the step in the ring's stage, begun. */
__device__ __forceinline__ void begin_step(const Sharer &m, float (&s)[32])
{
    leave_unset(s);
    products_begin();
    begin_scores<Plan::DIM, Plan::QUERIES>(s, m.memory.keys_at(m.number), m.memory.queries_at(m.ring.stage));
}

/* S^T, which is made, becomes P and dS; dS goes to the house. dK of the step before is under way until there
 * are weights. Where that is waited for there is a wait that may take time, or the assembler would move the
 * exponentials behind it (lab/README.md). */
__device__ __forceinline__ void make_factors(const Sharer &m, float (&s)[32], float (&dk)[64],
                                             Factors *factors, float scale)
{
    int buffer = m.turn % Plan::BUFFERS, stage = m.ring.stage, lane = lane_anew(), warp = warp_anew();
    float dp[32];
    weigh(s, m.memory.lse_at(stage), warp, lane, scale, m.count());
    hold(s);
    barrier_wait_watched(m.memory.ds_empty(buffer), m.turn / Plan::BUFFERS & 1 ^ 1);
    products_wait<0>();
    hold(dk);
    leave_unset(dp);
    products_begin();
    begin_scores<Plan::DIM, Plan::QUERIES>(dp, m.memory.values_at(m.number), m.memory.douts_at(stage));
    products_wait<0>();
    hold(dp);
    differentiate(factors->p, factors->ds, s, dp, m.memory.delta_at(stage), lane);
    store_ds(m.memory.ds_at(buffer) + m.number * Plan::CHUNK_BYTES, factors->ds, warp, lane);
    fence_for_products();
    __syncwarp();
    if (lane == 0)
        barrier_arrive(m.memory.ds_full(buffer));
}

/* sum += left rows, for 64 keys, begun; the first of a block's does not add. */
__device__ __forceinline__ void begin_sum(float (&sum)[64], const uint32_t (&left)[Plan::QUERIES / 4],
                                          uint32_t rows, bool add)
{
    uint64_t right = matrix_at(rows, Plan::HALF_BYTES, ATOM_BYTES);
    products_begin();
#pragma unroll
    for (int query = 0; query < Plan::QUERIES; query += 16)
        multiply_left(sum, left + query / 4, right + query * LINE_BYTES / 16, add || query > 0);
    products_commit();
}

/* Rows of dK or dV from their sums, after the last step of a block. */
__device__ __forceinline__ void store_sums(const AttentionProblem &a, const Turned &t, const Sharer &m,
                                           const DsvHeads &rows, const Step &step, float factor,
                                           const float (&x)[64])
{
    int lane = lane_anew(), row = m.number * CHUNK_KEYS + warp_anew() * 16 + lane / 4;
    int pair = step.block / t.blocks, key = step.block % t.blocks * Plan::KEYS + row;
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(rows.data) + pair / a.heads * rows.batch_stride +
                        pair % a.heads * rows.head_stride + key * rows.token_stride + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < Plan::DIM / 8; j++)
            if (row + 8 * half < step.keys && 8 * j < a.dim)
                *reinterpret_cast<uint32_t *>(to + 8 * j) =
                    pair_bits(factor * x[4 * j + 2 * half], factor * x[4 * j + 2 * half + 1]);
        to += 8 * rows.token_stride;
    }
}

/* All steps of a block of keys. Returns what follows the last of them. At most two of P, dS, S and dP are in
 * registers of products at a time: S of the next step is begun when dV no longer needs P. */
__device__ __forceinline__ int take_block(const AttentionProblem &a, const Turned &t, Sharer *m)
{
    float s[32], dk[64], dv[64];
    leave_unset(dk);
    leave_unset(dv);
    barrier_wait_watched(m->memory.keys_full(), m->blocks++ & 1);
    barrier_wait_watched(m->memory.stage_full(m->ring.stage), m->ring.parity);
    begin_step(*m, s);
    products_wait<0>();
    Factors factors;
    bool add = false;
    for (;; add = true) {
        hold(s);
        make_factors(*m, s, dk, &factors, a.scale);
        m->turn++;
        begin_sum(dv, factors.p, m->memory.douts_at(m->ring.stage), add);
        if (m->memory.step(m->ring.stage)->follows != MORE)
            break;
        uint32_t queries = m->memory.queries_at(m->ring.stage);
        advance(&m->ring);
        barrier_wait_watched(m->memory.stage_full(m->ring.stage), m->ring.parity);
        products_wait<0>();
        hold(dv);
        begin_step(*m, s);
        begin_sum(dk, factors.ds, queries, add);
        products_wait<1>();
    }
    begin_sum(dk, factors.ds, m->memory.queries_at(m->ring.stage), add);
    products_wait<0>();
    hold(dv);
    hold(dk);
    const Step step = *m->memory.step(m->ring.stage);
    advance(&m->ring);
    store_sums(a, t, *m, a.dv, step, 1, dv);
    store_sums(a, t, *m, a.dk, step, a.scale, dk);
    return step.follows;
}

/* Without sm_90a nobody calls it. */
[[maybe_unused]] __device__ __forceinline__ void share_work(const AttentionProblem &a, const Turned &t,
                                                            const Memory &memory, int number)
{
    Sharer m = {memory, number, 0, 0, {0, 0}};
    while (take_block(a, t, &m) != NOTHING)
        ;
}

/* Grid: a block of threads for each multiprocessor. */
__global__ void __launch_bounds__(Plan::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Turned turned,
                    const __grid_constant__ Schedule schedule, const __grid_constant__ TurnedMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    Memory memory = {shared, shared_address(shared)};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if ((int)blockIdx.x >= *turned.listed)
        return;
    if (threadIdx.x == 0) {
        if (memory.base % ATOM_BYTES != 0)
            __trap();
        make_barriers(memory);
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<Plan::HOUSE_REGISTERS>();
        keep_house(a, turned, schedule, maps, memory);
    } else {
        take_registers<Plan::SHARER_REGISTERS>();
        share_work(a, turned, memory, warpgroup - 1);
    }
#endif
}

/* Of the kernel before: O, dO, a barrier. */
constexpr int PREPARE_SHARED = 2 * Plan::MATRIX_BYTES + 8;

struct PrepareMaps {
    CUtensorMap out, dout;
};

/* lse and delta of a tile's queries, zeros to its sums. Grid: tiles. */
__global__ void __launch_bounds__(WARPGROUP)
    prepare_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Turned t,
                   const __grid_constant__ PrepareMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared), douts = base + Plan::MATRIX_BYTES;
    uint32_t full = base + 2 * Plan::MATRIX_BYTES;
    int tile = blockIdx.x, pair = tile / t.tiles, first = tile % t.tiles * Plan::QUERIES;
    int lane = threadIdx.x % WARP, warp = agreed(threadIdx.x / WARP);
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        fence_fresh_barriers();
        barrier_arrive_expecting(full, 2 * Plan::MATRIX_BYTES);
        copy_matrix(base, &maps.out, a, pair, first, full);
        copy_matrix(douts, &maps.dout, a, pair, first, full);
    }
    __syncthreads();
    float4 *sums = reinterpret_cast<float4 *>(t.sums + (int64_t)tile * TILE_FLOATS);
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE_FLOATS / 4; i += WARPGROUP)
        sums[i] = make_float4(0, 0, 0, 0);
    float *to = t.queries + (int64_t)tile * 2 * Plan::QUERIES, d[32], delta[2];
    if (threadIdx.x < Plan::QUERIES) {
        int query = first + threadIdx.x;
        to[threadIdx.x] = query < a.queries ? a.lse[(int64_t)pair * a.queries + query] : INFINITY;
    }
    barrier_wait(full, 0);
    leave_unset(d);
    products_begin();
    begin_scores<Plan::DIM, Plan::QUERIES>(d, base, douts);
    products_wait<0>();
    hold(d);
    take_diagonal(delta, d, warp, lane);
    for (int half = 0; half < 2; half++)
        if (on_diagonal(lane))
            to[Plan::QUERIES + 16 * warp + lane / 4 + 8 * half] = delta[half];
#endif
}

static bool make_maps(const AttentionProblem &a, TurnedMaps *maps, PrepareMaps *prepare)
{
    MapEncoder encode = find_encoder();
    if (!encode || !make_map(encode, a, a.q, a.queries, &maps->q) ||
        !make_map(encode, a, a.dout, a.queries, &maps->dout) || !make_map(encode, a, a.k, a.keys, &maps->k) ||
        !make_map(encode, a, a.v, a.keys, &maps->v) || !make_map(encode, a, a.out, a.queries, &prepare->out))
        return false;
    prepare->dout = maps->dout;
    return true;
}

} // namespace

DsvStatus attention_backward_turned(DsvStream *stream, const AttentionProblem &a, bool *served)
{
    Turned turned = attention_turned_at(a);
    TurnedMaps maps;
    PrepareMaps prepare;
    Schedule schedule;
    *served = make_maps(a, &maps, &prepare);
    if (!*served)
        return DSV_OK;
    DSVI_TRY(make_schedule(stream, a, Plan::QUERIES, false, &schedule));
    DSVI_TRY(attention_turn_lists(stream, a, turned, schedule.order));
    prepare_kernel<<<(unsigned)(a.pairs * turned.tiles), WARPGROUP, PREPARE_SHARED, stream->handle>>>(
        a, turned, prepare);
    DSVI_CUDA_LAUNCHED("attention's delta");
    DSVI_CUDA_TRY(cudaFuncSetAttribute(backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       Plan::SHARED));
    int blocks = min(stream->multiprocessors, a.pairs * turned.blocks);
    backward_kernel<<<(unsigned)blocks, Plan::THREADS, Plan::SHARED, stream->handle>>>(a, turned, schedule,
                                                                                       maps);
    DSVI_CUDA_LAUNCHED("attention backward over blocks of keys on Hopper");
    return attention_finish_queries(stream, a, turned);
}

} // namespace dsvi
