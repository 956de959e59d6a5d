/* Attention backward over lists on Hopper: plan and barriers, which all its warpgroups share, and the first
 * of them, which keeps house: takes tiles, gathers rows, makes dQ. The others, and what all of it is for:
 * attention_list_bwd_sm90.cu. */
#ifndef DSVI_ATTENTION_BWD_SM90_CUH
#define DSVI_ATTENTION_BWD_SM90_CUH

#include "cuda/attention_gather.cuh"
#include "cuda/attention_schedule.cuh"

namespace dsvi {
namespace {

using namespace hopper;

constexpr int TILES = 4; /* that are known: from the one whose dQ is made to the one that is gathered */
enum { HOUSE_BARRIER = 1, SHARERS_BARRIER }; /* barriers by number */

/* A tile and how its list is walked: chunk after chunk towards the front of the list, from a chunk that
 * attention_schedule.cuh chooses, and at the front on from the end. The short chunk, the last of the list,
 * comes anywhere in a walk. */
struct Walk {
    Tile tile;
    int turned;    /* keys by which the walk from the end was turned, whole chunks */
    unsigned pace; /* of a chunk, for the clock */
};

/* BUFFERS: of a warp's sums on their way to memory, 16 rows each. */
template <int DIM_, int QUERIES_, int STAGES_, int BUFFERS_> struct Plan {
    static constexpr int DIM = DIM_, QUERIES = QUERIES_, KEYS = 64, STAGES = STAGES_, BUFFERS = BUFFERS_;
    static constexpr int BLOCKS = QUERIES / 64, PARTS = DIM / 64; /* 64 queries, or 64 columns, each */
    static constexpr int SHARERS = 2, SHARING = WARPGROUP * SHARERS, WARPS = SHARING / WARP;
    static constexpr int THREADS = WARPGROUP + SHARING;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int STAGE_BYTES = 2 * KEY_BYTES, DS_BYTES = KEYS * QUERIES * 2;
    /* In a buffer the odd rows stand behind the even ones and 64 bytes further on, so that lanes which store
     * together meet other banks; where 16 rows go in one piece they are in order. */
    static constexpr int ROW_BYTES = DIM * 4, ODD_ROWS = 8 * ROW_BYTES + 64;
    static constexpr int BUFFER_BYTES = 16 * ROW_BYTES + 64;
    static constexpr int DOUT_AT = QUERY_BYTES, STAGES_AT = 2 * QUERY_BYTES;
    static constexpr int DS_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int BUFFERS_AT = DS_AT + SHARERS * DS_BYTES;
    static constexpr int LSE_AT = BUFFERS_AT + WARPS * BUFFERS * BUFFER_BYTES;
    static constexpr int DELTA_AT = LSE_AT + QUERIES * 4, TILES_AT = DELTA_AT + QUERIES * 4;
    static constexpr int BARRIERS_AT = TILES_AT + TILES * (int)sizeof(Walk);
    static constexpr int TICKET_AT = BARRIERS_AT + (STAGES + 2 * SHARERS + 3 + TILES) * 8;
    static constexpr int SHARED = TICKET_AT + (int)sizeof(int);
    static constexpr int REGISTERS = 168; /* of a thread, which the launch bounds leave it */
    static_assert(SHARED + 1024 <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(THREADS * REGISTERS <= 65536, "registers of a multiprocessor");
    static_assert(BLOCKS * DIM / 2 + 32 <= REGISTERS && QUERIES + 32 <= REGISTERS, "dQ; S and dP");
    static_assert(STAGES_AT % ATOM_BYTES == 0 && STAGE_BYTES % ATOM_BYTES == 0 && DS_AT % ATOM_BYTES == 0,
                  "matrices are atoms");
    static_assert(BUFFERS_AT % 16 == 0 && BUFFER_BYTES % 16 == 0, "rows go to memory by 16 bytes");
    static_assert(TILES_AT % alignof(Walk) == 0 && BARRIERS_AT % 8 == 0, "");
    static_assert(QUERY_BYTES <= STAGE_BYTES, "O lies in a stage while delta is made");
    static_assert(TILES > (STAGES + 2) / 2, "a tile takes two stages at least: see draw_tile");
};

template <typename P> struct Barriers {
    uint32_t at;
    __device__ uint32_t stage_full(int stage) const { return at + 8 * stage; }
    __device__ uint32_t ds_full(int sharer) const { return at + 8 * (P::STAGES + sharer); }
    __device__ uint32_t ds_empty(int sharer) const { return at + 8 * (P::STAGES + P::SHARERS + sharer); }
    __device__ uint32_t queries_full() const { return at + 8 * (P::STAGES + 2 * P::SHARERS); }
    __device__ uint32_t queries_empty() const { return at + 8 * (P::STAGES + 2 * P::SHARERS + 1); }
    __device__ uint32_t delta_made() const { return at + 8 * (P::STAGES + 2 * P::SHARERS + 2); }
    __device__ uint32_t told(int slot) const { return at + 8 * (P::STAGES + 2 * P::SHARERS + 3 + slot); }
};

template <typename P> __device__ __forceinline__ void make_barriers(Barriers<P> barriers)
{
    for (int stage = 0; stage < P::STAGES; stage++)
        barrier_init(barriers.stage_full(stage), WARPGROUP);
    for (int sharer = 0; sharer < P::SHARERS; sharer++) {
        barrier_init(barriers.ds_full(sharer), WARPGROUP / WARP);
        barrier_init(barriers.ds_empty(sharer), WARPGROUP / WARP);
    }
    barrier_init(barriers.queries_full(), WARPGROUP);
    barrier_init(barriers.queries_empty(), P::WARPS);
    barrier_init(barriers.delta_made(), P::WARPS);
    for (int slot = 0; slot < TILES; slot++)
        barrier_init(barriers.told(slot), 1);
}

/* Shared memory of a block of threads. */
template <typename P> struct Memory {
    unsigned char *bytes;
    uint32_t base; /* the same, as wgmma and cp.async take it */
    Barriers<P> barriers;
    __device__ uint32_t stage_at(int stage) const { return base + P::STAGES_AT + stage * P::STAGE_BYTES; }
    __device__ uint32_t ds_at(int sharer) const { return base + P::DS_AT + sharer * P::DS_BYTES; }
    /* The tile told as number `told`: with keys, or without any when no tile is left. */
    __device__ Walk *walk(uint32_t told) const
    {
        return reinterpret_cast<Walk *>(bytes + P::TILES_AT) + told % TILES;
    }
    __device__ Tile *tile(uint32_t told) const { return &walk(told)->tile; }
    __device__ int *ticket() const { return reinterpret_cast<int *>(bytes + P::TICKET_AT); }
};

template <typename P> __device__ __forceinline__ int chunks_of(int keys)
{
    return (keys + P::KEYS - 1) / P::KEYS;
}

/* Number in the list with which a chunk begins; `left`: KEYS for each chunk of the walk that follows it. */
template <typename P> __device__ __forceinline__ int chunk_begin(const Walk &walk, int left)
{
    int begin = left + walk.turned;
    return begin < walk.tile.keys ? begin : begin - chunks_of<P>(walk.tile.keys) * P::KEYS;
}

/* How far the house has gathered: for each tile with keys first its rows of O, then the chunks of its
 * walk. */
struct Gathered {
    int drawn;     /* the next ticket, known to one thread */
    uint32_t told; /* tiles; the last of them is the one that is gathered */
    int left;      /* KEYS for each chunk that follows the next one; from tile.keys on it is O that comes
                      next; negative: no tile is left */
    Listed listed; /* the key this lane fetched for it */
};

/* As gatherer makes it, but at each call: its numbers find no room beside dQ. */
template <typename P> __device__ __forceinline__ Gatherer<P::DIM> gatherer_anew(const AttentionProblem &a)
{
    int thread = anew(threadIdx.x), chunk = thread % Gatherer<P::DIM>::CHUNKS;
    return {thread / Gatherer<P::DIM>::CHUNKS, chunk, chunk * 8 < a.dim};
}

/* dq where the list is empty. */
__device__ __forceinline__ void store_zeros(const AttentionProblem &a, const Tile &tile)
{
    __nv_bfloat16 *to = rows_of<__nv_bfloat16>(a.dq, tile) + tile.first * a.dq.token_stride;
    for (int row = threadIdx.x / WARP; row < tile.rows; row += WARPGROUP / WARP)
        for (int column = threadIdx.x % WARP * 2; column < a.dim; column += 2 * WARP)
            *reinterpret_cast<uint32_t *>(to + row * a.dq.token_stride + column) = 0;
}

/* Goes on to the next tile with keys and tells it to all. One thread takes tickets, each while the tile
 * before is gathered.
 *
 * A tile may take the slot of the one TILES before it: what is gathered is at most STAGES + 1 pieces ahead of
 * the tile whose dQ is made, and a tile has two pieces at least, O and a chunk; and the sharers are in that
 * tile too, for it begins when they all have made its delta. */
template <typename P>
__device__ __forceinline__ void draw_tile(const AttentionProblem &a, const Schedule &schedule,
                                          const Memory<P> &memory, Gathered *g)
{
    Tile tile = {};
    unsigned clock = 0;
    for (;;) {
        named_sync(HOUSE_BARRIER, WARPGROUP);
        if (threadIdx.x == 0) {
            *memory.ticket() = g->drawn;
            g->drawn = take_tile(schedule);
            clock = clock_of(schedule);
        }
        named_sync(HOUSE_BARRIER, WARPGROUP);
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
    int chunks = chunks_of<P>(tile.keys);
    if (threadIdx.x == 0) {
        Walk *walk = memory.walk(g->told);
        walk->tile = tile;
        if (chunks > 0) {
            int before = first_step(a, tile, chunks, clock);
            walk->turned = before > 0 ? (chunks - before) * P::KEYS : 0;
            walk->pace = pace_of(chunks);
        }
        barrier_arrive(memory.barriers.told(g->told % TILES));
    }
    named_sync(HOUSE_BARRIER, WARPGROUP);
    g->told++;
    g->left = chunks > 0 ? chunks * P::KEYS : -1;
}

/* Fills a stage, which must be free, with what comes next. Numbers of keys are fetched one chunk ahead. */
template <typename P>
__device__ __forceinline__ void gather_next(const AttentionProblem &a, const Schedule &schedule,
                                            const Memory<P> &memory, Gathered *g, int stage)
{
    if (g->left < 0)
        return;
    const Walk *walk = memory.walk(g->told - 1);
    const Tile *tile = &walk->tile;
    const Gatherer<P::DIM> place = gatherer_anew<P>(a);
    int fetched = fetched_row<P::DIM, P::KEYS>(place);
    uint32_t to = memory.stage_at(stage);
    if (g->left >= tile->keys) {
        for (int block = 0; block < P::BLOCKS; block++) {
            Tile part = *tile;
            part.first += 64 * block;
            part.rows -= 64 * block;
            gather_queries<P::DIM, 64>(place, a.out, part, to + block * P::KEY_BYTES);
        }
    } else {
        int number = listed_key(a, g->listed);
        gather_listed<P::DIM, P::KEYS>(place, a.k, *tile, number, to);
        gather_listed<P::DIM, P::KEYS>(place, a.v, *tile, number, to + P::KEY_BYTES);
        if (threadIdx.x == 0)
            move_clock(schedule, walk->pace);
    }
    barrier_arrive_after_copies(memory.barriers.stage_full(stage));
    g->left -= P::KEYS;
    if (g->left >= 0)
        g->listed = fetch_listed(a, *tile, min(chunk_begin<P>(*walk, g->left) + fetched, tile->keys - 1));
    else
        draw_tile(a, schedule, memory, g);
}

/* Q and dO of a tile, when the tile before has done with them. */
template <typename P>
__device__ __forceinline__ void gather_tile(const AttentionProblem &a, const Memory<P> &memory,
                                            uint32_t number)
{
    const Tile *tile = memory.tile(number);
    const Gatherer<P::DIM> place = gatherer_anew<P>(a);
    barrier_wait(memory.barriers.queries_empty(), number & 1 ^ 1);
    gather_queries<P::DIM, P::QUERIES>(place, a.q, *tile, memory.base);
    gather_queries<P::DIM, P::QUERIES>(place, a.dout, *tile, memory.base + P::DOUT_AT);
    barrier_arrive_after_copies(memory.barriers.queries_full());
}

/* dQ += dS K of a chunk. Lines of both are keys. */
template <typename P>
__device__ __forceinline__ void multiply_dq(float (&dq)[P::BLOCKS][P::DIM / 2], uint32_t ds, uint32_t keys)
{
    constexpr int MATRIX_BYTES = P::KEYS * LINE_BYTES;
    uint64_t left = matrix_at(ds, MATRIX_BYTES, ATOM_BYTES);
    uint64_t right = matrix_at(keys, MATRIX_BYTES, ATOM_BYTES);
#pragma unroll
    for (int block = 0; block < P::BLOCKS; block++)
        hold(dq[block]);
    products_begin();
#pragma unroll
    for (int key = 0; key < P::KEYS; key += 16)
#pragma unroll
        for (int block = 0; block < P::BLOCKS; block++)
            multiply_add_turned(dq[block], left + (block * MATRIX_BYTES + key * LINE_BYTES) / 16,
                                right + key * LINE_BYTES / 16);
    products_commit();
    products_wait<0>();
#pragma unroll
    for (int block = 0; block < P::BLOCKS; block++)
        hold(dq[block]);
}

/* A tile's dq from its products, which become zeros. */
template <typename P>
__device__ __forceinline__ void store_dq(const AttentionProblem &a, const Tile &tile,
                                         float (&dq)[P::BLOCKS][P::DIM / 2])
{
    int thread = anew(threadIdx.x), lane = thread % WARP, warp = thread / WARP, rows = tile.rows;
    __nv_bfloat16 *to = rows_of<__nv_bfloat16>(a.dq, tile) + tile.first * a.dq.token_stride + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * P::BLOCKS; n++) {
        float(&x)[P::DIM / 2] = dq[n / 2];
        int row = 64 * (n / 2) + 16 * warp + 8 * (n % 2) + lane / 4;
#pragma unroll
        for (int j = 0; j < P::DIM / 8; j++) {
            float *pair = &x[4 * j + n % 2 * 2];
            if (row < rows && 8 * j < a.dim)
                *reinterpret_cast<uint32_t *>(to + row * a.dq.token_stride + 8 * j) =
                    pair_bits(pair[0] * a.scale, pair[1] * a.scale);
            pair[0] = pair[1] = 0;
        }
    }
}

/* dQ of the next chunk, `turn`-th of all, in stage `stage`, which is then free: the sharers have made the
 * chunk's scores by then. */
template <typename P>
__device__ __forceinline__ void take_ds(const Memory<P> &memory, float (&dq)[P::BLOCKS][P::DIM / 2],
                                        uint32_t turn, int stage)
{
    int sharer = turn & 1;
    barrier_wait(memory.barriers.ds_full(sharer), turn >> 1 & 1);
    fence_for_products();
    multiply_dq<P>(dq, memory.ds_at(sharer), memory.stage_at(stage));
    named_sync(HOUSE_BARRIER, WARPGROUP);
    if (threadIdx.x % WARP == 0)
        barrier_arrive(memory.barriers.ds_empty(sharer));
}

/* A piece that is gathered takes the stage of the one STAGES before it, once that was used: O for delta, a
 * chunk for dQ. dq is written while the sharers make the last sums of the tile; after that they have no more
 * use for its Q and dO. */
template <typename P>
__device__ __forceinline__ void keep_house(const AttentionProblem &a, const Schedule &schedule,
                                           const Memory<P> &memory)
{
    Gathered g = {(int)blockIdx.x, 0, -1, {0, 0}};
    uint32_t tiles = 0, turn = 0; /* begun; of chunks */
    int left = 0;                 /* chunks of the tile */
    float dq[P::BLOCKS][P::DIM / 2] = {};
    draw_tile(a, schedule, memory, &g);
    for (uint32_t piece = 0;; piece++) {
        int stage = piece % P::STAGES;
        if (piece >= P::STAGES && left > 0) {
            take_ds(memory, dq, turn++, stage);
            left--;
        } else if (piece >= P::STAGES) {
            if (tiles > 0)
                store_dq<P>(a, *memory.tile(tiles - 1), dq);
            left = chunks_of<P>(agreed(memory.tile(tiles)->keys));
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
