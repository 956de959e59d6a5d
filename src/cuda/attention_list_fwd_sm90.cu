/* Attention forward over lists in bf16 on Hopper: softmax online over key tiles (Milakov & Gimelshein 2018;
 * Dao et al. 2022), products of warpgroups beside the softmax (Shah et al. 2024), keys gathered row by row.
 *
 *     S = Q K^T      P = exp(scale (S - largest))      O = O exp(scale (largest before - largest)) + P V
 * and at the end out = O / sum of P, lse = scale largest + log(sum of P). How scores are rounded:
 * attention_gather.cuh. Logarithms and powers are of 2 inside.
 *
 * One block of threads stays on a multiprocessor, or two do, and takes tile after tile of queries
 * (attention_schedule.cuh). Its first warpgroup brings K and V of the listed keys, KEYS at a time, into a
 * ring of STAGES stages: row by row, or, where the grain is a multiple of 64, in boxes of so many rows by the
 * copy engine. Each of the others multiplies for 64 queries: S, P and O in registers.
 *
 *     Wide    128 queries, 128 keys, two multiply by turns    groups of more than 64: a larger one is several
 *                                                             tiles, a smaller one fills a part of its tile
 *     Narrow   64 queries,  64 keys, one multiplies, and      groups to 64
 *              two blocks of threads are resident
 *
 *     shared memory     Q, STAGES x K, STAGES x V, each DIM / 64 matrices of 64 columns (hopper.cuh), then
 *                       barriers, two jobs, two tickets
 *     DIM = 128         Wide 32 + 3 x 64 KiB, Narrow 2 x (16 + 3 x 32) KiB, of 227
 *     registers         65536: Wide 128 x (56 + 2 x 224), Narrow 2 x 128 x (56 + 192); S takes KEYS / 2 of a
 *                       thread, P half as many, O DIM / 2
 *     barriers          keys full, keys empty, values full, values empty for each stage; queries full and
 *                       empty; told and heard for each job
 *
 * Time, Wide. "S 2" is the product of step 2; P V of step 1 runs beside the softmax of step 2 of the same
 * warpgroup, and beside the products of the other, which the turns keep apart:
 *     gathering      K 3  V 3         K 4  V 4         K 5  V 5
 *     warpgroup 1    S 1, P V 0 | softmax 1       | S 2, P V 1 | softmax 2       | ...
 *     warpgroup 2                 S 1, P V 0 | softmax 1       | S 2, P V 1 | softmax 2
 * In Narrow a step's products wait for its softmax, and the other resident block fills the gap.
 *
 * A ticket is a tile's number, from one thread of the gathering warpgroup to all of it; a job is what the
 * multiplying ones need to know of the tile, from there to them. Empty lists are jobs without steps.
 *
 * What bounds it, DIM = 128: a multiprocessor multiplies 4096 FLOPs a cycle, 2048 cycles for a step of Wide,
 * whose 16384 exponentials take 1024; rows come from the L2 cache at 8 TB/s over the GPU, 64 FLOPs for a byte
 * with Narrow, 128 with Wide, so 512 TFLOP/s and 1024. Measured on one H200 at commit b70d905 with tiles in
 * fixed order and one operation fewer for each score (lab/README.md), 32768 tokens, 16 heads, lists of single
 * random keys: 566 TFLOP/s at groups of 128 and 10 % of the keys, 506 at 5 %; 447 and 418 at groups of 64. */
#include <math.h>

#include "cuda/attention_boxes.cuh"
#include "cuda/attention_schedule.cuh"

namespace dsvi {
namespace {

using namespace hopper;

constexpr int JOBS = 2;
enum { TURN_BARRIER = 1, GATHER_BARRIER = 3 }; /* barriers by number: a pair, and one */

/* How K and V come: attention_gather.cuh, attention_boxes.cuh. */
enum Carrier { ROW_BY_ROW, IN_BOXES };

/* What those that multiply have to know of a tile. */
struct alignas(16) Job {
    int pair, first, rows;
    int keys; /* negative: no tile is left */
};

template <int DIM_, int WARPGROUPS_, int KEYS_, int STAGES_> struct Plan {
    static constexpr int DIM = DIM_, WARPGROUPS = WARPGROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr int QUERIES = 64 * WARPGROUPS, MULTIPLYING = WARPGROUP * WARPGROUPS;
    static constexpr int THREADS = WARPGROUP + MULTIPLYING, RESIDENT = WARPGROUPS == 2 ? 1 : 2;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int KEYS_AT = QUERY_BYTES, VALUES_AT = KEYS_AT + STAGES * KEY_BYTES;
    static constexpr int BARRIERS_AT = VALUES_AT + STAGES * KEY_BYTES;
    static constexpr int JOBS_AT = BARRIERS_AT + (4 * STAGES + 2 + 2 * JOBS) * 8;
    static constexpr int TICKETS_AT = JOBS_AT + JOBS * (int)sizeof(Job);
    static constexpr int SHARED = TICKETS_AT + 2 * (int)sizeof(int);
    /* Of a thread; RESIDENT blocks share 65536. */
    static constexpr int GATHER_REGISTERS = 56, MULTIPLY_REGISTERS = WARPGROUPS == 2 ? 224 : 192;
    static_assert(RESIDENT * (SHARED + 1024) <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(RESIDENT * WARPGROUP * (GATHER_REGISTERS + WARPGROUPS * MULTIPLY_REGISTERS) <= 65536,
                  "registers of a multiprocessor");
    static_assert(QUERY_BYTES % ATOM_BYTES == 0 && KEY_BYTES % ATOM_BYTES == 0, "matrices are atoms");
    static_assert(JOBS_AT % 16 == 0, "a job is one access");
};

template <int DIM> using Wide = Plan<DIM, 2, 128, DIM == 128 ? 3 : 6>;
template <int DIM> using Narrow = Plan<DIM, 1, 64, DIM == 128 ? 3 : 6>;

/* The barriers of a block of threads. */
template <typename P> struct Barriers {
    uint32_t at;
    __device__ uint32_t keys_full(int stage) const { return at + 8 * stage; }
    __device__ uint32_t keys_empty(int stage) const { return at + 8 * (P::STAGES + stage); }
    __device__ uint32_t values_full(int stage) const { return at + 8 * (2 * P::STAGES + stage); }
    __device__ uint32_t values_empty(int stage) const { return at + 8 * (3 * P::STAGES + stage); }
    __device__ uint32_t queries_full() const { return at + 8 * (4 * P::STAGES); }
    __device__ uint32_t queries_empty() const { return at + 8 * (4 * P::STAGES + 1); }
    __device__ uint32_t told(int job) const { return at + 8 * (4 * P::STAGES + 2 + job); }
    __device__ uint32_t heard(int job) const { return at + 8 * (4 * P::STAGES + 2 + JOBS + job); }
};

template <typename P, Carrier CARRIER>
__device__ __forceinline__ void make_barriers(Barriers<P> barriers)
{
    constexpr int BRINGING = CARRIER == IN_BOXES ? 1 : WARPGROUP;
    for (int stage = 0; stage < P::STAGES; stage++) {
        barrier_init(barriers.keys_full(stage), BRINGING);
        barrier_init(barriers.values_full(stage), BRINGING);
        barrier_init(barriers.keys_empty(stage), P::MULTIPLYING / WARP);
        barrier_init(barriers.values_empty(stage), P::MULTIPLYING / WARP);
    }
    barrier_init(barriers.queries_full(), WARPGROUP);
    barrier_init(barriers.queries_empty(), P::MULTIPLYING / WARP);
    for (int job = 0; job < JOBS; job++) {
        barrier_init(barriers.told(job), 1);
        barrier_init(barriers.heard(job), P::MULTIPLYING);
    }
    fence_fresh_barriers();
}

/* Shared memory of a block of threads. */
template <typename P> struct Memory {
    unsigned char *bytes;
    uint32_t base; /* the same, as wgmma and cp.async take it */
    Barriers<P> barriers;
    __device__ uint32_t keys_at(int stage) const { return base + P::KEYS_AT + stage * P::KEY_BYTES; }
    __device__ uint32_t values_at(int stage) const { return base + P::VALUES_AT + stage * P::KEY_BYTES; }
    __device__ Job *job(int slot) const { return reinterpret_cast<Job *>(bytes + P::JOBS_AT) + slot; }
    __device__ int *ticket(int turn) const { return reinterpret_cast<int *>(bytes + P::TICKETS_AT) + turn; }
};

/* ---- gathering ---- */

/* The gathering warpgroup on its way through tiles. */
template <typename P> struct Gathering {
    Memory<P> memory;
    Gatherer<P::DIM> place;
    Ring<P::STAGES> ring;
    uint32_t visits, jobs; /* tiles with keys, and all that were told */
};

/* One thread tells those that multiply. */
template <typename P> __device__ __forceinline__ void tell(Gathering<P> *g, Job job)
{
    uint32_t slot = g->jobs % JOBS, parity = g->jobs / JOBS % 2;
    g->jobs++;
    if (threadIdx.x > 0)
        return;
    barrier_wait(g->memory.barriers.heard(slot), parity ^ 1);
    *g->memory.job(slot) = job;
    barrier_arrive(g->memory.barriers.told(slot));
}

/* The rows of a step, by number; fetched a step ahead, so that nobody waits for them. */
template <typename P, Carrier CARRIER> struct Step;

template <typename P> struct Step<P, ROW_BY_ROW> {
    Listed listed;

    __device__ void fetch(const AttentionProblem &a, const Tile &tile, const Gathering<P> &g, int first)
    {
        int number = first + fetched_row<P::DIM, P::KEYS>(g.place);
        listed = fetch_listed(a, tile, min(number, tile.keys - 1));
    }
    __device__ void bring(const AttentionProblem &a, const BoxMaps &, const Tile &tile, const Gathering<P> &g,
                          bool values, uint32_t to, uint32_t barrier) const
    {
        gather_listed<P::DIM, P::KEYS>(g.place, values ? a.v : a.k, tile, listed_key(a, listed), to);
        barrier_arrive_after_copies(barrier);
    }
};

template <typename P> struct Step<P, IN_BOXES> {
    int rows[P::KEYS / BOX_ROWS];

    __device__ void fetch(const AttentionProblem &a, const Tile &tile, const Gathering<P> &, int first)
    {
#pragma unroll
        for (int n = 0; n < P::KEYS / BOX_ROWS; n++)
            rows[n] = block_at(a, tile, first + n * BOX_ROWS);
    }
    __device__ void bring(const AttentionProblem &, const BoxMaps &maps, const Tile &tile,
                          const Gathering<P> &, bool values, uint32_t to, uint32_t barrier) const
    {
        if (elected())
            copy_blocks<P::DIM, P::KEYS>(values ? &maps.v : &maps.k, tile, rows, to, barrier);
    }
};

/* Q, and K and V step by step. Who has no part in a stage does not wait for it: a warp that nobody waits for
 * in turn could fall a whole round of the ring behind, where the parity is the same again. */
template <typename P, Carrier CARRIER>
__device__ __forceinline__ void gather_tile(const AttentionProblem &a, const BoxMaps &maps, const Tile &tile,
                                            Gathering<P> *g)
{
    const Memory<P> memory = g->memory;
    const Barriers<P> barriers = memory.barriers;
    const bool bringing = CARRIER == ROW_BY_ROW || agreed(threadIdx.x / WARP) == 0;
    int steps = (tile.keys + P::KEYS - 1) / P::KEYS, first = (steps - 1) * P::KEYS;
    Step<P, CARRIER> next;
    next.fetch(a, tile, *g, first);
    for (int step = 0; step < steps; step++, advance(&g->ring)) {
        int stage = g->ring.stage;
        const Step<P, CARRIER> now = next;
        first -= P::KEYS;
        if (first >= 0)
            next.fetch(a, tile, *g, first);
        if (bringing) {
            barrier_wait(barriers.keys_empty(stage), g->ring.parity ^ 1);
            now.bring(a, maps, tile, *g, false, memory.keys_at(stage), barriers.keys_full(stage));
        }
        if (step == 0) {
            barrier_wait(barriers.queries_empty(), g->visits++ & 1 ^ 1);
            gather_queries<P::DIM, P::QUERIES>(g->place, a.q, tile, memory.base);
            barrier_arrive_after_copies(barriers.queries_full());
        }
        if (bringing) {
            barrier_wait(barriers.values_empty(stage), g->ring.parity ^ 1);
            now.bring(a, maps, tile, *g, true, memory.values_at(stage), barriers.values_full(stage));
        }
    }
}

/* The next ticket is drawn while a tile is gathered. Of two slots one may be written while a slow warp still
 * reads the other: the barrier between keeps it from falling further behind. */
template <typename P, Carrier CARRIER>
__device__ __forceinline__ void gather_all(const AttentionProblem &a, const Schedule &schedule,
                                           const BoxMaps &maps, const Memory<P> &memory)
{
    Gathering<P> g = {memory, gatherer<P::DIM>(a.dim), {0, 0}, 0, 0};
    int drawn = blockIdx.x;
    for (int turn = 0;; turn ^= 1) {
        if (threadIdx.x == 0)
            *memory.ticket(turn) = drawn;
        named_sync(GATHER_BARRIER, WARPGROUP);
        int number = agreed(*memory.ticket(turn));
        if (number >= schedule.all)
            break;
        if (threadIdx.x == 0)
            drawn = take_tile(schedule);
        Tile tile = tile_numbered(a, schedule, number);
        if (tile.rows == 0)
            continue;
        tell(&g, {tile.pair, tile.first, tile.rows, tile.keys});
        if (tile.keys > 0)
            gather_tile<P, CARRIER>(a, maps, tile, &g);
    }
    tell(&g, {0, 0, 0, -1});
}

/* ---- multiplying ---- */

/* The softmax of rows lane / 4 and lane / 4 + 8 of a warp's 16; `total` is over this lane's columns. */
struct Softmax {
    float largest[2], total[2];
};

/* Scores from column `count` on do not count. */
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int count)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = i / 4 * 8 + column + i % 2 < count ? s[i] : -INFINITY;
}

/* Takes scores in: s becomes p, `shrink` what the sums so far are to be multiplied by, 1 to the bit where the
 * largest score stays. `scale` has log2 e in it. Two chains for each row, so that additions need not wait for
 * one another. */
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
#pragma unroll
        for (int i = 2 * half; i < N; i += 4)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                s[i + k] = power_of_two((s[i + k] - now) * scale);
                sum[k] += s[i + k];
            }
        shrink[half] = power_of_two((before - now) * scale);
        softmax->largest[half] = now;
        softmax->total[half] = fmaf(softmax->total[half], shrink[half], sum[0] + sum[1]);
    }
}

/* Most steps meet no score larger than all before. */
template <int N> __device__ __forceinline__ void shrink_sums(float (&out)[N], const float (&shrink)[2])
{
    if (!__any_sync(0xffffffffu, shrink[0] != 1 || shrink[1] != 1))
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] *= shrink[i / 2 % 2];
}

template <int N> __device__ __forceinline__ void pack(uint32_t (&p)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        p[i] = pair_bits(s[2 * i], s[2 * i + 1]);
    hold(p);
}

/* A warpgroup that multiplies: what it knows of its block of threads. */
template <typename P> struct Multiplier {
    Memory<P> memory;
    int number;  /* of the warpgroup: 0 multiplies first */
    bool speaks; /* for its warp, at barriers */
    float scale; /* of scores, with log2 e */

    __device__ void leave(uint32_t barrier) const
    {
        if (speaks)
            barrier_arrive(barrier);
    }
};

/* s = Q K^T of a warpgroup's 64 queries and a stage's keys, begun. */
template <typename P>
__device__ __forceinline__ void begin_scores(const Multiplier<P> &m, float (&s)[P::KEYS / 2], int stage)
{
    uint64_t q = matrix_at(m.memory.base + m.number * 64 * LINE_BYTES, ATOM_BYTES, ATOM_BYTES);
    uint64_t k = matrix_at(m.memory.keys_at(stage), ATOM_BYTES, ATOM_BYTES);
#pragma unroll
    for (int d = 0; d < P::DIM; d += 16) {
        uint32_t half = 2 * d / LINE_BYTES * LINE_BYTES, inside = 2 * d % LINE_BYTES;
        multiply(s, q + (half * P::QUERIES + inside) / 16, k + (half * P::KEYS + inside) / 16, d > 0);
    }
    products_commit();
}

/* out += P V of a stage's keys, begun. */
template <typename P>
__device__ __forceinline__ void begin_sums(const Multiplier<P> &m, float (&out)[P::DIM / 2],
                                           const uint32_t (&p)[P::KEYS / 4], int stage)
{
    uint64_t v = matrix_at(m.memory.values_at(stage), P::KEYS * LINE_BYTES, ATOM_BYTES);
#pragma unroll
    for (int key = 0; key < P::KEYS; key += 16)
        multiply_add(out, p + key / 4, v + key * LINE_BYTES / 16);
    products_commit();
}

/* A step's products wait for its softmax and the softmax for its products. */
template <typename P>
__device__ __forceinline__ void attend_in_turn(const Multiplier<P> &m, float (&out)[P::DIM / 2],
                                               Softmax *softmax, int steps, int count, Ring<P::STAGES> *ring)
{
    const Barriers<P> barriers = m.memory.barriers;
    float s[P::KEYS / 2] = {}, shrink[2];
    uint32_t p[P::KEYS / 4];
    for (int step = 0; step < steps; step++, advance(ring)) {
        barrier_wait(barriers.keys_full(ring->stage), ring->parity);
        fence_for_products();
        hold(s);
        products_begin();
        begin_scores(m, s, ring->stage);
        products_wait<0>();
        hold(s);
        m.leave(barriers.keys_empty(ring->stage));
        if (step == steps - 1)
            m.leave(barriers.queries_empty());
        if (step == 0)
            mask(s, count);
        soften(s, softmax, shrink, m.scale);
        shrink_sums(out, shrink);
        pack(p, s);
        barrier_wait(barriers.values_full(ring->stage), ring->parity);
        fence_for_products();
        hold(out);
        products_begin();
        begin_sums(m, out, p, ring->stage);
        products_wait<0>();
        hold(out);
        m.leave(barriers.values_empty(ring->stage));
    }
}

/* Until the values of the step at `ring` are there, and the keys of the next if there are more. */
template <typename P>
__device__ __forceinline__ void await_next(const Barriers<P> &barriers, Ring<P::STAGES> ring, bool more)
{
    barrier_wait(barriers.values_full(ring.stage), ring.parity);
    advance(&ring);
    if (more)
        barrier_wait(barriers.keys_full(ring.stage), ring.parity);
}

/* The products P V of a step run while the softmax of the next is made, and the two warpgroups give their
 * products to the tensor cores by turns, so that one multiplies while the other is in its softmax: both have
 * the same steps.
 *
 * The barriers of the next step are waited for between softmax and products_wait<0> because ptxas, left
 * alone, moves most of the softmax down past that wait, where nothing runs beside it; past a branch it does
 * not. To check after a change of compiler: in `cuobjdump -sass` all MUFU.EX2 of a step stand between
 * `DEPBAR.LE gsb0, 0x1` and `DEPBAR.LE gsb0, 0x0`. */
template <typename P>
__device__ __forceinline__ void attend_by_turns(const Multiplier<P> &m, float (&out)[P::DIM / 2],
                                                Softmax *softmax, int steps, int count, Ring<P::STAGES> *ring)
{
    const Barriers<P> barriers = m.memory.barriers;
    float s[P::KEYS / 2] = {}, shrink[2];
    uint32_t p[P::KEYS / 4];
    barrier_wait(barriers.keys_full(ring->stage), ring->parity);
    fence_for_products();
    hold(s);
    products_begin();
    begin_scores(m, s, ring->stage);
    products_wait<0>();
    hold(s);
    m.leave(barriers.keys_empty(ring->stage));
    if (steps == 1)
        m.leave(barriers.queries_empty());
    mask(s, count);
    soften(s, softmax, shrink, m.scale);
    pack(p, s);
    await_next(barriers, *ring, steps > 1);
    for (int step = 1; step < steps; step++) {
        int last = ring->stage;
        advance(ring);
        fence_for_products();
        named_sync(TURN_BARRIER + m.number, P::MULTIPLYING);
        hold(s);
        hold(out);
        products_begin();
        begin_scores(m, s, ring->stage);
        begin_sums(m, out, p, last);
        named_arrive(TURN_BARRIER + 1 - m.number, P::MULTIPLYING);
        products_wait<1>();
        hold(s);
        m.leave(barriers.keys_empty(ring->stage));
        if (step == steps - 1)
            m.leave(barriers.queries_empty());
        soften(s, softmax, shrink, m.scale);
        hold(s);
        await_next(barriers, *ring, step + 1 < steps);
        products_wait<0>();
        hold(out);
        m.leave(barriers.values_empty(last));
        shrink_sums(out, shrink);
        pack(p, s);
    }
    fence_for_products();
    hold(out);
    products_begin();
    begin_sums(m, out, p, ring->stage);
    products_wait<0>();
    hold(out);
    m.leave(barriers.values_empty(ring->stage));
    advance(ring);
}

/* Writes this warpgroup's rows of the tile; an empty list gives zeros and -inf. */
template <typename P>
__device__ __forceinline__ void store_tile(const AttentionProblem &a, const Job &job, int number,
                                           const float (&out)[P::DIM / 2], const Softmax &softmax)
{
    int lane = threadIdx.x % WARP, warp = threadIdx.x % WARPGROUP / WARP, column = lane % 4 * 2;
    int64_t head = job.pair / a.heads * a.out.batch_stride + job.pair % a.heads * a.out.head_stride;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = 64 * number + 16 * warp + 8 * half + lane / 4;
        float total = softmax.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (row >= job.rows)
            continue;
        float factor = job.keys > 0 ? 1 / total : 0.f;
        int64_t query = job.first + row;
        __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(a.out.data) + head + query * a.out.token_stride;
#pragma unroll
        for (int j = 0; j < P::DIM / 8; j++)
            if (8 * j < a.dim)
                *reinterpret_cast<uint32_t *>(to + 8 * j + column) =
                    pair_bits(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
        if (lane % 4 == 0)
            a.lse[(int64_t)job.pair * a.queries + query] =
                job.keys > 0 ? __fmul_rn(softmax.largest[half], a.scale) + logf(total) : -INFINITY;
    }
}

/* What tell told, the same for all. Each thread says for itself that it has read: racecheck does not see that
 * one lane's arrival comes behind the reads of its warp. */
template <typename P> __device__ __forceinline__ Job hear(const Multiplier<P> &m, uint32_t jobs)
{
    uint32_t slot = jobs % JOBS;
    barrier_wait(m.memory.barriers.told(slot), jobs / JOBS % 2);
    Job job = *m.memory.job(slot);
    barrier_arrive(m.memory.barriers.heard(slot));
    job.keys = agreed(job.keys);
    return job;
}

template <typename P>
__device__ __forceinline__ void multiply_all(const AttentionProblem &a, const Memory<P> &memory, int number)
{
    Multiplier<P> m = {memory, number, threadIdx.x % WARP == 0, a.scale * (float)M_LOG2E};
    Ring<P::STAGES> ring = {0, 0};
    uint32_t visits = 0, jobs = 0;
    if (P::WARPGROUPS == 2 && number == 1)
        named_arrive(TURN_BARRIER, P::MULTIPLYING);
    Job job = hear(m, jobs++);
    while (job.keys >= 0) {
        int steps = (job.keys + P::KEYS - 1) / P::KEYS, count = job.keys - (steps - 1) * P::KEYS;
        float out[P::DIM / 2] = {};
        Softmax softmax = {{-INFINITY, -INFINITY}, {0, 0}};
        if (steps > 0) {
            barrier_wait(memory.barriers.queries_full(), visits++ & 1);
            if constexpr (P::WARPGROUPS == 2)
                attend_by_turns(m, out, &softmax, steps, count, &ring);
            else
                attend_in_turn(m, out, &softmax, steps, count, &ring);
        }
        store_tile<P>(a, job, number, out, softmax);
        job = hear(m, jobs++);
    }
}

/* Grid: as many blocks of threads as are resident at once, or tiles. */
template <typename P, Carrier CARRIER>
__global__ void __launch_bounds__(P::THREADS, P::RESIDENT)
    forward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Schedule schedule,
                   const __grid_constant__ BoxMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared);
    Memory<P> memory = {shared, base, {base + P::BARRIERS_AT}};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if (threadIdx.x == 0) {
        if (base % ATOM_BYTES != 0)
            __trap();
        make_barriers<P, CARRIER>(memory.barriers);
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<P::GATHER_REGISTERS>();
        gather_all<P, CARRIER>(a, schedule, maps, memory);
    } else {
        take_registers<P::MULTIPLY_REGISTERS>();
        multiply_all(a, memory, warpgroup - 1);
    }
#endif
}

template <typename P, Carrier CARRIER>
DsvStatus launch_by(DsvStream *stream, const AttentionProblem &problem, const BoxMaps &maps)
{
    Schedule schedule;
    DSVI_TRY(make_schedule(stream, problem, P::QUERIES, true, &schedule));
    DSVI_CUDA_TRY(cudaFuncSetAttribute(forward_kernel<P, CARRIER>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, P::SHARED));
    int resident = stream->multiprocessors * P::RESIDENT, blocks = min(resident, schedule.all);
    forward_kernel<P, CARRIER><<<(unsigned)blocks, P::THREADS, P::SHARED, stream->handle>>>(problem, schedule,
                                                                                            maps);
    DSVI_CUDA_LAUNCHED("attention forward on Hopper");
    return DSV_OK;
}

template <typename P>
DsvStatus launch(DsvStream *stream, const AttentionProblem &problem, bool *refused)
{
    BoxMaps maps = {};
    bool blocks = lists_blocks(problem) && problem.keys > 0, boxes = blocks && make_maps(problem, &maps);
    *refused = blocks && !boxes;
    return boxes ? launch_by<P, IN_BOXES>(stream, problem, maps)
                 : launch_by<P, ROW_BY_ROW>(stream, problem, maps);
}

} // namespace

DsvStatus attention_forward_sm90(DsvStream *stream, const AttentionProblem &problem, bool *refused)
{
    bool narrow = problem.group <= Narrow<64>::QUERIES;
    if (problem.dim <= 64)
        return narrow ? launch<Narrow<64>>(stream, problem, refused)
                      : launch<Wide<64>>(stream, problem, refused);
    return narrow ? launch<Narrow<128>>(stream, problem, refused)
                  : launch<Wide<128>>(stream, problem, refused);
}

} // namespace dsvi
