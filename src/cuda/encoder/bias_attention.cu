/* bias_attention: attention inside segments of rows, with a bias that depends on the distance of query and
 * key (ops/encoder.h). A thread block has a tile of QUERIES queries of one segment and head, and iterates
 * over tiles of keys with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022).
 *
 * BF16: four warps with 16 queries each multiply on tensor cores; the next tile of keys is copied to shared
 * memory while the current one is processed. The biases of a tile of queries and a tile of keys are those of
 * 127 distances, which the block keeps in shared memory too, so the table may have any length.
 *     shared memory   Q, then two stages of K and V, then two windows of biases; D = 128: 81 KiB
 *
 * F32: a thread has four queries, two keys of a tile of 32 and a sixteenth of the columns of the output; the
 * 16 threads of a row are neighbours in a warp. */
#include "cuda/attention/attention_softmax.cuh"
#include "cuda/common/cuda.h"

namespace dsvi {
namespace {

constexpr int QUERIES = 64;

/* A tile of queries: one head and the rows [first, end) of the segment [begin, end), at most QUERIES of which
 * belong to the tile. first >= end: there is no such tile. */
struct SegmentTile {
    int head;
    int64_t begin, end, first;
};

__device__ __forceinline__ SegmentTile segment_tile(const DsviBiasAttentionArgs &a, int64_t number)
{
    int64_t tiles = (a.longest + QUERIES - 1) / QUERIES, pair = number / tiles, segment = pair / a.heads;
    SegmentTile tile = {(int)(pair - segment * a.heads), a.starts[segment], a.starts[segment + 1], 0};
    tile.first = tile.begin + (number - pair * tiles) * QUERIES;
    return tile;
}

/* Returns the bias of the pair whose key comes `distance` rows after the query; table: the head's biases. */
__device__ __forceinline__ float bias_at(const float *table, int64_t reach, int64_t distance)
{
    int64_t limited = distance < -reach ? -reach : distance > reach ? reach : distance;
    return table[reach + limited];
}

__device__ __forceinline__ const float *bias_table(const DsviBiasAttentionArgs &a, int head)
{
    return (const float *)a.bias + head * (2 * a.reach + 1);
}

/* ---- BF16 ---- */

constexpr int BIAS_WARPS = 4, BIAS_THREADS = BIAS_WARPS * WARP, BIAS_KEYS = 64;
constexpr int WINDOW = 128; /* biases of a tile of queries and a tile of keys; 127 are used */
static_assert(WINDOW == BIAS_THREADS && WINDOW >= QUERIES + BIAS_KEYS - 1, "a thread loads one bias");

/* Layout of shared memory for heads of up to DIM elements. */
template <int DIM> struct BiasConfig {
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, KEY_BYTES = BIAS_KEYS * DIM * 2;
    static constexpr int WINDOWS_AT = QUERY_BYTES + 4 * KEY_BYTES;
    static constexpr int SHARED = WINDOWS_AT + 2 * WINDOW * (int)sizeof(float);
    static_assert(SHARED <= SHARED_LEAST, "a thread block fits on every supported GPU");
};

/* Begins to copy rows of one head to a tile of 64 rows: `count` rows from row `first` on. The rows after
 * them, and columns from D on, become 0. With `chunks`, rows begin at multiples of 16 bytes. */
template <int DIM>
__device__ __forceinline__ void copy_rows(const DsviBiasAttentionArgs &a, bool chunks, const void *rows,
                                          int head, int64_t first, int64_t count, uint32_t to)
{
    constexpr int CHUNKS = DIM / 8;
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)rows + head * a.head_dim;
#pragma unroll 4
    for (int i = threadIdx.x; i < 64 * CHUNKS; i += BIAS_THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS;
        bool there = row < count && chunk * 8 < a.head_dim;
        const __nv_bfloat16 *at = there ? from + (first + row) * a.stride + chunk * 8 : from;
        if (chunks)
            copy_chunk(to + chunk_at<DIM>(row, chunk), at, there);
        else
            copy_elements(to + chunk_at<DIM>(row, chunk), at, there ? 8 : 0);
    }
}

/* Begins to copy keys, values and biases of the tile of keys that begins at row `key`. */
template <int DIM>
__device__ __forceinline__ void copy_keys(const DsviBiasAttentionArgs &a, bool chunks,
                                          const SegmentTile &tile, int64_t key, uint32_t stage, float *window)
{
    int64_t count = tile.end - key, distance = key - tile.first + (int)threadIdx.x - (QUERIES - 1);
    copy_rows<DIM>(a, chunks, a.k, tile.head, key, count, stage);
    copy_rows<DIM>(a, chunks, a.v, tile.head, key, count, stage + BiasConfig<DIM>::KEY_BYTES);
    window[threadIdx.x] = bias_at(bias_table(a, tile.head), a.reach, distance);
}

/* Adds the biases to the scores of a warp's queries, which begin at row `first_row` of the tile. */
__device__ __forceinline__ void add_biases(float (&s)[BIAS_KEYS / 8][4], const float *window, int first_row)
{
    int lane = threadIdx.x % WARP;
    const float *from = window + lane % 4 * 2 - (first_row + lane / 4) + QUERIES - 1;
#pragma unroll
    for (int n = 0; n < BIAS_KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] += from[8 * n + i % 2 - i / 2 * 8];
}

template <int DIM>
__device__ __forceinline__ void store_attended(const DsviBiasAttentionArgs &a, bool couples,
                                               const SegmentTile &tile, const float (&out)[DIM / 8][4],
                                               const Softmax &softmax, int first_row)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t query = tile.first + first_row + 8 * half + threadIdx.x % WARP / 4;
        float total = softmax.total[half];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        if (query < tile.end)
            store_products((__nv_bfloat16 *)a.out + (query * a.heads + tile.head) * a.head_dim,
                           (int)a.head_dim, couples, 1 / total, out, half);
    }
}

/* Grid: tiles of all segments and heads; the tiles of one head of a segment are neighbours. */
template <int DIM>
__global__ void __launch_bounds__(BIAS_THREADS)
    bias_attention_bf16_kernel(const DsviBiasAttentionArgs a, bool chunks, bool couples)
{
    using C = BiasConfig<DIM>;
    extern __shared__ __align__(128) unsigned char shared[];
    float *windows = reinterpret_cast<float *>(shared + C::WINDOWS_AT);
    uint32_t base = shared_address(shared), stages = base + C::QUERY_BYTES;
    int first_row = threadIdx.x / WARP * 16;
    SegmentTile tile = segment_tile(a, blockIdx.x);
    if (tile.first >= tile.end)
        return;
    float out[1][DIM / 8][4] = {};
    Softmax softmax = {{-INFINITY, -INFINITY}, {0, 0}};
    int64_t keys = tile.end - tile.begin;
    copy_rows<DIM>(a, chunks, a.q, tile.head, tile.first, tile.end - tile.first, base);
    copy_keys<DIM>(a, chunks, tile, tile.begin, stages, windows);
    for (int n = 0; n * BIAS_KEYS < keys; n++) {
        uint32_t stage = stages + n % 2 * 2 * C::KEY_BYTES, other = stages + (n + 1) % 2 * 2 * C::KEY_BYTES;
        wait_copies();
        __syncthreads();
        if ((n + 1) * BIAS_KEYS < keys)
            copy_keys<DIM>(a, chunks, tile, tile.begin + (n + 1) * BIAS_KEYS, other,
                           windows + (n + 1) % 2 * WINDOW);
        float s[1][BIAS_KEYS / 8][4];
        multiply_rows<DIM>(s, lanes_down<DIM>(base, first_row), lanes_across<DIM>(stage, 0));
        scale_scores(s[0], (float)a.scale);
        add_biases(s[0], windows + n % 2 * WINDOW, first_row);
        online_softmax<BIAS_KEYS>(s[0], out[0], &softmax,
                                  (int)min(keys - (int64_t)n * BIAS_KEYS, (int64_t)BIAS_KEYS));
        add_values<DIM, 1, BIAS_KEYS>(out, s, lanes_down<DIM>(stage + C::KEY_BYTES, 0));
    }
    store_attended<DIM>(a, couples, tile, out[0], softmax, first_row);
}

/* ---- F32 ---- */

constexpr int PLAIN_THREADS = 256, PLAIN_KEYS = 32, ROW_LANES = 16, THREAD_ROWS = 4;
static_assert(PLAIN_THREADS / ROW_LANES * THREAD_ROWS == QUERIES, "threads cover the tile");

/* Layout of shared memory: rows of Q, K, V and P, with a few floats between rows. */
template <int DIM> struct PlainMemory {
    static constexpr int PITCH = DIM + 4;
    float q[QUERIES][PITCH], k[PLAIN_KEYS][PITCH], v[PLAIN_KEYS][PITCH], p[QUERIES][PLAIN_KEYS + 4];
};

/* Copies `count` rows of one head from row `first` on to `to`; the rows after them, up to ROWS, and columns
 * from D on become 0. */
template <int DIM, int ROWS>
__device__ __forceinline__ void copy_floats(const DsviBiasAttentionArgs &a, const void *rows, int head,
                                            int64_t first, int64_t count, float (&to)[ROWS][DIM + 4])
{
    const float *from = (const float *)rows + first * a.stride + head * a.head_dim;
    for (int i = threadIdx.x; i < ROWS * DIM; i += PLAIN_THREADS) {
        int row = i / DIM, d = i % DIM;
        to[row][d] = row < count && d < a.head_dim ? from[row * a.stride + d] : 0.f;
    }
}

__device__ __forceinline__ float dot_four(float4 a, float4 b, float sum)
{
    return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

template <int COLUMNS> __device__ __forceinline__ float4 four_at(const float (&row)[COLUMNS], int column)
{
    return *reinterpret_cast<const float4 *>(&row[column]);
}

/* What a thread holds: rows THREAD_ROWS (thread / ROW_LANES) + i of the tile; of the output the columns 4
 * lane + 64 n and the next three, lane = thread % ROW_LANES. */
template <int DIM> struct PlainRows {
    float out[THREAD_ROWS][DIM / ROW_LANES], largest[THREAD_ROWS], total[THREAD_ROWS];
};

/* Computes the scores of the thread's rows and of keys lane and lane + ROW_LANES of the tile. */
template <int DIM>
__device__ __forceinline__ void plain_scores(const DsviBiasAttentionArgs &a, const SegmentTile &tile,
                                             const PlainMemory<DIM> &m, int64_t key,
                                             float (&s)[THREAD_ROWS][2])
{
    int first = threadIdx.x / ROW_LANES * THREAD_ROWS, lane = threadIdx.x % ROW_LANES;
    const float *table = bias_table(a, tile.head);
    for (int d = 0; d < DIM; d += 4)
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                s[i][j] = dot_four(four_at(m.q[first + i], d), four_at(m.k[lane + j * ROW_LANES], d),
                                   s[i][j]);
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int64_t at = key + lane + j * ROW_LANES;
            float bias = bias_at(table, a.reach, at - (tile.first + first + i));
            s[i][j] = at < tile.end ? s[i][j] * (float)a.scale + bias : -INFINITY;
        }
}

/* Replaces the scores by their exponentials, which it stores in P, and rescales the sums so far. */
template <int DIM>
__device__ __forceinline__ void plain_softmax(PlainMemory<DIM> *m, const float (&s)[THREAD_ROWS][2],
                                              PlainRows<DIM> *rows)
{
    int first = threadIdx.x / ROW_LANES * THREAD_ROWS, lane = threadIdx.x % ROW_LANES;
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++) {
        float most = fmaxf(rows->largest[i], fmaxf(s[i][0], s[i][1]));
#pragma unroll
        for (int step = ROW_LANES / 2; step > 0; step /= 2)
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
        float rescale = expf(rows->largest[i] - most), p[2] = {expf(s[i][0] - most), expf(s[i][1] - most)};
        m->p[first + i][lane] = p[0];
        m->p[first + i][lane + ROW_LANES] = p[1];
        rows->largest[i] = most;
        rows->total[i] = rows->total[i] * rescale + p[0] + p[1];
#pragma unroll
        for (int c = 0; c < DIM / ROW_LANES; c++)
            rows->out[i][c] *= rescale;
    }
}

template <int DIM>
__device__ __forceinline__ void plain_values(const PlainMemory<DIM> &m, PlainRows<DIM> *rows)
{
    int first = threadIdx.x / ROW_LANES * THREAD_ROWS, lane = threadIdx.x % ROW_LANES;
    for (int key = 0; key < PLAIN_KEYS; key++)
#pragma unroll
        for (int c = 0; c < DIM / ROW_LANES; c += 4) {
            float4 v = four_at(m.v[key], 4 * lane + ROW_LANES * c);
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; i++) {
                float p = m.p[first + i][key];
                rows->out[i][c] = fmaf(p, v.x, rows->out[i][c]);
                rows->out[i][c + 1] = fmaf(p, v.y, rows->out[i][c + 1]);
                rows->out[i][c + 2] = fmaf(p, v.z, rows->out[i][c + 2]);
                rows->out[i][c + 3] = fmaf(p, v.w, rows->out[i][c + 3]);
            }
        }
}

template <int DIM>
__device__ __forceinline__ void plain_store(const DsviBiasAttentionArgs &a, const SegmentTile &tile,
                                            const PlainRows<DIM> &rows)
{
    int first = threadIdx.x / ROW_LANES * THREAD_ROWS, lane = threadIdx.x % ROW_LANES;
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++) {
        int64_t query = tile.first + first + i;
        float total = rows.total[i];
#pragma unroll
        for (int step = ROW_LANES / 2; step > 0; step /= 2)
            total += __shfl_xor_sync(0xffffffffu, total, step);
        float *out = (float *)a.out + (query * a.heads + tile.head) * a.head_dim;
#pragma unroll
        for (int c = 0; c < DIM / ROW_LANES; c++) {
            int d = 4 * lane + c / 4 * 64 + c % 4;
            if (query < tile.end && d < a.head_dim)
                out[d] = rows.out[i][c] / total;
        }
    }
}

template <int DIM>
__global__ void __launch_bounds__(PLAIN_THREADS) bias_attention_f32_kernel(const DsviBiasAttentionArgs a)
{
    extern __shared__ __align__(128) unsigned char shared[];
    PlainMemory<DIM> *m = reinterpret_cast<PlainMemory<DIM> *>(shared);
    SegmentTile tile = segment_tile(a, blockIdx.x);
    if (tile.first >= tile.end)
        return;
    PlainRows<DIM> rows = {};
    for (int i = 0; i < THREAD_ROWS; i++)
        rows.largest[i] = -INFINITY;
    copy_floats<DIM>(a, a.q, tile.head, tile.first, tile.end - tile.first, m->q);
    for (int64_t key = tile.begin; key < tile.end; key += PLAIN_KEYS) {
        float s[THREAD_ROWS][2] = {};
        __syncthreads(); /* all threads are done with the keys before */
        copy_floats<DIM>(a, a.k, tile.head, key, tile.end - key, m->k);
        copy_floats<DIM>(a, a.v, tile.head, key, tile.end - key, m->v);
        __syncthreads();
        plain_scores<DIM>(a, tile, *m, key, s);
        plain_softmax<DIM>(m, s, &rows);
        __syncwarp(); /* rows of P are written and read by the same 16 lanes */
        plain_values<DIM>(*m, &rows);
    }
    plain_store<DIM>(a, tile, rows);
}

/* ---- launches ---- */

template <int DIM>
DsvStatus launch_bias_bf16(DsviStream *stream, const DsviBiasAttentionArgs *args, unsigned tiles)
{
    using T = __nv_bfloat16;
    const int shared = BiasConfig<DIM>::SHARED;
    bool chunks = aligned((const T *)args->q, args->stride, 16) &&
                  aligned((const T *)args->k, args->stride, 16) &&
                  aligned((const T *)args->v, args->head_dim, 16);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(bias_attention_bf16_kernel<DIM>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    DSVI_CUDA_LAUNCH(stream, "bias_attention", bias_attention_bf16_kernel<DIM>, tiles, BIAS_THREADS, shared,
                     *args, chunks, aligned((const T *)args->out, args->head_dim, 4));
    return DSV_OK;
}

template <int DIM>
DsvStatus launch_bias_f32(DsviStream *stream, const DsviBiasAttentionArgs *args, unsigned tiles)
{
    const int shared = (int)sizeof(PlainMemory<DIM>);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(bias_attention_f32_kernel<DIM>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    DSVI_CUDA_LAUNCH(stream, "bias_attention", bias_attention_f32_kernel<DIM>, tiles, PLAIN_THREADS, shared,
                     *args);
    return DSV_OK;
}

DsvStatus cuda_bias_attention(DsviStream *stream, const DsviBiasAttentionArgs *args)
{
    int64_t dim = args->head_dim, tiles = ceil_div(args->longest, QUERIES) * args->heads * args->segments;
    if (args->acc != DSVI_F32 || (args->act != DSVI_F32 && args->act != DSVI_BF16))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "bias_attention: this variant takes F32 and BF16, not %s",
                         dsvi_dtype_name(args->act));
    if (dim % 8 != 0 || dim > 128 || tiles > INT32_MAX)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "bias_attention: head size %lld and %lld tiles, expected a head size that is a multiple "
            "of 8 and at most 128, and fewer than 2^31 tiles",
            (long long)dim, (long long)tiles);
    if (tiles == 0 || args->rows == 0 || dim == 0)
        return DSV_OK;
    bool bf16 = args->act == DSVI_BF16;
    auto *launch = dim <= 32   ? (bf16 ? launch_bias_bf16<32> : launch_bias_f32<64>)
                   : dim <= 64 ? (bf16 ? launch_bias_bf16<64> : launch_bias_f32<64>)
                               : (bf16 ? launch_bias_bf16<128> : launch_bias_f32<128>);
    return launch(stream, args, (unsigned)tiles);
}

} // namespace
} // namespace dsvi

void dsvi_cuda_fill_bias_attention(DsviOps *ops)
{
    DSVI_OPS_SET(ops, bias_attention, dsvi::cuda_bias_attention, "cuda");
}
