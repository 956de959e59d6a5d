/* SIMD variants of sum_squares and adamw (ops/optim.h). */
#include <math.h>
#include <string.h>

#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* The array is divided into this many pieces, whose sums are added in order. The result does not depend on
 * the number of threads. */
enum { PIECES = 256 };

typedef struct Squares {
    const float *x;
    int64_t piece; /* elements of a piece */
    double sum[PIECES];
} Squares;

static void squares_piece(void *context, int64_t begin, int64_t end, int worker)
{
    Squares *squares = context;
    const float *x = squares->x;
    double sum = 0;
    (void)worker;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = begin; i < end; i++)
        sum += (double)x[i] * x[i];
    squares->sum[begin / squares->piece] = sum;
}

static DsvStatus cpu_sum_squares(DsviStream *stream, const DsviSumSquaresArgs *args)
{
    Squares squares = {.x = args->x, .piece = dsvi_pieces(args->n, PIECES)};
    (void)stream;
    DSVI_TRY(dsvi_simd_check("sum_squares", args->acc, args->acc));
    dsvi_parallel_for(args->n, squares.piece, squares_piece, &squares);
    *args->out = 0;
    for (int i = 0; i < PIECES; i++)
        *args->out += squares.sum[i];
    return DSV_OK;
}

typedef struct Adamw {
    const DsviAdamwArgs *args;
    float rate; /* lr / (1 - b1^t) */
    float root; /* 1 / sqrt(1 - b2^t) */
} Adamw;

/* Updates the moving average of the weights, and the copy of the weights in the compute dtype, from the new
 * weights [begin, end), which are still in the cache. */
static void derive_piece(const DsviAdamwArgs *args, int64_t begin, int64_t end)
{
    const float *weight = args->weight;
    float *ema = args->ema, rest = (float)(1 - args->ema_decay);
    if (ema) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            ema[i] += rest * (weight[i] - ema[i]);
    }
    if (args->copy && args->copy_dtype == DSVI_BF16) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            dsvi_put(DSVI_BF16, args->copy, i, weight[i]);
    } else if (args->copy) {
        memcpy((float *)args->copy + begin, weight + begin, (size_t)(end - begin) * sizeof(float));
    }
}

static void adamw_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const Adamw *adamw = context;
    const DsviAdamwArgs *args = adamw->args;
    const float *grad = args->grad;
    float *weight = args->weight, *m = args->m, *v = args->v;
    float beta1 = (float)args->beta1, rest1 = (float)(1 - args->beta1);
    float beta2 = (float)args->beta2, rest2 = (float)(1 - args->beta2);
    float keep = (float)(1 - args->lr * args->weight_decay), grad_scale = (float)args->grad_scale;
    float eps = (float)args->eps, rate = adamw->rate, root = adamw->root;
    (void)worker;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float g = grad[i] * grad_scale;
        float new_m = beta1 * m[i] + rest1 * g, new_v = beta2 * v[i] + rest2 * g * g;
        m[i] = new_m;
        v[i] = new_v;
        weight[i] = keep * weight[i] - rate * new_m / (sqrtf(new_v) * root + eps);
    }
    derive_piece(args, begin, end);
}

static DsvStatus cpu_adamw(DsviStream *stream, const DsviAdamwArgs *args)
{
    Adamw job = {
        .args = args,
        .rate = (float)(args->lr / (1 - pow(args->beta1, (double)args->step))),
        .root = (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
    };
    (void)stream;
    DSVI_TRY(dsvi_simd_check("adamw", args->copy ? args->copy_dtype : args->acc, args->acc));
    dsvi_parallel_for(args->n, DSVI_PIECE, adamw_piece, &job);
    return DSV_OK;
}

void DSVI_SIMD(fill_optim)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, sum_squares, cpu_sum_squares, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, adamw, cpu_adamw, DSVI_SIMD_NAME);
}
