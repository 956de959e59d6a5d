/* The file that describes a device for `dsv plan memory`, where the device itself is not there. */
#ifndef DSVI_DEVICE_TABLE_H
#define DSVI_DEVICE_TABLE_H

#include "device/device_speeds.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDeviceTable {
    const char *name; /* static; NULL: not known */
    DsviDeviceSpeeds speeds;
    double memory_gib, host_gib; /* of the device and of the host; 0: not given */
    double used_gib;             /* of the device's memory, what a program takes before it allocates */
} DsviDeviceTable;

/* Reads a JSON file of this format (bytes in powers of ten, GiB in powers of two):
 *
 *     {"tflops": 600, "memory_gbs": 3000, "link_gbs": 50, "host_gbs": 300, "update_gbs": 150,
 *      "memory_gib": 79, "host_gib": 500}
 *
 * tflops: of large matrix products in the dtype of the run. memory_gbs: of device memory. link_gbs: between
 * device and host, each way. host_gbs: of host memory, which copies in both directions share. update_gbs: of
 * host memory that AdamW of the CPU reads and writes, at most host_gbs; nominal if it is missing. The last
 * four may be missing. Returns DSV_E_FORMAT, with a message that names the key, if a key is missing, unknown
 * or no positive number. */
DsvStatus dsvi_device_table_read(const char *path, DsviDeviceTable *out);

#ifdef __cplusplus
}
#endif
#endif
