/* The convolution on the CPU, computed by oneDNN. */
#ifndef DSVI_CONV_ONEDNN_H
#define DSVI_CONV_ONEDNN_H

#include "cpu/device_cpu.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* State of the convolution of one backend: the oneDNN primitives. It is owned by the device and reached
 * through DsviStream.conv. */
DsvStatus dsvi_conv_onednn_create(DsviIsa isa, DsviConvOnednn **out);
void dsvi_conv_onednn_free(DsviConvOnednn **conv);

/* Sets ops->conv. */
void dsvi_conv_onednn_fill(DsviOps *ops);

#ifdef __cplusplus
}
#endif
#endif
