/* The part of linear layers that a LoRA adds, forward and backward:
 *
 *     t = factor x A^T        y += t B^T
 *     u = factor dy B         dB += dy^T t        dA += u^T x        dx += u A
 *
 * t is computed again in the backward pass, which costs less than its memory: rank is small.
 *
 * With dropout, x stands for drop(x) in t and dA, and dx += drop(u A), where drop() zeroes the same elements
 * each time and divides the others by 1 - p. */
#include "model/dit/dit_internal.h"

/* A matrix of the LoRA at `place`, in act. */
static const void *lora_matrix(const DsviDit *dit, int64_t place)
{
    const DsviParamTable *table = &dit->shape.lora->table;
    int64_t bucket = dsvi_param_bucket(table, place);
    return dsvi_dit_at(dit->lora_bucket[bucket].act, dit->act, place - table->gemm[bucket]);
}

/* Multiplies the rows of t or u by the factor of the layer. */
static DsvStatus scale_rows(const DsviDit *dit, const DsviLoraTarget *target, int64_t rows, void *x)
{
    DsviAddArgs args = {.n = rows * target->rank,
                        .a = target->factor,
                        .b = 0,
                        .x_dtype = dit->act,
                        .y_dtype = dit->act,
                        .x = x,
                        .y = x};
    return target->factor == 1 ? DSV_OK : dit->backend->ops.add.run(dit->stream, &args);
}

/* The random numbers that drop elements of a layer's input: an own key for each layer and sample. */
static DsviRng dropout_rng(const DsviDit *dit, const DsviDitLinear *linear, int64_t sample)
{
    const DsviRng keys = {dit->dropout_seed, DSVI_RNG_DROPOUT,
                          (uint32_t)(linear->lora - dit->shape.lora->targets)};
    uint32_t words[4];
    dsvi_rng_words(keys, dit->first_sample + (uint64_t)sample, words);
    return (DsviRng){(uint64_t)words[0] << 32 | words[1], DSVI_RNG_DROPOUT, words[2]};
}

/* y = drop(x), or with `add` y += drop(x), for x (rows, in) act and y (rows, in) y_dtype. */
static DsvStatus lora_drop(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x,
                           bool add, DsviDtype y_dtype, void *y)
{
    const int64_t of_sample = linear->of_condition ? linear->of_condition : dit->tokens;
    const int64_t first = linear->of_condition ? 0 : dit->first; /* ranks that share a sample have all its
                                                                  * text and image rows */
    for (int64_t done = 0, some; done < rows; done += some) {
        int64_t row = linear->row + done, token = row % of_sample;
        some = of_sample - token < rows - done ? of_sample - token : rows - done;
        const DsviDropoutArgs args = {
            .n = some * linear->in,
            .first = (uint64_t)((first + token) * linear->in),
            .p = dit->shape.lora_dropout,
            .add = add,
            .rng = dropout_rng(dit, linear, row / of_sample),
            .x_dtype = dit->act,
            .y_dtype = y_dtype,
            .x = dsvi_dit_at(x, dit->act, done * linear->in),
            .y = dsvi_dit_at(y, y_dtype, done * linear->in),
        };
        DSVI_TRY(dit->backend->ops.dropout.run(dit->stream, &args));
    }
    return DSV_OK;
}

/* Sets *input to x after dropout. */
static DsvStatus lora_dropped_input(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                    const void *x, const void **input)
{
    *input = x;
    if (dit->shape.lora_dropout == 0)
        return DSV_OK;
    *input = dit->scratch.lora_input;
    return lora_drop(dit, linear, rows, x, false, dit->act, dit->scratch.lora_input);
}

/* t = factor x A^T, in scratch.lora_rows. */
static DsvStatus lora_inner_rows(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x)
{
    int64_t rank = linear->lora->rank;
    DsviGemmArgs args = {
        .m = rows,
        .n = rank,
        .k = linear->in,
        .ab_dtype = dit->act,
        .c_dtype = dit->act,
        .a = x,
        .lda = linear->in,
        .b = lora_matrix(dit, linear->lora->a),
        .ldb = linear->in,
        .trans_b = true,
        .c = dit->scratch.lora_rows,
        .ldc = rank,
    };
    DSVI_TRY(dit->backend->ops.gemm.run(dit->stream, &args));
    return scale_rows(dit, linear->lora, rows, dit->scratch.lora_rows);
}

DsvStatus dsvi_dit_lora_fwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x,
                            DsviDtype y_dtype, void *y)
{
    int64_t rank = linear->lora->rank;
    DsviGemmArgs args = {
        .m = rows,
        .n = linear->out,
        .k = rank,
        .ab_dtype = dit->act,
        .c_dtype = y_dtype,
        .a = dit->scratch.lora_rows,
        .lda = rank,
        .b = lora_matrix(dit, linear->lora->b),
        .ldb = rank,
        .trans_b = true,
        .c = y,
        .ldc = linear->out,
        .accumulate = true,
    };
    if (dit->shape.lora->off)
        return DSV_OK;
    DSVI_TRY(lora_dropped_input(dit, linear, rows, x, &x));
    DSVI_TRY(lora_inner_rows(dit, linear, rows, x));
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

/* grad (m, n) += a^T b over the rows, where `grad` is the gradient of the matrix at `place`. */
static DsvStatus lora_matrix_grad(const DsviDit *dit, const DsviDitLinear *linear, int64_t place,
                                  DsviGemmArgs args)
{
    const DsviParamTable *table = &dit->shape.lora->table;
    int64_t bucket = dsvi_param_bucket(table, place);
    const DsviDitBucket *where = &dit->lora_bucket[bucket];
    args.ab_dtype = dit->act;
    args.c_dtype = dit->acc;
    args.trans_a = true;
    args.lda = args.m;
    args.ldb = args.ldc = args.n;
    args.c = dsvi_dit_at(where->grad, dit->acc, place - table->begin[bucket]);
    args.accumulate = !where->fresh || linear->begun;
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

/* dx += u A, or dx += drop(u A), where u is in scratch.lora_drows. */
static DsvStatus lora_input_grad(const DsviDit *dit, const DsviDitLinear *linear,
                                 const DsviDitLinearGrads *grads)
{
    const bool drops = dit->shape.lora_dropout > 0;
    DsviGemmArgs args = {
        .m = grads->rows,
        .n = linear->in,
        .k = linear->lora->rank,
        .ab_dtype = dit->act,
        .c_dtype = drops ? dit->act : grads->dx_dtype,
        .a = dit->scratch.lora_drows,
        .lda = linear->lora->rank,
        .b = lora_matrix(dit, linear->lora->a),
        .ldb = linear->in,
        .c = drops ? dit->scratch.lora_input : grads->dx,
        .ldc = linear->in,
        .accumulate = !drops,
    };
    DSVI_TRY(dit->backend->ops.gemm.run(dit->stream, &args));
    if (!drops)
        return DSV_OK;
    return lora_drop(dit, linear, grads->rows, dit->scratch.lora_input, true, grads->dx_dtype, grads->dx);
}

DsvStatus dsvi_dit_lora_bwd(const DsviDit *dit, const DsviDitLinear *linear, const DsviDitLinearGrads *grads)
{
    int64_t rank = linear->lora->rank, rows = grads->rows;
    void *t = dit->scratch.lora_rows, *u = dit->scratch.lora_drows;
    const void *x;
    DsviGemmArgs inner = {
        .m = rows,
        .n = rank,
        .k = linear->out,
        .ab_dtype = dit->act,
        .c_dtype = dit->act,
        .a = grads->dy,
        .lda = linear->out,
        .b = lora_matrix(dit, linear->lora->b),
        .ldb = rank,
        .c = u,
        .ldc = rank,
    };
    DSVI_TRY(lora_dropped_input(dit, linear, rows, grads->x, &x));
    DSVI_TRY(lora_inner_rows(dit, linear, rows, x));
    DSVI_TRY(dit->backend->ops.gemm.run(dit->stream, &inner));
    DSVI_TRY(scale_rows(dit, linear->lora, rows, u));
    DSVI_TRY(
        lora_matrix_grad(dit, linear, linear->lora->b,
                         (DsviGemmArgs){.m = linear->out, .n = rank, .k = rows, .a = grads->dy, .b = t}));
    DSVI_TRY(lora_matrix_grad(dit, linear, linear->lora->a,
                              (DsviGemmArgs){.m = rank, .n = linear->in, .k = rows, .a = u, .b = x}));
    return grads->dx ? lora_input_grad(dit, linear, grads) : DSV_OK;
}
