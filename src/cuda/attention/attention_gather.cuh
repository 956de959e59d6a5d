/* How the Hopper kernels of attention over lists copy listed rows to shared memory: a warpgroup copies them
 * with cp.async, a tile of listed rows of K or V at a time, into a ring of stages, in the layout that wgmma
 * reads (atoms, hopper.cuh).
 *
 * A row of DIM columns, 64 or 128, is DIM / 8 chunks of 16 bytes, which as many neighbouring threads copy;
 * the warpgroup copies LINES = 16 or 8 rows at once. In round i, thread t copies chunk t % CHUNKS of row t /
 * CHUNKS + LINES i. LINES is a multiple of 8, the lines of an atom, so the swizzle of a thread's chunks is
 * the same in all rounds, and a round's destination is LINES * 128 bytes after that of the previous one:
 *     row r, chunk c of a matrix of ROWS rows      c / 8 * ROWS * 128 + r * 128 + (c % 8 ^ r % 8) * 16
 * The CHUNKS threads of a line need the numbers of the same rows: lane i among them fetches the number for
 * round i, one step ahead, and hands this number to the other threads of the line (__shfl_sync). So lists of
 * any grain cost each thread one load and at most one division in a step. Columns from D on, where D < DIM,
 * are filled with zeros.
 *
 * The forward pass walks a list from its end. The short step is then the first one, and no later step needs a
 * mask. The backward pass begins anywhere in the list and masks the short step where it comes. Every step
 * begins at a multiple of its number of keys. Where a step has fewer keys, or a tile fewer queries, than the
 * matrix has rows, the last row is copied to the rows that are missing. Their results are masked or not
 * stored, and no byte that is not listed is read.
 *
 * Memory order: cp.async writes shared memory like ordinary stores, but wgmma reads it through the async
 * proxy. The consumers wait for the barrier at which the copies arrived, so the writes come before what
 * follows, and then fence the proxies. Write, barrier, fence and read are ordered through both proxies (PTX:
 * Memory Consistency Model, proxy-preserved base causality order). In the other direction, wgmma.wait_group
 * says that the reads are done, and the barrier passes this on to the producer.
 *
 * How scores are rounded, in both passes. s = q . k as wgmma computes it, in F32; rn rounds to F32:
 *     forward     p = exp(scale (s - largest s)), lse = rn(scale largest) + log(sum of p)
 *     backward    p = exp(rn(scale s) - lse)
 * s - largest is exact where the two are near each other. A key that has all the weight has p equal to 1 to
 * the bit in both passes, however large s is. Rounding scale s - lse only once would not give 1, because lse
 * itself is rounded. */
#ifndef DSVI_ATTENTION_GATHER_CUH
#define DSVI_ATTENTION_GATHER_CUH

#include "cuda/attention/attention_list.cuh"
#include "cuda/common/hopper.cuh"
#include "cuda/common/hopper_ring.cuh"

namespace dsvi::hopper {

/* The part of a matrix that a thread of the copying warpgroup copies. */
template <int DIM> struct Gatherer {
    static constexpr int CHUNKS = DIM / 8, LINES = WARPGROUP / CHUNKS;
    static_assert(LINES % 8 == 0, "a thread keeps its place in the swizzle");
    int line, chunk;
    bool there; /* the columns of this thread's chunk exist; they may not, because D may be less than DIM */
};

template <int DIM> __device__ __forceinline__ Gatherer<DIM> gatherer(int dim)
{
    int thread = threadIdx.x % WARPGROUP, chunk = thread % Gatherer<DIM>::CHUNKS;
    return {thread / Gatherer<DIM>::CHUNKS, chunk, chunk * 8 < dim};
}

/* The threads that copy the chunks of one row copy further rows, LINES apart, in later rounds, and divide the
 * work of fetching key numbers. Returns the row, 0 <= row < ROWS, whose key number this thread fetches for
 * all of them. */
template <int DIM, int ROWS> __device__ __forceinline__ int fetched_row(Gatherer<DIM> g)
{
    static_assert(ROWS / g.LINES <= g.CHUNKS && ROWS % g.LINES == 0, "a lane for each time");
    int row = g.line + g.LINES * g.chunk;
    return row < ROWS ? row : ROWS - 1;
}

/* Byte offset, in a shared-memory matrix of ROWS rows, to which this thread copies its 16-byte chunk of the
 * first row that it copies. Later rows are LINES rows further. */
template <int DIM, int ROWS> __device__ __forceinline__ uint32_t place_of(Gatherer<DIM> g)
{
    return g.chunk / 8 * (ROWS * LINE_BYTES) + g.line * LINE_BYTES + (g.chunk % 8 ^ g.line % 8) * 16;
}

/* Address in global memory of the 16-byte chunk that this thread copies, in the row of token 0 of the tile's
 * (batch, head). */
template <int DIM>
__device__ __forceinline__ const char *chunk_of(Gatherer<DIM> g, const DsviHeads &rows, const Tile &tile)
{
    return reinterpret_cast<const char *>(rows_of<__nv_bfloat16>(rows, tile) + g.chunk * 8);
}

/* An entry of a key list: the number of a span, with the bits LISTED_FIRST and LISTED_SECOND in a union of
 * lists, and the key's position in the span. Only listed_key combines the two to the index of the key, so
 * that no instruction waits for the load of `span` before the key is needed. */
struct Listed {
    int span, rest;
};

/* Fetches the i-th entry of the tile's key list, 0 <= i < tile.keys. */
__device__ __forceinline__ Listed fetch_listed(const AttentionProblem &a, const Tile &tile, int i)
{
    if (!tile.spans)
        return {i, 0};
    if (a.grain == 1)
        return {tile.spans[i], 0};
    int span = (int)((unsigned)i / (unsigned)a.grain);
    return {tile.spans[span], i - span * a.grain};
}

__device__ __forceinline__ int listed_key(const AttentionProblem &a, Listed listed)
{
    return (int)(listed.span & SPAN_BITS) * a.grain + listed.rest;
}

/* Returns the number of bytes between consecutive tokens; attention_list.cu has checked that the number fits
 * an int. The asm hides from the compiler that the value is a truncated 64-bit one, because the compiler
 * would otherwise multiply in 64 bits. */
__device__ __forceinline__ int pitch_of(const DsviHeads &rows)
{
    int pitch = 2 * (int)rows.token_stride;
    asm volatile("" : "+r"(pitch));
    return pitch;
}

/* Enqueues copies of ROWS listed rows of K or V to shared memory. `number` is the index of the key that
 * belongs to row fetched_row of the matrix; threads exchange these indices. All threads of the warpgroup must
 * call. */
template <int DIM, int ROWS>
__device__ __forceinline__ void gather_listed(Gatherer<DIM> g, const DsviHeads &rows, const Tile &tile,
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

/* Copies the tile's rows of q, dout or out to a matrix of ROWS rows. */
template <int DIM, int ROWS>
__device__ __forceinline__ void gather_queries(Gatherer<DIM> g, const DsviHeads &rows, const Tile &tile,
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
