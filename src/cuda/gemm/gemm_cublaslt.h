/* Matrix products with cuBLASLt: the state that a stream keeps for them (DsviStream.gemm), and two functions
 * with kernels of our own for what cuBLASLt does not support. */
#ifndef DSVI_GEMM_CUBLASLT_H
#define DSVI_GEMM_CUBLASLT_H

#include "cuda/device_cuda.h"
#include "ops/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Frees *gemm and sets it to NULL. *gemm may be NULL or an object whose creation failed halfway. */
void dsvi_gemm_cublaslt_free(DsviGemmCublaslt **gemm);

/* Computes C = A B, plus C and a bias if `args` asks for them, without cuBLASLt. Serves any sizes, addresses
 * and pitches. Exact but slow. Ignores gelu_input, gelu_backward and a_sum. */
dsvi_gemm_fn dsvi_gemm_plain;

/* Copies the bias, which has N elements, to stream->partials and converts it to the dtype of C. */
DsvStatus dsvi_gemm_stage_bias(DsviStream *stream, const DsviGemmArgs *args);

#ifdef __cplusplus
}
#endif
#endif
