/* What gemm does besides its product, by ops of their own: for variants, or shapes, whose product does not do
 * it. Such a variant runs its product of dsvi_gemm_bare(args), then dsvi_gemm_epilogue with the same args. */
#ifndef DSVI_GEMM_EPILOGUE_H
#define DSVI_GEMM_EPILOGUE_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An op knows no table: a variant keeps these of its own. */
typedef struct DsvGemmEpilogueOps {
    dsvi_activation_fn *activation_fwd, *activation_bwd;
    dsvi_col_sum_fn *col_sum;
} DsvGemmEpilogueOps;

DsvGemmEpilogueOps dsvi_gemm_epilogue_ops(const DsvOps *ops);

/* The product alone: Z goes where the epilogue looks for it. */
DsvGemmArgs dsvi_gemm_bare(const DsvGemmArgs *args);

DsvStatus dsvi_gemm_epilogue(const DsvGemmEpilogueOps *ops, DsvStream *stream, const DsvGemmArgs *args);

#ifdef __cplusplus
}
#endif
#endif
