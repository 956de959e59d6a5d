/* The shared layout of the Hopper backward kernel (bwd_kernel.cuh), and its producer warpgroup, which
 * gathers rows and computes dQ. */
#ifndef LAB_BWD_KEEP_CUH
#define LAB_BWD_KEEP_CUH

#include "bwd_hopper.cuh"
#include "fwd_gather.cuh"

struct BackwardProblem {
    Problem forward; /* q, k, v, out, lse and lists */
    Rows dout, dq;
    float *sums; /* (2, heads, keys, DIM): dK / scale, dV; columns as in attention_list.cuh */
    int keys;    /* rows of k and v */
    bool turned; /* tiles begin at different places of their lists; see chunk_at */
};

/* How dK and dV are added to their sums: with red.v4 from registers, or through shared memory with bulk
 * additions by TMA, COLUMNS of a row at a time. */
enum Adding { BY_LANES, IN_BULK };

/* Which part of the work a kernel does. Partial kernels show what bounds the whole kernel. */
enum Work { EVERYTHING, PRODUCTS_ONLY, SUMS_ONLY };

template <int QUERIES_, int STAGES_, Adding ADDING_, int COLUMNS_, int BUFFERS_> struct BackwardPlan {
    static constexpr int QUERIES = QUERIES_, KEYS = 64, STAGES = STAGES_, BLOCKS = QUERIES / 64;
    static constexpr Adding ADDING = ADDING_;
    static constexpr int COLUMNS = COLUMNS_, BUFFERS = BUFFERS_; /* of a warp's buffers for bulk additions */
    static constexpr int WARPGROUPS = 2, MULTIPLYING = WARPGROUP * WARPGROUPS;
    static constexpr int THREADS = WARPGROUP + MULTIPLYING, WARPS = MULTIPLYING / WARP;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = KEYS * DIM * 2;
    static constexpr int STAGE_BYTES = 2 * KEY_BYTES, DS_BYTES = KEYS * QUERIES * 2;
    /* 16 rows; odd rows follow the even rows after a gap of 64 bytes; see stage_row. */
    static constexpr int ROW_BYTES = COLUMNS * 4, BUFFER_BYTES = 16 * ROW_BYTES + 64;
    static constexpr int DOUT_AT = QUERY_BYTES, STAGES_AT = 2 * QUERY_BYTES;
    static constexpr int DS_AT = STAGES_AT + STAGES * STAGE_BYTES;
    static constexpr int BUFFERS_AT = DS_AT + WARPGROUPS * DS_BYTES;
    static constexpr int LSE_AT = BUFFERS_AT + (ADDING == IN_BULK ? WARPS * BUFFERS * BUFFER_BYTES : 0);
    static constexpr int DELTA_AT = LSE_AT + QUERIES * 4, BARRIERS_AT = DELTA_AT + QUERIES * 4;
    static constexpr int SHARED = BARRIERS_AT + (STAGES + 2 * WARPGROUPS + 3) * 8;
    static_assert(SHARED <= 227 * 1024, "shared memory of a block of threads");
    static_assert(QUERY_BYTES <= STAGE_BYTES, "O lies in a stage while delta is made");
};

template <typename P> struct BackwardBarriers {
    uint32_t at;
    __device__ uint32_t stage_full(int stage) const { return at + 8 * stage; }
    __device__ uint32_t ds_full(int warpgroup) const { return at + 8 * (P::STAGES + warpgroup); }
    __device__ uint32_t ds_empty(int warpgroup) const { return at + 8 * (P::STAGES + 2 + warpgroup); }
    __device__ uint32_t queries_full() const { return at + 8 * (P::STAGES + 4); }
    __device__ uint32_t queries_empty() const { return at + 8 * (P::STAGES + 5); }
    __device__ uint32_t delta_made() const { return at + 8 * (P::STAGES + 6); }
};

template <typename P> __device__ __forceinline__ int chunks_of(const Tile &tile)
{
    return (tile.keys + P::KEYS - 1) / P::KEYS;
}

/* The chunk of its list that tile `number` processes as its n-th. Concurrent tiles all begin at the first
 * chunk, so that they read the same keys at about the same time. With `turned` each tile begins at a
 * different chunk. */
__device__ __forceinline__ int chunk_at(const BackwardProblem &a, int number, int n, int chunks)
{
    return a.turned ? (n + number * 7) % chunks : n;
}

/* The order in which stages are filled: for each tile with a non-empty list the rows of O, then its keys,
 * KEYS at a time. */
struct Cursor {
    int number, chunk; /* the next chunk of the tile; -1: the rows of O are next */
    Tile tile;
    int key; /* the chunk's key that this lane has fetched */
    Ring ring;
};

template <typename P> __device__ __forceinline__ void seek_tile(const BackwardProblem &a, Cursor *c)
{
    int tiles = tiles_of<P>(a.forward);
    c->chunk = -1;
    while (c->number < tiles) {
        c->tile = tile_at<P>(a.forward, c->number);
        if (c->tile.keys > 0)
            return;
        c->number += gridDim.x;
    }
}

/* Fills the next stage, which must be free, and advances. An incomplete chunk is padded with the last key of
 * the list. Key numbers are fetched one chunk ahead. */
template <typename P>
__device__ __forceinline__ void gather_next(const BackwardProblem &a, Gatherer g, Cursor *c, uint32_t base)
{
    const Problem &f = a.forward;
    if (c->number >= tiles_of<P>(f))
        return;
    BackwardBarriers<P> barriers = {base + P::BARRIERS_AT};
    uint32_t stage = base + P::STAGES_AT + c->ring.stage * P::STAGE_BYTES;
    if (c->chunk < 0) {
        for (int block = 0; block < P::BLOCKS; block++) {
            Tile part = c->tile;
            part.first += 64 * block;
            part.rows -= 64 * block;
            copy_queries<64>(g, f.out, part, stage + block * P::KEY_BYTES);
        }
    } else {
        gather<P::KEYS>(g, f.k, c->tile.head, c->key, stage);
        gather<P::KEYS>(g, f.v, c->tile.head, c->key, stage + P::KEY_BYTES);
    }
    barrier_arrive_after_copies(barriers.stage_full(c->ring.stage));
    advance<P>(&c->ring);
    if (++c->chunk == chunks_of<P>(c->tile)) {
        c->number += gridDim.x;
        seek_tile<P>(a, c);
    }
    if (c->number >= tiles_of<P>(f) || c->chunk < 0)
        return;
    int first = chunk_at(a, c->number, c->chunk, chunks_of<P>(c->tile)) * P::KEYS;
    c->key = c->tile.list[min(first + g.listed, c->tile.keys - 1)];
}

/* Loads Q and dO of the next tile with a non-empty list, once the consumers have released the buffers:
 * `parity` is the phase of the barrier for empty queries. Returns the number of chunks of the tile. */
template <typename P>
__device__ __forceinline__ int copy_tile(const BackwardProblem &a, Gatherer g, int number, uint32_t base,
                                         uint32_t parity)
{
    BackwardBarriers<P> barriers = {base + P::BARRIERS_AT};
    Tile tile = tile_at<P>(a.forward, number);
    if (tile.keys > 0) {
        barrier_wait(barriers.queries_empty(), parity);
        copy_queries<P::QUERIES>(g, a.forward.q, tile, base);
        copy_queries<P::QUERIES>(g, a.dout, tile, base + P::DOUT_AT);
        barrier_arrive_after_copies(barriers.queries_full());
    }
    return chunks_of<P>(tile);
}

/* dQ += dS K for one chunk. Both factors have one line per key in shared memory. */
template <typename P>
__device__ __forceinline__ void multiply_dq(float (&dq)[P::BLOCKS][64], uint32_t ds, uint32_t keys)
{
    constexpr int HALF = P::KEYS * LINE_BYTES;
    uint64_t left = matrix_at(ds, HALF, ATOM_BYTES), right = matrix_at(keys, HALF, ATOM_BYTES);
#pragma unroll
    for (int block = 0; block < P::BLOCKS; block++)
        hold(dq[block]);
    products_begin();
#pragma unroll
    for (int key = 0; key < P::KEYS; key += 16)
#pragma unroll
        for (int block = 0; block < P::BLOCKS; block++)
            multiply_add_transposed(dq[block], left + (block * HALF + key * LINE_BYTES) / 16,
                                    right + key * LINE_BYTES / 16);
    products_commit();
    products_wait<0>();
#pragma unroll
    for (int block = 0; block < P::BLOCKS; block++)
        hold(dq[block]);
}

/* Writes a tile's dq from its accumulators and clears the accumulators. */
template <typename P>
__device__ __forceinline__ void store_dq(const BackwardProblem &a, int number, float (&dq)[P::BLOCKS][64])
{
    Tile tile = tile_at<P>(a.forward, number);
    int thread = anew(threadIdx.x), lane = thread % WARP, warp = thread / WARP;
    __nv_bfloat16 *to = a.dq.data + (int64_t)tile.first * a.dq.token + tile.head * a.dq.head + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * P::BLOCKS; n++) {
        float(&x)[64] = dq[n / 2];
        int row = 64 * (n / 2) + 16 * warp + 8 * (n % 2) + lane / 4;
#pragma unroll
        for (int j = 0; j < DIM / 8; j++) {
            float *pair = &x[4 * j + n % 2 * 2];
            if (row < tile.rows)
                *reinterpret_cast<uint32_t *>(to + (int64_t)row * a.dq.token + 8 * j) = pair_bits(
                    pair[0] * a.forward.scale, pair[1] * a.forward.scale);
            pair[0] = pair[1] = 0;
        }
    }
}

/* The producer warpgroup. A stage is free once dQ of its chunk is computed, because the consumers have then
 * computed the chunk's scores. The producer gathers STAGES chunks ahead of its own products. It writes dq
 * while the consumers finish the last dK and dV of the tile; after that nobody needs the tile's Q and dO. */
template <typename P> __device__ __forceinline__ void produce(const BackwardProblem &a, uint32_t base)
{
    BackwardBarriers<P> barriers = {base + P::BARRIERS_AT};
    Gatherer g = gatherer<P>();
    Cursor ahead = {};
    Ring ring = {0, 0};
    uint32_t visits = 0, turn = 0;
    int tiles = tiles_of<P>(a.forward);
    bool speaks = threadIdx.x % WARP == 0;
    float dq[P::BLOCKS][64] = {};
    ahead.number = blockIdx.x;
    seek_tile<P>(a, &ahead);
    for (int stage = 0; stage < P::STAGES; stage++)
        gather_next<P>(a, g, &ahead, base);
    for (int number = blockIdx.x; number < tiles; number += gridDim.x) {
        int chunks = copy_tile<P>(a, g, number, base, visits & 1 ^ 1);
        if (chunks > 0) {
            barrier_wait(barriers.delta_made(), visits++ & 1);
            gather_next<P>(a, g, &ahead, base);
            advance<P>(&ring);
        }
        for (int chunk = 0; chunk < chunks; chunk++, turn++, advance<P>(&ring)) {
            int from = turn & 1;
            barrier_wait(barriers.ds_full(from), turn >> 1 & 1);
            fence_for_products();
            multiply_dq<P>(dq, base + P::DS_AT + from * P::DS_BYTES,
                           base + P::STAGES_AT + ring.stage * P::STAGE_BYTES);
            named_sync(1, WARPGROUP);
            if (speaks)
                barrier_arrive(barriers.ds_empty(from));
            gather_next<P>(a, g, &ahead, base);
        }
        store_dq<P>(a, number, dq);
    }
}

#endif
