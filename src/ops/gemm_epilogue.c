/* See gemm_epilogue.h. */
#include "ops/gemm_epilogue.h"

DsvGemmEpilogueOps dsvi_gemm_epilogue_ops(const DsvOps *ops)
{
    return (DsvGemmEpilogueOps){ops->activation_fwd.run, ops->activation_bwd.run, ops->col_sum.run};
}

DsvGemmArgs dsvi_gemm_bare(const DsvGemmArgs *args)
{
    DsvGemmArgs bare = *args;
    if (args->gelu_input)
        bare.c = args->gelu_input;
    bare.gelu_input = NULL;
    bare.gelu_backward = NULL;
    bare.a_sum = NULL;
    return bare;
}

/* `n` elements from element `first` on. */
static DsvStatus take_gelu(const DsvGemmEpilogueOps *ops, DsvStream *stream, const DsvGemmArgs *args,
                           int64_t first, int64_t n)
{
    int64_t offset = first * (int64_t)dsvi_dtype_size(args->c_dtype);
    unsigned char *c = (unsigned char *)args->c + offset;
    DsvActivationArgs gelu = {.activation = DSV_GELU_TANH, .n = n, .dtype = args->c_dtype};
    if (args->gelu_input) {
        gelu.x = (const unsigned char *)args->gelu_input + offset;
        gelu.y = c;
        return ops->activation_fwd(stream, &gelu);
    }
    gelu.x = (const unsigned char *)args->gelu_backward + offset;
    gelu.dy = gelu.dx = c;
    return ops->activation_bwd(stream, &gelu);
}

/* What lies between rows stays: activations know none, and are called for each row where there is a gap. */
DsvStatus dsvi_gemm_epilogue(const DsvGemmEpilogueOps *ops, DsvStream *stream, const DsvGemmArgs *args)
{
    bool gelu = args->gelu_input || args->gelu_backward, dense = args->ldc == args->n;
    int64_t calls = dense ? 1 : args->m, n = dense ? args->m * args->n : args->n;
    for (int64_t i = 0; gelu && i < calls; i++)
        DSVI_TRY(take_gelu(ops, stream, args, i * args->ldc, n));
    if (!args->a_sum)
        return DSV_OK;
    DsvColSumArgs sum = {.m = args->k, .n = args->m, .x_dtype = args->ab_dtype, .x = args->a,
                         .ldx = args->lda, .y_dtype = args->bias_dtype, .y = args->a_sum};
    return ops->col_sum(stream, &sum);
}
