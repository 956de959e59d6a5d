/* Matrix products on the CPU, by oneDNN. */
#ifndef DSVI_GEMM_ONEDNN_H
#define DSVI_GEMM_ONEDNN_H

#include "cpu/device_cpu.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Plans, packed weights and scratch of one backend; the stream's gemm. */
DsvStatus dsvi_gemm_onednn_create(DsvIsa isa, DsvGemmOnednn **out);
void dsvi_gemm_onednn_free(DsvGemmOnednn **gemm);

/* Enters the op. What it does after a product, it does by the ops that the table has by then. */
void dsvi_gemm_onednn_fill(DsvGemmOnednn *gemm, DsvOps *ops);

#ifdef __cplusplus
}
#endif
#endif
