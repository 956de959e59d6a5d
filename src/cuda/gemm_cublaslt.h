/* Matrix products by cuBLASLt: what a stream keeps for them. */
#ifndef DSVI_GEMM_CUBLASLT_H
#define DSVI_GEMM_CUBLASLT_H

#include "cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes NULL behind the pointer. */
void dsvi_gemm_cublaslt_free(DsvGemmCublaslt **gemm);

#ifdef __cplusplus
}
#endif
#endif
