/* Linear layers, norms and conversions, of which blocks and embeddings consist. Contracts are in
 * dit_internal.h. */
#include "model/dit/dit_internal.h"

void *dsvi_dit_at(const void *base, DsviDtype dtype, int64_t place)
{
    return (char *)base + (size_t)place * dsvi_dtype_size(dtype);
}

const void *dsvi_dit_param(const DsviDit *dit, int64_t place)
{
    int64_t bucket = dsvi_param_bucket(dit->table, place);
    return dsvi_dit_at(dit->bucket[bucket].acc, dit->acc, place - dit->table->begin[bucket]);
}

void *dsvi_dit_grad(const DsviDit *dit, int64_t place)
{
    int64_t bucket = dsvi_param_bucket(dit->table, place);
    void *grad = dit->shape.lora ? NULL : dit->bucket[bucket].grad;
    return grad ? dsvi_dit_at(grad, dit->acc, place - dit->table->begin[bucket]) : NULL;
}

void *dsvi_dit_grad_or_unread(const DsviDit *dit, int64_t place, int64_t row)
{
    return dit->shape.lora ? dsvi_dit_at(dit->scratch.unread, dit->acc, row * dit->width)
                           : dsvi_dit_grad(dit, place);
}

DsvStatus dsvi_dit_clear(const DsviDit *dit, DsviDtype dtype, void *x, int64_t n)
{
    return dit->backend->device->clear(dit->stream, x, (size_t)n * dsvi_dtype_size(dtype));
}

DsvStatus dsvi_dit_cast(const DsviDit *dit, int64_t n, DsviDtype x_dtype, const void *x, DsviDtype y_dtype,
                        void *y)
{
    DsviAddArgs args = {.n = n, .a = 1, .b = 0, .x_dtype = x_dtype, .y_dtype = y_dtype, .x = x, .y = y};
    return dit->backend->ops.add.run(dit->stream, &args);
}

/* Returns the copy of a linear layer's weight by which the input is multiplied: in act for GEMM weights,
 * otherwise in acc. */
static const void *weight_of_product(const DsviDit *dit, const DsviDitLinear *linear)
{
    int64_t bucket = dsvi_param_bucket(dit->table, linear->weight), gemm = dit->table->gemm[bucket];
    if (linear->weight < gemm)
        return dsvi_dit_param(dit, linear->weight);
    return dsvi_dit_at(dit->bucket[bucket].act, dit->act, linear->weight - gemm);
}

static DsviGemmArgs forward_args(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x,
                                 DsviDtype y_dtype, void *y)
{
    return (DsviGemmArgs){
        .m = rows,
        .n = linear->out,
        .k = linear->in,
        .ab_dtype = linear->dtype,
        .c_dtype = y_dtype,
        .a = x,
        .lda = linear->in,
        .b = weight_of_product(dit, linear),
        .ldb = linear->in,
        .trans_b = true,
        .c = y,
        .ldc = linear->out,
        .bias_dtype = dit->acc,
        .bias = dsvi_dit_param(dit, linear->bias),
    };
}

DsvStatus dsvi_dit_linear_fwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows, const void *x,
                              DsviDtype y_dtype, void *y)
{
    DsviGemmArgs args = forward_args(dit, linear, rows, x, y_dtype, y);
    DSVI_TRY(dit->backend->ops.gemm.run(dit->stream, &args));
    return linear->lora ? dsvi_dit_lora_fwd(dit, linear, rows, x, y_dtype, y) : DSV_OK;
}

/* The GELU of n elements as an op of its own, which follows a layer with a LoRA. */
static DsviActivationArgs gelu_args(const DsviDitLinear *linear, int64_t n, const void *z)
{
    return (DsviActivationArgs){.activation = DSVI_GELU_TANH, .n = n, .dtype = linear->dtype, .x = z};
}

DsvStatus dsvi_dit_linear_gelu_fwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                   const void *x, void *z, void *y)
{
    DsviGemmArgs args = forward_args(dit, linear, rows, x, linear->dtype, y);
    DsviActivationArgs gelu = gelu_args(linear, rows * linear->out, z);
    gelu.y = y;
    if (linear->lora) {
        DSVI_TRY(dsvi_dit_linear_fwd(dit, linear, rows, x, linear->dtype, z));
        return dit->backend->ops.activation_fwd.run(dit->stream, &gelu);
    }
    args.gelu_input = z;
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

/* Returns whether the gradient of a layer's weight is to be overwritten instead of added to. */
static bool is_fresh(const DsviDit *dit, const DsviDitLinear *linear)
{
    int64_t bucket = dsvi_param_bucket(dit->table, linear->weight);
    return dit->bucket[bucket].fresh && linear->weight >= dit->table->gemm[bucket] && !linear->begun;
}

/* Computes dW += dy^T x (or dW = dy^T x if the stored gradient is to be overwritten) and db += sum of the
 * rows of dy, unless the weights are frozen. */
static DsvStatus linear_param_grads(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                    const void *x, const void *dy)
{
    DsviGemmArgs args = {
        .m = linear->out,
        .n = linear->in,
        .k = rows,
        .ab_dtype = linear->dtype,
        .c_dtype = dit->acc,
        .a = dy,
        .lda = linear->out,
        .trans_a = true,
        .b = x,
        .ldb = linear->in,
        .c = dsvi_dit_grad(dit, linear->weight),
        .ldc = linear->in,
        .accumulate = !is_fresh(dit, linear),
        .bias_dtype = dit->acc,
        .a_sum = linear->bias == DSVI_DIT_NO_BIAS ? NULL : dsvi_dit_grad(dit, linear->bias),
    };
    return dit->shape.lora ? DSV_OK : dit->backend->ops.gemm.run(dit->stream, &args);
}

static DsviGemmArgs backward_args(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                  const void *dy, DsviDtype dx_dtype, void *dx)
{
    return (DsviGemmArgs){
        .m = rows,
        .n = linear->in,
        .k = linear->out,
        .ab_dtype = linear->dtype,
        .c_dtype = dx_dtype,
        .a = dy,
        .lda = linear->out,
        .b = weight_of_product(dit, linear),
        .ldb = linear->in,
        .c = dx,
        .ldc = linear->in,
    };
}

DsvStatus dsvi_dit_linear_bwd(const DsviDit *dit, const DsviDitLinear *linear,
                              const DsviDitLinearGrads *grads)
{
    DsviGemmArgs args = backward_args(dit, linear, grads->rows, grads->dy, grads->dx_dtype, grads->dx);
    args.accumulate = grads->add_to_dx;
    DSVI_TRY(linear_param_grads(dit, linear, grads->rows, grads->x, grads->dy));
    if (grads->dx)
        DSVI_TRY(dit->backend->ops.gemm.run(dit->stream, &args));
    return linear->lora ? dsvi_dit_lora_bwd(dit, linear, grads) : DSV_OK;
}

DsvStatus dsvi_dit_linear_gelu_bwd(const DsviDit *dit, const DsviDitLinear *linear, int64_t rows,
                                   const void *z, const void *x, const void *dy, void *dz)
{
    DsviGemmArgs args = backward_args(dit, linear, rows, dy, linear->dtype, dz);
    DsviDitLinearGrads grads = {.rows = rows, .x = x, .dy = dy, .dx = dz, .dx_dtype = linear->dtype};
    DsviActivationArgs gelu = gelu_args(linear, rows * linear->in, z);
    gelu.dy = gelu.dx = dz;
    if (linear->lora) {
        DSVI_TRY(dsvi_dit_linear_bwd(dit, linear, &grads));
        return dit->backend->ops.activation_bwd.run(dit->stream, &gelu);
    }
    args.gelu_backward = z;
    DSVI_TRY(linear_param_grads(dit, linear, rows, x, dy));
    return dit->backend->ops.gemm.run(dit->stream, &args);
}

DsviDitNorm dsvi_dit_modulated(const DsviDit *dit, const void *x, const void *modulation, void *dmodulation,
                               int64_t rows, int64_t row)
{
    int64_t shift = row * dit->width, scale = shift + dit->width;
    DsviDitNorm norm = {.x = x, .one_plus = 1, .sample_stride = dit->times * rows * dit->width};
    norm.shift = dsvi_dit_at(modulation, dit->acc, shift);
    norm.scale = dsvi_dit_at(modulation, dit->acc, scale);
    if (dmodulation) {
        norm.dshift = dsvi_dit_at(dmodulation, dit->acc, shift);
        norm.dscale = dsvi_dit_at(dmodulation, dit->acc, scale);
    }
    return norm;
}

static DsviLayerNormArgs layer_norm_args(const DsviDit *dit, const DsviDitNorm *norm)
{
    return (DsviLayerNormArgs){
        .batch = dit->batch,
        .tokens = dit->tokens,
        .channels = dit->width,
        .eps = dit->config.eps,
        .one_plus = norm->one_plus,
        .sample_stride = norm->sample_stride,
        .act = dit->act,
        .acc = dit->acc,
        .x = norm->x,
        .scale = norm->scale,
        .shift = norm->shift,
        .y = dit->scratch.h,
        .mean = dit->scratch.mean,
        .rstd = dit->scratch.rstd,
        .dy = dit->scratch.dy,
        .dx = dit->scratch.dx,
        .dscale = norm->dscale,
        .dshift = norm->dshift,
    };
}

/* Returns how many of the `count` ascending tokens are below `limit`. */
static int64_t tokens_below(const int32_t *token, int64_t count, int64_t limit)
{
    int64_t low = 0;
    while (low < count) {
        int64_t middle = (low + count) / 2;
        if (token[middle] < limit)
            low = middle + 1;
        else
            count = middle;
    }
    return low;
}

DsviTokenList dsvi_dit_tokens_of_time(const DsviDit *dit, int64_t time, int64_t first, int64_t end)
{
    if (dit->times == 1)
        return (DsviTokenList){.count = end - first};
    int64_t begin = dit->time_begin[time], count = dit->time_begin[time + 1] - begin;
    const int32_t *token = dit->host_of_time + begin;
    int64_t below = tokens_below(token, count, first);
    return (DsviTokenList){.token = dit->of_time + begin + below,
                           .count = tokens_below(token, count, end) - below};
}

/* Returns the address of element `index` of the array `base`, or NULL if base is NULL. */
static void *element_of(const DsviDit *dit, const void *base, int64_t index)
{
    return base ? dsvi_dit_at(base, dit->acc, index) : NULL;
}

void dsvi_dit_sum_of_time(const DsviDit *dit, int64_t time, DsviTokenList only, DsviGateResidualArgs *sum)
{
    int64_t place = time * (sum->gate_stride / dit->times);
    sum->only = only;
    sum->gate = element_of(dit, sum->gate, place);
    sum->dgate = element_of(dit, sum->dgate, place);
}

/* Runs a norm once for each time of a sample, over the tokens of this time, with the residual sum before it
 * (forward) or after it (backward). */
static DsvStatus run_norm(const DsviDit *dit, const DsviDitNorm *norm, const DsviGateResidualArgs *sum,
                          bool backward)
{
    const DsviOps *ops = &dit->backend->ops;
    for (int64_t time = 0; time < dit->times; time++) {
        DsviLayerNormArgs args = layer_norm_args(dit, norm);
        DsviGateResidualArgs some = sum ? *sum : (DsviGateResidualArgs){0};
        int64_t place = time * (norm->sample_stride / dit->times);
        args.only = dsvi_dit_tokens_of_time(dit, time, 0, dit->tokens);
        if (args.only.count == 0)
            continue;
        args.scale = element_of(dit, args.scale, place);
        args.shift = element_of(dit, args.shift, place);
        args.dscale = element_of(dit, args.dscale, place);
        args.dshift = element_of(dit, args.dshift, place);
        dsvi_dit_sum_of_time(dit, time, args.only, &some);
        if (sum)
            *(backward ? &args.then : &args.sum) = &some;
        DSVI_TRY(backward ? ops->layer_norm_bwd.run(dit->stream, &args)
                          : ops->layer_norm_fwd.run(dit->stream, &args));
    }
    return DSV_OK;
}

DsvStatus dsvi_dit_norm_fwd(const DsviDit *dit, const DsviDitNorm *norm, const DsviGateResidualArgs *sum)
{
    return run_norm(dit, norm, sum, false);
}

DsvStatus dsvi_dit_norm_bwd(const DsviDit *dit, const DsviDitNorm *norm, const DsviGateResidualArgs *sum)
{
    return run_norm(dit, norm, sum, true);
}

DsviDitLinear dsvi_dit_without_bias(const DsviDitLinear *linear)
{
    DsviDitLinear bare = *linear;
    bare.bias = DSVI_DIT_NO_BIAS;
    return bare;
}

DsviRmsNormRopeArgs dsvi_dit_heads_norm(const DsviDit *dit, int64_t tokens, bool turn, const void *x,
                                        int64_t place, void *rstd)
{
    return (DsviRmsNormRopeArgs){
        .batch = dit->batch,
        .tokens = tokens,
        .heads = dit->heads,
        .head_dim = dit->head_dim,
        .eps = dit->config.eps,
        .act = dit->act,
        .acc = dit->acc,
        .x = x,
        .weight = dsvi_dit_param(dit, place),
        .dweight = dsvi_dit_grad_or_unread(dit, place, 0),
        .cos = turn ? dit->rope_cos : NULL,
        .sin = turn ? dit->rope_sin : NULL,
        .rstd = rstd,
    };
}

DsvStatus dsvi_dit_heads_norm_fwd(const DsviDit *dit, DsviRmsNormRopeArgs args, void *y)
{
    args.y = y;
    return dit->backend->ops.rms_norm_rope_fwd.run(dit->stream, &args);
}

DsvStatus dsvi_dit_heads_norm_bwd(const DsviDit *dit, DsviRmsNormRopeArgs args, const DsviDitLinear *linear,
                                  void *dy)
{
    args.dy = args.dx = dy;
    args.dx_sum = dsvi_dit_grad(dit, linear->bias);
    return dit->backend->ops.rms_norm_rope_bwd.run(dit->stream, &args);
}
