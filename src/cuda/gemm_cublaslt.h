/* Matrix products by cuBLASLt: what a stream keeps for them, and the kernels they need besides. */
#ifndef DSVI_GEMM_CUBLASLT_H
#define DSVI_GEMM_CUBLASLT_H

#include "cuda/device_cuda.h"
#include "ops/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes NULL behind the pointer. */
void dsvi_gemm_cublaslt_free(DsvGemmCublaslt **gemm);

/* The op without cuBLASLt, for any sizes, addresses and pitches: right, but slow. */
dsvi_gemm_fn dsvi_gemm_plain;

/* Rows [first, first + rows) of C become those of `sums`, `pitch` elements apart, plus bias, rounded. `sums`
 * may be those rows of an F32 C themselves. */
DsvStatus dsvi_gemm_add_bias(DsvStream *stream, const DsvGemmArgs *args, int64_t first, int64_t rows,
                             const float *sums, int64_t pitch);

#ifdef __cplusplus
}
#endif
#endif
