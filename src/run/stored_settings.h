/* Stores the configuration of a run in config.yaml. */
#ifndef DSVI_STORED_SETTINGS_H
#define DSVI_STORED_SETTINGS_H

#include "base/status.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all options except resume_from_checkpoint: if it were stored, every later start would go back to the
 * same checkpoint. The file is replaced atomically. */
DsvStatus dsvi_settings_store(const DsvConfig *settings, const char *path);

#ifdef __cplusplus
}
#endif
#endif
