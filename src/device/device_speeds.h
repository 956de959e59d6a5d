/* How fast a device computes and copies, from which plans of memory predict times. */
#ifndef DSVI_DEVICE_SPEEDS_H
#define DSVI_DEVICE_SPEEDS_H

#include <stdbool.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDeviceSpeeds {
    double flops;  /* of large matrix products, per second; 0: the struct is not filled */
    double memory; /* bytes of device memory read or written per second */
    double link;   /* bytes per second between device and page-locked host memory, each way */
    double update; /* bytes of host memory that AdamW of the CPU reads and writes per second */
    bool assumed;  /* the speeds are those of another device: good to compare settings, not to give times */
} DsviDeviceSpeeds;

/* Returns the speeds of no particular GPU, which are those of an H100 with PCIe 5.0, rounded, and of a host
 * with a part of its cores and memory channels for each of its GPUs. */
DsviDeviceSpeeds dsvi_device_speeds_nominal(void);

/* Times a few copies of 32 MiB, which take less than 0.1 s, and sets speeds->memory and speeds->link.
 * Allocates 64 MiB of device memory and 32 MiB of page-locked host memory for the time of the call. */
DsvStatus dsvi_device_speeds_time_copies(DsviDevice *device, DsviDeviceSpeeds *speeds);

#ifdef __cplusplus
}
#endif
#endif
