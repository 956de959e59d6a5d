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

/* The bare product without cuBLASLt, for any sizes, addresses and pitches: right, but slow. */
dsvi_gemm_fn dsvi_gemm_plain;

/* The (N) bias to stream->partials, in the dtype of C. */
DsvStatus dsvi_gemm_stage_bias(DsvStream *stream, const DsvGemmArgs *args);

#ifdef __cplusplus
}
#endif
#endif
