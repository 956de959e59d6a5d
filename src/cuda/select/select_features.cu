/* select_covariance and select_features: the inputs of selectors (interface: ops/select.h).
 * select_covariance sums second moments (x^T x) and first moments (sums) of rows of q or k; select_features
 * averages rows over chunks of tokens and projects the means.
 *
 * Moments: a block sums one 64 x 64 tile of x^T x over a slice of the rows, 4 x 4 elements per thread. The
 * sums of the slices go to stream->partials. A second kernel adds the slices in order, one thread per
 * element; it is not the second stage of common/two_stage_sum.cuh, which adds in another order.
 *
 * Features: a block handles TILE chunks of one (batch, head). First it computes the means of the chunks in
 * shared memory: each thread adds a vector of consecutive elements over the rows of some chunks, so that
 * rows are read once and in order. Then pairs of threads compute 4 features of TILE / 16 chunks, each thread
 * of a pair from half of the elements. Rows of BF16 with at most 16 features use the tensor cores instead
 * (select_project.cuh) if a chunk is one row or a multiple of 16 rows. */
#include "cuda/common/cuda.h"
#include "cuda/select/select_project.cuh"
#include "ops/select.h"

using namespace dsvi;

namespace {

/* Rows of heads (DsviHeads of ops/attention.h) with a typed pointer; strides are in elements. */
template <typename T> struct HeadRows {
    const T *data;
    int64_t batch_stride, token_stride, head_stride;
};

template <typename T> HeadRows<T> rows_from(const DsviHeads &x)
{
    return {static_cast<const T *>(x.data), x.batch_stride, x.token_stride, x.head_stride};
}

/* ---- first and second moments of rows ---- */

enum {
    TILE_SIDE = 64,
    MOMENT_ROWS = 32, /* rows in shared memory at a time */
    MOMENT_THREADS = 256,
    MOMENT_BLOCKS = 528, /* number of thread blocks to aim for when rows are divided into slices: 4 for each
                            of 132 multiprocessors */
    SLICE_ROWS_MIN = 128 /* least number of rows in a slice */
};

/* What moments_kernel receives. It writes the sum of x^T x of each slice to `second`, (slices, heads, dim,
 * dim), and the sum of x to `first`, (slices, heads, dim). If there is only one slice, it adds to the op's
 * outputs directly. */
template <typename T> struct Moments {
    HeadRows<T> x;
    int64_t offset, stride;
    int rows, per_sample; /* rows: number of rows in the batch; per_sample: rows of one sample of the batch */
    int heads, dim, slices;
    float *second, *first;
};

/* Loads MOMENT_ROWS rows of head h, starting with row `first`: elements [begin_a, begin_a + TILE_SIDE) into
 * `a`, and elements [begin_b, begin_b + TILE_SIDE) into `b`. Rows from `end` on and elements past the end of
 * a row become 0. */
template <typename T>
__device__ __forceinline__ void load_moment_rows(const Moments<T> &m, int first, int end, int h, int begin_a,
                                                 int begin_b, float (*a)[TILE_SIDE], float (*b)[TILE_SIDE])
{
    int column = threadIdx.x % TILE_SIDE;
    for (int r = threadIdx.x / TILE_SIDE; r < MOMENT_ROWS; r += MOMENT_THREADS / TILE_SIDE) {
        int row = first + r;
        float x = 0.f, y = 0.f;
        if (row < end) {
            int64_t token = m.offset + row % m.per_sample * m.stride;
            const T *from = m.x.data + row / m.per_sample * m.x.batch_stride + token * m.x.token_stride +
                            h * m.x.head_stride;
            x = begin_a + column < m.dim ? to_float(from[begin_a + column]) : 0.f;
            y = begin_b + column < m.dim ? to_float(from[begin_b + column]) : 0.f;
        }
        a[r][column] = x;
        b[r][column] = y;
    }
}

__device__ __forceinline__ void store_or_add(float *out, float x, bool add)
{
    *out = add ? *out + x : x;
}

/* Sums the first and second moments (x and x^T x) of rows x. Grid: x, 64 x 64 tiles of the matrix x^T x; y,
 * heads; z, slices of the rows. */
template <typename T> __global__ __launch_bounds__(MOMENT_THREADS) void moments_kernel(Moments<T> m)
{
    __shared__ __align__(16) float a[MOMENT_ROWS][TILE_SIDE], b[MOMENT_ROWS][TILE_SIDE];
    int across = (int)ceil_div(m.dim, TILE_SIDE), h = blockIdx.y, slice = blockIdx.z;
    int begin_a = blockIdx.x / across * TILE_SIDE, begin_b = blockIdx.x % across * TILE_SIDE;
    int i = threadIdx.x / 16 * 4, j = threadIdx.x % 16 * 4;
    int end = (int)((int64_t)m.rows * (slice + 1) / m.slices);
    float sum[4][4] = {}, first_sum = 0.f;
    for (int first = (int)((int64_t)m.rows * slice / m.slices); first < end; first += MOMENT_ROWS) {
        load_moment_rows(m, first, end, h, begin_a, begin_b, a, b);
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < MOMENT_ROWS; r++) {
            float x[4], y[4];
            load(&a[r][i], x);
            load(&b[r][j], y);
#pragma unroll
            for (int n = 0; n < 16; n++)
                sum[n / 4][n % 4] = fmaf(x[n / 4], y[n % 4], sum[n / 4][n % 4]);
            first_sum += threadIdx.x < TILE_SIDE ? b[r][threadIdx.x] : 0.f;
        }
        __syncthreads();
    }
    int64_t at = (int64_t)slice * m.heads + h;
    for (int n = 0; n < 16; n++)
        if (begin_a + i + n / 4 < m.dim && begin_b + j + n % 4 < m.dim)
            store_or_add(m.second + (at * m.dim + begin_a + i + n / 4) * m.dim + begin_b + j + n % 4,
                         sum[n / 4][n % 4], m.slices == 1);
    if (begin_a == 0 && threadIdx.x < TILE_SIDE && begin_b + (int)threadIdx.x < m.dim)
        store_or_add(m.first + at * m.dim + begin_b + threadIdx.x, first_sum, m.slices == 1);
}

/* out[i] += sum over the slices of partial[slice][i], added in the order of the slices. */
__global__ void add_slices_kernel(const float *partial, int slices, int64_t n, float *out)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.f;
    if (i >= n)
        return;
    for (int slice = 0; slice < slices; slice++)
        sum += partial[slice * n + i];
    out[i] += sum;
}

DsvStatus add_slices(DsviStream *stream, const float *partial, int slices, int64_t n, float *out)
{
    DSVI_CUDA_LAUNCH(stream, "select_covariance, sum of slices", add_slices_kernel,
                     (unsigned)ceil_div(n, MOMENT_THREADS), MOMENT_THREADS, 0, partial, slices, n, out);
    return DSV_OK;
}

/* Returns into how many slices to divide the rows: enough to fill the GPU, but limited by the number of rows
 * and by the size of stream->partials. */
int moment_slices(int64_t heads, int64_t dim, int64_t rows)
{
    int64_t tiles = ceil_div(dim, TILE_SIDE) * ceil_div(dim, TILE_SIDE) * heads,
            slices = ceil_div(MOMENT_BLOCKS, tiles);
    int64_t room = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(float)) / (heads * (dim + 1) * dim);
    int64_t slices_max = ceil_div(rows, SLICE_ROWS_MIN);
    slices = slices < slices_max ? slices : slices_max;
    slices = slices < room ? slices : room;
    return slices > 1 ? (int)slices : 1;
}

template <typename T>
DsvStatus covariance_of_type(DsviStream *stream, const DsviSelectCovarianceArgs *args, int64_t per_sample)
{
    int64_t heads = args->heads, dim = args->head_dim, rows = args->batch * per_sample;
    int64_t across = ceil_div(dim, TILE_SIDE);
    int slices = moment_slices(heads, dim, rows);
    float *partials = static_cast<float *>(stream->partials);
    Moments<T> m = {rows_from<T>(args->x),
                    args->offset,
                    args->stride,
                    (int)rows,
                    (int)per_sample,
                    (int)heads,
                    (int)dim,
                    slices,
                    slices > 1 ? partials : args->second,
                    slices > 1 ? partials + slices * heads * dim * dim : args->first};
    dim3 grid((unsigned)(across * across), (unsigned)heads, (unsigned)slices);
    DSVI_CUDA_LAUNCH(stream, "select_covariance", moments_kernel, grid, MOMENT_THREADS, 0, m);
    if (slices == 1)
        return DSV_OK;
    DSVI_TRY(add_slices(stream, m.second, slices, heads * dim * dim, args->second));
    return add_slices(stream, m.first, slices, heads * dim, args->first);
}

DsvStatus cuda_select_covariance(DsviStream *stream, const DsviSelectCovarianceArgs *args)
{
    int64_t per_sample = args->tokens > args->offset ? ceil_div(args->tokens - args->offset, args->stride)
                                                     : 0;
    if (args->batch * per_sample * args->heads * args->head_dim == 0)
        return DSV_OK;
    DSVI_FOR_ACT("select_covariance", args->act, return covariance_of_type<T>(stream, args, per_sample));
}

/* ---- features: projected means of rows ---- */

enum {
    FEATURE_THREADS = 128,
    FEATURE_TILE = 16, /* features computed at a time */
    ROW_PAD = 8, /* extra floats per row in shared memory, so that 8 threads that read two halves of four rows
                    use all banks */
    LONG_CHUNK = 32 /* if a chunk has at least this many rows, a thread block handles few chunks */
};

template <typename T> struct Features {
    HeadRows<T> x;
    int64_t tokens, chunk, chunks;
    int heads, dim, features, width; /* width: dim rounded up to a multiple of 8 */
    const float *projection;
    float *y;
    bool vector_out; /* all rows of the output y begin at addresses that allow accesses of 16 bytes */
};

/* Computes the mean rows of chunks [first, first + TILE) in shared memory. Chunks past the last one and
 * elements past the end of a row become 0. Loads VEC elements per access. */
template <int TILE, int VEC, typename T>
__device__ __forceinline__ void make_means(const Features<T> &f, const T *x, int64_t first, float *means)
{
    constexpr int AT_ONCE = TILE / 16, ROWS_AT_ONCE = 128 / TILE; /* a thread has 8 loads in flight */
    int vectors = f.width / VEC, row = f.width + ROW_PAD;
    for (int begin = threadIdx.x; begin < TILE * vectors; begin += AT_ONCE * FEATURE_THREADS) {
        float sum[AT_ONCE][VEC] = {};
        int64_t from[AT_ONCE];
        int count[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int item = begin + n * FEATURE_THREADS, d = item % vectors * VEC;
            int64_t token = (first + item / vectors) * f.chunk, left = f.tokens - token;
            bool inside = item < TILE * vectors && d < f.dim && left > 0;
            from[n] = token * f.x.token_stride + d;
            count[n] = !inside ? 0 : left < f.chunk ? (int)left : (int)f.chunk;
        }
#pragma unroll ROWS_AT_ONCE
        for (int s = 0; s < (int)f.chunk; s++) {
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                float part[VEC] = {};
                if (s < count[n])
                    load(x + from[n] + s * f.x.token_stride, part);
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    sum[n][i] += part[i];
            }
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int item = begin + n * FEATURE_THREADS;
            float *to = means + item / vectors * row + item % vectors * VEC;
            if (item < TILE * vectors)
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    to[i] = count[n] > 1 ? sum[n][i] / (float)count[n] : sum[n][i];
        }
    }
}

/* Loads columns [first, first + FEATURE_TILE) of the head's projection matrix into shared memory, one row
 * per feature; elements outside the matrix become 0. Feature 4 q + i is stored as row 4 i + q, so that the
 * threads of a warp read different banks at any time. */
template <typename T>
__device__ __forceinline__ void load_projection(const Features<T> &f, int h, int first, float *rows)
{
    const float *from = f.projection + (int64_t)h * f.dim * f.features;
    for (int n = threadIdx.x; n < FEATURE_TILE * f.width; n += FEATURE_THREADS) {
        int d = n / FEATURE_TILE, feature = n % FEATURE_TILE, row = feature % 4 * 4 + feature / 4;
        bool inside = d < f.dim && first + feature < f.features;
        rows[row * (f.width + ROW_PAD) + d] = inside ? from[(int64_t)d * f.features + first + feature] : 0.f;
    }
}

/* Writes four features of one chunk, starting with number `feature`; fewer if there are no four left. */
template <typename T>
__device__ __forceinline__ void store_features(const Features<T> &f, float *y, int feature,
                                               const float (&x)[4])
{
    if (f.vector_out && feature + 4 <= f.features) {
        store(y + feature, x);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (feature + i < f.features)
            y[feature + i] = x[i];
}

/* Multiplies the chunk means by the projection matrix and writes the features. Thread 8 c + 2 q + half
 * computes with chunks c, c + 16 ..., features 4 q .. 4 q + 3, and elements 8 n + 4 half .. 8 n + 4 half + 3
 * for all n. */
template <int TILE, typename T>
__device__ __forceinline__ void project(const Features<T> &f, const float *means, const float *rows,
                                        int64_t first, int first_feature, float *y)
{
    constexpr int MINE = TILE / 16;
    int half = threadIdx.x % 2, q = threadIdx.x / 2 % 4, c = threadIdx.x / 8, row = f.width + ROW_PAD;
    float sum[MINE][4] = {};
    for (int d = half * 4; d < f.width; d += 8) {
        float p[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load(rows + (4 * i + q) * row + d, p[i]);
#pragma unroll
        for (int n = 0; n < MINE; n++) {
            float mean[4];
            load(means + (c + 16 * n) * row + d, mean);
#pragma unroll
            for (int i = 0; i < 16; i++)
                sum[n][i / 4] = fmaf(mean[i % 4], p[i / 4][i % 4], sum[n][i / 4]);
        }
    }
#pragma unroll
    for (int n = 0; n < MINE; n++) {
        int64_t chunk = first + c + 16 * n;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[n][i] += __shfl_xor_sync(0xffffffffu, sum[n][i], 1);
        if (half == n % 2 && chunk < f.chunks)
            store_features(f, y + chunk * f.features, first_feature + 4 * q, sum[n]);
    }
}

/* Computes features without tensor cores. Grid: tiles of TILE chunks, repeated for each (batch, head). */
template <int TILE, int VEC, typename T>
__global__ __launch_bounds__(FEATURE_THREADS, 4) void features_kernel(Features<T> f)
{
    extern __shared__ float4 shared_memory[];
    float *means = reinterpret_cast<float *>(shared_memory), *rows = means + TILE * (f.width + ROW_PAD);
    int64_t tiles = ceil_div(f.chunks, TILE), pair = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE;
    int h = (int)(pair % f.heads);
    float *y = f.y + pair * f.chunks * f.features;
    make_means<TILE, VEC>(f, f.x.data + pair / f.heads * f.x.batch_stride + h * f.x.head_stride, first,
                          means);
    if (!f.projection) {
        __syncthreads();
        int64_t left = f.chunks - first, count = (left < TILE ? left : TILE) * f.dim;
        for (int n = threadIdx.x; n < count; n += FEATURE_THREADS)
            y[first * f.dim + n] = means[n / f.dim * (f.width + ROW_PAD) + n % f.dim];
        return;
    }
    for (int feature = 0; feature < f.features; feature += FEATURE_TILE) {
        load_projection(f, h, feature, rows);
        __syncthreads();
        project<TILE>(f, means, rows, first, feature, y);
        __syncthreads();
    }
}

template <int TILE, int VEC, typename T>
DsvStatus launch_features(DsviStream *stream, const Features<T> &f, int64_t pairs)
{
    int bytes = (TILE + FEATURE_TILE) * (f.width + ROW_PAD) * (int)sizeof(float);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(features_kernel<TILE, VEC, T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    DSVI_CUDA_LAUNCH(stream, "select_features", (features_kernel<TILE, VEC, T>),
                     (unsigned)(pairs * ceil_div(f.chunks, TILE)), FEATURE_THREADS, (size_t)bytes, f);
    return DSV_OK;
}

template <typename T> DsvStatus features_of_type(DsviStream *stream, const DsviSelectFeaturesArgs *args)
{
    constexpr int VEC = 16 / (int)sizeof(T);
    Features<T> f = {rows_from<T>(args->x),
                     args->tokens,
                     args->chunk,
                     ceil_div(args->tokens, args->chunk),
                     (int)args->heads,
                     (int)args->dim,
                     (int)args->features,
                     (int)ceil_div(args->dim, 8) * 8,
                     args->projection,
                     args->y,
                     aligned(args->y, args->features, 16)};
    int64_t pairs = args->batch * args->heads;
    bool vectors = args->dim % VEC == 0 && aligned(f.x.data, f.x.batch_stride, 16) &&
                   aligned(f.x.data, f.x.token_stride, 16) && aligned(f.x.data, f.x.head_stride, 16);
    if (args->chunk >= LONG_CHUNK)
        return vectors ? launch_features<16, VEC>(stream, f, pairs)
                       : launch_features<16, 1>(stream, f, pairs);
    return vectors ? launch_features<64, VEC>(stream, f, pairs) : launch_features<64, 1>(stream, f, pairs);
}

/* ---- features of BF16 rows, computed with tensor cores ---- */

/* Returns whether project_kernel (select_project.cuh) can compute these features. */

bool fits_tensor_cores(const DsviSelectFeaturesArgs *args)
{
    const DsviHeads *x = &args->x;
    const __nv_bfloat16 *data = static_cast<const __nv_bfloat16 *>(x->data);
    return args->act == DSVI_BF16 && args->projection && args->features <= PROJECT_FEATURES &&
           (args->chunk == 1 || args->chunk % PROJECT_ROWS == 0) &&
           (args->dim == 64 || args->dim == 96 || args->dim == 128) && aligned(data, x->batch_stride, 16) &&
           aligned(data, x->token_stride, 16) && aligned(data, x->head_stride, 16);
}

template <int CHUNKS, bool MEANS>
DsvStatus launch_project(DsviStream *stream, const Project &p, int64_t batch)
{
    int64_t blocks = batch * p.heads * p.slices;
    DSVI_CUDA_LAUNCH(stream, "select_features, tensor cores", (project_kernel<CHUNKS, MEANS>),
                     (unsigned)blocks, PROJECT_THREADS, 0, p);
    return DSV_OK;
}

DsvStatus project_rows(DsviStream *stream, const DsviSelectFeaturesArgs *args)
{
    bool means = args->chunk > 1;
    HeadRows<__nv_bfloat16> x = rows_from<__nv_bfloat16>(args->x);
    Project p = {x.data,
                 x.batch_stride,
                 x.token_stride,
                 x.head_stride,
                 (int)args->tokens,
                 (int)args->heads,
                 (int)args->features,
                 means ? (int)(args->chunk / PROJECT_ROWS) : 1,
                 0,
                 0,
                 args->projection,
                 args->y,
                 aligned(args->y, args->features, 16)};
    int64_t at_once = (int64_t)stream->multiprocessors * PROJECT_BLOCKS;
    int64_t slices = at_once / (args->batch * args->heads);
    p.units = (int)ceil_div(args->tokens, p.tiles * PROJECT_ROWS);
    int64_t slices_max = ceil_div(p.units, PROJECT_WARPS);
    p.slices = (int)(slices < 1 ? 1 : slices < slices_max ? slices : slices_max);
    switch (args->dim) {
    case 64:
        return means ? launch_project<2, true>(stream, p, args->batch)
                     : launch_project<2, false>(stream, p, args->batch);
    case 96:
        return means ? launch_project<3, true>(stream, p, args->batch)
                     : launch_project<3, false>(stream, p, args->batch);
    default:
        return means ? launch_project<4, true>(stream, p, args->batch)
                     : launch_project<4, false>(stream, p, args->batch);
    }
}

DsvStatus cuda_select_features(DsviStream *stream, const DsviSelectFeaturesArgs *args)
{
    if (args->dim > DSVI_HEAD_DIM_MAX)
        return DSVI_FAIL(DSV_E_SHAPE, "select_features: rows have %lld elements, expected at most %d",
                         (long long)args->dim, DSVI_HEAD_DIM_MAX);
    if (args->batch * args->heads * args->tokens * args->features == 0)
        return DSV_OK;
    if (fits_tensor_cores(args))
        return project_rows(stream, args);
    DSVI_FOR_ACT("select_features", args->act, return features_of_type<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_select_features(DsviOps *ops)
{
    DSVI_OPS_SET(ops, select_covariance, cuda_select_covariance, "cuda");
    DSVI_OPS_SET(ops, select_features, cuda_select_features, "cuda");
}
