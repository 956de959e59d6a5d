/* The way of tensors in mapped files to the device. */
#ifndef DSVI_TENSOR_STAGER_H
#define DSVI_TENSOR_STAGER_H

#include "device/device.h"
#include "model/weights/tensor_set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Uploads parts of the mapped files through two pieces of pinned host memory: the threads convert one piece
 * while the other is copied to the device. */
typedef struct DsviTensorStager {
    DsviDevice *device;
    void *pieces[2];
    int64_t uploads;
} DsviTensorStager;

DsvStatus dsvi_tensor_stager_open(DsviDevice *device, DsviTensorStager *out);
void dsvi_tensor_stager_close(DsviTensorStager *stager); /* waits for the copies */
/* Uploads a tensor as `dtype` on the stream of copies. The last pieces may still be under way afterwards. */
DsvStatus dsvi_tensor_stage(DsviTensorStager *stager, const DsviTensorSet *set,
                            const DsviStoredTensor *tensor, DsviDtype dtype, void *device_dst);

#ifdef __cplusplus
}
#endif
#endif
