/* The speeds from which a run predicts times, when it chooses what waits in host memory (memory_plan.h) and
 * where it is updated (update_place.h). */
#ifndef DSVI_PLAN_SPEEDS_H
#define DSVI_PLAN_SPEEDS_H

#include "device/device_speeds.h"
#include "dsv/config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether the options leave a choice to predicted times on the device. */
bool dsvi_plan_needs_speeds(const DsvConfig *settings, const DsviDevice *device);

/* Sets the speeds: measured ones, or nominal ones with `deterministic`, with which nothing depends on
 * measured times. The device should be idle. Takes less than a second, and for this time at most 64 MiB of
 * device memory and 288 MiB of host memory. */
DsvStatus dsvi_plan_speeds(const DsvConfig *settings, const DsviBackend *backend, DsviDeviceSpeeds *speeds);

#ifdef __cplusplus
}
#endif
#endif
