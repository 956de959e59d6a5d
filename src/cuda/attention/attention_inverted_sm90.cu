/* Key-major attention backward in BF16 on Hopper, over lists of blocks of keys. The lists are inverted
 * (attention_inverted.cu): a block of keys stays while the queries that list it pass by, as in dense
 * attention (Dao 2023; Shah et al. 2024). A tile of queries has one row of dQ to add for each query, where a
 * block of as many keys would have two for each key, of dK and dV. So a tile adds half the bytes that
 * attention_list_bwd_sm90.cu adds, which is limited by its additions. And nothing is gathered row by row:
 * blocks of keys and tiles of queries are TMA boxes.
 *
 *     S^T = K Q^T, dP^T = V dO^T      P = exp(scale S - lse), dS = P (dP - delta)
 *     dV += P^T dO, dK += dS^T Q      in registers, for a block of 128 keys and all tiles that list it
 *     dQ = dS K                       of a tile, added to its sums by TMA
 * A first kernel computes delta, the diagonal of O dO^T, by the same products as dP, so that P is exactly 1
 * and dP - delta exactly 0 where a key has all the weight; it also clears the sums. A last kernel rounds the
 * sums to dq. How scores are rounded is described in attention_gather.cuh.
 *
 * One thread block stays resident on a multiprocessor and processes one block of keys after the other. A step
 * is a tile of 64 queries that list the block. The walk over these queries begins where other thread blocks
 * are in their walks (attention_schedule.cuh). There are three warpgroups:
 *     producer        loads K and V, and Q, dO, lse and delta into a ring of stages; computes dQ of each
 *                     step, 64 columns at a time, and adds it to the sums
 *     two consumers   have 64 of the keys each and compute scores, dK and dV, which stay in registers. P^T
 *                     and dS^T in registers are left factors without a copy; dS also goes to shared memory,
 *                     for dQ. The two consumers share nothing but the tensor cores.
 *
 * Time runs to the right, for one consumer and the producer; = is a product, the numbers are of steps:
 *     consumer  .. =S 2= =dK 1=       =dP 2=       =dV 2= =S 3= =dK 2=       =dP 3=
 *                        P 2                dS 2                P 3                dS 3 ..
 *     producer  .. Q, dO 3   =dQ 1= =dQ 1=         Q, dO 4 (where 1 was)  =dQ 2= =dQ 2=
 *                            adds    adds                                 adds    adds ..
 *
 *     shared memory    K, V 64 KiB; 3 x (Q, dO) 96; 2 x dS 32; dQ to be added 32; lse and delta 1.5;
 *                      barriers, steps: 225.7 of 227
 *     registers        216 in a consumer's thread: dK and dV 128, S or dP 32, P and dS 32. Registers of wgmma
 *                      begin at the 25th, so S and dP at the same time, with which exponentials could
 *                      overlap, would need 224. 72 in the producer's, dQ 32. 504 of 512 in all
 *     barriers         stage full; K and V full; dS full and empty for each of its two buffers. Stages, and K
 *                      and V, have no barrier for being empty: the producer infers that from dS
 *
 * Limits, in cycles of a multiprocessor for 64 queries and 128 keys: products 2560; shared memory 3070
 * (products read 256 KiB; dS and dQ are written and read, 80 KiB; loads write 32 KiB; lse and delta);
 * exponentials 512; additions to dQ in the L2 cache 2500 to 3250, at 3.0 to 2.3 TB/s over the whole GPU; Q
 * and dO from the L2 cache 950, at 8 TB/s. So shared memory and the additions are the limits, at 750 to 800
 * TFLOP/s, if everything else overlaps with them. */
#include "cuda/attention/attention_inverted_sm90.cuh"

namespace dsvi {
namespace {

/* State of one consumer, which has 64 keys of each block. Everything else is read from shared memory each
 * time, because registers are full of products. */
struct Consumer {
    Memory memory;
    int number;            /* 0 or 1: which of the two consumer warpgroups this is */
    uint32_t blocks, turn; /* blocks: number of blocks of keys that are done; turn: number of steps (tiles of
                              queries) that are done */
    Ring<Config::STAGES> ring;

    /* Number of keys from this consumer's first one to the last of all keys. If less than CHUNK_KEYS
     * (possibly negative), only so many of the consumer's keys exist. */
    __device__ int count() const { return memory.step(ring.stage)->keys - number * CHUNK_KEYS; }
};

/* P^T and dS^T of a step in BF16: the left factors of the products dV = P^T dO and dK = dS^T Q. */
struct Factors {
    uint32_t p[Config::QUERIES / 4], ds[Config::QUERIES / 4];
};

/* Begins the product S^T = K Q^T of the step whose queries are in the current stage of the ring. */
__device__ __forceinline__ void begin_step(const Consumer &m, float (&s)[32])
{
    leave_unset(s);
    products_begin();
    begin_scores<Config::DIM, Config::QUERIES>(s, m.memory.keys_at(m.number),
                                               m.memory.queries_at(m.ring.stage));
}

/* Computes P and dS from S^T, which is complete, and hands dS to the producer. The product dK of the previous
 * step runs until P is computed. The wait for ds_empty is before products_wait<0>, because ptxas would
 * otherwise move the exponentials after products_wait<0> (lab/README.md). */
__device__ __forceinline__ void make_factors(const Consumer &m, float (&s)[32], float (&dk)[64],
                                             Factors *factors, float scale)
{
    int buffer = m.turn % Config::BUFFERS, stage = m.ring.stage, lane = lane_anew(), warp = warp_anew();
    float dp[32];
    weigh(s, m.memory.lse_at(stage), warp, lane, scale, m.count());
    hold(s);
    barrier_wait_watched(m.memory.ds_empty(buffer), m.turn / Config::BUFFERS & 1 ^ 1);
    products_wait<0>();
    hold(dk);
    leave_unset(dp);
    products_begin();
    begin_scores<Config::DIM, Config::QUERIES>(dp, m.memory.values_at(m.number), m.memory.douts_at(stage));
    products_wait<0>();
    hold(dp);
    differentiate(factors->p, factors->ds, s, dp, m.memory.delta_at(stage), lane);
    store_ds(m.memory.ds_at(buffer) + m.number * Config::CHUNK_BYTES, factors->ds, warp, lane);
    fence_for_products();
    __syncwarp();
    if (lane == 0)
        barrier_arrive(m.memory.ds_full(buffer));
}

/* Begins the matrix product sum += left * rows for the 64 keys of a consumer: dV += P^T dO, or dK += dS^T Q.
 * Without `add`, as in the first step of a block of keys, the product overwrites `sum`. */
__device__ __forceinline__ void begin_sum(float (&sum)[64], const uint32_t (&left)[Config::QUERIES / 4],
                                          uint32_t rows, bool add)
{
    uint64_t right = matrix_at(rows, Config::HALF_BYTES, ATOM_BYTES);
    products_begin();
#pragma unroll
    for (int query = 0; query < Config::QUERIES; query += 16)
        multiply_left(sum, left + query / 4, right + query * LINE_BYTES / 16, add || query > 0);
    products_commit();
}

/* Writes the rows of dk, or of dv, of this consumer's keys: `factor` times the sums in the registers x.
 * Called after the last step of a block of keys. */
__device__ __forceinline__ void store_sums(const AttentionProblem &a, const Inverted &t, const Consumer &m,
                                           const DsviHeads &rows, const Step &step, float factor,
                                           const float (&x)[64])
{
    int lane = lane_anew(), row = m.number * CHUNK_KEYS + warp_anew() * 16 + lane / 4;
    int pair = step.block / t.blocks, key = step.block % t.blocks * Config::KEYS + row;
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(rows.data) + pair / a.heads * rows.batch_stride +
                        pair % a.heads * rows.head_stride + key * rows.token_stride + lane % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < Config::DIM / 8; j++)
            if (row + 8 * half < step.keys && 8 * j < a.dim)
                *reinterpret_cast<uint32_t *>(to + 8 * j) = pair_bits(factor * x[4 * j + 2 * half],
                                                                      factor * x[4 * j + 2 * half + 1]);
        to += 8 * rows.token_stride;
    }
}

/* Processes all steps (tiles of queries) of a block of keys. Returns what follows the last step, a value of
 * enum Follows. At most two of P, dS, S and dP are in registers at a time: S of the next step begins when the
 * product that computes dV no longer needs P. */
__device__ __forceinline__ int process_block(const AttentionProblem &a, const Inverted &t, Consumer *m)
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

/* The loop of consumer `number` over blocks of keys. Unused when compiled for other architectures than
 * sm_90a. */
[[maybe_unused]] __device__ __forceinline__ void consume(const AttentionProblem &a, const Inverted &t,
                                                         const Memory &memory, int number)
{
    Consumer m = {memory, number, 0, 0, {0, 0}};
    while (process_block(a, t, &m) != NOTHING)
        ;
}

/* Grid: a thread block for each multiprocessor, or for each block of keys if these are fewer. */
__global__ void __launch_bounds__(Config::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Inverted inverted,
                    const __grid_constant__ Schedule schedule, const __grid_constant__ InvertedMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    Memory memory = {shared, shared_address(shared)};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if ((int)blockIdx.x >= *inverted.listed)
        return;
    if (threadIdx.x == 0) {
        if (memory.base % ATOM_BYTES != 0)
            __trap();
        init_barriers(memory);
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<Config::PRODUCER_REGISTERS>();
        produce(a, inverted, schedule, maps, memory);
    } else {
        take_registers<Config::CONSUMER_REGISTERS>();
        consume(a, inverted, memory, warpgroup - 1);
    }
#endif
}

/* Bytes of shared memory of prepare_kernel: for O, dO and a barrier. */
constexpr int PREPARE_SHARED = 2 * Config::MATRIX_BYTES + 8;

struct PrepareMaps {
    CUtensorMap out, dout;
};

/* Writes lse and delta of a tile's queries to the workspace and sets the tile's sums of dQ to 0. Grid: one
 * thread block for each tile of queries. */
__global__ void __launch_bounds__(WARPGROUP)
    prepare_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Inverted t,
                   const __grid_constant__ PrepareMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared), douts = base + Config::MATRIX_BYTES;
    uint32_t full = base + 2 * Config::MATRIX_BYTES;
    int tile = blockIdx.x, pair = tile / t.tiles, first = tile % t.tiles * Config::QUERIES;
    int lane = threadIdx.x % WARP, warp = agreed(threadIdx.x / WARP);
    if (threadIdx.x == 0) {
        barrier_init(full, 1);
        fence_fresh_barriers();
        barrier_arrive_expecting(full, 2 * Config::MATRIX_BYTES);
        load_matrix(base, &maps.out, a, pair, first, full);
        load_matrix(douts, &maps.dout, a, pair, first, full);
    }
    __syncthreads();
    float4 *sums = reinterpret_cast<float4 *>(t.sums + (int64_t)tile * TILE_FLOATS);
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE_FLOATS / 4; i += WARPGROUP)
        sums[i] = make_float4(0, 0, 0, 0);
    float *to = t.queries + (int64_t)tile * 2 * Config::QUERIES, d[32], delta[2];
    if (threadIdx.x < Config::QUERIES) {
        int query = first + threadIdx.x;
        to[threadIdx.x] = query < a.queries ? a.lse[(int64_t)pair * a.queries + query] : INFINITY;
    }
    barrier_wait(full, 0);
    leave_unset(d);
    products_begin();
    begin_scores<Config::DIM, Config::QUERIES>(d, base, douts);
    products_wait<0>();
    hold(d);
    take_diagonal(delta, d, warp, lane);
    for (int half = 0; half < 2; half++)
        if (on_diagonal(lane))
            to[Config::QUERIES + 16 * warp + lane / 4 + 8 * half] = delta[half];
#endif
}

/* Makes the TMA descriptors of the main kernel and of prepare_kernel. Returns false if TMA does not support
 * the strides or address of a tensor. */
static bool make_inverted_maps(const AttentionProblem &a, InvertedMaps *maps, PrepareMaps *prepare)
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

DsvStatus attention_backward_inverted(DsviStream *stream, const AttentionProblem &a, bool *served)
{
    Inverted inverted = attention_inverted_at(a);
    InvertedMaps maps;
    PrepareMaps prepare;
    Schedule schedule;
    *served = make_inverted_maps(a, &maps, &prepare);
    if (!*served)
        return DSV_OK;
    DSVI_TRY(make_schedule(stream, a, Config::QUERIES, false, &schedule));
    DSVI_TRY(attention_invert_lists(stream, a, inverted, schedule.order));
    DSVI_CUDA_LAUNCH(stream, "attention: delta", prepare_kernel, (unsigned)(a.pairs * inverted.tiles),
                     WARPGROUP, PREPARE_SHARED, a, inverted, prepare);
    DSVI_CUDA_TRY(
        cudaFuncSetAttribute(backward_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::SHARED));
    int blocks = min(stream->multiprocessors, a.pairs * inverted.blocks);
    DSVI_CUDA_LAUNCH(stream, "attention backward over inverted lists on Hopper", backward_kernel,
                     (unsigned)blocks, Config::THREADS, Config::SHARED, a, inverted, schedule, maps);
    return attention_finish_queries(stream, a, inverted);
}

} // namespace dsvi
