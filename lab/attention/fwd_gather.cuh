/* The shared layout and barriers of the Hopper forward kernel (fwd_kernel.cuh), and its producer warpgroup,
 * which gathers rows of K and V. */
#ifndef LAB_FWD_GATHER_CUH
#define LAB_FWD_GATHER_CUH

#include "cuda/common/hopper.cuh"

using namespace dsvi::hopper;

constexpr int DIM = 128, WARP = 32;
constexpr int HALF_COLUMNS = 64; /* of one line of a matrix in shared memory */

/* Element (s, n, d) is at data[s * token + n * head + d]. */
struct Rows {
    __nv_bfloat16 *data;
    int token, head;
};

struct Problem {
    CUtensorMap q_map, k_map, v_map; /* (D, heads, tokens), boxes of 64 x 1 x 64 (q) and 64 x 1 x 1 */
    Rows q, k, v, out;
    float *lse;             /* (heads, queries) */
    const int64_t *offsets; /* (heads * groups + 1) */
    const int32_t *lists;
    int heads, queries, group, groups;
    float scale;
};

/* How rows are copied to shared memory: by cp.async, 16 bytes per thread, or by TMA, 128 bytes per
 * instruction of one thread of a warp. */
enum Carrier { CHUNKS, BOXES };

/* Which part of the work a kernel does. Partial kernels show what bounds the whole kernel. */
enum Part { ALL, GATHER_ONLY, MULTIPLY_ONLY };

template <int WARPGROUPS_, int KEYS_, int STAGES_> struct Plan {
    static constexpr int WARPGROUPS = WARPGROUPS_, KEYS = KEYS_, STAGES = STAGES_;
    static constexpr int QUERIES = 64 * WARPGROUPS, MULTIPLYING = WARPGROUP * WARPGROUPS;
    static constexpr int THREADS = WARPGROUP + MULTIPLYING, RESIDENT = WARPGROUPS == 2 ? 1 : 2;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int KEYS_AT = QUERY_BYTES, VALUES_AT = KEYS_AT + STAGES * KEY_BYTES;
    static constexpr int BARRIERS_AT = VALUES_AT + STAGES * KEY_BYTES;
    static constexpr int SHARED = BARRIERS_AT + (4 * STAGES + 2) * 8;
    /* Registers per thread; the RESIDENT blocks of a multiprocessor share 65536. */
    static constexpr int GATHER_REGISTERS = 56, MULTIPLY_REGISTERS = WARPGROUPS == 2 ? 224 : 192;
    static_assert(RESIDENT * (SHARED + 1024) <= 228 * 1024, "shared memory of a multiprocessor");
    static_assert(RESIDENT * WARPGROUP * (GATHER_REGISTERS + WARPGROUPS * MULTIPLY_REGISTERS) <= 65536,
                  "registers of a multiprocessor");
    static_assert(QUERY_BYTES % ATOM_BYTES == 0 && KEY_BYTES % ATOM_BYTES == 0, "matrices are atoms");
};

/* Shared memory addresses of the barriers of a block of threads. */
template <typename P> struct Barriers {
    uint32_t at;
    __device__ uint32_t keys_full(int stage) const { return at + 8 * stage; }
    __device__ uint32_t keys_empty(int stage) const { return at + 8 * (P::STAGES + stage); }
    __device__ uint32_t values_full(int stage) const { return at + 8 * (2 * P::STAGES + stage); }
    __device__ uint32_t values_empty(int stage) const { return at + 8 * (3 * P::STAGES + stage); }
    __device__ uint32_t queries_full() const { return at + 8 * (4 * P::STAGES); }
    __device__ uint32_t queries_empty() const { return at + 8 * (4 * P::STAGES + 1); }
};

/* Position in the ring of stages. `parity` is the phase of the full barriers in this round. */
struct Ring {
    int stage;
    uint32_t parity;
};

template <typename P> __device__ __forceinline__ void advance(Ring *ring)
{
    if (++ring->stage == P::STAGES) {
        ring->stage = 0;
        ring->parity ^= 1;
    }
}

/* Returns lane 0's value, which the compiler then knows to be uniform in the warp. */
__device__ __forceinline__ int agreed(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

/* A tile of queries and its list. */
struct Tile {
    int head, first, rows; /* queries [first, first + rows) */
    const int32_t *list;
    int keys;
};

template <typename P> __device__ __forceinline__ int tiles_of(const Problem &a)
{
    return a.heads * a.groups * ((a.group + P::QUERIES - 1) / P::QUERIES);
}

/* Tile `number`. Tiles of neighbouring numbers are of the same head, so that its K and V stay in the L2
 * cache. */
template <typename P> __device__ __forceinline__ Tile tile_at(const Problem &a, int number)
{
    int of_group = (a.group + P::QUERIES - 1) / P::QUERIES, list = number / of_group;
    int group = list % a.groups, end = min((group + 1) * a.group, a.queries);
    Tile tile;
    tile.head = list / a.groups;
    tile.first = group * a.group + number % of_group * P::QUERIES;
    tile.rows = max(0, min(P::QUERIES, end - tile.first));
    tile.list = a.lists + a.offsets[list];
    tile.keys = tile.rows > 0 ? (int)(a.offsets[list + 1] - a.offsets[list]) : 0;
    return tile;
}

/* Copies 16 bytes to shared memory asynchronously, bypassing L1. The source must be a valid row. */
__device__ __forceinline__ void copy_chunk(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Copies a box of a tensor of three dimensions; cuda/common/hopper.cuh has the same for four. The swizzle
 * follows from the destination address, so a box may be a single line of a swizzle atom. */
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap *map, int x, int y, int z,
                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}

/* A thread's part in gathering a matrix. 16 threads copy a row of 256 bytes, so the warpgroup copies eight
 * rows in each round: in round i this thread copies row `line` + 8 i. Its position inside a swizzle atom
 * never changes. */
struct Gatherer {
    int line, chunk;
    int listed; /* the row whose key number this lane fetches for its warp; see gather */
};

template <typename P> __device__ __forceinline__ Gatherer gatherer()
{
    int thread = threadIdx.x, lane = thread % WARP;
    return {thread / 16, thread % 16, min(8 * (lane % 16) + thread / WARP * 2 + lane / 16, P::KEYS - 1)};
}

/* Byte offset of this thread's 16 bytes of its first row, in a matrix of ROWS rows. */
template <int ROWS> __device__ __forceinline__ uint32_t place_of(Gatherer g)
{
    return g.chunk / 8 * (ROWS * LINE_BYTES) + g.line * LINE_BYTES + (g.chunk % 8 ^ g.line) * 16;
}

/* Address of this thread's 16 bytes of row 0. */
__device__ __forceinline__ const char *chunk_of(Gatherer g, const Rows &rows, int head)
{
    return reinterpret_cast<const char *>(rows.data + (int64_t)head * rows.head + g.chunk * 8);
}

/* Copies ROWS rows to shared memory. In each half of a warp, lane i has the number of the row for round i. */
template <int ROWS>
__device__ __forceinline__ void gather(Gatherer g, const Rows &rows, int head, int number, uint32_t to)
{
    const char *from = chunk_of(g, rows, head);
    int pitch = 2 * rows.token;
    to += place_of<ROWS>(g);
#pragma unroll
    for (int i = 0; i < ROWS / 8; i++)
        copy_chunk(to + i * ATOM_BYTES, from + (int64_t)__shfl_sync(0xffffffffu, number, i, 16) * pitch);
}

/* Copies a tile's queries. A tile of fewer than ROWS queries is padded with its last one; results of the
 * padding are not stored. */
template <int ROWS>
__device__ __forceinline__ void copy_queries(Gatherer g, const Rows &rows, const Tile &tile, uint32_t to)
{
    int64_t pitch = 2 * rows.token;
    const char *from = chunk_of(g, rows, tile.head) + tile.first * pitch;
    to += place_of<ROWS>(g);
#pragma unroll 4
    for (int i = 0; i < ROWS / 8; i++)
        copy_chunk(to + i * ATOM_BYTES, from + min(8 * i + g.line, tile.rows - 1) * pitch);
}

/* Copies the same rows to the same addresses as gather, by TMA and line by line. Arrives at the barrier
 * first. */
template <int ROWS>
__device__ __forceinline__ void gather_boxes(const CUtensorMap *map, int head, int number, uint32_t to,
                                             uint32_t barrier)
{
    int warp = agreed(threadIdx.x / WARP);
    bool speaks = elected();
    if (speaks)
        barrier_arrive_expecting(barrier, ROWS / 4 * DIM * 2);
#pragma unroll
    for (int i = 0; i < ROWS / 4; i++) {
        int row = __shfl_sync(0xffffffffu, number, i / 2 + i % 2 * 16);
        uint32_t line = to + i / 2 * ATOM_BYTES + (2 * warp + i % 2) * LINE_BYTES;
        if (!speaks)
            continue;
        copy_box(line, map, 0, head, row, barrier);
        copy_box(line + ROWS * LINE_BYTES, map, HALF_COLUMNS, head, row, barrier);
    }
}

/* Copies all rows of a tile of queries by TMA. Rows after the group are of the next group, or zeros after
 * the last token. */
template <int ROWS>
__device__ __forceinline__ void copy_query_boxes(const CUtensorMap *map, const Tile &tile, uint32_t to,
                                                 uint32_t barrier)
{
    int warp = agreed(threadIdx.x / WARP);
    if (!elected())
        return;
    barrier_arrive_expecting(barrier, warp == 0 ? ROWS * DIM * 2 : 0);
    if (warp > 0)
        return;
    for (int row = 0; row < ROWS; row += 64)
        for (int half = 0; half < 2; half++)
            copy_box(to + (half * ROWS + row) * LINE_BYTES, map, half * HALF_COLUMNS, tile.head,
                     tile.first + row, barrier);
}

/* Copies the rows of a step if `copying`; arrives at the barrier in any case. */
template <int ROWS, Carrier CARRIER>
__device__ __forceinline__ void bring(bool copying, Gatherer g, const Rows &rows, const CUtensorMap *map,
                                      int head, int number, uint32_t to, uint32_t barrier)
{
    if (CARRIER == CHUNKS) {
        if (copying)
            gather<ROWS>(g, rows, head, number, to);
        barrier_arrive_after_copies(barrier);
    } else if (copying) {
        gather_boxes<ROWS>(map, head, number, to, barrier);
    } else if (threadIdx.x % WARP == 0) {
        barrier_arrive(barrier);
    }
}

template <int ROWS, Carrier CARRIER>
__device__ __forceinline__ void bring_queries(Gatherer g, const Problem &a, const Tile &tile, uint32_t to,
                                              uint32_t barrier)
{
    if (CARRIER == CHUNKS) {
        copy_queries<ROWS>(g, a.q, tile, to);
        barrier_arrive_after_copies(barrier);
    } else {
        copy_query_boxes<ROWS>(&a.q_map, tile, to, barrier);
    }
}

/* The producer warpgroup. Key numbers are fetched one step ahead. The incomplete first step is padded with
 * its last key, whose extra scores are masked. Rows that are not listed are never read, so they cannot
 * introduce a NaN. MULTIPLY_ONLY: stages are filled in the first round only. */
template <typename P, Carrier CARRIER, Part PART>
__device__ __forceinline__ void gather_all(const Problem &a, uint32_t base)
{
    Barriers<P> barriers = {base + P::BARRIERS_AT};
    Gatherer g = gatherer<P>();
    Ring ring = {0, 0};
    uint32_t visits = 0;
    int turns = 0, tiles = tiles_of<P>(a);
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile = tile_at<P>(a, number);
        if (tile.keys == 0)
            continue;
        int steps = (tile.keys + P::KEYS - 1) / P::KEYS, count = tile.keys - (steps - 1) * P::KEYS;
        const int32_t *list = tile.list + count + g.listed;
        int key = tile.list[min(g.listed, count - 1)];
        for (int step = 0; step < steps; step++, list += P::KEYS) {
            int next = step + 1 < steps ? *list : 0;
            uint32_t stage = base + ring.stage * P::KEY_BYTES;
            bool copying = PART != MULTIPLY_ONLY || turns++ < P::STAGES;
            barrier_wait(barriers.keys_empty(ring.stage), ring.parity ^ 1);
            bring<P::KEYS, CARRIER>(copying, g, a.k, &a.k_map, tile.head, key, stage + P::KEYS_AT,
                                    barriers.keys_full(ring.stage));
            if (step == 0) {
                barrier_wait(barriers.queries_empty(), visits++ & 1 ^ 1);
                bring_queries<P::QUERIES, CARRIER>(g, a, tile, base, barriers.queries_full());
            }
            barrier_wait(barriers.values_empty(ring.stage), ring.parity ^ 1);
            bring<P::KEYS, CARRIER>(copying, g, a.v, &a.v_map, tile.head, key, stage + P::VALUES_AT,
                                    barriers.values_full(ring.stage));
            key = next;
            advance<P>(&ring);
        }
    }
}

#endif
