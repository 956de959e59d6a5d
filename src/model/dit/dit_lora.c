/* The part of linear layers that a LoRA adds, forward and backward:
 *
 *     t = factor x A^T        y += t B^T
 *     u = factor dy B         dB += dy^T t        dA += u^T x        dx += u A
 *
 * t is computed again in the backward pass, which costs less than its memory: rank is small. */
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

DsvStatus dsvi_dit_lora_bwd(const DsviDit *dit, const DsviDitLinear *linear, const DsviDitLinearGrads *grads)
{
    int64_t rank = linear->lora->rank, rows = grads->rows;
    void *t = dit->scratch.lora_rows, *u = dit->scratch.lora_drows;
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
    DsviGemmArgs input = {
        .m = rows,
        .n = linear->in,
        .k = rank,
        .ab_dtype = dit->act,
        .c_dtype = grads->dx_dtype,
        .a = u,
        .lda = rank,
        .b = lora_matrix(dit, linear->lora->a),
        .ldb = linear->in,
        .c = grads->dx,
        .ldc = linear->in,
        .accumulate = true,
    };
    DSVI_TRY(lora_inner_rows(dit, linear, rows, grads->x));
    DSVI_TRY(dit->backend->ops.gemm.run(dit->stream, &inner));
    DSVI_TRY(scale_rows(dit, linear->lora, rows, u));
    DSVI_TRY(
        lora_matrix_grad(dit, linear, linear->lora->b,
                         (DsviGemmArgs){.m = linear->out, .n = rank, .k = rows, .a = grads->dy, .b = t}));
    DSVI_TRY(lora_matrix_grad(dit, linear, linear->lora->a,
                              (DsviGemmArgs){.m = rank, .n = linear->in, .k = rows, .a = u, .b = grads->x}));
    return grads->dx ? dit->backend->ops.gemm.run(dit->stream, &input) : DSV_OK;
}
