/* The GELU and bias-gradient parts of gemm as separate ops, for variants (or shapes) whose matrix product
 * cannot fuse them. Such a variant computes the product of dsvi_gemm_bare(args), then calls
 * dsvi_gemm_epilogue with the original args. */
#ifndef DSVI_GEMM_EPILOGUE_H
#define DSVI_GEMM_EPILOGUE_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The ops that the epilogue calls. A gemm variant has no access to the table of operations, so it keeps this
 * copy of the three entries. */
typedef struct DsviGemmEpilogueOps {
    dsvi_activation_fn *activation_fwd, *activation_bwd;
    dsvi_col_sum_fn *col_sum;
} DsviGemmEpilogueOps;

DsviGemmEpilogueOps dsvi_gemm_epilogue_ops(const DsviOps *ops);

/* Returns the arguments of the plain matrix product, without GELU and bias gradient. Its result Z is written
 * where dsvi_gemm_epilogue reads it: to gelu_input if given, else to C. */
DsviGemmArgs dsvi_gemm_bare(const DsviGemmArgs *args);

DsvStatus dsvi_gemm_epilogue(const DsviGemmEpilogueOps *ops, DsviStream *stream, const DsviGemmArgs *args);

#ifdef __cplusplus
}
#endif
#endif
