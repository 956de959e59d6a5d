/* Helpers of checkpoint.c that publish and discard checkpoint folders. checkpoint_find.c also implements
 * functions of checkpoint.h: finding the newest checkpoint and removing old ones. */
#ifndef DSVI_CHECKPOINT_FIND_H
#define DSVI_CHECKPOINT_FIND_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Renames the finished folder `temporary` to output_dir/name and makes `latest` name it. A previous
 * checkpoint of the same name is kept under a hidden name; dsvi_checkpoint_tidy moves it into superseded/
 * later. */
DsvStatus dsvi_checkpoint_publish(const char *output_dir, const char *temporary, const char *name);

/* Removes the unfinished folder `temporary`. Keeps the error message of the failure before this call. */
DsvStatus dsvi_checkpoint_discard(const char *temporary);

#ifdef __cplusplus
}
#endif
#endif
