/* The ways to convolve on a GPU, for tests and measurements that compare them. */
#ifndef DSVI_CONV_WAYS_H
#define DSVI_CONV_WAYS_H

#include "cuda/device_cuda.h"
#include "ops/conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In the order in which the op tries them. */
typedef enum DsviConvWay {
    DSVI_CONV_HOPPER,  /* conv_sm90.cu */
    DSVI_CONV_PORTABLE /* conv_bf16.cu, conv_f32.cu */
} DsviConvWay;

/* Enqueues a convolution with at least one element in one way. Sets *served to false and enqueues nothing if
 * the way does not support the arguments. */
DsvStatus dsvi_conv_by(DsviStream *stream, const DsviConvArgs *args, DsviConvWay way, bool *served);

#ifdef __cplusplus
}
#endif
#endif
