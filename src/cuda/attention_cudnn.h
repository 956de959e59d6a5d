/* Dense attention by cuDNN: what a stream keeps for it. */
#ifndef DSVI_ATTENTION_CUDNN_H
#define DSVI_ATTENTION_CUDNN_H

#include "cuda/device_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Takes NULL behind the pointer. */
void dsvi_attention_cudnn_free(DsvAttentionCudnn **attention);

#ifdef __cplusplus
}
#endif
#endif
