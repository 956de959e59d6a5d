/* The steps before and after the products of a tail (attention_tail_parts.cuh). All are limited by memory. A
 * thread has a vector of N elements of a row, 16 bytes or, where rows are not aligned, one element.
 * Neighbouring threads have neighbouring columns, then heads, as the rows of tokens are stored. */
#include "cuda/attention/attention_tail_parts.cuh"
#include "cuda/attention/attention_weights.cuh"
#include "cuda/common/kernel.cuh"

namespace dsvi {
namespace {

constexpr int THREADS = 256, WARPS = THREADS / WARP;
constexpr int SLAB_WORDS = 1024; /* words of bits, or biases, of a group that one thread block writes */
/* columns_kernel: keys, and chunks, for which a thread block writes bits, and its threads. */
constexpr int SLAB_KEYS = 4096, TILE_ROWS = 64, COLUMN_THREADS = 512;

/* Place of a vector of elements: (batch, head), row of its tensor, first column. */
struct Place {
    int64_t b, h, row;
    int column;
    __device__ int64_t in(const DsviHeads &rows) const
    {
        return b * rows.batch_stride + row * rows.token_stride + h * rows.head_stride + column;
    }
};

/* Returns the place of this thread's vector in a tensor of `rows` rows, and in *inside whether it exists. */
template <int N>
__device__ __forceinline__ Place place_of(const DsviAttentionArgs &a, int64_t rows, bool *inside)
{
    unsigned vectors = (unsigned)a.head_dim / N, of_token = (unsigned)a.heads * vectors;
    int64_t start = (int64_t)blockIdx.x * blockDim.x, token = start / of_token;
    unsigned past = (unsigned)(start - token * of_token) + threadIdx.x;
    token += past / of_token;
    *inside = token < rows * a.batch;
    unsigned within = past % of_token;
    return {token / rows, within / vectors, token % rows, (int)(within % vectors) * N};
}

/* Number of thread blocks for which place_of gives each vector of `rows` rows to one thread along x. */
template <int N> unsigned blocks_for(const DsviAttentionArgs &a, int64_t rows, int64_t threads = THREADS)
{
    return (unsigned)ceil_div(a.batch * rows * a.heads * (a.head_dim / N), threads);
}

/* Threads that share the rows of a mean: few means then still give all multiprocessors work. Each has at
 * least ROWS_EACH rows. */
constexpr int SHARING = 8, ROWS_EACH = 4;

/* Threads with equal threadIdx.x share the rows of a mean: thread y sums rows y, y + blockDim.y, ..., and the
 * first of them adds the sums in order. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    means_kernel(const __grid_constant__ DsviAttentionArgs a, DsviHeads from, int64_t tokens, int64_t width,
                 DsviHeads to)
{
    __shared__ float sums[THREADS][N];
    bool inside;
    Place place = place_of<N>(a, (tokens + width - 1) / width, &inside);
    int64_t first = place.row * width, count = min(width, tokens - first);
    T *result = static_cast<T *>(to.data) + place.in(to);
    place.row = first + threadIdx.y;
    const T *row = static_cast<const T *>(from.data) + place.in(from);
    float sum[N] = {0};
#pragma unroll 4
    for (int64_t i = threadIdx.y; inside && i < count;
         i += blockDim.y, row += blockDim.y * from.token_stride) {
        float x[N];
        load<N>(row, x);
#pragma unroll
        for (int n = 0; n < N; n++)
            sum[n] += x[n];
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        sums[threadIdx.y * blockDim.x + threadIdx.x][n] = sum[n];
    __syncthreads();
    if (!inside || threadIdx.y > 0)
        return;
    for (unsigned y = 1; y < blockDim.y; y++)
#pragma unroll
        for (int n = 0; n < N; n++)
            sum[n] += sums[y * blockDim.x + threadIdx.x][n];
#pragma unroll
    for (int n = 0; n < N; n++)
        sum[n] /= (float)count;
    store<N>(result, sum);
}

/* The first entry of a list that does not end before key `key`. For key 0 this is the first entry of all,
 * without a search. */
__device__ __forceinline__ int64_t first_span(const DsviLists &lists, int64_t begin, int64_t end, int64_t key)
{
    while (key > 0 && begin < end) {
        int64_t middle = begin + (end - begin) / 2;
        if ((lists.spans[middle] + (int64_t)1) * lists.grain <= key)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Writes the bits of one group for SLAB_WORDS words of keys: 1 for keys that exist and that the list does not
 * name. Grid: x, slabs; y, lists (looped over beyond the grid). */
__global__ void __launch_bounds__(THREADS)
    bits_kernel(const __grid_constant__ DsviLists lists, int64_t count, int words, uint32_t *to)
{
    __shared__ uint32_t bits[SLAB_WORDS];
    int64_t first = (int64_t)blockIdx.x * SLAB_WORDS * 32, past = min(first + SLAB_WORDS * 32, lists.keys);
    for (int64_t list = blockIdx.y; list < count; list += gridDim.y) {
        __syncthreads();
        for (int word = threadIdx.x; word < SLAB_WORDS; word += THREADS) {
            int64_t left = lists.keys - first - 32 * word;
            bits[word] = left >= 32 ? 0xffffffffu : left > 0 ? (1u << left) - 1 : 0u;
        }
        __syncthreads();
        int64_t end = lists.offsets[list + 1], at = first_span(lists, lists.offsets[list], end, first);
        for (at += threadIdx.x; at < end; at += THREADS) {
            int64_t key = (int64_t)lists.spans[at] * lists.grain, stop = min(key + lists.grain, past);
            if (key >= past)
                break;
            for (key = max(key, first); key < stop; key = (key / 32 + 1) * 32) {
                uint32_t from = 0xffffffffu << key % 32,
                         left = (uint32_t)min(stop - key / 32 * 32, (int64_t)32);
                uint32_t upto = 0xffffffffu >> (32 - left);
                atomicAnd(&bits[(key - first) / 32], ~(from & upto));
            }
        }
        __syncthreads();
        int here = min(SLAB_WORDS, words - (int)blockIdx.x * SLAB_WORDS);
        for (int word = threadIdx.x; word < here; word += THREADS)
            to[list * words + (int64_t)blockIdx.x * SLAB_WORDS + word] = bits[word];
    }
}

/* Stores the number of keys of run `run` of a line that the list does not name: its logarithm, as a bias, or
 * a byte. */
__device__ __forceinline__ void store_count(float *line, int64_t run, int count)
{
    line[run] = count > 0 ? logf((float)count) : -INFINITY;
}

__device__ __forceinline__ void store_count(uint8_t *line, int64_t run, int count)
{
    line[tail_place((int)run)] = (uint8_t)count;
}

/* Writes the biases, or the counts, of one group for SLAB_WORDS runs of `run` keys. Grid as for bits_kernel;
 * a line has `line` runs. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    counts_kernel(const __grid_constant__ DsviLists lists, int64_t count, int64_t run, int line, T *to)
{
    __shared__ int left[SLAB_WORDS];
    int64_t first = (int64_t)blockIdx.x * SLAB_WORDS * run, past = min(first + SLAB_WORDS * run, lists.keys);
    int here = min(SLAB_WORDS, line - (int)blockIdx.x * SLAB_WORDS);
    for (int64_t list = blockIdx.y; list < count; list += gridDim.y) {
        __syncthreads();
        for (int n = threadIdx.x; n < here; n += THREADS)
            left[n] = (int)max(min(run, lists.keys - first - n * run), (int64_t)0);
        __syncthreads();
        int64_t end = lists.offsets[list + 1], at = first_span(lists, lists.offsets[list], end, first);
        for (at += threadIdx.x; at < end; at += THREADS) {
            int64_t key = (int64_t)lists.spans[at] * lists.grain, stop = min(key + lists.grain, past);
            if (key >= past)
                break;
            for (key = max(key, first); key < stop;) {
                int64_t next = min((key / run + 1) * run, stop);
                atomicSub(&left[(key - first) / run], (int)(next - key));
                key = next;
            }
        }
        __syncthreads();
        for (int n = threadIdx.x; n < here; n += THREADS)
            store_count(to + list * line, (int64_t)blockIdx.x * SLAB_WORDS + n, left[n]);
    }
}

/* Arguments of columns_kernel. */
struct Columns {
    DsviLists lists;
    int64_t chunks, tiles, rows_per_group, padded, count; /* count: tiles of all (batch, head)s */
    uint64_t *to;
};

/* Like first_span, with 32 probes at a time. All lanes of a warp call and get the result. */
__device__ int64_t first_span_by_warp(const DsviLists &lists, int64_t begin, int64_t end, int64_t key)
{
    while (begin < end) {
        int64_t stride = (end - begin + WARP - 1) / WARP, probe = begin + threadIdx.x % WARP * stride;
        bool before = probe < end && (lists.spans[probe] + (int64_t)1) * lists.grain <= key;
        int passed = __popc(__ballot_sync(0xffffffffu, before));
        if (passed == 0)
            break;
        end = min(end, begin + passed * stride);
        begin += (passed - 1) * stride + 1;
    }
    return begin;
}

/* Clears, in the words of a slab of keys from `first` on, the bits `rows` for the keys that a list names.
 * Called by a warp. */
__device__ void clear_listed(const DsviLists &lists, int64_t list, int64_t first, uint64_t rows,
                             uint32_t *words)
{
    int64_t past = first + SLAB_KEYS;
    int64_t at = first_span_by_warp(lists, lists.offsets[list], lists.offsets[list + 1], first);
    int64_t end = first_span_by_warp(lists, at, lists.offsets[list + 1], past + lists.grain - 1);
    uint32_t low = ~(uint32_t)rows, high = ~(uint32_t)(rows >> 32);
#pragma unroll 4
    for (int64_t i = threadIdx.x % WARP; i < (end - at) * lists.grain; i += WARP) {
        int64_t span = lists.grain == 1 ? i : i / lists.grain;
        int64_t key = lists.spans[at + span] * lists.grain + i - span * lists.grain - first;
        if (key < 0 || key >= SLAB_KEYS)
            continue;
        if (low != 0xffffffffu)
            atomicAnd(&words[2 * key], low);
        if (high != 0xffffffffu)
            atomicAnd(&words[2 * key + 1], high);
    }
}

/* Writes, for a tile of 64 chunks and SLAB_KEYS keys, a word for each key: bit i is 1 if chunk i of the tile
 * exists and its list does not name the key. Grid: x, slabs; y, tiles (looped over beyond the grid). */
__global__ void __launch_bounds__(COLUMN_THREADS) columns_kernel(const __grid_constant__ Columns c)
{
    __shared__ __align__(8) uint32_t words[2 * SLAB_KEYS];
    int64_t first = (int64_t)blockIdx.x * SLAB_KEYS, here = min((int64_t)SLAB_KEYS, c.padded - first);
    uint64_t *pairs_of_words = reinterpret_cast<uint64_t *>(words);
    for (int64_t tile = blockIdx.y; tile < c.count; tile += gridDim.y) {
        int64_t begin = tile % c.tiles * TILE_ROWS, rows = min((int64_t)TILE_ROWS, c.chunks - begin);
        uint64_t all = rows == TILE_ROWS ? ~(uint64_t)0 : ((uint64_t)1 << rows) - 1;
        __syncthreads();
        for (int key = threadIdx.x; key < SLAB_KEYS; key += COLUMN_THREADS)
            pairs_of_words[key] = first + key < c.lists.keys ? all : 0;
        __syncthreads();
        int64_t group = begin / c.rows_per_group + threadIdx.x / WARP;
        for (; group * c.rows_per_group < begin + rows; group += COLUMN_THREADS / WARP) {
            int64_t from = max(group * c.rows_per_group - begin, (int64_t)0);
            int64_t upto = min((group + 1) * c.rows_per_group - begin, rows);
            uint64_t of_group = ~(uint64_t)0 >> (TILE_ROWS - (upto - from)) << from;
            clear_listed(c.lists, tile / c.tiles * c.lists.groups + group, first, of_group, words);
        }
        __syncthreads();
        for (int key = threadIdx.x; key < here; key += COLUMN_THREADS)
            c.to[tile * c.padded + first + key] = pairs_of_words[key];
    }
}

/* Arguments of gradients_kernel. */
struct Gradients {
    TailShape tail;
    DsviHeads g;
    float *delta;
    int lanes; /* lanes of a warp that share a row, a power of two; the others have other rows */
};

/* Sums over the queries of a chunk, for the columns of a vector: u dout in `sum`; adds u out dout to *delta.
 */
template <typename T, int N>
__device__ __forceinline__ void sum_chunk(const Gradients &s, Place place, int64_t first, int64_t end,
                                          int step, float log_t, float (&sum)[N], float *delta)
{
    const DsviAttentionArgs &a = s.tail.a;
    const float *lse = static_cast<const float *>(a.lse) + (place.b * a.heads + place.h) * a.queries;
#pragma unroll 4
    for (place.row = first; place.row < end; place.row += step) {
        float dout[N], out[N], all = lse[place.row];
        load<N>(static_cast<const T *>(a.dout.data) + place.in(a.dout), dout);
        load<N>(static_cast<const T *>(a.out.data) + place.in(a.out), out);
        float share = log_t == -INFINITY ? 0.f : expf(log_t - all);
#pragma unroll
        for (int n = 0; n < N; n++) {
            sum[n] = fmaf(share, dout[n], sum[n]);
            *delta = fmaf(share * dout[n], out[n], *delta);
        }
    }
}

/* A warp computes G_c and D_c of a chunk. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) gradients_kernel(const __grid_constant__ Gradients s)
{
    const DsviAttentionArgs &a = s.tail.a;
    int64_t number = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, chunk = number / a.heads;
    if (chunk >= a.batch * s.tail.chunks)
        return;
    int lane = threadIdx.x % WARP, step = WARP / s.lanes;
    Place place = {chunk / s.tail.chunks, number % a.heads, chunk % s.tail.chunks, 0};
    int64_t at = (place.b * a.heads + place.h) * s.tail.chunks + place.row;
    int64_t first = place.row * s.tail.chunk, end = min(first + s.tail.chunk, a.queries);
    float log_t = s.tail.tail_lse[at], delta = 0;
    for (int strip = 0; strip < (int)a.head_dim; strip += s.lanes * N) {
        float sum[N] = {0};
        Place mine = place;
        mine.column = strip + lane % s.lanes * N;
        bool inside = mine.column < (int)a.head_dim;
        if (inside)
            sum_chunk<T, N>(s, mine, first + lane / s.lanes, end, step, log_t, sum, &delta);
        for (int other = s.lanes; other < WARP; other *= 2)
#pragma unroll
            for (int n = 0; n < N; n++)
                sum[n] += __shfl_xor_sync(0xffffffffu, sum[n], other);
        if (inside && lane < s.lanes)
            store<N>(static_cast<T *>(s.g.data) + mine.in(s.g), sum);
    }
    delta = warp_sum(delta);
    if (lane == 0)
        s.delta[at] = delta;
}

/* Reads N consecutive floats at a multiple of N floats. */
template <int N> __device__ __forceinline__ void load_compact(const float *from, float (&x)[N])
{
    load_vector<N>(from, x);
}

/* A warp joins the results of one chunk over all parts of the keys. */
__global__ void __launch_bounds__(THREADS)
    join_parts_kernel(const __grid_constant__ TailShape tail, int64_t parts, const float *p, const float *lse,
                      float *to)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP, pair = row / tail.chunks;
    if (row >= tail.pairs * tail.chunks)
        return;
    int lane = threadIdx.x % WARP;
    int64_t first = pair * parts * tail.chunks + row % tail.chunks;
    float largest = -INFINITY, total = 0;
    for (int64_t part = lane; part < parts; part += WARP)
        largest = fmaxf(largest, lse[first + part * tail.chunks]);
    largest = tail_largest(warp_max(largest));
    for (int64_t part = lane; part < parts; part += WARP)
        total += expf(lse[first + part * tail.chunks] - largest);
    total = warp_sum(total);
    for (int64_t column = 4 * lane; column < tail.pitch; column += 4 * WARP) {
        float sum[4] = {0};
#pragma unroll 4
        for (int64_t part = 0; part < parts; part++) {
            int64_t at = first + part * tail.chunks;
            float x[4], weight = expf(lse[at] - largest);
            load(p + at * tail.pitch + column, x);
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i] += weight > 0.f && column + i < tail.a.head_dim ? weight * x[i] : 0.f;
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = total == 0 ? 0.f : sum[i] / total;
        store(to + row * tail.pitch + column, sum);
    }
    if (lane == 0)
        tail.tail_lse[row] = largest + logf(total);
}

/* out = weighted sum of out and p_c. A part without weight is not used. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ TailShape tail, const float *p)
{
    const DsviAttentionArgs &a = tail.a;
    bool inside;
    Place place = place_of<N>(a, a.queries, &inside);
    if (!inside)
        return;
    int64_t pair = place.b * a.heads + place.h, chunk = pair * tail.chunks + place.row / tail.chunk;
    float log_t = tail.tail_lse[chunk];
    if (log_t == -INFINITY)
        return;
    Weights weight = weigh(static_cast<const float *>(a.lse)[pair * a.queries + place.row], log_t);
    T *row = static_cast<T *>(a.out.data) + place.in(a.out);
    float out[N], mean[N];
    load<N>(row, out);
    load_compact<N>(p + chunk * tail.pitch + place.column, mean);
#pragma unroll
    for (int n = 0; n < N; n++)
        out[n] = (weight.from > 0.f ? weight.from * out[n] : 0.f) + weight.part * mean[n];
    store<N>(row, out);
}

/* Joins log T_c to lse. A kernel of its own, because several threads of join_kernel read an lse. */
__global__ void __launch_bounds__(THREADS) join_lse_kernel(const __grid_constant__ TailShape tail)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, queries = tail.a.queries;
    if (i >= tail.pairs * queries)
        return;
    float *lse = static_cast<float *>(tail.a.lse) + i;
    *lse = weigh(*lse, tail.tail_lse[i / queries * tail.chunks + i % queries / tail.chunk]).lse;
}

template <typename T, int N>
__global__ void __launch_bounds__(THREADS)
    spread_kernel(const __grid_constant__ TailShape tail, const float *dq)
{
    const DsviAttentionArgs &a = tail.a;
    bool inside;
    Place place = place_of<N>(a, a.queries, &inside);
    if (!inside)
        return;
    int64_t pair = place.b * a.heads + place.h, chunk = place.row / tail.chunk;
    float count = (float)min(tail.chunk, a.queries - chunk * tail.chunk);
    T *row = static_cast<T *>(a.dq.data) + place.in(a.dq);
    float x[N], part[N];
    load<N>(row, x);
    load_compact<N>(dq + (pair * tail.chunks + chunk) * tail.pitch + place.column, part);
#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] += part[n] / count;
    store<N>(row, x);
}

template <typename T> bool vectors_fit(const TailShape &tail, const DsviHeads &rows)
{
    return heads_aligned(&rows, tail.a.head_dim, sizeof(T), 16);
}

template <typename T>
DsvStatus launch_means(DsviStream *stream, const TailShape &tail, const DsviHeads &from, int64_t tokens,
                       int64_t width, const DsviHeads &to)
{
    constexpr int N = 16 / sizeof(T);
    bool fit = vectors_fit<T>(tail, from) && vectors_fit<T>(tail, to);
    int64_t rows = ceil_div(tokens, width);
    int sharing = 1;
    while (sharing < SHARING && 2 * sharing * ROWS_EACH <= width)
        sharing *= 2;
    dim3 threads(THREADS / sharing, sharing);
    auto *kernel = fit ? means_kernel<T, N> : means_kernel<T, 1>;
    unsigned blocks = fit ? blocks_for<N>(tail.a, rows, threads.x) : blocks_for<1>(tail.a, rows, threads.x);
    if (blocks > 0)
        DSVI_CUDA_LAUNCH(stream, "attention tail: means", kernel, blocks, threads, 0, tail.a, from, tokens,
                         width, to);
    return DSV_OK;
}

template <typename T> DsvStatus launch_gradients(DsviStream *stream, Gradients s)
{
    constexpr int N = 16 / sizeof(T);
    const DsviAttentionArgs &a = s.tail.a;
    bool fit = vectors_fit<T>(s.tail, a.dout) && vectors_fit<T>(s.tail, a.out) && vectors_fit<T>(s.tail, s.g);
    int64_t vectors = a.head_dim / (fit ? N : 1);
    for (s.lanes = 1; s.lanes < WARP && s.lanes < vectors;)
        s.lanes *= 2;
    unsigned blocks = (unsigned)ceil_div(s.tail.pairs * s.tail.chunks, WARPS);
    auto *kernel = fit ? gradients_kernel<T, N> : gradients_kernel<T, 1>;
    DSVI_CUDA_LAUNCH(stream, "attention tail: gradients of proxies", kernel, blocks, THREADS, 0, s);
    return DSV_OK;
}

template <typename T> DsvStatus launch_join(DsviStream *stream, const TailShape &tail, const float *p)
{
    constexpr int N = 16 / sizeof(T);
    bool fit = vectors_fit<T>(tail, tail.a.out);
    auto *kernel = fit ? join_kernel<T, N> : join_kernel<T, 1>;
    unsigned blocks = fit ? blocks_for<N>(tail.a, tail.a.queries) : blocks_for<1>(tail.a, tail.a.queries);
    DSVI_CUDA_LAUNCH(stream, "attention tail: out", kernel, blocks, THREADS, 0, tail, p);
    return DSV_OK;
}

template <typename T> DsvStatus launch_spread(DsviStream *stream, const TailShape &tail, const float *dq)
{
    constexpr int N = 16 / sizeof(T);
    bool fit = vectors_fit<T>(tail, tail.a.dq);
    auto *kernel = fit ? spread_kernel<T, N> : spread_kernel<T, 1>;
    unsigned blocks = fit ? blocks_for<N>(tail.a, tail.a.queries) : blocks_for<1>(tail.a, tail.a.queries);
    DSVI_CUDA_LAUNCH(stream, "attention tail: dq", kernel, blocks, THREADS, 0, tail, dq);
    return DSV_OK;
}

} // namespace

DsvStatus attention_tail_means(DsviStream *stream, const TailShape &tail, const DsviHeads &from,
                               int64_t tokens, int64_t width, const DsviHeads &to)
{
    DSVI_FOR_ACT("attention tail", tail.a.act,
                 DSVI_TRY(launch_means<T>(stream, tail, from, tokens, width, to)));
    return DSV_OK;
}

int64_t attention_tail_line(const TailShape &tail)
{
    return round_up(tail.runs, TAIL_KEYS) / (tail.run == 1 ? 32 : 1);
}

/* Grid of a kernel that writes lines of `line` words for all groups. */
static dim3 grid_of_lines(const TailShape &tail, int64_t line)
{
    return dim3((unsigned)ceil_div(line, SLAB_WORDS), blocks_in_turn(dsvi_lists_count(tail.a.lists)));
}

template <typename T> static DsvStatus launch_counts(DsviStream *stream, const TailShape &tail, T *to)
{
    const DsviLists &lists = *tail.a.lists;
    int64_t line = attention_tail_line(tail);
    if (line > 0)
        DSVI_CUDA_LAUNCH(stream, "attention tail: counts of runs", counts_kernel<T>,
                         grid_of_lines(tail, line), THREADS, 0, lists, dsvi_lists_count(&lists), tail.run,
                         (int)line, to);
    return DSV_OK;
}

DsvStatus attention_tail_weights(DsviStream *stream, const TailShape &tail, uint32_t *to)
{
    const DsviLists &lists = *tail.a.lists;
    int64_t line = attention_tail_line(tail);
    if (tail.run > 1)
        return launch_counts(stream, tail, reinterpret_cast<float *>(to));
    if (line > 0)
        DSVI_CUDA_LAUNCH(stream, "attention tail: bits", bits_kernel, grid_of_lines(tail, line), THREADS, 0,
                         lists, dsvi_lists_count(&lists), (int)line, to);
    return DSV_OK;
}

DsvStatus attention_tail_counts(DsviStream *stream, const TailShape &tail, uint8_t *to)
{
    return launch_counts(stream, tail, to);
}

DsvStatus attention_tail_columns(DsviStream *stream, const TailShape &tail, int64_t padded, uint64_t *to)
{
    const DsviLists &lists = *tail.a.lists;
    int64_t tiles = ceil_div(tail.chunks, TILE_ROWS), rows = ceil_div(lists.group, tail.chunk);
    Columns columns = {lists, tail.chunks, tiles, rows, padded, tail.pairs * tiles, to};
    dim3 grid((unsigned)ceil_div(padded, SLAB_KEYS), blocks_in_turn(columns.count));
    DSVI_CUDA_LAUNCH(stream, "attention tail: bits of keys", columns_kernel, grid, COLUMN_THREADS, 0,
                     columns);
    return DSV_OK;
}

DsvStatus attention_tail_join_parts(DsviStream *stream, const TailShape &tail, int64_t parts, const float *p,
                                    const float *lse, float *to)
{
    DSVI_CUDA_LAUNCH(stream, "attention tail: parts", join_parts_kernel,
                     (unsigned)ceil_div(tail.pairs * tail.chunks, WARPS), THREADS, 0, tail, parts, p, lse,
                     to);
    return DSV_OK;
}

DsvStatus attention_tail_gradients(DsviStream *stream, const TailShape &tail, const DsviHeads &g,
                                   float *delta)
{
    Gradients gradients = {tail, g, delta, 0};
    DSVI_FOR_ACT("attention tail", tail.a.act, DSVI_TRY(launch_gradients<T>(stream, gradients)));
    return DSV_OK;
}

DsvStatus attention_tail_join(DsviStream *stream, const TailShape &tail, const float *p)
{
    DSVI_FOR_ACT("attention tail", tail.a.act, DSVI_TRY(launch_join<T>(stream, tail, p)));
    DSVI_CUDA_LAUNCH(stream, "attention tail: lse", join_lse_kernel,
                     (unsigned)ceil_div(tail.pairs * tail.a.queries, THREADS), THREADS, 0, tail);
    return DSV_OK;
}

DsvStatus attention_tail_spread(DsviStream *stream, const TailShape &tail, const float *dq)
{
    DSVI_FOR_ACT("attention tail", tail.a.act, DSVI_TRY(launch_spread<T>(stream, tail, dq)));
    return DSV_OK;
}

} // namespace dsvi
