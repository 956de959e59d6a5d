/* The settings that a run leaves on the disk. */
#ifndef DSVI_STORED_SETTINGS_H
#define DSVI_STORED_SETTINGS_H

#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all settings but resume_from_checkpoint, which says how one start begins and would send every later
 * start back to the same place. Readers see the old or the new file. */
DsvStatus dsvi_settings_store(const DsvConfig *settings, const char *path);

#ifdef __cplusplus
}
#endif
#endif
