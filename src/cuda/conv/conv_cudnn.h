/* Convolution by cuDNN: the execution plans that a stream keeps. */
#ifndef DSVI_CONV_CUDNN_H
#define DSVI_CONV_CUDNN_H

#include "cuda/device_cuda.h"
#include "ops/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Enqueues a convolution of at least one element by cuDNN. Sets *served to false and enqueues nothing if
 * cuDNN has no engine for it, or if addresses or strides are not multiples of 16 bytes. Sets *bare to whether
 * the caller must still add `bias` and `add` to y, which has F32 then. */
DsvStatus dsvi_conv_cudnn(DsviStream *stream, const DsviConvArgs *args, bool *served, bool *bare);

/* Returns the bytes of workspace that dsvi_conv_cudnn needs; 0 if cuDNN does not serve the convolution. */
size_t dsvi_conv_cudnn_workspace(DsviStream *stream, const DsviConvArgs *args);

/* Frees *conv, which may be NULL, and sets it to NULL. */
void dsvi_conv_cudnn_free(DsviConvCudnn **conv);

#ifdef __cplusplus
}
#endif
#endif
