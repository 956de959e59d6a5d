/* Previews of training for a device that need not be there: the CPU backend stands for it. */
#ifndef DSVI_DESCRIBED_DEVICE_H
#define DSVI_DESCRIBED_DEVICE_H

#include "dsv/config.h"
#include "plan/device_table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reports what dsv_train_preview reports, with the memory and the speeds of `table`; the option device is not
 * read. If the table has no memory, the device has memory_gib. The layout is that of the CPU backend, so
 * working memory of GPU kernels is not counted. */
DsvStatus dsvi_described_preview(const DsviDeviceTable *table, const DsvConfig *config,
                                 void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
