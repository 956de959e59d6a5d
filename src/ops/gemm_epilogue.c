/* Applies the GELU and bias-gradient parts of gemm after a plain matrix product. See gemm_epilogue.h. */
#include "ops/gemm_epilogue.h"

DsviGemmEpilogueOps dsvi_gemm_epilogue_ops(const DsviOps *ops)
{
    return (DsviGemmEpilogueOps){ops->activation_fwd.run, ops->activation_bwd.run, ops->col_sum.run};
}

DsviGemmArgs dsvi_gemm_bare(const DsviGemmArgs *args)
{
    DsviGemmArgs bare = *args;
    if (args->gelu_input)
        bare.c = args->gelu_input;
    bare.gelu_input = NULL;
    bare.gelu_backward = NULL;
    bare.a_sum = NULL;
    return bare;
}

/* Applies the GELU, or multiplies by its derivative, to `n` elements of C starting at element `first`. */
static DsvStatus gemm_epilogue_gelu(const DsviGemmEpilogueOps *ops, DsviStream *stream,
                                    const DsviGemmArgs *args, int64_t first, int64_t n)
{
    int64_t offset = first * (int64_t)dsvi_dtype_size(args->c_dtype);
    unsigned char *c = (unsigned char *)args->c + offset;
    DsviActivationArgs gelu = {.activation = DSVI_GELU_TANH, .n = n, .dtype = args->c_dtype};
    if (args->gelu_input) {
        gelu.x = (const unsigned char *)args->gelu_input + offset;
        gelu.y = c;
        return ops->activation_fwd(stream, &gelu);
    }
    gelu.x = (const unsigned char *)args->gelu_backward + offset;
    gelu.dy = gelu.dx = c;
    return ops->activation_bwd(stream, &gelu);
}

/* The epilogue must not change memory between the rows of C. Activation ops have no row stride, so they are
 * called once per row if the rows of C are not contiguous. */
DsvStatus dsvi_gemm_epilogue(const DsviGemmEpilogueOps *ops, DsviStream *stream, const DsviGemmArgs *args)
{
    bool gelu = args->gelu_input || args->gelu_backward, dense = args->ldc == args->n;
    int64_t calls = dense ? 1 : args->m, n = dense ? args->m * args->n : args->n;
    for (int64_t i = 0; gelu && i < calls; i++)
        DSVI_TRY(gemm_epilogue_gelu(ops, stream, args, i * args->ldc, n));
    if (!args->a_sum)
        return DSV_OK;
    DsviColSumArgs sum = {.m = args->k,
                          .n = args->m,
                          .x_dtype = args->ab_dtype,
                          .x = args->a,
                          .ldx = args->lda,
                          .y_dtype = args->bias_dtype,
                          .y = args->a_sum};
    return ops->col_sum(stream, &sum);
}
