/* What selectors are fed with (ops/select.h): second moments of rows, and means of rows, projected.
 *
 * Moments: a block of threads sums one 64 x 64 tile of x^T x over a slice of the rows, 4 x 4 a thread; slices
 * go through stream->partials and are added in order. Features: a block of threads takes TILE chunks of one
 * (batch, head). Their means are made in shared memory, each thread a vector of consecutive elements of some
 * chunks, so that rows are read once and side by side; then threads in pairs make 4 features of TILE / 16
 * chunks, each of a pair from half of the elements. What single rows of BF16, or chunks of a multiple of
 * 16, have for 16 features at most goes through the tensor cores (select_project.cuh). */
#include "cuda/cuda.h"
#include "cuda/select_project.cuh"
#include "ops/select.h"

using namespace dsvi;

namespace {

/* Rows of x: those of DsvHeads. */
template <typename T> struct Rows {
    const T *data;
    int64_t batch_stride, token_stride, head_stride;
};

template <typename T> Rows<T> rows_of(const DsvHeads &x)
{
    return {static_cast<const T *>(x.data), x.batch_stride, x.token_stride, x.head_stride};
}

/* ---- moments ---- */

enum {
    SIDE = 64,           /* of a tile */
    MOMENT_ROWS = 32,    /* in shared memory at a time */
    MOMENT_THREADS = 256,
    MOMENT_BLOCKS = 528, /* blocks of threads that rows are cut into at least, where they can be */
    LEAST_ROWS = 128     /* of a slice */
};

/* Which rows, and where sums go: (slices, heads, dim, dim) and (slices, heads, dim), or with one slice the
 * outputs themselves, added to. */
template <typename T> struct Moments {
    Rows<T> x;
    int64_t offset, stride;
    int rows, per_sample; /* rows: of all the batch */
    int heads, dim, slices;
    float *second, *first;
};

/* Elements [i, i + SIDE) of MOMENT_ROWS rows from `first` on, of head h, zeros beyond the edges. */
template <typename T>
__device__ __forceinline__ void load_rows(const Moments<T> &m, int first, int end, int h, int begin_a,
                                          int begin_b, float (*a)[SIDE], float (*b)[SIDE])
{
    int column = threadIdx.x % SIDE;
    for (int r = threadIdx.x / SIDE; r < MOMENT_ROWS; r += MOMENT_THREADS / SIDE) {
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

__device__ __forceinline__ void put(float *out, float x, bool add)
{
    *out = add ? *out + x : x;
}

/* Grid: tiles of the matrix, heads, slices. */
template <typename T> __global__ __launch_bounds__(MOMENT_THREADS) void moments_kernel(Moments<T> m)
{
    __shared__ __align__(16) float a[MOMENT_ROWS][SIDE], b[MOMENT_ROWS][SIDE];
    int across = (int)ceil_div(m.dim, SIDE), h = blockIdx.y, slice = blockIdx.z;
    int begin_a = blockIdx.x / across * SIDE, begin_b = blockIdx.x % across * SIDE;
    int i = threadIdx.x / 16 * 4, j = threadIdx.x % 16 * 4;
    int end = (int)((int64_t)m.rows * (slice + 1) / m.slices);
    float sum[4][4] = {}, first_sum = 0.f;
    for (int first = (int)((int64_t)m.rows * slice / m.slices); first < end; first += MOMENT_ROWS) {
        load_rows(m, first, end, h, begin_a, begin_b, a, b);
        __syncthreads();
#pragma unroll 4
        for (int r = 0; r < MOMENT_ROWS; r++) {
            float x[4], y[4];
            load(&a[r][i], x);
            load(&b[r][j], y);
#pragma unroll
            for (int n = 0; n < 16; n++)
                sum[n / 4][n % 4] = fmaf(x[n / 4], y[n % 4], sum[n / 4][n % 4]);
            first_sum += threadIdx.x < SIDE ? b[r][threadIdx.x] : 0.f;
        }
        __syncthreads();
    }
    int64_t at = (int64_t)slice * m.heads + h;
    for (int n = 0; n < 16; n++)
        if (begin_a + i + n / 4 < m.dim && begin_b + j + n % 4 < m.dim)
            put(m.second + (at * m.dim + begin_a + i + n / 4) * m.dim + begin_b + j + n % 4,
                sum[n / 4][n % 4], m.slices == 1);
    if (begin_a == 0 && threadIdx.x < SIDE && begin_b + (int)threadIdx.x < m.dim)
        put(m.first + at * m.dim + begin_b + threadIdx.x, first_sum, m.slices == 1);
}

/* out[i] += the sum of the slices' partial[i], in order. */
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

DsvStatus add_slices(DsvStream *stream, const float *partial, int slices, int64_t n, float *out)
{
    add_slices_kernel<<<(unsigned)ceil_div(n, MOMENT_THREADS), MOMENT_THREADS, 0, stream->handle>>>(
        partial, slices, n, out);
    DSVI_CUDA_LAUNCHED("select_covariance, sum of slices");
    return DSV_OK;
}

int moment_slices(int64_t heads, int64_t dim, int64_t rows)
{
    int64_t tiles = ceil_div(dim, SIDE) * ceil_div(dim, SIDE) * heads,
            slices = ceil_div(MOMENT_BLOCKS, tiles);
    int64_t room = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(float)) / (heads * (dim + 1) * dim);
    int64_t most = ceil_div(rows, LEAST_ROWS);
    slices = slices < most ? slices : most;
    slices = slices < room ? slices : room;
    return slices > 1 ? (int)slices : 1;
}

template <typename T>
DsvStatus sum_moments(DsvStream *stream, const DsvSelectCovarianceArgs *args, int64_t per_sample)
{
    int64_t heads = args->heads, dim = args->head_dim, rows = args->batch * per_sample;
    int64_t across = ceil_div(dim, SIDE);
    int slices = moment_slices(heads, dim, rows);
    float *partials = static_cast<float *>(stream->partials);
    Moments<T> m = {rows_of<T>(args->x), args->offset, args->stride, (int)rows, (int)per_sample, (int)heads,
                    (int)dim, slices, slices > 1 ? partials : args->second,
                    slices > 1 ? partials + slices * heads * dim * dim : args->first};
    dim3 grid((unsigned)(across * across), (unsigned)heads, (unsigned)slices);
    moments_kernel<<<grid, MOMENT_THREADS, 0, stream->handle>>>(m);
    DSVI_CUDA_LAUNCHED("select_covariance");
    if (slices == 1)
        return DSV_OK;
    DSVI_TRY(add_slices(stream, m.second, slices, heads * dim * dim, args->second));
    return add_slices(stream, m.first, slices, heads * dim, args->first);
}

DsvStatus covariance(DsvStream *stream, const DsvSelectCovarianceArgs *args)
{
    int64_t per_sample = args->tokens > args->offset ? ceil_div(args->tokens - args->offset, args->stride)
                                                     : 0;
    if (args->batch * per_sample * args->heads * args->head_dim == 0)
        return DSV_OK;
    DSVI_FOR_ACT("select_covariance", args->act, return sum_moments<T>(stream, args, per_sample));
}

/* ---- features ---- */

enum {
    FEATURE_THREADS = 128,
    FEATURE_TILE = 16,   /* features made at a time */
    PAD = 8,             /* floats between rows in shared memory: four rows and two halves hit all banks */
    LONG_CHUNK = 32      /* from which on a block of threads takes few chunks */
};

template <typename T> struct Features {
    Rows<T> x;
    int64_t tokens, chunk, chunks;
    int heads, dim, features, width; /* width: dim up to a multiple of 8 */
    const float *projection;
    float *y;
    bool vector_out;                 /* whether y takes 16 bytes at a time */
};

/* The means of chunks [first, first + TILE), zeros beyond the last and up to the width. VEC elements of a row
 * are one access. */
template <int TILE, int VEC, typename T>
__device__ __forceinline__ void make_means(const Features<T> &f, const T *x, int64_t first, float *means)
{
    constexpr int AT_ONCE = TILE / 16, ROWS_AT_ONCE = 128 / TILE; /* 8 loads in flight */
    int vectors = f.width / VEC, row = f.width + PAD;
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

/* Features [first, first + FEATURE_TILE) of the head's projection, a row each, zeros beyond the edges:
 * feature 4 q + i is row 4 i + q, so that the four features a thread makes lie in rows that others do not
 * need at the same time. */
template <typename T>
__device__ __forceinline__ void load_projection(const Features<T> &f, int h, int first, float *rows)
{
    const float *from = f.projection + (int64_t)h * f.dim * f.features;
    for (int n = threadIdx.x; n < FEATURE_TILE * f.width; n += FEATURE_THREADS) {
        int d = n / FEATURE_TILE, feature = n % FEATURE_TILE, row = feature % 4 * 4 + feature / 4;
        bool inside = d < f.dim && first + feature < f.features;
        rows[row * (f.width + PAD) + d] = inside ? from[(int64_t)d * f.features + first + feature] : 0.f;
    }
}

/* Four features from `feature` on of one chunk, as far as there are so many. */
template <typename T>
__device__ __forceinline__ void put_features(const Features<T> &f, float *y, int feature, const float (&x)[4])
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

/* Thread: 8 c + 2 q + half; chunks c, c + 16 ..., features 4 q ... 4 q + 3, elements 4 half + 8 n ... + 3. */
template <int TILE, typename T>
__device__ __forceinline__ void project(const Features<T> &f, const float *means, const float *rows,
                                        int64_t first, int first_feature, float *y)
{
    constexpr int MINE = TILE / 16;
    int half = threadIdx.x % 2, q = threadIdx.x / 2 % 4, c = threadIdx.x / 8, row = f.width + PAD;
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
            put_features(f, y + chunk * f.features, first_feature + 4 * q, sum[n]);
    }
}

/* Grid: tiles of chunks of all (batch, head). */
template <int TILE, int VEC, typename T>
__global__ __launch_bounds__(FEATURE_THREADS, 4) void features_kernel(Features<T> f)
{
    extern __shared__ float4 shared_memory[];
    float *means = reinterpret_cast<float *>(shared_memory), *rows = means + TILE * (f.width + PAD);
    int64_t tiles = ceil_div(f.chunks, TILE), pair = blockIdx.x / tiles, first = blockIdx.x % tiles * TILE;
    int h = (int)(pair % f.heads);
    float *y = f.y + pair * f.chunks * f.features;
    make_means<TILE, VEC>(f, f.x.data + pair / f.heads * f.x.batch_stride + h * f.x.head_stride, first,
                          means);
    if (!f.projection) {
        __syncthreads();
        int64_t left = f.chunks - first, count = (left < TILE ? left : TILE) * f.dim;
        for (int n = threadIdx.x; n < count; n += FEATURE_THREADS)
            y[first * f.dim + n] = means[n / f.dim * (f.width + PAD) + n % f.dim];
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
DsvStatus launch_features(DsvStream *stream, const Features<T> &f, int64_t pairs)
{
    int bytes = (TILE + FEATURE_TILE) * (f.width + PAD) * (int)sizeof(float);
    DSVI_CUDA_TRY(cudaFuncSetAttribute(features_kernel<TILE, VEC, T>,
                                       cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    features_kernel<TILE, VEC, T>
        <<<(unsigned)(pairs * ceil_div(f.chunks, TILE)), FEATURE_THREADS, (size_t)bytes, stream->handle>>>(f);
    DSVI_CUDA_LAUNCHED("select_features");
    return DSV_OK;
}

template <typename T> DsvStatus make_features(DsvStream *stream, const DsvSelectFeaturesArgs *args)
{
    constexpr int VEC = 16 / (int)sizeof(T);
    Features<T> f = {rows_of<T>(args->x), args->tokens, args->chunk, ceil_div(args->tokens, args->chunk),
                     (int)args->heads, (int)args->dim, (int)args->features, (int)ceil_div(args->dim, 8) * 8,
                     args->projection, args->y, aligned(args->y, args->features, 16)};
    int64_t pairs = args->batch * args->heads;
    bool vectors = args->dim % VEC == 0 && aligned(f.x.data, f.x.batch_stride, 16) &&
                   aligned(f.x.data, f.x.token_stride, 16) && aligned(f.x.data, f.x.head_stride, 16);
    if (args->chunk >= LONG_CHUNK)
        return vectors ? launch_features<16, VEC>(stream, f, pairs)
                       : launch_features<16, 1>(stream, f, pairs);
    return vectors ? launch_features<64, VEC>(stream, f, pairs) : launch_features<64, 1>(stream, f, pairs);
}

/* ---- features, by the tensor cores ---- */

bool projects(const DsvSelectFeaturesArgs *args)
{
    const DsvHeads *x = &args->x;
    const __nv_bfloat16 *data = static_cast<const __nv_bfloat16 *>(x->data);
    return args->act == DSV_BF16 && args->projection && args->features <= PROJECT_FEATURES &&
           (args->chunk == 1 || args->chunk % PROJECT_ROWS == 0) &&
           (args->dim == 64 || args->dim == 96 || args->dim == 128) && aligned(data, x->batch_stride, 16) &&
           aligned(data, x->token_stride, 16) && aligned(data, x->head_stride, 16);
}

template <int CHUNKS, bool MEANS>
DsvStatus launch_project(DsvStream *stream, const Project &p, int64_t batch)
{
    int64_t blocks = batch * p.heads * p.slices;
    project_kernel<CHUNKS, MEANS><<<(unsigned)blocks, PROJECT_THREADS, 0, stream->handle>>>(p);
    DSVI_CUDA_LAUNCHED("select_features, tensor cores");
    return DSV_OK;
}

DsvStatus project_rows(DsvStream *stream, const DsvSelectFeaturesArgs *args)
{
    bool means = args->chunk > 1;
    Rows<__nv_bfloat16> x = rows_of<__nv_bfloat16>(args->x);
    Project p = {x.data, x.batch_stride, x.token_stride, x.head_stride, (int)args->tokens, (int)args->heads,
                 (int)args->features, means ? (int)(args->chunk / PROJECT_ROWS) : 1, 0, 0, args->projection,
                 args->y, aligned(args->y, args->features, 16)};
    int64_t at_once = (int64_t)stream->multiprocessors * PROJECT_BLOCKS;
    int64_t slices = at_once / (args->batch * args->heads);
    p.units = (int)ceil_div(args->tokens, p.tiles * PROJECT_ROWS);
    int64_t most = ceil_div(p.units, PROJECT_WARPS);
    p.slices = (int)(slices < 1 ? 1 : slices < most ? slices : most);
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

DsvStatus features(DsvStream *stream, const DsvSelectFeaturesArgs *args)
{
    if (args->dim > DSV_HEAD_DIM_MAX)
        return DSVI_FAIL(DSV_E_SHAPE, "select_features: rows of %lld, wanted at most %d",
                         (long long)args->dim, DSV_HEAD_DIM_MAX);
    if (args->batch * args->heads * args->tokens * args->features == 0)
        return DSV_OK;
    if (projects(args))
        return project_rows(stream, args);
    DSVI_FOR_ACT("select_features", args->act, return make_features<T>(stream, args));
}

} // namespace

void dsvi_cuda_fill_select_features(DsvOps *ops)
{
    DSVI_OPS_SET(ops, select_covariance, covariance, "cuda");
    DSVI_OPS_SET(ops, select_features, features, "cuda");
}
