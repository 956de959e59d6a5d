/* col_sum: sums over the rows of a matrix, y[n] += sum over m of x[m, n].
 *
 * Rows are divided into pieces and columns into strips; a block adds one piece of one strip. Its threads form
 * `lines` rows of `lanes` threads: a thread has N neighbouring columns and every `lines`-th row of the piece.
 * There are as many lanes as the columns need, up to a warp, so that a matrix of few columns leaves no thread
 * idle. A block adds its lines pairwise in shared memory and writes one row of `partials`, (pieces, n) F32;
 * two_stage_sum.cuh then adds the pieces. The order of all additions depends only on the sizes and on the
 * number of multiprocessors. */
#include "cuda/common/cuda.h"
#include "cuda/common/two_stage_sum.cuh"

namespace {

using namespace dsvi;

constexpr int THREADS = 256;
constexpr int BATCH = 4; /* rows whose loads a thread has in flight */
/* Thread blocks to launch per multiprocessor: three times as many as it holds at the same time, so that a
 * multiprocessor that is ahead takes more. */
constexpr int BLOCKS_PER_MULTIPROCESSOR = 16;
/* Largest number of columns that one launch sums: stream->partials has room for 8 partial rows of so many
 * columns. */
constexpr int64_t COLUMNS_MAX = 1 << 20;

/* How a matrix is divided into pieces of rows and strips of columns. */
struct Cut {
    int64_t m, n;  /* rows and columns of the matrix */
    int64_t piece; /* rows of a piece */
    int lanes;     /* threads across a strip: 1, 2, 4 ... 32 */
};

/* Adds rows number `row`, row + step, ... before row `end` of N neighbouring columns to `sum`. */
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

/* First stage of the sum: each thread block adds one piece of the rows of one strip of columns, and writes
 * row blockIdx.y of `partials`. Grid: x, strips of columns; y, pieces of the rows. */
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

/* Returns the number of lanes, the threads across a strip, for a matrix of `groups` groups of N columns: a
 * power of two, so that the number of rows of threads in a block is also a power of two. */
int lanes_of_strip(int64_t groups)
{
    int lanes = 1;
    while (lanes < WARP && lanes < groups)
        lanes *= 2;
    return lanes;
}

/* Divides a matrix into strips and pieces: enough pieces to fill the GPU, each with whole batches of BATCH
 * rows, and so few that all partial rows fit into stream->partials. */
Cut cut_matrix(const DsviStream *stream, int64_t m, int64_t n, int N)
{
    Cut cut = {m, n, 0, lanes_of_strip(ceil_div(n, N))};
    int64_t strips = ceil_div(n, (int64_t)cut.lanes * N), piece_min = (int64_t)(THREADS / cut.lanes) * BATCH;
    int64_t pieces = ceil_div((int64_t)stream->multiprocessors * BLOCKS_PER_MULTIPROCESSOR, strips);
    int64_t pieces_max = (int64_t)(DSVI_CUDA_PARTIALS / sizeof(float)) / n;
    int64_t rows = ceil_div(m, pieces < pieces_max ? pieces : pieces_max);
    cut.piece = ceil_div(rows, piece_min) * piece_min;
    return cut;
}

template <int N, typename T>
DsvStatus launch_col_sum(DsviStream *stream, const T *x, int64_t ldx, int64_t m, int64_t n, float *y)
{
    Cut cut = cut_matrix(stream, m, n, N);
    unsigned strips = (unsigned)ceil_div(n, (int64_t)cut.lanes * N);
    unsigned pieces = (unsigned)ceil_div(m, cut.piece);
    float *partials = (float *)stream->partials;
    DSVI_CUDA_LAUNCH(stream, "col_sum", sum_pieces<N>, dim3(strips, pieces), THREADS, 0, x, ldx, cut,
                     partials);
    ColumnSums sums = {partials, 1, pieces, 1, n, {y}, {0}};
    return launch_add_partials(stream, &sums);
}

template <typename T> DsvStatus col_sum_of_type(DsviStream *stream, const DsviColSumArgs *args)
{
    constexpr int N = 16 / sizeof(T);
    const T *x = (const T *)args->x;
    float *y = (float *)args->y;
    bool vectors = args->n % N == 0 && aligned(x, args->ldx, 16);
    for (int64_t first = 0; first < args->n; first += COLUMNS_MAX) {
        int64_t n = args->n - first < COLUMNS_MAX ? args->n - first : COLUMNS_MAX;
        if (vectors)
            DSVI_TRY(launch_col_sum<N>(stream, x + first, args->ldx, args->m, n, y + first));
        else
            DSVI_TRY(launch_col_sum<1>(stream, x + first, args->ldx, args->m, n, y + first));
    }
    return DSV_OK;
}

} // namespace

DsvStatus dsvi_cuda_col_sum(DsviStream *stream, const DsviColSumArgs *args)
{
    if (args->y_dtype != DSVI_F32)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "col_sum: this variant adds to F32, not %s",
                         dsvi_dtype_name(args->y_dtype));
    if (args->m == 0)
        return DSV_OK;
    DSVI_FOR_ACT("col_sum", args->x_dtype, return col_sum_of_type<T>(stream, args));
}

void dsvi_cuda_fill_col_sum(DsviOps *ops)
{
    DSVI_OPS_SET(ops, col_sum, dsvi_cuda_col_sum, "cuda");
}
