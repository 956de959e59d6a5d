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
 * With another KIND than NO_TAIL the kernel computes the backward pass of a tail (attention_tail.cuh): every
 * tile of queries attends to every block of keys. Each thread reads what the tail says about its two keys
 * from global memory while the product S runs.
 *     QUERY_TAIL    a bit for each query and key says whether P is 0, delta is an argument, and dK and dV are
 *                   added to what dk and dv contain
 *     KEY_TAIL      P is multiplied by the key's count in the tile's group, dQ is added to what dq contains,
 *                   and dK and dV over a slice of the tiles are written in F32 to a slice of the sums
 *
 * Limits, in cycles of a multiprocessor for 64 queries and 128 keys: products 2560; shared memory 3070
 * (products read 256 KiB; dS and dQ are written and read, 80 KiB; loads write 32 KiB; lse and delta);
 * exponentials 512; additions to dQ in the L2 cache 2500 to 3250, at 3.0 to 2.3 TB/s over the whole GPU; Q
 * and dO from the L2 cache 950, at 8 TB/s. So shared memory and the additions are the limits, at 750 to 800
 * TFLOP/s, if everything else overlaps with them. */
#include "cuda/attention/attention_inverted_sm90.cuh"

namespace dsvi {
namespace {

static_assert(Config::QUERIES == TAIL_GROUP && Config::KEYS == TAIL_KEYS, "tiles and blocks of a key tail");

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

/* What a tail says about the two keys whose scores a thread has, and the 64 queries of a step. */
template <TailKind KIND> struct KeyWeights;

template <> struct KeyWeights<NO_TAIL> {
    __device__ void fetch(const AttentionProblem &, const Inverted &, const Consumer &) {}
    __device__ void apply(float (&)[32]) {}
};

/* Returns the number of the first of a thread's two keys; the other one is 8 further. */
__device__ __forceinline__ int key_of(const AttentionProblem &a, const Consumer &m, const Step &step)
{
    return a.keys - step.keys + m.number * CHUNK_KEYS + warp_anew() * 16 + lane_anew() / 4;
}

/* Bits, one for each query. */
template <> struct KeyWeights<QUERY_TAIL> {
    uint2 keys[2];

    /* Reads the bits of the step whose queries are in the current stage of the ring. */
    __device__ void fetch(const AttentionProblem &a, const Inverted &, const Consumer &m)
    {
        const Step *step = m.memory.step(m.ring.stage);
        const uint2 *words = reinterpret_cast<const uint2 *>(a.tail.columns) +
                             (int64_t)step->tile * a.tail.padded + key_of(a, m, *step);
        keys[0] = __ldg(words);
        keys[1] = __ldg(words + 8);
    }

    /* Sets the probabilities of pairs that the tail does not contain to 0. */
    __device__ void apply(float (&p)[32])
    {
        int shift = lane_anew() % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t low = keys[half].x >> shift, high = keys[half].y >> shift;
#pragma unroll
            for (int i = 2 * half; i < 32; i += 4)
#pragma unroll
                for (int e = i; e < i + 2; e++)
                    p[e] = (e < 16 ? low : high) & 1u << (e / 4 % 4 * 8 + e % 2) ? p[e] : 0.f;
        }
    }
};

/* Counts, the same for all queries of a tile. */
template <> struct KeyWeights<KEY_TAIL> {
    uint32_t counts[2];

    __device__ void fetch(const AttentionProblem &a, const Inverted &t, const Consumer &m)
    {
        const Step *step = m.memory.step(m.ring.stage);
        int key = key_of(a, m, *step);
        const uint8_t *line = a.tail.counts +
                              tail_line(a, step->tile / t.tiles, step->tile % t.tiles * Config::QUERIES);
        counts[0] = __ldg(line + tail_place(key));
        counts[1] = __ldg(line + tail_place(key + 8));
    }

    /* Multiplies probabilities by the counts. A probability may be infinite where the count is 0. */
    __device__ void apply(float (&p)[32])
    {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float count = (float)counts[half];
#pragma unroll
            for (int i = 2 * half; i < 32; i += 4)
#pragma unroll
                for (int e = i; e < i + 2; e++)
                    p[e] = counts[half] > 0 ? p[e] * count : 0.f;
        }
    }
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
template <TailKind KIND>
__device__ __forceinline__ void make_factors(const Consumer &m, float (&s)[32], float (&dk)[64],
                                             Factors *factors, float scale, KeyWeights<KIND> *weights)
{
    int buffer = m.turn % Config::BUFFERS, stage = m.ring.stage, lane = lane_anew(), warp = warp_anew();
    float dp[32];
    weigh(s, m.memory.lse_at(stage), warp, lane, scale, KIND == NO_TAIL ? m.count() : CHUNK_KEYS);
    weights->apply(s);
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

/* Writes the sums of dV, or of dK, in the registers x to the rows of this consumer's keys, in the slice of
 * the tiles. 16 columns have the order of finish_unit (attention_list.cu): four neighbouring elements
 * are two columns of the first 8 and the same two of the next 8. Called after the last step of a block of
 * keys and a slice of the tiles. */
__device__ __forceinline__ void store_slice(const AttentionProblem &a, const Inverted &t, const Consumer &m,
                                            bool values, const Step &step, const float (&x)[64])
{
    int lane = lane_anew(), row = m.number * CHUNK_KEYS + warp_anew() * 16 + lane / 4;
    int pair = step.block / t.blocks, key = step.block % t.blocks * Config::KEYS + row;
    int slice = step.tile % t.tiles / a.tail.slice_tiles;
    float *to = sums_of(a, slice, values, pair) + (int64_t)key * a.pitch + lane % 4 * 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < Config::DIM / 8; j += 2) {
            const float *two = &x[4 * j + 2 * half], *next = two + 4;
            if (row + 8 * half < step.keys && 8 * j < a.dim)
                *reinterpret_cast<float4 *>(to + 8 * j) = make_float4(two[0], two[1], next[0], next[1]);
        }
        to += 8 * a.pitch;
    }
}

/* Adds two elements of BF16 each at four neighbouring places of global memory, a multiple of 16 bytes. */
__device__ __forceinline__ void add_eight(__nv_bfloat16 *to, const uint32_t (&x)[4])
{
    asm volatile("red.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
}

/* Transposes a 4 x 4 matrix of which each of four neighbouring lanes holds a column: x[i] of lane j becomes
 * x[j] of lane i. */
__device__ __forceinline__ void transpose_four(uint32_t (&x)[4], int lane)
{
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
        bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step)
                continue;
            uint32_t sent = upper ? x[i] : x[i + step];
            uint32_t got = __shfl_xor_sync(0xffffffffu, sent, step);
            (upper ? x[i] : x[i + step]) = got;
        }
    }
}

/* Adds `factor` times the sums in the registers x, rounded to BF16, to the rows of dk, or of dv, of this
 * consumer's keys. Called after the last step of a block of keys, by all lanes of a warp. */
__device__ __forceinline__ void add_sums(const AttentionProblem &a, const Inverted &t, const Consumer &m,
                                         const DsviHeads &rows, const Step &step, float factor,
                                         const float (&x)[64])
{
    int lane = lane_anew(), row = m.number * CHUNK_KEYS + warp_anew() * 16 + lane / 4;
    int pair = step.block / t.blocks, key = step.block % t.blocks * Config::KEYS + row;
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(rows.data) + pair / a.heads * rows.batch_stride +
                        pair % a.heads * rows.head_stride + key * rows.token_stride + lane % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (int j = 0; j < Config::DIM / 8; j += 4) {
            uint32_t eight[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                eight[i] = pair_bits(factor * x[4 * (j + i) + 2 * half],
                                     factor * x[4 * (j + i) + 2 * half + 1]);
            transpose_four(eight, lane);
            if (row + 8 * half < step.keys && 8 * j + lane % 4 * 8 < a.dim)
                add_eight(to + 8 * j, eight);
        }
        to += 8 * rows.token_stride;
    }
}

/* Processes all steps (tiles of queries) of a block of keys. Returns what follows the last step, a value of
 * enum Follows. At most two of P, dS, S and dP are in registers at a time: S of the next step begins when the
 * product that computes dV no longer needs P. */
template <TailKind KIND>
__device__ __forceinline__ int process_block(const AttentionProblem &a, const Inverted &t, Consumer *m)
{
    float s[32], dk[64], dv[64];
    KeyWeights<KIND> weights;
    leave_unset(dk);
    leave_unset(dv);
    barrier_wait_watched(m->memory.keys_full(), m->blocks++ & 1);
    barrier_wait_watched(m->memory.stage_full(m->ring.stage), m->ring.parity);
    weights.fetch(a, t, *m);
    begin_step(*m, s);
    products_wait<0>();
    Factors factors;
    bool add = false;
    for (;; add = true) {
        hold(s);
        make_factors<KIND>(*m, s, dk, &factors, a.scale, &weights);
        m->turn++;
        begin_sum(dv, factors.p, m->memory.douts_at(m->ring.stage), add);
        if (m->memory.step(m->ring.stage)->follows != MORE)
            break;
        uint32_t queries = m->memory.queries_at(m->ring.stage);
        advance(&m->ring);
        barrier_wait_watched(m->memory.stage_full(m->ring.stage), m->ring.parity);
        weights.fetch(a, t, *m);
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
    if constexpr (KIND == QUERY_TAIL) {
        add_sums(a, t, *m, a.dv, step, 1, dv);
        add_sums(a, t, *m, a.dk, step, a.scale, dk);
    } else if constexpr (KIND == KEY_TAIL) {
        store_slice(a, t, *m, true, step, dv);
        store_slice(a, t, *m, false, step, dk);
    } else {
        store_sums(a, t, *m, a.dv, step, 1, dv);
        store_sums(a, t, *m, a.dk, step, a.scale, dk);
    }
    return step.follows;
}

/* The loop of consumer `number` over blocks of keys. */
template <TailKind KIND>
__device__ __forceinline__ void consume(const AttentionProblem &a, const Inverted &t, const Memory &memory,
                                        int number)
{
    Consumer m = {memory, number, 0, 0, {0, 0}};
    while (process_block<KIND>(a, t, &m) != NOTHING)
        ;
}

/* All kinds of consumers, so that the functions above count as used also where the kernel has no body,
 * because the architecture is not sm_90a. */
[[maybe_unused]] __device__ __forceinline__ void consume_any(const AttentionProblem &a, const Inverted &t,
                                                             const Memory &memory, int number, TailKind kind)
{
    if (kind == NO_TAIL)
        consume<NO_TAIL>(a, t, memory, number);
    else if (kind == QUERY_TAIL)
        consume<QUERY_TAIL>(a, t, memory, number);
    else
        consume<KEY_TAIL>(a, t, memory, number);
}

/* Grid: a thread block for each multiprocessor, or for each block of keys if these are fewer. */
template <TailKind KIND>
__global__ void __launch_bounds__(Config::THREADS, 1)
    backward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Inverted inverted,
                    const __grid_constant__ Schedule schedule, const __grid_constant__ InvertedMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    Memory memory = {shared, shared_address(shared)};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if ((int)blockIdx.x >= blocks_to_process<KIND>(a, inverted))
        return;
    if (threadIdx.x == 0) {
        if (memory.base % ATOM_BYTES != 0)
            __trap();
        init_barriers(memory);
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<Config::PRODUCER_REGISTERS>();
        produce<KIND>(a, inverted, schedule, maps, memory);
    } else {
        take_registers<Config::CONSUMER_REGISTERS>();
        consume_any(a, inverted, memory, warpgroup - 1, KIND);
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

/* Writes log T_c and D_c of a tail's rows to the workspace and sets the sums of dQ to 0. Grid: one thread
 * block for each tile of queries. */
__global__ void __launch_bounds__(WARPGROUP)
    prepare_tail_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Inverted t)
{
    int tile = blockIdx.x, pair = tile / t.tiles, row = threadIdx.x % Config::QUERIES;
    int query = tile % t.tiles * Config::QUERIES + row;
    float4 *sums = reinterpret_cast<float4 *>(t.sums + (int64_t)tile * TILE_FLOATS);
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE_FLOATS / 4; i += WARPGROUP)
        sums[i] = make_float4(0, 0, 0, 0);
    float *to = t.queries + (int64_t)tile * 2 * Config::QUERIES;
    if ((int)threadIdx.x < Config::QUERIES)
        to[row] = query < a.queries ? tail_lse(a.lse[(int64_t)pair * a.queries + query]) : INFINITY;
    else
        to[Config::QUERIES + row] = query < a.queries ? tail_delta(a, pair, query) : 0.f;
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

/* Enqueues prepare_kernel. */
static DsvStatus prepare_queries(DsviStream *stream, const AttentionProblem &a, const Inverted &t,
                                 const PrepareMaps &maps)
{
    DSVI_CUDA_LAUNCH(stream, "attention: delta", prepare_kernel, (unsigned)(a.pairs * t.tiles), WARPGROUP,
                     PREPARE_SHARED, a, t, maps);
    return DSV_OK;
}

/* Enqueues the main kernel, with a thread block for each multiprocessor or, if these are fewer, for each of
 * `jobs` blocks of keys; in a key tail a block of keys counts once for each slice of the tiles. */
template <TailKind KIND>
static DsvStatus launch_backward(DsviStream *stream, const AttentionProblem &a, const Inverted &t,
                                 const Schedule &schedule, const InvertedMaps &maps, int jobs)
{
    DSVI_CUDA_TRY(cudaFuncSetAttribute(backward_kernel<KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       Config::SHARED));
    DSVI_CUDA_LAUNCH(stream, "key-major attention backward on Hopper", backward_kernel<KIND>,
                     (unsigned)min(stream->multiprocessors, jobs), Config::THREADS, Config::SHARED, a, t,
                     schedule, maps);
    return DSV_OK;
}

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
    DSVI_TRY(prepare_queries(stream, a, inverted, prepare));
    DSVI_TRY(launch_backward<NO_TAIL>(stream, a, inverted, schedule, maps, inverted.all));
    return attention_finish_queries(stream, a, inverted, NO_TAIL);
}

/* Returns the part of the layout of attention_inverted.cu that a tail uses, in a workspace at `at`. */
static Inverted tail_layout(const AttentionProblem &a, float *at)
{
    Inverted t = {};
    t.blocks = (int)ceil_div(a.keys, BLOCK_KEYS);
    t.tiles = (int)ceil_div(a.queries, TILE_QUERIES);
    t.tiles_per_group = t.blocks_per_span = 1;
    t.all = a.pairs * t.blocks;
    t.sums = at;
    t.queries = at + (int64_t)a.pairs * t.tiles * TILE_FLOATS;
    return t;
}

size_t attention_tail_sm90_bytes(int64_t pairs, int64_t queries)
{
    int64_t tile = (TILE_FLOATS + 2 * TILE_QUERIES) * (int64_t)sizeof(float);
    return (size_t)(pairs * ceil_div(queries, TILE_QUERIES) * tile);
}

DsvStatus attention_tail_backward_sm90(DsviStream *stream, const AttentionProblem &a, void *workspace,
                                       bool *served)
{
    MapEncoder encode = find_encoder();
    InvertedMaps maps;
    Inverted t = tail_layout(a, static_cast<float *>(workspace));
    Schedule schedule;
    *served = encode && make_map(encode, a, a.q, a.queries, &maps.q) &&
              make_map(encode, a, a.dout, a.queries, &maps.dout) &&
              make_map(encode, a, a.k, a.keys, &maps.k) && make_map(encode, a, a.v, a.keys, &maps.v);
    if (!*served)
        return DSV_OK;
    DSVI_TRY(make_schedule(stream, a, Config::QUERIES, false, &schedule));
    DSVI_CUDA_LAUNCH(stream, "attention tail: rows", prepare_tail_kernel, (unsigned)(a.pairs * t.tiles),
                     WARPGROUP, 0, a, t);
    DSVI_TRY(launch_backward<QUERY_TAIL>(stream, a, t, schedule, maps, t.all));
    return attention_finish_queries(stream, a, t, QUERY_TAIL);
}

DsvStatus attention_key_tail_backward_sm90(DsviStream *stream, const AttentionProblem &a, void *workspace,
                                           bool *served)
{
    InvertedMaps maps;
    PrepareMaps prepare;
    Inverted t = tail_layout(a, static_cast<float *>(workspace));
    Schedule schedule;
    *served = make_inverted_maps(a, &maps, &prepare);
    if (!*served)
        return DSV_OK;
    DSVI_TRY(make_schedule(stream, a, Config::QUERIES, false, &schedule));
    DSVI_TRY(prepare_queries(stream, a, t, prepare));
    DSVI_TRY(launch_backward<KEY_TAIL>(stream, a, t, schedule, maps,
                                       t.all * (int)ceil_div(t.tiles, a.tail.slice_tiles)));
    return attention_finish_queries(stream, a, t, KEY_TAIL);
}

} // namespace dsvi
