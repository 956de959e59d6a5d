/* Attention backward over lists on Hopper: constants, shared memory and barriers of the kernel, and its
 * producer warpgroup, which takes tiles, gathers rows and computes dQ. The consumers, and an overview of the
 * kernel, are in attention_list_bwd_sm90.cu. */
#ifndef DSVI_ATTENTION_BWD_SM90_CUH
#define DSVI_ATTENTION_BWD_SM90_CUH

#include "cuda/attention/attention_gather.cuh"
#include "cuda/attention/attention_schedule.cuh"

namespace dsvi {
namespace {

using namespace hopper;

/* Number of shared-memory slots for the descriptions of tiles of queries: all tiles from the one whose dQ is
 * being computed to the one whose rows are being copied need a slot. */
constexpr int TILES = 4;
enum { PRODUCER_BARRIER = 1, CONSUMERS_BARRIER }; /* numbers of named barriers */

/* A tile of queries, and the order in which chunks of its key list are processed: from a chunk that
 * attention_schedule.cuh chooses towards the front of the list, then from the end of the list. The list's
 * last chunk, which may be short, can therefore come anywhere in the order. */
struct Walk {
    Tile tile;
    int rotation; /* number of keys, a multiple of the chunk, by which the first chunk is shifted (cyclically)
                   * from the list's last chunk */
    unsigned pace; /* added to Counters.walked (attention_schedule.cuh) for each chunk processed */
};

/* Constants of the kernel for heads of up to DIM elements. BUFFERS: staging buffers of a warp for its
 * additions to dK and dV, 16 rows each. */
template <int DIM_, int QUERIES_, int STAGES_, int BUFFERS_> struct Config {
    static constexpr int DIM = DIM_, QUERIES = QUERIES_, KEYS = 64, STAGES = STAGES_, BUFFERS = BUFFERS_;
    /* A tile has BLOCKS blocks of 64 queries, a row PARTS parts of 64 columns. */
    static constexpr int BLOCKS = QUERIES / 64, PARTS = DIM / 64;
    static constexpr int CONSUMERS = 2, CONSUMER_THREADS = WARPGROUP * CONSUMERS;
    static constexpr int WARPS = CONSUMER_THREADS / WARP; /* number of warps of all consumer warpgroups */
    static constexpr int THREADS = WARPGROUP + CONSUMER_THREADS;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int STAGE_BYTES = 2 * KEY_BYTES, DS_BYTES = KEYS * QUERIES * 2;
    /* A staging buffer has 8 even rows, a gap of 64 bytes and 8 odd rows, so that lanes which store at the
     * same time use different banks. Where one bulk addition covers all 16 rows, the rows are in order
     * without a gap. */
    static constexpr int ROW_BYTES = DIM * 4, ODD_ROWS = 8 * ROW_BYTES + 64;
    static constexpr int BUFFER_BYTES = 16 * ROW_BYTES + 64;
    static constexpr int DOUT_AT = QUERY_BYTES, STAGES_AT = 2 * QUERY_BYTES;
    static constexpr int DS_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int BUFFERS_AT = DS_AT + CONSUMERS * DS_BYTES;
    static constexpr int LSE_AT = BUFFERS_AT + WARPS * BUFFERS * BUFFER_BYTES;
    static constexpr int DELTA_AT = LSE_AT + QUERIES * 4, TILES_AT = DELTA_AT + QUERIES * 4;
    static constexpr int BARRIERS_AT = TILES_AT + TILES * (int)sizeof(Walk);
    static constexpr int TICKET_AT = BARRIERS_AT + (STAGES + 2 * CONSUMERS + 3 + TILES) * 8;
    static constexpr int SHARED = TICKET_AT + (int)sizeof(int);
    static constexpr int REGISTERS = 168; /* limit for a thread under the kernel's launch bounds */
    static_assert(SHARED + 1024 <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(THREADS * REGISTERS <= 65536, "registers of a multiprocessor");
    static_assert(BLOCKS * DIM / 2 + 32 <= REGISTERS && QUERIES + 32 <= REGISTERS, "dQ; S and dP");
    static_assert(STAGES_AT % ATOM_BYTES == 0 && STAGE_BYTES % ATOM_BYTES == 0 && DS_AT % ATOM_BYTES == 0,
                  "matrices are atoms");
    static_assert(BUFFERS_AT % 16 == 0 && BUFFER_BYTES % 16 == 0, "bulk additions are of 16 bytes");
    static_assert(TILES_AT % alignof(Walk) == 0 && BARRIERS_AT % 8 == 0, "");
    static_assert(QUERY_BYTES <= STAGE_BYTES, "a stage holds O while delta is computed");
    static_assert(TILES > (STAGES + 2) / 2, "a tile takes two stages at least: see next_tile");
};

/* Addresses of a thread block's barriers. */
template <typename C> struct Barriers {
    uint32_t at;
    __device__ uint32_t stage_full(int stage) const { return at + 8 * stage; }
    __device__ uint32_t ds_full(int consumer) const { return at + 8 * (C::STAGES + consumer); }
    __device__ uint32_t ds_empty(int consumer) const
    {
        return at + 8 * (C::STAGES + C::CONSUMERS + consumer);
    }
    __device__ uint32_t queries_full() const { return at + 8 * (C::STAGES + 2 * C::CONSUMERS); }
    __device__ uint32_t queries_empty() const { return at + 8 * (C::STAGES + 2 * C::CONSUMERS + 1); }
    __device__ uint32_t delta_made() const { return at + 8 * (C::STAGES + 2 * C::CONSUMERS + 2); }
    __device__ uint32_t tile_full(int slot) const
    {
        return at + 8 * (C::STAGES + 2 * C::CONSUMERS + 3 + slot);
    }
};

template <typename C> __device__ __forceinline__ void init_barriers(Barriers<C> barriers)
{
    for (int stage = 0; stage < C::STAGES; stage++)
        barrier_init(barriers.stage_full(stage), WARPGROUP);
    for (int consumer = 0; consumer < C::CONSUMERS; consumer++) {
        barrier_init(barriers.ds_full(consumer), WARPGROUP / WARP);
        barrier_init(barriers.ds_empty(consumer), WARPGROUP / WARP);
    }
    barrier_init(barriers.queries_full(), WARPGROUP);
    barrier_init(barriers.queries_empty(), C::WARPS);
    barrier_init(barriers.delta_made(), C::WARPS);
    for (int slot = 0; slot < TILES; slot++)
        barrier_init(barriers.tile_full(slot), 1);
}

/* Shared memory of a thread block. */
template <typename C> struct Memory {
    unsigned char *bytes;
    uint32_t base; /* address of `bytes` in the shared window, as wgmma and cp.async need it */
    Barriers<C> barriers;
    __device__ uint32_t stage_at(int stage) const { return base + C::STAGES_AT + stage * C::STAGE_BYTES; }
    __device__ uint32_t ds_at(int consumer) const { return base + C::DS_AT + consumer * C::DS_BYTES; }
    /* Slot of tile number `number` of this thread block, where only tiles with keys are counted. A tile with
     * keys = 0 in the slot means that no tile is left. */
    __device__ Walk *walk(uint32_t number) const
    {
        return reinterpret_cast<Walk *>(bytes + C::TILES_AT) + number % TILES;
    }
    __device__ Tile *tile(uint32_t number) const { return &walk(number)->tile; }
    __device__ int *ticket() const { return reinterpret_cast<int *>(bytes + C::TICKET_AT); }
};

template <typename C> __device__ __forceinline__ int chunks_of(int keys)
{
    return (keys + C::KEYS - 1) / C::KEYS;
}

/* Returns the position in the tile's key list at which a chunk of keys begins. `left` is KEYS times the
 * number of chunks of this list that will be processed after the chunk. */
template <typename C> __device__ __forceinline__ int chunk_begin(const Walk &walk, int left)
{
    int begin = left + walk.rotation;
    return begin < walk.tile.keys ? begin : begin - chunks_of<C>(walk.tile.keys) * C::KEYS;
}

/* How far the producer has copied rows to shared memory. For each tile with keys it copies the tile's rows of
 * O, then K and V of each chunk of the tile's key list. */
struct GatherState {
    int drawn;          /* number of the next tile of queries to take; only one thread holds it */
    uint32_t announced; /* number of tiles handed to the consumers so far; the rows of the latest tile are
                           being copied */
    int left; /* KEYS times the number of chunks after the chunk to be copied next; if at least tile.keys, O
               * is copied next; if negative, no tile is left */
    Listed listed; /* entry of the key list that this lane has read for the next chunk of keys */
};

/* Returns the same as `gatherer` (attention_gather.cuh). Computes it from threadIdx at each call, because the
 * accumulators of dQ leave no registers to keep the result in. */
template <typename C> __device__ __forceinline__ Gatherer<C::DIM> gatherer_anew(const AttentionProblem &a)
{
    int thread = anew(threadIdx.x), chunk = thread % Gatherer<C::DIM>::CHUNKS;
    return {thread / Gatherer<C::DIM>::CHUNKS, chunk, chunk * 8 < a.dim};
}

/* Sets dq to 0 for the queries of a tile whose key list is empty. */
__device__ __forceinline__ void store_zeros(const AttentionProblem &a, const Tile &tile)
{
    __nv_bfloat16 *to = rows_of<__nv_bfloat16>(a.dq, tile) + tile.first * a.dq.token_stride;
    for (int row = threadIdx.x / WARP; row < tile.rows; row += WARPGROUP / WARP)
        for (int column = threadIdx.x % WARP * 2; column < a.dim; column += 2 * WARP)
            *reinterpret_cast<uint32_t *>(to + row * a.dq.token_stride + column) = 0;
}

/* Proceeds to the next tile that has keys, and announces the tile to all warpgroups. Thread 0 takes the
 * number of a tile from a global counter one tile ahead, to hide the latency of the atomic.
 *
 * A tile may reuse the slot of the tile TILES before it, because nobody reads this older tile any more:
 * copying is at most STAGES + 1 pieces ahead of the tile whose dQ is computed, and a tile has at least two
 * pieces, O and a chunk. No consumer is still at an earlier tile than the one whose dQ is computed, since dQ
 * of a tile begins when all consumers have computed its delta. */
template <typename C>
__device__ __forceinline__ void next_tile(const AttentionProblem &a, const Schedule &schedule,
                                          const Memory<C> &memory, GatherState *g)
{
    Tile tile = {};
    unsigned clock = 0;
    for (;;) {
        named_sync(PRODUCER_BARRIER, WARPGROUP);
        if (threadIdx.x == 0) {
            *memory.ticket() = g->drawn;
            g->drawn = take_tile(schedule);
            clock = clock_of(schedule);
        }
        named_sync(PRODUCER_BARRIER, WARPGROUP);
        int number = agreed(*memory.ticket());
        tile.keys = 0;
        if (number >= schedule.all)
            break;
        tile = tile_numbered(a, schedule, number);
        if (tile.rows > 0 && tile.keys > 0)
            break;
        if (tile.keys == 0)
            store_zeros(a, tile);
    }
    int chunks = chunks_of<C>(tile.keys);
    if (threadIdx.x == 0) {
        Walk *walk = memory.walk(g->announced);
        walk->tile = tile;
        if (chunks > 0) {
            int before = first_step(a, tile, chunks, clock);
            walk->rotation = before > 0 ? (chunks - before) * C::KEYS : 0;
            walk->pace = pace_of(chunks);
        }
        barrier_arrive(memory.barriers.tile_full(g->announced % TILES));
    }
    named_sync(PRODUCER_BARRIER, WARPGROUP);
    g->announced++;
    g->left = chunks > 0 ? chunks * C::KEYS : -1;
}

/* Copies the next piece, which is the rows of O of a tile of queries or K and V of a chunk of keys, into a
 * free stage. Then reads the list entries of the following chunk. */
template <typename C>
__device__ __forceinline__ void gather_next(const AttentionProblem &a, const Schedule &schedule,
                                            const Memory<C> &memory, GatherState *g, int stage)
{
    if (g->left < 0)
        return;
    const Walk *walk = memory.walk(g->announced - 1);
    const Tile *tile = &walk->tile;
    const Gatherer<C::DIM> place = gatherer_anew<C>(a);
    int fetched = fetched_row<C::DIM, C::KEYS>(place);
    uint32_t to = memory.stage_at(stage);
    if (g->left >= tile->keys) {
        for (int block = 0; block < C::BLOCKS; block++) {
            Tile part = *tile;
            part.first += 64 * block;
            part.rows -= 64 * block;
            gather_queries<C::DIM, 64>(place, a.out, part, to + block * C::KEY_BYTES);
        }
    } else {
        int number = listed_key(a, g->listed);
        gather_listed<C::DIM, C::KEYS>(place, a.k, *tile, number, to);
        gather_listed<C::DIM, C::KEYS>(place, a.v, *tile, number, to + C::KEY_BYTES);
        if (threadIdx.x == 0)
            move_clock(schedule, walk->pace);
    }
    barrier_arrive_after_copies(memory.barriers.stage_full(stage));
    g->left -= C::KEYS;
    if (g->left >= 0)
        g->listed = fetch_listed(a, *tile, min(chunk_begin<C>(*walk, g->left) + fetched, tile->keys - 1));
    else
        next_tile(a, schedule, memory, g);
}

/* Copies Q and dO of a tile to shared memory. Waits first until the consumers no longer need Q and dO of the
 * previous tile, which are in the same place. */
template <typename C>
__device__ __forceinline__ void gather_tile(const AttentionProblem &a, const Memory<C> &memory,
                                            uint32_t number)
{
    const Tile *tile = memory.tile(number);
    const Gatherer<C::DIM> place = gatherer_anew<C>(a);
    barrier_wait(memory.barriers.queries_empty(), number & 1 ^ 1);
    gather_queries<C::DIM, C::QUERIES>(place, a.q, *tile, memory.base);
    gather_queries<C::DIM, C::QUERIES>(place, a.dout, *tile, memory.base + C::DOUT_AT);
    barrier_arrive_after_copies(memory.barriers.queries_full());
}

/* dQ += dS K for one chunk of keys. In shared memory, each line of either matrix belongs to one key, so the
 * left factor is read transposed. */
template <typename C>
__device__ __forceinline__ void multiply_dq(float (&dq)[C::BLOCKS][C::DIM / 2], uint32_t ds, uint32_t keys)
{
    constexpr int MATRIX_BYTES = C::KEYS * LINE_BYTES;
    uint64_t left = matrix_at(ds, MATRIX_BYTES, ATOM_BYTES);
    uint64_t right = matrix_at(keys, MATRIX_BYTES, ATOM_BYTES);
#pragma unroll
    for (int block = 0; block < C::BLOCKS; block++)
        hold(dq[block]);
    products_begin();
#pragma unroll
    for (int key = 0; key < C::KEYS; key += 16)
#pragma unroll
        for (int block = 0; block < C::BLOCKS; block++)
            multiply_add_transposed(dq[block], left + (block * MATRIX_BYTES + key * LINE_BYTES) / 16,
                                    right + key * LINE_BYTES / 16);
    products_commit();
    products_wait<0>();
#pragma unroll
    for (int block = 0; block < C::BLOCKS; block++)
        hold(dq[block]);
}

/* Writes a tile's dq, scaled and rounded to BF16, from the registers that accumulated it, and sets these
 * registers to 0 for the next tile. */
template <typename C>
__device__ __forceinline__ void store_dq(const AttentionProblem &a, const Tile &tile,
                                         float (&dq)[C::BLOCKS][C::DIM / 2])
{
    int thread = anew(threadIdx.x), lane = thread % WARP, warp = thread / WARP, rows = tile.rows;
    __nv_bfloat16 *to = rows_of<__nv_bfloat16>(a.dq, tile) + tile.first * a.dq.token_stride + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * C::BLOCKS; n++) {
        float(&x)[C::DIM / 2] = dq[n / 2];
        int row = 64 * (n / 2) + 16 * warp + 8 * (n % 2) + lane / 4;
#pragma unroll
        for (int j = 0; j < C::DIM / 8; j++) {
            float *pair = &x[4 * j + n % 2 * 2];
            if (row < rows && 8 * j < a.dim)
                *reinterpret_cast<uint32_t *>(to + row * a.dq.token_stride +
                                              8 * j) = pair_bits(pair[0] * a.scale, pair[1] * a.scale);
            pair[0] = pair[1] = 0;
        }
    }
}

/* Adds dS K of one chunk of keys to dQ. `turn` counts the chunks of this thread block, and K is in stage
 * `stage`. Afterwards the stage is free: the consumer had read K and V from it before it wrote dS. */
template <typename C>
__device__ __forceinline__ void accumulate_dq(const Memory<C> &memory, float (&dq)[C::BLOCKS][C::DIM / 2],
                                              uint32_t turn, int stage)
{
    int consumer = turn & 1;
    barrier_wait(memory.barriers.ds_full(consumer), turn >> 1 & 1);
    fence_for_products();
    multiply_dq<C>(dq, memory.ds_at(consumer), memory.stage_at(stage));
    named_sync(PRODUCER_BARRIER, WARPGROUP);
    if (threadIdx.x % WARP == 0)
        barrier_arrive(memory.barriers.ds_empty(consumer));
}

/* The producer's loop over pieces (rows of O of a tile, or K and V of a chunk of keys). A piece is copied to
 * the stage of the piece STAGES before it, once this older piece was used: O for delta, a chunk for dQ. The
 * producer writes dq of a tile while the consumers compute the tile's last dK and dV. Q and dO of the next
 * tile can be copied after that. */
template <typename C>
__device__ __forceinline__ void produce(const AttentionProblem &a, const Schedule &schedule,
                                        const Memory<C> &memory)
{
    GatherState g = {(int)blockIdx.x, 0, -1, {0, 0}};
    /* tiles: number of tiles of queries begun; turn: number of chunks of keys added to dQ */
    uint32_t tiles = 0, turn = 0;
    int left = 0; /* number of chunks of the current tile that are not yet added to dQ */
    float dq[C::BLOCKS][C::DIM / 2] = {};
    next_tile(a, schedule, memory, &g);
    for (uint32_t piece = 0;; piece++) {
        int stage = piece % C::STAGES;
        if (piece >= C::STAGES && left > 0) {
            accumulate_dq(memory, dq, turn++, stage);
            left--;
        } else if (piece >= C::STAGES) {
            if (tiles > 0)
                store_dq<C>(a, *memory.tile(tiles - 1), dq);
            left = chunks_of<C>(agreed(memory.tile(tiles)->keys));
            if (left == 0)
                return;
            gather_tile(a, memory, tiles);
            barrier_wait(memory.barriers.delta_made(), tiles++ & 1);
        }
        gather_next(a, schedule, memory, &g, stage);
    }
}

} // namespace
} // namespace dsvi

#endif
