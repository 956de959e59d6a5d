/* How rows come to shared memory in attention over lists on Hopper: a warpgroup brings them by cp.async, KEYS
 * listed rows of K or V at a time, into a ring of stages, as atoms that wgmma reads (hopper.cuh).
 *
 * A row of DIM columns, 64 or 128, is DIM / 8 chunks of 16 bytes, one for each of as many neighbouring
 * threads: LINES = 16 or 8 rows at once. Thread t has chunk t % CHUNKS of rows t / CHUNKS + LINES i, in time
 * i; LINES being a multiple of an atom's eight lines, its place in the swizzle is always the same, and what
 * comes in time i lies LINES * 128 bytes behind what came before:
 *     row r, chunk c of a matrix of ROWS rows      c / 8 * ROWS * 128 + r * 128 + (c % 8 ^ r % 8) * 16
 * The CHUNKS threads of a line share its rows' numbers: lane i among them fetches that of time i, one step
 * ahead, and hands it round (__shfl_sync). So a list of any grain costs one load and at most one division
 * for a thread and step. Columns from D on, where D < DIM, are filled with zeros.
 *
 * The forward pass walks a list from its end: the short step is then the first one, so that no later step
 * needs a mask. The backward pass begins anywhere and masks the short step where it comes. Every step begins
 * at a multiple of KEYS. In the short step, and where a tile has fewer queries than
 * rows, the last row stands in for those that are missing: what it gives is masked or not stored, and no byte
 * that is not listed is read.
 *
 * cp.async writes shared memory as ordinary stores do; wgmma reads it by the async proxy. The threads that
 * multiply wait for the barrier at which the copies arrived, which puts the writes before what follows, and
 * then fence the proxies: write, barrier, fence, read is an order through both (PTX: Memory Consistency
 * Model, proxy-preserved base causality order). The other way about, wgmma.wait_group says that the reads are
 * done, and the barrier passes that on.
 *
 * How scores are rounded, in both passes. s = q . k as wgmma leaves it, in F32:
 *     forward     p = exp(scale (s - largest s)), lse = rn(scale largest) + log(sum of p)
 *     backward    p = exp(rn(scale s) - lse)
 * s - largest is exact where they are near, and a key that has all the weight has p = 1 to the bit in both,
 * however large s is. Fusing scale s - lse into one rounding would not: lse itself is rounded. */
#ifndef DSVI_ATTENTION_GATHER_CUH
#define DSVI_ATTENTION_GATHER_CUH

#include "cuda/attention_list.cuh"
#include "cuda/hopper.cuh"

namespace dsvi::hopper {

/* Where a ring of stages stands: `parity` is of the round, the phase of the full barriers in it. */
template <int STAGES> struct Ring {
    int stage;
    uint32_t parity;
};

template <int STAGES> __device__ __forceinline__ void advance(Ring<STAGES> *ring)
{
    if (++ring->stage == STAGES) {
        ring->stage = 0;
        ring->parity ^= 1;
    }
}

/* Of a warp's lane 0: the compiler then knows that a warp agrees on it. */
__device__ __forceinline__ int agreed(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

/* How a thread of the gathering warpgroup stands before a matrix. */
template <int DIM> struct Gatherer {
    static constexpr int CHUNKS = DIM / 8, LINES = WARPGROUP / CHUNKS;
    static_assert(LINES % 8 == 0, "a thread keeps its place in the swizzle");
    int line, chunk;
    bool there; /* its columns: D may be less than DIM */
};

template <int DIM> __device__ __forceinline__ Gatherer<DIM> gatherer(int dim)
{
    int thread = threadIdx.x % WARPGROUP, chunk = thread % Gatherer<DIM>::CHUNKS;
    return {thread / Gatherer<DIM>::CHUNKS, chunk, chunk * 8 < dim};
}

/* The row, of ROWS, whose number this lane fetches for its line. */
template <int DIM, int ROWS> __device__ __forceinline__ int fetched_row(Gatherer<DIM> g)
{
    static_assert(ROWS / g.LINES <= g.CHUNKS && ROWS % g.LINES == 0, "a lane for each time");
    int row = g.line + g.LINES * g.chunk;
    return row < ROWS ? row : ROWS - 1;
}

/* Byte offset, in a matrix of ROWS rows, of this thread's chunk of its first row. */
template <int DIM, int ROWS> __device__ __forceinline__ uint32_t place_of(Gatherer<DIM> g)
{
    return g.chunk / 8 * (ROWS * LINE_BYTES) + g.line * LINE_BYTES + (g.chunk % 8 ^ g.line % 8) * 16;
}

/* This thread's chunk of row 0. */
template <int DIM>
__device__ __forceinline__ const char *chunk_of(Gatherer<DIM> g, const DsvHeads &rows, const Tile &tile)
{
    return reinterpret_cast<const char *>(rows_of<__nv_bfloat16>(rows, tile) + g.chunk * 8);
}

/* A key's number as its run and its place there: apart, so that nobody waits for the run that was loaded
 * before it is wanted. */
struct Listed {
    int run, rest;
};

/* Number i of the list, 0 <= i < tile.keys. */
__device__ __forceinline__ Listed fetch_listed(const AttentionProblem &a, const Tile &tile, int i)
{
    if (!tile.runs)
        return {i, 0};
    if (a.grain == 1)
        return {tile.runs[i], 0};
    int run = (int)((unsigned)i / (unsigned)a.grain);
    return {tile.runs[run], i - run * a.grain};
}

__device__ __forceinline__ int listed_key(const AttentionProblem &a, Listed listed)
{
    return listed.run * a.grain + listed.rest;
}

/* Bytes from row to row, which have to fit an int. The compiler is kept from looking where it comes from, or
 * it would multiply in 64 bits. */
__device__ __forceinline__ int pitch_of(const DsvHeads &rows)
{
    int pitch = 2 * (int)rows.token_stride;
    asm volatile("" : "+r"(pitch));
    return pitch;
}

/* ROWS rows to shared memory; `number`: of the row fetched_row. All threads of the warpgroup call. */
template <int DIM, int ROWS>
__device__ __forceinline__ void gather_listed(Gatherer<DIM> g, const DsvHeads &rows, const Tile &tile,
                                              int number, uint32_t to)
{
    const char *from = chunk_of(g, rows, tile);
    int pitch = pitch_of(rows);
    to += place_of<DIM, ROWS>(g);
#pragma unroll
    for (int i = 0; i < ROWS / g.LINES; i++) {
        int64_t row = __shfl_sync(0xffffffffu, number, i, g.CHUNKS);
        copy_chunk(to + i * g.LINES * LINE_BYTES, from + row * pitch, g.there);
    }
}

/* The tile's rows of Q, or of what lies as Q does, to a matrix of ROWS rows. */
template <int DIM, int ROWS>
__device__ __forceinline__ void gather_queries(Gatherer<DIM> g, const DsvHeads &rows, const Tile &tile,
                                               uint32_t to)
{
    const char *from = chunk_of(g, rows, tile);
    int pitch = pitch_of(rows);
    to += place_of<DIM, ROWS>(g);
#pragma unroll 4
    for (int i = 0; i < ROWS / g.LINES; i++) {
        int64_t row = tile.first + min(g.LINES * i + g.line, tile.rows - 1);
        copy_chunk(to + i * g.LINES * LINE_BYTES, from + row * pitch, g.there);
    }
}

} // namespace dsvi::hopper

#endif
