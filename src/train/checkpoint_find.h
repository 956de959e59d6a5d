/* The checkpoints of a run's folder: making one visible, finding the newest, removing old ones. */
#ifndef DSVI_CHECKPOINT_FIND_H
#define DSVI_CHECKPOINT_FIND_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives the finished folder `temporary` its name inside output_dir, in one rename, and points `latest` at it.
 * An older checkpoint of that name is left to dsvi_checkpoint_tidy, which moves it into superseded/. */
DsvStatus dsvi_checkpoint_publish(const char *output_dir, const char *temporary, const char *name);

/* Removes a folder that was not finished, keeping the error message there was. */
DsvStatus dsvi_checkpoint_discard(const char *temporary);

#ifdef __cplusplus
}
#endif
#endif
