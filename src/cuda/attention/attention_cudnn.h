/* Dense attention by cuDNN: the execution plans that a stream keeps. */
#ifndef DSVI_ATTENTION_CUDNN_H
#define DSVI_ATTENTION_CUDNN_H

#include "cuda/device_cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns DSV_OK if cuDNN serves this problem, for tensors at multiples of 16 bytes. Otherwise returns
 * DSV_E_UNSUPPORTED with the reason why the kernels of attention_list.cu serve it, or another failure. Data
 * pointers are not read. */
DsvStatus dsvi_attention_cudnn_serves(DsviStream *stream, const DsviAttentionArgs *args, bool backward);

/* Frees *attention, which may be NULL, and sets it to NULL. */
void dsvi_attention_cudnn_free(DsviAttentionCudnn **attention);

#ifdef __cplusplus
}
#endif
#endif
