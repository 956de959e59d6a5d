/* The checkpoints of a run's folder: making one visible, finding the newest, removing old ones. */
#ifndef DSVI_CHECKPOINT_FIND_H
#define DSVI_CHECKPOINT_FIND_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Gives the finished folder `temporary` its name inside output_dir, in one rename (in exchange for an older
 * one of that name), and points `latest` at it. */
DsvStatus dsvi_checkpoint_publish(const char *output_dir, const char *temporary, const char *name);

/* Removes the oldest checkpoints until `keep` are left up to step `newest`, which is one of them; keep 0 removes
 * none. Those of later steps stay and do not count: the run went back from there, and they are not its past. */
DsvStatus dsvi_checkpoint_prune(const char *output_dir, int64_t keep, int64_t newest);

/* Removes a folder that was not finished, keeping the error message there was. */
DsvStatus dsvi_checkpoint_discard(const char *temporary);

#ifdef __cplusplus
}
#endif
#endif
