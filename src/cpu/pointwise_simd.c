/* SIMD variants of gate_residual, add, dropout and add_rows (ops/pointwise.h). */
#include "base/philox.h"
#include "cpu/simd_fill.h"
#include "cpu/simd_rows.h"

/* ---- gate_residual ---- */

DSVI_SPECIALISED void gate_forward_row(DsviDtype act, const DsviGateResidualArgs *args, int64_t row)
{
    int64_t channels = args->channels;
    const float *x = (const float *)args->x + row * channels;
    const void *y = dsvi_at(act, args->y, row * channels);
    float *out = (float *)args->out + row * channels;
    if (!args->gate) {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            out[c] = x[c] + dsvi_get(act, y, c);
        return;
    }
    const float *gate = (const float *)args->gate + row / args->tokens * args->gate_stride;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++)
        out[c] = x[c] + gate[c] * dsvi_get(act, y, c);
}

static void gate_forward_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviGateResidualArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
        if (args->act == DSVI_BF16)
            gate_forward_row(DSVI_BF16, args, row);
        else
            gate_forward_row(DSVI_F32, args, row);
    }
}

static DsvStatus cpu_gate_residual_fwd(DsviStream *stream, const DsviGateResidualArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("gate_residual", args->act, args->acc));
    dsvi_parallel_for(args->batch * dsvi_listed_tokens(&args->only, args->tokens),
                      dsvi_rows_per_piece(args->channels), gate_forward_rows, (void *)args);
    return DSV_OK;
}

DSVI_SPECIALISED void gate_backward_row(DsviDtype act, const DsviGateResidualArgs *args, int64_t row)
{
    int64_t channels = args->channels;
    const float *dout = (const float *)args->dout + row * channels;
    void *dy = dsvi_at(act, args->dy, row * channels);
    if (!args->gate) {
#pragma omp simd
        for (int64_t c = 0; c < channels; c++)
            dsvi_put(act, dy, c, dout[c]);
        return;
    }
    const float *gate = (const float *)args->gate + row / args->tokens * args->gate_stride;
#pragma omp simd
    for (int64_t c = 0; c < channels; c++)
        dsvi_put(act, dy, c, gate[c] * dout[c]);
}

static void gate_backward_rows(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviGateResidualArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
        if (args->act == DSVI_BF16)
            gate_backward_row(DSVI_BF16, args, row);
        else
            gate_backward_row(DSVI_F32, args, row);
    }
}

/* Adds the sum over the tokens of a sample of dout * y to dgate, for `columns` columns starting at
 * `first`. */
DSVI_SPECIALISED void gate_columns(DsviDtype act, const DsviGateResidualArgs *args, int64_t sample,
                                   int64_t first, int64_t columns)
{
    float total[DSVI_COLUMNS] = {0};
    int64_t listed = dsvi_listed_tokens(&args->only, args->tokens);
    for (int64_t begin = 0; begin < listed; begin += DSVI_ROWS) {
        float part[DSVI_COLUMNS] = {0};
        for (int64_t s = begin; s < dsvi_min(begin + DSVI_ROWS, listed); s++) {
            int64_t row = dsvi_listed_row(&args->only, args->tokens, sample * listed + s);
            int64_t at = row * args->channels + first;
            const float *dout = (const float *)args->dout + at;
            const void *y = dsvi_at(act, args->y, at);
#pragma omp simd
            for (int64_t c = 0; c < columns; c++)
                part[c] += dout[c] * dsvi_get(act, y, c);
        }
        for (int64_t c = 0; c < columns; c++)
            total[c] += part[c];
    }
    for (int64_t c = 0; c < columns; c++)
        ((float *)args->dgate)[sample * args->gate_stride + first + c] += total[c];
}

static void gate_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviGateResidualArgs *args = context;
    int64_t blocks = dsvi_pieces(args->channels, DSVI_COLUMNS);
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i % blocks * DSVI_COLUMNS, columns = dsvi_min(DSVI_COLUMNS, args->channels - first);
        if (args->act == DSVI_BF16)
            gate_columns(DSVI_BF16, args, i / blocks, first, columns);
        else
            gate_columns(DSVI_F32, args, i / blocks, first, columns);
    }
}

/* Adds the sum of dy over the listed tokens of all samples to dy_sum, for a range of columns. */
DSVI_SPECIALISED void gate_sum_listed(DsviDtype act, const DsviGateResidualArgs *args, int64_t first,
                                      int64_t columns)
{
    float total[DSVI_COLUMNS] = {0};
    int64_t rows = args->batch * args->only.count;
    for (int64_t begin = 0; begin < rows; begin += DSVI_ROWS) {
        float part[DSVI_COLUMNS] = {0};
        for (int64_t i = begin; i < dsvi_min(begin + DSVI_ROWS, rows); i++) {
            int64_t row = dsvi_listed_row(&args->only, args->tokens, i);
            const void *dy = dsvi_at(act, args->dy, row * args->channels + first);
#pragma omp simd
            for (int64_t c = 0; c < columns; c++)
                part[c] += dsvi_get(act, dy, c);
        }
        for (int64_t c = 0; c < columns; c++)
            total[c] += part[c];
    }
    for (int64_t c = 0; c < columns; c++)
        ((float *)args->dy_sum)[first + c] += total[c];
}

static void gate_sum_pieces(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviGateResidualArgs *args = context;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i * DSVI_COLUMNS, columns = dsvi_min(DSVI_COLUMNS, args->channels - first);
        if (args->act == DSVI_BF16)
            gate_sum_listed(DSVI_BF16, args, first, columns);
        else
            gate_sum_listed(DSVI_F32, args, first, columns);
    }
}

static DsvStatus gate_dy_sum(DsviStream *stream, const DsviGateResidualArgs *args)
{
    DsviColSumArgs sum = {.m = args->batch * args->tokens,
                          .n = args->channels,
                          .x_dtype = args->act,
                          .x = args->dy,
                          .ldx = args->channels,
                          .y_dtype = args->acc,
                          .y = args->dy_sum};
    if (!args->only.token)
        return DSVI_SIMD(col_sum)(stream, &sum);
    dsvi_parallel_for(dsvi_pieces(args->channels, DSVI_COLUMNS), 1, gate_sum_pieces, (void *)args);
    return DSV_OK;
}

DsvStatus DSVI_SIMD(gate_residual_bwd)(DsviStream *stream, const DsviGateResidualArgs *args)
{
    DSVI_TRY(dsvi_simd_check("gate_residual", args->act, args->acc));
    dsvi_parallel_for(args->batch * dsvi_listed_tokens(&args->only, args->tokens),
                      dsvi_rows_per_piece(args->channels), gate_backward_rows, (void *)args);
    if (args->gate)
        dsvi_parallel_for(args->batch * dsvi_pieces(args->channels, DSVI_COLUMNS), 1, gate_pieces,
                          (void *)args);
    return args->dy_sum ? gate_dy_sum(stream, args) : DSV_OK;
}

/* ---- add ---- */

DSVI_SPECIALISED void add_range(DsviDtype x_dtype, DsviDtype y_dtype, const DsviAddArgs *args, int64_t begin,
                                int64_t end)
{
    const void *x = args->x;
    void *y = args->y;
    float a = (float)args->a, b = (float)args->b;
    if (b == 0) {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            dsvi_put(y_dtype, y, i, a * dsvi_get(x_dtype, x, i));
    } else {
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            dsvi_put(y_dtype, y, i, a * dsvi_get(x_dtype, x, i) + b * dsvi_get(y_dtype, y, i));
    }
}

static void add_piece(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviAddArgs *args = context;
    (void)worker;
    if (args->x_dtype == DSVI_BF16 && args->y_dtype == DSVI_BF16)
        add_range(DSVI_BF16, DSVI_BF16, args, begin, end);
    else if (args->x_dtype == DSVI_BF16)
        add_range(DSVI_BF16, DSVI_F32, args, begin, end);
    else if (args->y_dtype == DSVI_BF16)
        add_range(DSVI_F32, DSVI_BF16, args, begin, end);
    else
        add_range(DSVI_F32, DSVI_F32, args, begin, end);
}

static DsvStatus cpu_add(DsviStream *stream, const DsviAddArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("add", args->x_dtype, DSVI_F32));
    DSVI_TRY(dsvi_simd_check("add", args->y_dtype, DSVI_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, add_piece, (void *)args);
    return DSV_OK;
}

/* ---- dropout ---- */

enum { DROPOUT_GROUP = 256 }; /* elements whose random words a thread draws at a time; a multiple of 4 */

/* Elements [begin, begin + count) of the tensor; random[i] is the word of element begin + i. */
DSVI_SPECIALISED void dropout_range(DsviDtype x_dtype, DsviDtype y_dtype, const DsviDropoutArgs *args,
                                    int64_t begin, int64_t count, const uint32_t *random)
{
    const void *x = dsvi_at(x_dtype, args->x, begin);
    void *y = dsvi_at(y_dtype, args->y, begin);
    const uint32_t threshold = dsvi_dropout_threshold(args->p);
    const float scale = (float)(1 / (1 - args->p));
    if (args->add) {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dsvi_put(y_dtype, y, i,
                     dsvi_get(y_dtype, y, i) +
                         (random[i] >= threshold ? scale * dsvi_get(x_dtype, x, i) : 0));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dsvi_put(y_dtype, y, i, random[i] >= threshold ? scale * dsvi_get(x_dtype, x, i) : 0);
    }
}

static void dropout_group(const DsviDropoutArgs *args, int64_t begin, int64_t count)
{
    uint32_t random[DROPOUT_GROUP + 8];
    const DsviRng rng = args->rng;
    const uint64_t first = args->first + (uint64_t)begin, index = first / 4;
    const uint32_t *used = random + first % 4;
#pragma omp simd
    for (int64_t j = 0; j < count / 4 + 2; j++) {
        DsviPhiloxWords words = dsvi_philox(rng, index + (uint64_t)j);
        random[4 * j] = words.word[0];
        random[4 * j + 1] = words.word[1];
        random[4 * j + 2] = words.word[2];
        random[4 * j + 3] = words.word[3];
    }
    if (args->x_dtype == DSVI_BF16 && args->y_dtype == DSVI_BF16)
        dropout_range(DSVI_BF16, DSVI_BF16, args, begin, count, used);
    else if (args->x_dtype == DSVI_BF16)
        dropout_range(DSVI_BF16, DSVI_F32, args, begin, count, used);
    else if (args->y_dtype == DSVI_BF16)
        dropout_range(DSVI_F32, DSVI_BF16, args, begin, count, used);
    else
        dropout_range(DSVI_F32, DSVI_F32, args, begin, count, used);
}

static void dropout_piece(void *context, int64_t begin, int64_t end, int worker)
{
    (void)worker;
    for (int64_t at = begin; at < end; at += DROPOUT_GROUP)
        dropout_group(context, at, dsvi_min(DROPOUT_GROUP, end - at));
}

static DsvStatus cpu_dropout(DsviStream *stream, const DsviDropoutArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("dropout", args->x_dtype, DSVI_F32));
    DSVI_TRY(dsvi_simd_check("dropout", args->y_dtype, DSVI_F32));
    dsvi_parallel_for(args->n, DSVI_PIECE, dropout_piece, (void *)args);
    return DSV_OK;
}

/* ---- add_rows ---- */

static void add_rows_forward(void *context, int64_t begin, int64_t end, int worker)
{
    const DsviAddRowsArgs *args = context;
    const float *table = args->table;
    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        const float *x = (const float *)args->x + row * args->x_cols;
        float *out = (float *)args->out + row * args->cols;
        for (int64_t first = 0; first < args->cols; first += args->x_cols) {
#pragma omp simd
            for (int64_t c = 0; c < args->x_cols; c++)
                out[first + c] = x[c] + table[first + c];
        }
    }
}

static DsvStatus cpu_add_rows_fwd(DsviStream *stream, const DsviAddRowsArgs *args)
{
    (void)stream;
    DSVI_TRY(dsvi_simd_check("add_rows", args->acc, args->acc));
    dsvi_parallel_for(args->rows, dsvi_rows_per_piece(args->cols), add_rows_forward, (void *)args);
    return DSV_OK;
}

/* Backward pass of add_rows. It runs on one thread because it has little work: one row per sample. */
static DsvStatus cpu_add_rows_bwd(DsviStream *stream, const DsviAddRowsArgs *args)
{
    float *dtable = args->dtable;
    (void)stream;
    DSVI_TRY(dsvi_simd_check("add_rows", args->acc, args->acc));
    for (int64_t row = 0; row < args->rows; row++) {
        const float *dout = (const float *)args->dout + row * args->cols;
        float *dx = (float *)args->dx + row * args->x_cols;
        for (int64_t first = 0; first < args->cols; first += args->x_cols) {
#pragma omp simd
            for (int64_t c = 0; c < args->x_cols; c++) {
                dtable[first + c] += dout[first + c];
                dx[c] += dout[first + c];
            }
        }
    }
    return DSV_OK;
}

void DSVI_SIMD(fill_pointwise)(DsviOps *ops)
{
    DSVI_OPS_SET(ops, gate_residual_fwd, cpu_gate_residual_fwd, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, gate_residual_bwd, DSVI_SIMD(gate_residual_bwd), DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, add, cpu_add, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, dropout, cpu_dropout, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, add_rows_fwd, cpu_add_rows_fwd, DSVI_SIMD_NAME);
    DSVI_OPS_SET(ops, add_rows_bwd, cpu_add_rows_bwd, DSVI_SIMD_NAME);
}
