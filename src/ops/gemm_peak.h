/* Measures the speed of matrix products on a device. */
#ifndef DSVI_GEMM_PEAK_H
#define DSVI_GEMM_PEAK_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Measures the FLOP/s of a product of large square matrices with inputs and outputs of dtype `act`. Allocates
 * device memory for the time of the call. */
DsvStatus dsvi_gemm_peak(const DsviBackend *backend, DsviDtype act, double *flops);

#ifdef __cplusplus
}
#endif
#endif
