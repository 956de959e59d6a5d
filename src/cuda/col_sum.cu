/* Sums over rows: y[n] += sum over m of x[m, n].
 *
 * Rows are cut into pieces, columns into strips; a block has one of each. Its threads lie as `lines` rows of
 * `lanes` threads: a thread has N neighbouring columns and every `lines`-th row of the piece. Lanes are as
 * many as the columns need, up to a warp, so that few columns leave no thread idle. The lines are folded in
 * shared memory and their sum goes to partials, (pieces, n) floats; a second kernel adds the pieces. The
 * order of all additions follows from the sizes and the machine. */
#include "cuda/cuda.h"
#include "cuda/kernel.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256;
constexpr int BATCH = 4; /* rows a thread has in flight */
constexpr int BLOCKS_PER_MULTIPROCESSOR = 16; /* three times what it holds: who is ahead takes more */
constexpr int FOLD_LINES = 32;
constexpr int64_t COLUMNS_MOST = 1 << 20; /* at a time: there is room for 8 pieces of so many */

/* How a matrix is cut into pieces of rows and strips of columns. */
struct Cut {
    int64_t m, n;
    int64_t piece; /* rows of a piece */
    int lanes;     /* threads across a strip */
};

template <int N, typename T>
__device__ void sum_rows(const T *x, int64_t ldx, int64_t row, int64_t end, int step, float (&sum)[N])
{
    float element[BATCH][N];
    for (; row + (BATCH - 1) * step < end; row += BATCH * step) {
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            load<N>(x + (row + i * step) * ldx, element[i]);
#pragma unroll
        for (int i = 0; i < BATCH; i++)
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] += element[i][j];
    }
    for (; row < end; row += step) {
        load<N>(x + row * ldx, element[0]);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] += element[0][j];
    }
}

template <int N, typename T>
__global__ void __launch_bounds__(THREADS) sum_pieces(const T *x, int64_t ldx, Cut cut, float *partials)
{
    __shared__ float shared[N][THREADS];
    int lane = threadIdx.x % cut.lanes, line = threadIdx.x / cut.lanes, lines = THREADS / cut.lanes;
    int64_t column = ((int64_t)blockIdx.x * cut.lanes + lane) * N;
    int64_t begin = blockIdx.y * cut.piece, end = begin + cut.piece < cut.m ? begin + cut.piece : cut.m;
    float sum[N] = {0};
    if (column < cut.n)
        sum_rows<N>(x + column, ldx, begin + line, end, lines, sum);
#pragma unroll
    for (int j = 0; j < N; j++)
        shared[j][threadIdx.x] = sum[j];
    for (int half = lines / 2; half > 0; half /= 2) {
        __syncthreads();
        if (line >= half)
            continue;
#pragma unroll
        for (int j = 0; j < N; j++)
            shared[j][threadIdx.x] += shared[j][threadIdx.x + half * cut.lanes];
    }
    if (line > 0 || column >= cut.n)
        return;
#pragma unroll
    for (int j = 0; j < N; j++)
        partials[blockIdx.y * cut.n + column + j] = shared[j][threadIdx.x];
}

/* Lanes of a warp have neighbouring columns; warp w adds pieces w, w + FOLD_LINES, ... */
__global__ void __launch_bounds__(WARP * FOLD_LINES)
add_pieces(const float *partials, int pieces, int64_t n, float *y)
{
    __shared__ float shared[FOLD_LINES][WARP];
    int lane = threadIdx.x % WARP, line = threadIdx.x / WARP;
    int64_t column = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0;
    if (column < n) {
#pragma unroll 4
        for (int piece = line; piece < pieces; piece += FOLD_LINES)
            sum += partials[piece * n + column];
    }
    shared[line][lane] = sum;
    for (int half = FOLD_LINES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (line < half)
            shared[line][lane] += shared[line + half][lane];
    }
    if (line == 0 && column < n)
        y[column] += shared[0][lane];
}

/* As many lanes as there are groups of columns: a power of two, so that lines are one too. */
int lanes_for(int64_t groups)
{
    int lanes = 1;
    while (lanes < WARP && lanes < groups)
        lanes *= 2;
    return lanes;
}

/* Pieces enough to fill the machine, but each of full batches of rows, and all with room in partials. */
Cut cut_for(const DsvStream *stream, int64_t m, int64_t n, int N)
{
    Cut cut = {m, n, 0, lanes_for(ceil_div(n, N))};
    int64_t strips = ceil_div(n, (int64_t)cut.lanes * N), least = (int64_t)(THREADS / cut.lanes) * BATCH;
    int64_t wanted = ceil_div((int64_t)stream->multiprocessors * BLOCKS_PER_MULTIPROCESSOR, strips);
    int64_t most = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(float)) / n;
    int64_t rows = ceil_div(m, wanted < most ? wanted : most);
    cut.piece = ceil_div(rows, least) * least;
    return cut;
}

template <int N, typename T>
DsvStatus sum_columns(DsvStream *stream, const T *x, int64_t ldx, int64_t m, int64_t n, float *y)
{
    Cut cut = cut_for(stream, m, n, N);
    unsigned strips = (unsigned)ceil_div(n, (int64_t)cut.lanes * N), folds = (unsigned)ceil_div(n, WARP);
    unsigned pieces = (unsigned)ceil_div(m, cut.piece);
    float *partials = (float *)stream->partials;
    sum_pieces<N><<<dim3(strips, pieces), THREADS, 0, stream->handle>>>(x, ldx, cut, partials);
    DSVI_CUDA_LAUNCHED("col_sum");
    add_pieces<<<folds, WARP * FOLD_LINES, 0, stream->handle>>>(partials, (int)pieces, n, y);
    DSVI_CUDA_LAUNCHED("col_sum");
    return DSV_OK;
}

template <typename T> DsvStatus sum_matrix(DsvStream *stream, const DsvColSumArgs *args)
{
    constexpr int N = 16 / sizeof(T);
    const T *x = (const T *)args->x;
    float *y = (float *)args->y;
    bool vectors = args->n % N == 0 && aligned(x, args->ldx, 16);
    for (int64_t first = 0; first < args->n; first += COLUMNS_MOST) {
        int64_t n = args->n - first < COLUMNS_MOST ? args->n - first : COLUMNS_MOST;
        if (vectors)
            DSVI_TRY(sum_columns<N>(stream, x + first, args->ldx, args->m, n, y + first));
        else
            DSVI_TRY(sum_columns<1>(stream, x + first, args->ldx, args->m, n, y + first));
    }
    return DSV_OK;
}

DsvStatus col_sum(DsvStream *stream, const DsvColSumArgs *args)
{
    if (args->y_dtype != DSV_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "col_sum: this variant sums into F32, not %s",
                         dsvi_dtype_name(args->y_dtype));
    if (args->m == 0)
        return DSV_OK;
    DSVI_FOR_ACT("col_sum", args->x_dtype, return sum_matrix<T>(stream, args));
}

} // namespace

DsvStatus dsvi_cuda_col_sum(DsvStream *stream, const DsvColSumArgs *args)
{
    return col_sum(stream, args);
}

void dsvi_cuda_fill_col_sum(DsvOps *ops)
{
    DSVI_OPS_SET(ops, col_sum, col_sum, "cuda");
}
