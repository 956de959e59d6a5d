/* The small steps that blocks and embeddings are made of: linear layers, norms, casts. See dit_internal.h. */
#include "model/dit_internal.h"

void *dsvi_dit_at(const void *base, DsvDtype dtype, int64_t place)
{
    return (char *)base + (size_t)place * dsvi_dtype_size(dtype);
}

const void *dsvi_dit_param(const DsvDit *dit, int64_t place)
{
    int64_t stretch = dsvi_param_stretch(dit->table, place);
    return dsvi_dit_at(dit->stretch[stretch].acc, dit->acc, place - dit->table->begin[stretch]);
}

void *dsvi_dit_grad(const DsvDit *dit, int64_t place)
{
    int64_t stretch = dsvi_param_stretch(dit->table, place);
    void *grad = dit->stretch[stretch].grad;
    return grad ? dsvi_dit_at(grad, dit->acc, place - dit->table->begin[stretch]) : NULL;
}

DsvStatus dsvi_dit_zero(const DsvDit *dit, DsvDtype dtype, void *x, int64_t n)
{
    return dit->backend->device->zero(dit->stream, x, (size_t)n * dsvi_dtype_size(dtype));
}

DsvStatus dsvi_dit_cast(const DsvDit *dit, int64_t n, DsvDtype x_dtype, const void *x, DsvDtype y_dtype,
                        void *y)
{
    DsvAddArgs args = {.n = n, .a = 1, .b = 0, .x_dtype = x_dtype, .y_dtype = y_dtype, .x = x, .y = y};
    return dit->backend->ops.add.run(dit->stream, &args);
}

static const void *multiplied_weight(const DsvDit *dit, const DsvDitLinear *linear)
{
    int64_t stretch = dsvi_param_stretch(dit->table, linear->weight), gemm = dit->table->gemm[stretch];
    if (linear->weight < gemm)
        return dsvi_dit_param(dit, linear->weight);
    return dsvi_dit_at(dit->stretch[stretch].act, dit->act, linear->weight - gemm);
}

static DsvGemmArgs forward_args(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                                DsvDtype y_dtype, void *y)
{
    return (DsvGemmArgs){
        .m = rows, .n = linear->out, .k = linear->in, .ab_dtype = linear->dtype, .c_dtype = y_dtype,
        .a = x, .lda = linear->in,
        .b = multiplied_weight(dit, linear), .ldb = linear->in, .trans_b = true,
        .c = y, .ldc = linear->out,
        .bias_dtype = dit->acc, .bias = dsvi_dit_param(dit, linear->bias),
    };
}

DsvStatus dsvi_dit_linear_fwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                              DsvDtype y_dtype, void *y)
{
    DsvGemmArgs args = forward_args(dit, linear, rows, x, y_dtype, y);
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

DsvStatus dsvi_dit_linear_gelu_fwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                                   void *z, void *y)
{
    DsvGemmArgs args = forward_args(dit, linear, rows, x, linear->dtype, y);
    args.gelu_input = z;
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

/* Whether the gradient of a layer's weight is to be overwritten. */
static bool is_fresh(const DsvDit *dit, const DsvDitLinear *linear)
{
    int64_t stretch = dsvi_param_stretch(dit->table, linear->weight);
    return dit->stretch[stretch].fresh && linear->weight >= dit->table->gemm[stretch] && !linear->begun;
}

/* dW += dy^T x,  db += sum of the rows of dy */
static DsvStatus linear_param_grads(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows,
                                    const void *x, const void *dy)
{
    DsvGemmArgs args = {
        .m = linear->out, .n = linear->in, .k = rows, .ab_dtype = linear->dtype, .c_dtype = dit->acc,
        .a = dy, .lda = linear->out, .trans_a = true,
        .b = x, .ldb = linear->in,
        .c = dsvi_dit_grad(dit, linear->weight), .ldc = linear->in,
        .accumulate = !is_fresh(dit, linear),
        .bias_dtype = dit->acc,
        .a_sum = linear->bias == DSVI_DIT_NO_BIAS ? NULL : dsvi_dit_grad(dit, linear->bias),
    };
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

static DsvGemmArgs backward_args(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *dy,
                                 DsvDtype dx_dtype, void *dx)
{
    return (DsvGemmArgs){
        .m = rows, .n = linear->in, .k = linear->out, .ab_dtype = linear->dtype, .c_dtype = dx_dtype,
        .a = dy, .lda = linear->out,
        .b = multiplied_weight(dit, linear), .ldb = linear->in,
        .c = dx, .ldc = linear->in,
    };
}

DsvStatus dsvi_dit_linear_bwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *x,
                              const void *dy, DsvDtype dx_dtype, void *dx, bool add_to_dx)
{
    DsvGemmArgs args = backward_args(dit, linear, rows, dy, dx_dtype, dx);
    args.accumulate = add_to_dx;
    DSVI_TRY(linear_param_grads(dit, linear, rows, x, dy));
    return dx ? dit->backend->ops.gemm.run(dit->stream, &args) : DSV_OK;
}

DsvStatus dsvi_dit_linear_gelu_bwd(const DsvDit *dit, const DsvDitLinear *linear, int64_t rows, const void *z,
                                   const void *x, const void *dy, void *dz)
{
    DsvGemmArgs args = backward_args(dit, linear, rows, dy, linear->dtype, dz);
    args.gelu_backward = z;
    DSVI_TRY(linear_param_grads(dit, linear, rows, x, dy));
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

DsvDitNorm dsvi_dit_modulated(const DsvDit *dit, const void *x, const void *modulation, void *dmodulation,
                              int64_t rows, int64_t row)
{
    int64_t shift = row * dit->width, scale = shift + dit->width;
    DsvDitNorm norm = {.x = x, .one_plus = 1, .sample_stride = rows * dit->width};
    norm.shift = dsvi_dit_at(modulation, dit->acc, shift);
    norm.scale = dsvi_dit_at(modulation, dit->acc, scale);
    if (dmodulation) {
        norm.dshift = dsvi_dit_at(dmodulation, dit->acc, shift);
        norm.dscale = dsvi_dit_at(dmodulation, dit->acc, scale);
    }
    return norm;
}

static DsvLayerNormArgs layer_norm_args(const DsvDit *dit, const DsvDitNorm *norm)
{
    return (DsvLayerNormArgs){
        .batch = dit->batch, .tokens = dit->tokens, .channels = dit->width, .eps = dit->config.eps,
        .one_plus = norm->one_plus, .sample_stride = norm->sample_stride, .act = dit->act, .acc = dit->acc,
        .x = norm->x, .scale = norm->scale, .shift = norm->shift, .y = dit->scratch.h,
        .mean = dit->scratch.mean, .rstd = dit->scratch.rstd,
        .dy = dit->scratch.dy, .dx = dit->scratch.dx, .dscale = norm->dscale, .dshift = norm->dshift,
    };
}

DsvStatus dsvi_dit_norm_fwd(const DsvDit *dit, const DsvDitNorm *norm, const DsvGateResidualArgs *sum)
{
    DsvLayerNormArgs args = layer_norm_args(dit, norm);
    args.sum = sum;
    return dit->backend->ops.layer_norm_fwd.run(dit->stream, &args);
}

DsvStatus dsvi_dit_norm_bwd(const DsvDit *dit, const DsvDitNorm *norm, const DsvGateResidualArgs *sum)
{
    DsvLayerNormArgs args = layer_norm_args(dit, norm);
    args.then = sum;
    return dit->backend->ops.layer_norm_bwd.run(dit->stream, &args);
}
