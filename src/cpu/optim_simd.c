/* SIMD variants of sum_squares, adamw, adamw_8bit and the ops of Muon (ops/optim.h). Other than most files
 * here, this one is compiled without fused products and sums, so that adamw has the bits of all levels and of
 * the GPU (CMakeLists.txt); these ops wait for memory anyway. */
#include <math.h>
#include <string.h>

#include "base/philox.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* The array is divided into this many pieces, whose sums are added in order. The result does not depend on
 * the number of threads. */
enum { PIECES = 256 };

/* Elements whose moments in BF16 are converted at a time. */
enum { GROUP = 256 };

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
    float rate;                                                      /* lr / (1 - b1^t) */
    float root;                                                      /* 1 / sqrt(1 - b2^t) */
    float with_sign[DSVI_STATE_VALUES], positive[DSVI_STATE_VALUES]; /* of 8-bit states */
} Adamw;

/* Updates the moving average of the weights, and the copy of the weights in the compute dtype, from the new
 * weights [begin, end), which are still in the cache. */
static void derive_piece(const float *weight, double ema_decay, float *ema, DsviDtype copy_dtype, void *copy,
                         int64_t begin, int64_t end)
{
    float rest = (float)(1 - ema_decay);
    if (ema) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            ema[i] += rest * (weight[i] - ema[i]);
    }
    if (copy && copy_dtype == DSVI_BF16) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            dsvi_put(DSVI_BF16, copy, i, weight[i]);
    } else if (copy) {
        memcpy((float *)copy + begin, weight + begin, (size_t)(end - begin) * sizeof(float));
    }
}

/* Updates the weights of `count` elements, and their moments m and v, which are F32. */
DSVI_SPECIALISED void adamw_elements(const Adamw *adamw, int64_t count, const float *grad, float *weight,
                                     float *m, float *v)
{
    const DsviAdamwArgs *args = adamw->args;
    float beta1 = (float)args->beta1, rest1 = (float)(1 - args->beta1);
    float beta2 = (float)args->beta2, rest2 = (float)(1 - args->beta2);
    float keep = (float)(1 - args->lr * args->weight_decay), grad_scale = (float)args->grad_scale;
    float eps = (float)args->eps, rate = adamw->rate, root = adamw->root;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * grad_scale;
        float new_m = beta1 * m[i] + rest1 * g, new_v = beta2 * v[i] + rest2 * g * g;
        m[i] = new_m;
        v[i] = new_v;
        weight[i] = keep * weight[i] - rate * new_m / (sqrtf(new_v) * root + eps);
    }
}

/* The same for elements [begin, begin + count) with moments in BF16. */
static void adamw_bf16_elements(const Adamw *adamw, int64_t begin, int64_t count)
{
    const DsviAdamwArgs *args = adamw->args;
    uint16_t *stored_m = (uint16_t *)args->m + begin, *stored_v = (uint16_t *)args->v + begin;
    float m[GROUP], v[GROUP];
    uint32_t random[GROUP];
    DsviRng rng = args->rng;
    uint64_t index = (uint64_t)(args->first + begin) / 4;
#pragma omp simd
    for (int64_t j = 0; j < (count + 3) / 4; j++) {
        DsviPhiloxWords words = dsvi_philox(rng, index + (uint64_t)j);
        random[4 * j] = words.word[0];
        random[4 * j + 1] = words.word[1];
        random[4 * j + 2] = words.word[2];
        random[4 * j + 3] = words.word[3];
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        m[i] = dsvi_bf16_to_f32(stored_m[i]);
        v[i] = dsvi_bf16_to_f32(stored_v[i]);
    }
    adamw_elements(adamw, count, (const float *)args->grad + begin, (float *)args->weight + begin, m, v);
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        stored_m[i] = dsvi_f32_to_bf16_random(m[i], random[i]);
        stored_v[i] = dsvi_f32_to_bf16_random(v[i], random[i] >> 16);
    }
}

static void adamw_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const Adamw *adamw = context;
    const DsviAdamwArgs *args = adamw->args;
    (void)worker;
    if (args->state_dtype == DSVI_BF16) {
        for (int64_t at = begin; at < end; at += GROUP)
            adamw_bf16_elements(adamw, at, dsvi_min(GROUP, end - at));
    } else {
        adamw_elements(adamw, end - begin, (const float *)args->grad + begin, (float *)args->weight + begin,
                       (float *)args->m + begin, (float *)args->v + begin);
    }
    derive_piece(args->weight, args->ema_decay, args->ema, args->copy_dtype, args->copy, begin, end);
}

static Adamw adamw_job(const DsviAdamwArgs *args)
{
    return (Adamw){
        .args = args,
        .rate = (float)(args->lr / (1 - pow(args->beta1, (double)args->step))),
        .root = (float)(1 / sqrt(1 - pow(args->beta2, (double)args->step))),
    };
}

static DsvStatus cpu_adamw(DsviStream *stream, const DsviAdamwArgs *args)
{
    Adamw job = adamw_job(args);
    (void)stream;
    DSVI_TRY(dsvi_simd_check("adamw", args->copy ? args->copy_dtype : args->acc, args->acc));
    DSVI_TRY(dsvi_simd_check("adamw", args->state_dtype, args->acc));
    dsvi_parallel_for(args->n, DSVI_PIECE, adamw_piece, &job);
    return DSV_OK;
}

/* ---- moments of 8 bits ---- */

/* codes[i] = dsvi_state_code(values, x[i] / scale), at least `least` for positive x. */
static void store_codes(const float *values, int64_t count, const float *x, float scale, int32_t least,
                        uint8_t *codes)
{
    int32_t low[DSVI_STATE_BLOCK];
    float ratio[DSVI_STATE_BLOCK];
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        ratio[i] = scale > 0 ? x[i] / scale : 0;
        low[i] = 0;
    }
    for (int32_t step = DSVI_STATE_VALUES / 2; step > 0; step /= 2) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            low[i] += values[low[i] + step] <= ratio[i] ? step : 0;
    }
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        int32_t next = low[i] < DSVI_STATE_VALUES - 1 ? low[i] + 1 : low[i];
        int32_t code = values[next] - ratio[i] < ratio[i] - values[low[i]] ? next : low[i];
        codes[i] = (uint8_t)(x[i] > 0 && code < least ? least : code);
    }
}

static void load_codes(const float *values, int64_t count, const uint8_t *codes, float scale, float *x)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        x[i] = scale * values[codes[i]];
}

static float largest_of(int64_t count, const float *x)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    return largest;
}

static void adamw_8bit_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const Adamw *adamw = context;
    const DsviAdamwArgs *args = adamw->args;
    float m[DSVI_STATE_BLOCK], v[DSVI_STATE_BLOCK];
    (void)worker;
    for (int64_t at = begin; at < end; at += DSVI_STATE_BLOCK) {
        int64_t count = dsvi_min(DSVI_STATE_BLOCK, end - at);
        float *m_scale = &args->m_scale[at / DSVI_STATE_BLOCK];
        float *v_scale = &args->v_scale[at / DSVI_STATE_BLOCK];
        uint8_t *m_codes = (uint8_t *)args->m + at, *v_codes = (uint8_t *)args->v + at;
        load_codes(adamw->with_sign, count, m_codes, *m_scale, m);
        load_codes(adamw->positive, count, v_codes, *v_scale, v);
        adamw_elements(adamw, count, (const float *)args->grad + at, (float *)args->weight + at, m, v);
        *m_scale = largest_of(count, m);
        *v_scale = largest_of(count, v);
        store_codes(adamw->with_sign, count, m, *m_scale, 0, m_codes);
        store_codes(adamw->positive, count, v, *v_scale, 1, v_codes);
    }
    derive_piece(args->weight, args->ema_decay, args->ema, args->copy_dtype, args->copy, begin, end);
}

static DsvStatus cpu_adamw_8bit(DsviStream *stream, const DsviAdamwArgs *args)
{
    Adamw job = adamw_job(args);
    (void)stream;
    DSVI_TRY(dsvi_simd_check("adamw_8bit", args->copy ? args->copy_dtype : args->acc, args->acc));
    dsvi_state_values(true, job.with_sign);
    dsvi_state_values(false, job.positive);
    dsvi_parallel_for(args->n, DSVI_PIECE, adamw_8bit_piece, &job);
    return DSV_OK;
}

/* ---- Muon ---- */

static void muon_momentum_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviMuonArgs *args = context;
    float *grad = args->grad, *m = args->m;
    float momentum = (float)args->momentum, grad_scale = (float)args->grad_scale;
    (void)worker;
#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float g = grad[i] * grad_scale, new_m = momentum * m[i] + g;
        m[i] = new_m;
        grad[i] = g + momentum * new_m;
    }
}

static void muon_step_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviMuonArgs *args = context;
    const float *direction = args->grad;
    float *weight = args->weight;
    float keep = (float)(1 - args->lr * args->weight_decay), rate = (float)args->rate;
    (void)worker;
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        weight[i] = keep * weight[i] - rate * direction[i];
    derive_piece(weight, args->ema_decay, args->ema, args->copy_dtype, args->copy, begin, end);
}

static DsvStatus cpu_muon_momentum(DsviStream *stream, const DsviMuonArgs *args)
{
    DsviMuonArgs job = *args;
    (void)stream;
    DSVI_TRY(dsvi_simd_check("muon_momentum", args->acc, args->acc));
    dsvi_parallel_for(args->n, DSVI_PIECE, muon_momentum_piece, &job);
    return DSV_OK;
}

static DsvStatus cpu_muon_step(DsviStream *stream, const DsviMuonArgs *args)
{
    DsviMuonArgs job = *args;
    (void)stream;
    DSVI_TRY(dsvi_simd_check("muon_step", args->copy ? args->copy_dtype : args->acc, args->acc));
    dsvi_parallel_for(args->n, DSVI_PIECE, muon_step_piece, &job);
    return DSV_OK;
}

void DSVI_SIMD(fill_optim)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, sum_squares, cpu_sum_squares, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, adamw, cpu_adamw, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, adamw_8bit, cpu_adamw_8bit, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, muon_momentum, cpu_muon_momentum, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, muon_step, cpu_muon_step, DSVI_SIMD_NAME);
}
