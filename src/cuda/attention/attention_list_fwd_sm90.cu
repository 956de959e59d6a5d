/* Attention forward over lists in BF16 on Hopper: online softmax over tiles of keys (Milakov & Gimelshein
 * 2018; Dao et al. 2022), warpgroup products that overlap with the softmax (Shah et al. 2024), and a producer
 * warpgroup that gathers the listed rows of K and V.
 *
 *     S = Q K^T      P = exp(scale (S - largest))      O = O exp(scale (largest before - largest)) + P V
 * and at the end out = O / sum of P, lse = scale largest + log(sum of P). How scores are rounded is described
 * in attention_gather.cuh. The code uses powers of 2 instead of e.
 *
 * One thread block, or two, stays resident on a multiprocessor and processes one tile of queries after the
 * other (attention_schedule.cuh). Its first warpgroup is the producer: it copies K and V of the listed keys,
 * KEYS at a time, into a ring of STAGES stages, row by row with cp.async or, where the grain is a multiple of
 * 64, in boxes of 64 rows with TMA. The other warpgroups are consumers: each computes the attention of 64
 * queries, with S, P and O in registers.
 *
 *     Wide    128 queries, 128 keys, two consumers whose products and softmax alternate; for groups of more
 *             than 64 queries: a group of more than 128 has several tiles, a smaller one fills part of a tile
 *     Narrow   64 queries,  64 keys, one consumer, two resident thread blocks; for groups of up to 64
 *
 *     shared memory     Q, STAGES x K, STAGES x V, each DIM / 64 matrices of 64 columns (hopper.cuh), then
 *                       barriers, two jobs, two tickets
 *     DIM = 128         Wide 32 + 3 x 64 KiB, Narrow 2 x (16 + 3 x 32) KiB, of 227
 *     registers         65536: Wide 128 x (56 + 2 x 224), Narrow 2 x 128 x (56 + 192); in each thread S takes
 *                       KEYS / 2 registers, P half as many, O DIM / 2
 *     barriers          for each stage: keys full, keys empty, values full, values empty; for Q: full, empty;
 *                       for each job: full, empty
 *
 * Time runs to the right for Wide. "S 2" is the product S = Q K^T of step 2. P V of step 1 overlaps with the
 * softmax of step 2 of the same warpgroup. A pair of named barriers keeps the products of the two consumers
 * from overlapping with each other:
 *     producer       K 3  V 3         K 4  V 4         K 5  V 5
 *     consumer 0     S 1, P V 0 | softmax 1       | S 2, P V 1 | softmax 2       | ...
 *     consumer 1                  S 1, P V 0 | softmax 1       | S 2, P V 1 | softmax 2
 * In Narrow, P V of a step waits for its softmax, and the other resident thread block uses the tensor cores
 * meanwhile.
 *
 * The kernel with another KIND than NO_TAIL computes a tail (attention_tail.cuh), in configuration Wide. A
 * query tail has few queries, so a tile of queries is divided into jobs that attend to tail.part_keys keys
 * each, and a job writes p_c and log T_c over its keys to the workspace. A key tail has few keys, one part; a
 * job joins its results to out and lse.
 *
 * A ticket is the number of a tile, which one thread of the producer takes and hands to the rest of the
 * producer. A job is what consumers must know about the tile; the producer hands jobs to them. A tile whose
 * list is empty is a job without steps.
 *
 * Limits at DIM = 128: a multiprocessor multiplies 4096 FLOPs a cycle, so a step of Wide takes 2048 cycles,
 * and its 16384 exponentials take 1024. Rows come from the L2 cache at 8 TB/s over the whole GPU; Narrow
 * computes 64 FLOPs for each byte, Wide 128, which allows 512 and 1024 TFLOP/s. Measured on one H200 at
 * commit b70d905, with tiles in fixed order and one operation fewer for each score (lab/README.md), 32768
 * tokens, 16 heads, lists of single random keys: 566 TFLOP/s at groups of 128 and 10 % of the keys, 506 at 5
 * %; 447 and 418 at groups of 64. */
#include <math.h>

#include "cuda/attention/attention_boxes.cuh"
#include "cuda/attention/attention_schedule.cuh"
#include "cuda/attention/attention_tail_sm90.cuh"
#include "cuda/attention/attention_weights.cuh"

namespace dsvi {
namespace {

using namespace hopper;

constexpr int JOBS = 2;
/* Numbers of named barriers. ORDER_BARRIER and the next one order the products of the two consumers. */
enum { ORDER_BARRIER = 1, PRODUCER_BARRIER = 3 };

/* How the producer copies K and V to shared memory: row by row with cp.async (attention_gather.cuh), or in
 * boxes of 64 rows with TMA (attention_boxes.cuh). */
enum Loader { CP_ASYNC_ROWS, TMA_BOXES };

/* What the producer passes to the consumers about a tile of queries: its (batch, head), first query and
 * number of queries. */
struct alignas(16) Job {
    int pair, first, rows; /* in a tail, pair is the number of the part: (batch, head) x parts + part */
    int keys;              /* number of keys in the tile's list; negative: no tile is left */
};

/* Constants of the kernel for heads of up to DIM elements: tile sizes, layout of shared memory, registers. */
template <int DIM_, int CONSUMERS_, int KEYS_, int STAGES_> struct Config {
    static constexpr int DIM = DIM_, CONSUMERS = CONSUMERS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr int QUERIES = 64 * CONSUMERS, CONSUMER_THREADS = WARPGROUP * CONSUMERS;
    static constexpr int THREADS = WARPGROUP + CONSUMER_THREADS, RESIDENT = CONSUMERS == 2 ? 1 : 2;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int KEYS_AT = QUERY_BYTES, VALUES_AT = KEYS_AT + STAGES * KEY_BYTES;
    static constexpr int BARRIERS_AT = VALUES_AT + STAGES * KEY_BYTES;
    static constexpr int JOBS_AT = BARRIERS_AT + (4 * STAGES + 2 + 2 * JOBS) * 8;
    static constexpr int TICKETS_AT = JOBS_AT + JOBS * (int)sizeof(Job);
    static constexpr int SHARED = TICKETS_AT + 2 * (int)sizeof(int);
    /* Registers of a thread. A multiprocessor has 65536 for RESIDENT thread blocks. */
    static constexpr int PRODUCER_REGISTERS = 56, CONSUMER_REGISTERS = CONSUMERS == 2 ? 224 : 192;
    static_assert(RESIDENT * (SHARED + 1024) <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(RESIDENT * WARPGROUP * (PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS) <= 65536,
                  "registers of a multiprocessor");
    static_assert(QUERY_BYTES % ATOM_BYTES == 0 && KEY_BYTES % ATOM_BYTES == 0, "matrices are atoms");
    static_assert(JOBS_AT % 16 == 0, "a job is one access");
};

template <int DIM> using Wide = Config<DIM, 2, 128, DIM == 128 ? 3 : 6>;
template <int DIM> using Narrow = Config<DIM, 1, 64, DIM == 128 ? 3 : 6>;
static_assert(TAIL_ROWS == 2 * TAIL_GROUP, "a consumer of a key tail has one line of counts");
static_assert(Wide<64>::QUERIES == TAIL_ROWS && Wide<64>::KEYS == TAIL_KEYS, "tiles of a tail");

/* Addresses of a thread block's barriers. */
template <typename C> struct Barriers {
    uint32_t at;
    __device__ uint32_t keys_full(int stage) const { return at + 8 * stage; }
    __device__ uint32_t keys_empty(int stage) const { return at + 8 * (C::STAGES + stage); }
    __device__ uint32_t values_full(int stage) const { return at + 8 * (2 * C::STAGES + stage); }
    __device__ uint32_t values_empty(int stage) const { return at + 8 * (3 * C::STAGES + stage); }
    __device__ uint32_t queries_full() const { return at + 8 * (4 * C::STAGES); }
    __device__ uint32_t queries_empty() const { return at + 8 * (4 * C::STAGES + 1); }
    __device__ uint32_t job_full(int job) const { return at + 8 * (4 * C::STAGES + 2 + job); }
    __device__ uint32_t job_empty(int job) const { return at + 8 * (4 * C::STAGES + 2 + JOBS + job); }
};

template <typename C, Loader LOADER> __device__ __forceinline__ void init_barriers(Barriers<C> barriers)
{
    constexpr int ARRIVALS = LOADER == TMA_BOXES ? 1 : WARPGROUP;
    for (int stage = 0; stage < C::STAGES; stage++) {
        barrier_init(barriers.keys_full(stage), ARRIVALS);
        barrier_init(barriers.values_full(stage), ARRIVALS);
        barrier_init(barriers.keys_empty(stage), C::CONSUMER_THREADS / WARP);
        barrier_init(barriers.values_empty(stage), C::CONSUMER_THREADS / WARP);
    }
    barrier_init(barriers.queries_full(), WARPGROUP);
    barrier_init(barriers.queries_empty(), C::CONSUMER_THREADS / WARP);
    for (int job = 0; job < JOBS; job++) {
        barrier_init(barriers.job_full(job), 1);
        barrier_init(barriers.job_empty(job), C::CONSUMER_THREADS);
    }
    fence_fresh_barriers();
}

/* Shared memory of a thread block. */
template <typename C> struct Memory {
    unsigned char *bytes;
    uint32_t base; /* address of `bytes` in the shared window, as wgmma and cp.async need it */
    Barriers<C> barriers;
    __device__ uint32_t keys_at(int stage) const { return base + C::KEYS_AT + stage * C::KEY_BYTES; }
    __device__ uint32_t values_at(int stage) const { return base + C::VALUES_AT + stage * C::KEY_BYTES; }
    __device__ Job *job(int slot) const { return reinterpret_cast<Job *>(bytes + C::JOBS_AT) + slot; }
    __device__ int *ticket(int turn) const { return reinterpret_cast<int *>(bytes + C::TICKETS_AT) + turn; }
};

/* ---- producer ---- */

/* State of the producer. */
template <typename C> struct Producer {
    Memory<C> memory;
    Gatherer<C::DIM> place;
    Ring<C::STAGES> ring;
    uint32_t visits, jobs; /* visits: number of tiles with keys so far; jobs: number of jobs handed to the
                              consumers so far */
};

/* Hands a job (the description of a tile) to the consumers. All threads of the producer call; one of them
 * writes the job to shared memory. */
template <typename C> __device__ __forceinline__ void post_job(Producer<C> *g, Job job)
{
    uint32_t slot = g->jobs % JOBS, parity = g->jobs / JOBS % 2;
    g->jobs++;
    if (threadIdx.x > 0)
        return;
    barrier_wait(g->memory.barriers.job_empty(slot), parity ^ 1);
    *g->memory.job(slot) = job;
    barrier_arrive(g->memory.barriers.job_full(slot));
}

/* The numbers of the keys of one step. `fetch` reads them from the key list one step ahead, so that the
 * latency of the load is hidden; `load_stage` copies the rows of K or V with these numbers into a stage. */
template <typename C, Loader LOADER> struct Step;

template <typename C> struct Step<C, CP_ASYNC_ROWS> {
    Listed listed;

    __device__ void fetch(const AttentionProblem &a, const Tile &tile, int, const Producer<C> &g, int first)
    {
        int number = first + fetched_row<C::DIM, C::KEYS>(g.place);
        listed = fetch_listed(a, tile, min(number, tile.keys - 1));
    }
    __device__ void load_stage(const AttentionProblem &a, const BoxMaps &, const Tile &tile,
                               const Producer<C> &g, bool values, uint32_t to, uint32_t barrier) const
    {
        gather_listed<C::DIM, C::KEYS>(g.place, values ? a.v : a.k, tile, listed_key(a, listed), to);
        barrier_arrive_after_copies(barrier);
    }
};

template <typename C> struct Step<C, TMA_BOXES> {
    int rows[C::KEYS / BOX_ROWS];

    __device__ void fetch(const AttentionProblem &a, const Tile &tile, int from, const Producer<C> &,
                          int first)
    {
#pragma unroll
        for (int n = 0; n < C::KEYS / BOX_ROWS; n++)
            rows[n] = from + block_at(a, tile, first + n * BOX_ROWS);
    }
    __device__ void load_stage(const AttentionProblem &, const BoxMaps &maps, const Tile &tile,
                               const Producer<C> &, bool values, uint32_t to, uint32_t barrier) const
    {
        if (elected())
            copy_blocks<C::DIM, C::KEYS>(values ? &maps.v : &maps.k, tile, rows, to, barrier);
    }
};

/* Loads Q of a tile, and K and V step by step. `from` is the number of keys before the tile's. With TMA only
 * warp 0 fills stages. The other warps must not wait for a stage's barriers: no consumer waits for these
 * warps, so they could lag a full round of the ring and misread the parity. */
template <typename C, Loader LOADER>
__device__ __forceinline__ void produce_tile(const AttentionProblem &a, const BoxMaps &maps, const Tile &tile,
                                             int from, Producer<C> *g)
{
    const Memory<C> memory = g->memory;
    const Barriers<C> barriers = memory.barriers;
    const bool loads = LOADER == CP_ASYNC_ROWS || agreed(threadIdx.x / WARP) == 0;
    int steps = (tile.keys + C::KEYS - 1) / C::KEYS, first = (steps - 1) * C::KEYS;
    Step<C, LOADER> next;
    next.fetch(a, tile, from, *g, first);
    for (int step = 0; step < steps; step++, advance(&g->ring)) {
        int stage = g->ring.stage;
        const Step<C, LOADER> now = next;
        first -= C::KEYS;
        if (first >= 0)
            next.fetch(a, tile, from, *g, first);
        if (loads) {
            barrier_wait(barriers.keys_empty(stage), g->ring.parity ^ 1);
            now.load_stage(a, maps, tile, *g, false, memory.keys_at(stage), barriers.keys_full(stage));
        }
        if (step == 0) {
            barrier_wait(barriers.queries_empty(), g->visits++ & 1 ^ 1);
            gather_queries<C::DIM, C::QUERIES>(g->place, a.q, tile, memory.base);
            barrier_arrive_after_copies(barriers.queries_full());
        }
        if (loads) {
            barrier_wait(barriers.values_empty(stage), g->ring.parity ^ 1);
            now.load_stage(a, maps, tile, *g, true, memory.values_at(stage), barriers.values_full(stage));
        }
    }
}

/* Returns tile number `number` of a tail: queries of one (batch, head), and one part of its keys. Sets *from
 * to the number of keys before the part. Tiles of the same part are neighbours, so that they share its keys
 * in the L2 cache. */
template <typename C>
__device__ __forceinline__ Tile tail_tile(const AttentionProblem &a, const Schedule &schedule, int number,
                                          int *from)
{
    int part = number / schedule.tiles, pair = part / a.tail.parts;
    Tile tile = {};
    tile.pair = pair;
    tile.b = pair / a.heads;
    tile.h = pair % a.heads;
    tile.first = number % schedule.tiles * C::QUERIES;
    tile.rows = min(C::QUERIES, a.queries - tile.first);
    *from = part % a.tail.parts * a.tail.part_keys;
    tile.keys = min(a.tail.part_keys, a.keys - *from);
    return tile;
}

/* Brings the rows of out that a key tail is joined to into the L2 cache while earlier tiles are computed. */
template <typename C>
__device__ __forceinline__ void prefetch_out(const AttentionProblem &a, const Tile &tile)
{
    static_assert(C::QUERIES == WARPGROUP, "a thread of the producer has one row");
    constexpr int CACHE_LINE = 128; /* bytes of a line of the L2 cache */
    const char *row = reinterpret_cast<const char *>(
        static_cast<const __nv_bfloat16 *>(a.out.data) + tile.b * a.out.batch_stride +
        tile.h * a.out.head_stride + (tile.first + threadIdx.x) * a.out.token_stride);
    for (int byte = 0; byte < 2 * a.dim && threadIdx.x < tile.rows; byte += CACHE_LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(row + byte));
}

/* The producer's loop over tiles. The ticket (number) of the next tile is taken while a tile is loaded. There
 * are two slots for tickets: one may be written while a slow warp still reads the other, and the named
 * barrier keeps a warp from lagging further. */
template <typename C, Loader LOADER, TailKind KIND>
__device__ __forceinline__ void produce(const AttentionProblem &a, const Schedule &schedule,
                                        const BoxMaps &maps, const Memory<C> &memory)
{
    Producer<C> g = {memory, gatherer<C::DIM>(a.dim), {0, 0}, 0, 0};
    int drawn = blockIdx.x;
    for (int turn = 0;; turn ^= 1) {
        if (threadIdx.x == 0)
            *memory.ticket(turn) = drawn;
        named_sync(PRODUCER_BARRIER, WARPGROUP);
        int number = agreed(*memory.ticket(turn));
        if (number >= schedule.all)
            break;
        if (threadIdx.x == 0)
            drawn = take_tile(schedule);
        int from = 0;
        Tile tile = KIND == NO_TAIL ? tile_numbered(a, schedule, number)
                                    : tail_tile<C>(a, schedule, number, &from);
        if (tile.rows == 0)
            continue;
        int part = KIND == NO_TAIL ? tile.pair : number / schedule.tiles;
        post_job(&g, {part, tile.first, tile.rows, tile.keys});
        if constexpr (KIND == KEY_TAIL)
            prefetch_out<C>(a, tile);
        if (tile.keys > 0)
            produce_tile<C, LOADER>(a, maps, tile, from, &g);
    }
    post_job(&g, {0, 0, 0, -1});
}

/* ---- consumers ---- */

/* Online-softmax state of rows lane / 4 and lane / 4 + 8 of a warp's 16 queries: the largest score so far,
 * and the sum of exp(score - largest) over the columns that this lane holds. */
struct Softmax {
    float largest[2], total[2];
};

/* Sets the scores of keys that do not exist, in columns from `count` on, to -inf. */
template <int N> __device__ __forceinline__ void mask(float (&s)[N], int count)
{
    int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++)
        s[i] = i / 4 * 8 + column + i % 2 < count ? s[i] : -INFINITY;
}

/* Adds the scores s of one step to the online softmax: s becomes the probabilities relative to the largest
 * score so far, and `rescale` the factor for sums over earlier steps, which is exactly 1 where the largest
 * score stays the same. `scale` includes log2 e. Each row has two independent chains of additions, to hide
 * their latency. In a query tail all scores may be -inf. In a key tail a run without keys left out has the
 * factor 0, but counts in the largest score. The sum may therefore become 0 where the tail's share of the
 * whole is below 2^-126: the list contains all keys of such a run, so its part of the whole is as large. */
template <TailKind KIND, int N>
__device__ __forceinline__ void online_softmax(float (&s)[N], Softmax *softmax, float (&rescale)[2],
                                               float scale, const TailStep<KIND> &weights)
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
        float subtracted = KIND == QUERY_TAIL ? tail_largest(now) : now;
#pragma unroll
        for (int i = 2 * half; i < N; i += 4)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                s[i + k] = power_of_two((s[i + k] - subtracted) * scale);
                if constexpr (KIND == KEY_TAIL)
                    s[i + k] *= weights.count(i / 4 * 2 + k);
                sum[k] += s[i + k];
            }
        rescale[half] = power_of_two((before - subtracted) * scale);
        softmax->largest[half] = now;
        softmax->total[half] = fmaf(softmax->total[half], rescale[half], sum[0] + sum[1]);
    }
}

/* Multiplies the output rows by their rescale factors. Most steps have no new largest score, so all factors
 * are 1 and the whole warp skips the multiplication. */
template <int N> __device__ __forceinline__ void rescale_sums(float (&out)[N], const float (&rescale)[2])
{
    if (!__any_sync(0xffffffffu, rescale[0] != 1 || rescale[1] != 1))
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        out[i] *= rescale[i / 2 % 2];
}

template <int N> __device__ __forceinline__ void pack(uint32_t (&p)[N / 2], const float (&s)[N])
{
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        p[i] = pair_bits(s[2 * i], s[2 * i + 1]);
    hold(p);
}

/* State of one consumer warpgroup. */
template <typename C> struct Consumer {
    Memory<C> memory;
    int number;   /* index of the consumer; consumer 0 is the first to issue its products */
    bool arrives; /* this thread arrives at barriers on behalf of its warp */
    float scale;  /* factor on scores, multiplied by log2 e so that powers of 2 can be used */

    __device__ void release(uint32_t barrier) const
    {
        if (arrives)
            barrier_arrive(barrier);
    }
};

/* Begins the product s = Q K^T for the warpgroup's 64 queries and the keys whose K is in a stage. */
template <typename C>
__device__ __forceinline__ void begin_scores(const Consumer<C> &m, float (&s)[C::KEYS / 2], int stage)
{
    uint64_t q = matrix_at(m.memory.base + m.number * 64 * LINE_BYTES, ATOM_BYTES, ATOM_BYTES);
    uint64_t k = matrix_at(m.memory.keys_at(stage), ATOM_BYTES, ATOM_BYTES);
#pragma unroll
    for (int d = 0; d < C::DIM; d += 16) {
        uint32_t half = 2 * d / LINE_BYTES * LINE_BYTES, inside = 2 * d % LINE_BYTES;
        multiply(s, q + (half * C::QUERIES + inside) / 16, k + (half * C::KEYS + inside) / 16, d > 0);
    }
    products_commit();
}

/* Begins the product out += P V for the keys whose V is in a stage. */
template <typename C>
__device__ __forceinline__ void begin_values(const Consumer<C> &m, float (&out)[C::DIM / 2],
                                             const uint32_t (&p)[C::KEYS / 4], int stage)
{
    uint64_t v = matrix_at(m.memory.values_at(stage), C::KEYS * LINE_BYTES, ATOM_BYTES);
#pragma unroll
    for (int key = 0; key < C::KEYS; key += 16)
        multiply_add(out, p + key / 4, v + key * LINE_BYTES / 16);
    products_commit();
}

/* Processes the steps of a tile of queries in configuration Narrow: products and softmax one after the other.
 */
template <typename C>
__device__ __forceinline__ void attend_serially(const Consumer<C> &m, float (&out)[C::DIM / 2],
                                                Softmax *softmax, int steps, int count, Ring<C::STAGES> *ring)
{
    const Barriers<C> barriers = m.memory.barriers;
    float s[C::KEYS / 2] = {}, rescale[2];
    uint32_t p[C::KEYS / 4];
    for (int step = 0; step < steps; step++, advance(ring)) {
        barrier_wait(barriers.keys_full(ring->stage), ring->parity);
        fence_for_products();
        hold(s);
        products_begin();
        begin_scores(m, s, ring->stage);
        products_wait<0>();
        hold(s);
        m.release(barriers.keys_empty(ring->stage));
        if (step == steps - 1)
            m.release(barriers.queries_empty());
        if (step == 0)
            mask(s, count);
        online_softmax<NO_TAIL>(s, softmax, rescale, m.scale, {});
        rescale_sums(out, rescale);
        pack(p, s);
        barrier_wait(barriers.values_full(ring->stage), ring->parity);
        fence_for_products();
        hold(out);
        products_begin();
        begin_values(m, out, p, ring->stage);
        products_wait<0>();
        hold(out);
        m.release(barriers.values_empty(ring->stage));
    }
}

/* Waits until the rows of V of the step at ring position `ring` have arrived, and also the rows of K of the
 * next step if there is one. */
template <typename C>
__device__ __forceinline__ void await_next(const Barriers<C> &barriers, Ring<C::STAGES> ring, bool more)
{
    barrier_wait(barriers.values_full(ring.stage), ring.parity);
    advance(&ring);
    if (more)
        barrier_wait(barriers.keys_full(ring.stage), ring.parity);
}

/* Processes the steps of a tile of queries in configuration Wide. The product P V of a step runs during the
 * softmax of the next step. The two consumers, which have the same steps, issue their products alternately,
 * so that one multiplies while the other computes its softmax.
 *
 * The wait for the barriers of the next step is between the softmax and products_wait<0>, because ptxas
 * otherwise moves most of the softmax after products_wait<0>, where no product overlaps with it; ptxas does
 * not move code across the branch of a barrier wait. To check this with a new compiler: in `cuobjdump -sass`
 * all MUFU.EX2 of a step are between `DEPBAR.LE gsb0, 0x1` and `DEPBAR.LE gsb0, 0x0`. */
template <typename C, TailKind KIND>
__device__ __forceinline__ void attend_overlapped(const Consumer<C> &m, float (&out)[C::DIM / 2],
                                                  Softmax *softmax, int steps, int count,
                                                  Ring<C::STAGES> *ring, const TailLines<KIND> &tail)
{
    TailStep<KIND> weights;
    const Barriers<C> barriers = m.memory.barriers;
    float s[C::KEYS / 2] = {}, rescale[2];
    uint32_t p[C::KEYS / 4];
    weights.fetch(tail, steps - 1);
    barrier_wait(barriers.keys_full(ring->stage), ring->parity);
    fence_for_products();
    hold(s);
    products_begin();
    begin_scores(m, s, ring->stage);
    products_wait<0>();
    hold(s);
    m.release(barriers.keys_empty(ring->stage));
    if (steps == 1)
        m.release(barriers.queries_empty());
    if constexpr (KIND == QUERY_TAIL)
        weights.apply(s);
    else
        mask(s, count);
    online_softmax(s, softmax, rescale, m.scale, weights);
    pack(p, s);
    await_next(barriers, *ring, steps > 1);
    for (int step = 1; step < steps; step++) {
        int last = ring->stage;
        advance(ring);
        weights.fetch(tail, steps - 1 - step);
        fence_for_products();
        named_sync(ORDER_BARRIER + m.number, C::CONSUMER_THREADS);
        hold(s);
        hold(out);
        products_begin();
        begin_scores(m, s, ring->stage);
        begin_values(m, out, p, last);
        named_arrive(ORDER_BARRIER + 1 - m.number, C::CONSUMER_THREADS);
        products_wait<1>();
        hold(s);
        m.release(barriers.keys_empty(ring->stage));
        if (step == steps - 1)
            m.release(barriers.queries_empty());
        if constexpr (KIND == QUERY_TAIL)
            weights.apply(s);
        online_softmax(s, softmax, rescale, m.scale, weights);
        hold(s);
        await_next(barriers, *ring, step + 1 < steps);
        products_wait<0>();
        hold(out);
        m.release(barriers.values_empty(last));
        rescale_sums(out, rescale);
        pack(p, s);
    }
    fence_for_products();
    hold(out);
    products_begin();
    begin_values(m, out, p, ring->stage);
    products_wait<0>();
    hold(out);
    m.release(barriers.values_empty(ring->stage));
    advance(ring);
}

/* Writes two elements of a row of out. */
template <typename Out> __device__ __forceinline__ void store_two(Out *to, float x, float y)
{
    if constexpr (sizeof(Out) == sizeof(float))
        *reinterpret_cast<float2 *>(to) = make_float2(x, y);
    else
        *reinterpret_cast<uint32_t *>(to) = pair_bits(x, y);
}

/* Returns the address of element lane % 4 * 2 of a row of out. */
template <typename T>
__device__ __forceinline__ T *row_of_lane(const AttentionProblem &a, const Job &job, int row)
{
    return static_cast<T *>(a.out.data) + job.pair / a.heads * a.out.batch_stride +
           job.pair % a.heads * a.out.head_stride + (int64_t)(job.first + row) * a.out.token_stride +
           threadIdx.x % 4 * 2;
}

/* Joins a row of the tail, `factor` times the elements of `out` that this lane has for it, to the row at
 * `to`, which contains `lists`. share.from is the share of the lists, share.part that of the tail. */
template <int N>
__device__ __forceinline__ void join_row(const AttentionProblem &a, __nv_bfloat16 *to, int half,
                                         Weights share, float factor, const uint32_t (&lists)[N / 4],
                                         const float (&out)[N])
{
    factor *= share.part;
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        float x = __uint_as_float(lists[j] << 16), y = __uint_as_float(lists[j] & 0xffff0000u);
        x = share.from > 0 ? share.from * x : 0.f;
        y = share.from > 0 ? share.from * y : 0.f;
        if (8 * j < a.dim)
            *reinterpret_cast<uint32_t *>(to + 8 * j) = pair_bits(fmaf(factor, out[4 * j + 2 * half], x),
                                                                  fmaf(factor, out[4 * j + 2 * half + 1], y));
    }
}

/* Joins the key tail of this warpgroup's rows of the tile to out and to the lse of the lists, and writes log
 * T_c. All elements of out are read before the first is replaced, so that the reads wait for memory together.
 */
template <typename C>
__device__ __forceinline__ void join_tile(const AttentionProblem &a, const Job &job, int number,
                                          const float (&out)[C::DIM / 2], const Softmax &softmax)
{
    int lane = threadIdx.x % WARP, first = 64 * number + 16 * (threadIdx.x % WARPGROUP / WARP) + lane / 4;
    uint32_t lists[2][C::DIM / 8];
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int j = 0; j < C::DIM / 8; j++) {
            auto *row = row_of_lane<const __nv_bfloat16>(a, job, first + 8 * half);
            bool inside = first + 8 * half < job.rows && 8 * j < a.dim;
            lists[half][j] = inside ? *reinterpret_cast<const uint32_t *>(row + 8 * j) : 0;
        }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first + 8 * half;
        bool inside = row < job.rows;
        int64_t at = (int64_t)job.pair * a.queries + job.first + row;
        float of_lists = inside ? a.tail.lists_lse[at] : 0.f, total = softmax.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        __syncwarp(); /* one lane of four replaces the lse that all four have read */
        if (!inside)
            continue;
        float log_t = total == 0 ? -INFINITY : __fmul_rn(softmax.largest[half], a.scale) + logf(total);
        Weights share = weigh(of_lists, log_t);
        if (lane % 4 == 0) {
            a.lse[at] = log_t;
            a.tail.lists_lse[at] = share.lse;
        }
        if (total > 0)
            join_row(a, row_of_lane<__nv_bfloat16>(a, job, row), half, share, 1 / total, lists[half], out);
    }
}

/* Writes out and lse of this warpgroup's rows of the tile; with an empty list out is 0 and lse -inf. */
template <typename C, bool TAIL>
__device__ __forceinline__ void store_tile(const AttentionProblem &a, const Job &job, int number,
                                           const float (&out)[C::DIM / 2], const Softmax &softmax)
{
    using Out = typename TailResult<TAIL>::Type;
    int lane = threadIdx.x % WARP, warp = threadIdx.x % WARPGROUP / WARP, column = lane % 4 * 2;
    int64_t head = TAIL ? (int64_t)job.pair * a.queries * a.out.token_stride
                        : job.pair / a.heads * a.out.batch_stride + job.pair % a.heads * a.out.head_stride;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = 64 * number + 16 * warp + 8 * half + lane / 4;
        float total = softmax.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (row >= job.rows)
            continue;
        bool attends = TAIL ? total != 0 : job.keys > 0;
        float factor = attends ? 1 / total : 0.f;
        int64_t query = job.first + row;
        Out *to = static_cast<Out *>(a.out.data) + head + query * a.out.token_stride;
#pragma unroll
        for (int j = 0; j < C::DIM / 8; j++)
            if (8 * j < a.dim)
                store_two(to + 8 * j + column, out[4 * j + 2 * half] * factor,
                          out[4 * j + 2 * half + 1] * factor);
        if (lane % 4 == 0)
            a.lse[(int64_t)job.pair * a.queries + query] = attends
                                                               ? __fmul_rn(softmax.largest[half], a.scale) +
                                                                     logf(total)
                                                               : -INFINITY;
    }
}

/* Waits for job number `jobs` from the producer and returns it. Every thread arrives at the barrier "job
 * empty" after reading. One arrival for each warp would be enough, but compute-sanitizer racecheck could not
 * infer that this arrival follows the reads of the other lanes. */
template <typename C> __device__ __forceinline__ Job take_job(const Consumer<C> &m, uint32_t jobs)
{
    uint32_t slot = jobs % JOBS;
    barrier_wait(m.memory.barriers.job_full(slot), jobs / JOBS % 2);
    Job job = *m.memory.job(slot);
    barrier_arrive(m.memory.barriers.job_empty(slot));
    job.keys = agreed(job.keys);
    return job;
}

/* The loop of consumer `number` over jobs (tiles of queries), until a job says that no tile is left. */
template <typename C, TailKind KIND>
__device__ __forceinline__ void consume(const AttentionProblem &a, const Memory<C> &memory, int number)
{
    Consumer<C> m = {memory, number, threadIdx.x % WARP == 0, a.scale * (float)M_LOG2E};
    Ring<C::STAGES> ring = {0, 0};
    uint32_t visits = 0, jobs = 0;
    if (C::CONSUMERS == 2 && number == 1)
        named_arrive(ORDER_BARRIER, C::CONSUMER_THREADS);
    Job job = take_job(m, jobs++);
    while (job.keys >= 0) {
        int steps = (job.keys + C::KEYS - 1) / C::KEYS, count = job.keys - (steps - 1) * C::KEYS;
        float out[C::DIM / 2] = {};
        Softmax softmax = {{-INFINITY, -INFINITY}, {0, 0}};
        if (steps > 0) {
            TailLines<KIND> tail;
            tail.find(a, job.pair, job.first + 64 * number);
            barrier_wait(memory.barriers.queries_full(), visits++ & 1);
            if constexpr (C::CONSUMERS == 2)
                attend_overlapped<C, KIND>(m, out, &softmax, steps, count, &ring, tail);
            else
                attend_serially(m, out, &softmax, steps, count, &ring);
        }
        if constexpr (KIND == KEY_TAIL)
            join_tile<C>(a, job, number, out, softmax);
        else
            store_tile<C, KIND == QUERY_TAIL>(a, job, number, out, softmax);
        job = take_job(m, jobs++);
    }
}

/* Grid: as many thread blocks as are resident at once, or as there are tiles if these are fewer. */
template <typename C, Loader LOADER, TailKind KIND>
__global__ void __launch_bounds__(C::THREADS, C::RESIDENT)
    forward_kernel(const __grid_constant__ AttentionProblem a, const __grid_constant__ Schedule schedule,
                   const __grid_constant__ BoxMaps maps)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) unsigned char shared[];
    uint32_t base = shared_address(shared);
    Memory<C> memory = {shared, base, {base + C::BARRIERS_AT}};
    int warpgroup = agreed(threadIdx.x / WARPGROUP);
    if (threadIdx.x == 0) {
        if (base % ATOM_BYTES != 0)
            __trap();
        init_barriers<C, LOADER>(memory.barriers);
    }
    __syncthreads();
    if (warpgroup == 0) {
        give_registers<C::PRODUCER_REGISTERS>();
        produce<C, LOADER, KIND>(a, schedule, maps, memory);
    } else {
        take_registers<C::CONSUMER_REGISTERS>();
        consume<C, KIND>(a, memory, warpgroup - 1);
    }
#endif
}

template <typename C, Loader LOADER, TailKind KIND>
DsvStatus launch_forward_kernel(DsviStream *stream, const AttentionProblem &problem, const Schedule &schedule,
                                const BoxMaps &maps)
{
    auto *kernel = forward_kernel<C, LOADER, KIND>;
    int resident = stream->multiprocessors * C::RESIDENT, blocks = min(resident, schedule.all);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, C::SHARED));
    DSVI_CUDA_LAUNCH(stream, "attention forward on Hopper", kernel, (unsigned)blocks, C::THREADS, C::SHARED,
                     problem, schedule, maps);
    return DSV_OK;
}

template <typename C>
DsvStatus launch_forward_sm90(DsviStream *stream, const AttentionProblem &problem, const Schedule &schedule,
                              Loader loader, const BoxMaps &maps)
{
    auto *launch = loader == TMA_BOXES ? launch_forward_kernel<C, TMA_BOXES, NO_TAIL>
                                       : launch_forward_kernel<C, CP_ASYNC_ROWS, NO_TAIL>;
    return launch(stream, problem, schedule, maps);
}

} // namespace

DsvStatus attention_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *refused)
{
    bool narrow = problem.group <= Narrow<64>::QUERIES;
    bool blocks = spans_are_boxes(problem) && problem.keys > 0;
    BoxMaps maps = {};
    Schedule schedule;
    Loader loader = blocks && make_box_maps(problem, &maps) ? TMA_BOXES : CP_ASYNC_ROWS;
    *refused = blocks && loader != TMA_BOXES;
    DSVI_TRY(
        make_schedule(stream, problem, narrow ? Narrow<64>::QUERIES : Wide<64>::QUERIES, true, &schedule));
    auto *launch = problem.dim <= 64
                       ? (narrow ? launch_forward_sm90<Narrow<64>> : launch_forward_sm90<Wide<64>>)
                       : (narrow ? launch_forward_sm90<Narrow<128>> : launch_forward_sm90<Wide<128>>);
    return launch(stream, problem, schedule, loader, maps);
}

template <TailKind KIND>
static DsvStatus tail_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *served)
{
    BoxMaps maps = {};
    Schedule schedule;
    *served = make_box_maps(problem, &maps);
    if (!*served)
        return DSV_OK;
    DSVI_TRY(make_schedule(stream, problem, TAIL_ROWS, false, &schedule));
    schedule.all *= problem.tail.parts;
    auto *launch = problem.dim <= 64 ? launch_forward_kernel<Wide<64>, TMA_BOXES, KIND>
                                     : launch_forward_kernel<Wide<128>, TMA_BOXES, KIND>;
    return launch(stream, problem, schedule, maps);
}

DsvStatus attention_tail_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *served)
{
    return tail_forward_sm90<QUERY_TAIL>(stream, problem, served);
}

DsvStatus attention_key_tail_forward_sm90(DsviStream *stream, const AttentionProblem &problem, bool *served)
{
    return tail_forward_sm90<KEY_TAIL>(stream, problem, served);
}

} // namespace dsvi
