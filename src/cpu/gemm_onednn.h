/* The gemm operation on the CPU, computed by oneDNN. */
#ifndef DSVI_GEMM_ONEDNN_H
#define DSVI_GEMM_ONEDNN_H

#include "cpu/device_cpu.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* State of the gemm of one backend: oneDNN primitives, packed weights and scratch memory. It is owned by the
 * device and reached through DsviStream.gemm. */
DsvStatus dsvi_gemm_onednn_create(DsviGemmOnednn **out);
void dsvi_gemm_onednn_free(DsviGemmOnednn **gemm);

/* Sets ops->gemm. GELU and column sums after a product are computed by the entries that `ops` has at the time
 * of this call. */
void dsvi_gemm_onednn_fill(DsviGemmOnednn *gemm, DsviOps *ops);

#ifdef __cplusplus
}
#endif
#endif
