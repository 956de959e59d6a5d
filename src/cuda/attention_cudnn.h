/* Dense attention by cuDNN: what a stream keeps for it. */
#ifndef DSVI_ATTENTION_CUDNN_H
#define DSVI_ATTENTION_CUDNN_H

#include "cuda/device_cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* DSV_OK: cuDNN serves this from tensors at multiples of 16 bytes. Else the sentence why the op leaves it to
 * the kernels of attention_list.cu, or fails. Data pointers are not read. */
DsvStatus dsvi_attention_cudnn_serves(DsvStream *stream, const DsvAttentionArgs *args, bool backward);

/* Takes NULL behind the pointer. */
void dsvi_attention_cudnn_free(DsvAttentionCudnn **attention);

#ifdef __cplusplus
}
#endif
#endif
