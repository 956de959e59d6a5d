/* The folder superseded/ of a run, which keeps what a resumed run replaces: checkpoints, recorded lines and
 * sampled clips of steps later than the one that the run resumes from, and the previous config.yaml. Each
 * start that replaces anything creates one folder superseded/<n>, n = 1, 2, ... dsv never reads, changes or
 * removes its contents. */
#ifndef DSVI_SUPERSEDED_H
#define DSVI_SUPERSEDED_H

#include "base/fs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSuperseded {
    const char *root;           /* the run folder; owned by the caller, must outlive the struct */
    char folder[DSVI_PATH_MAX]; /* root/superseded/<n>; "" until it is created */
} DsviSuperseded;

/* Sets `path` to superseded/<n>/name, where the caller may write. The first call creates the folder. */
DsvStatus dsvi_superseded_place(DsviSuperseded *superseded, const char *name, char path[DSVI_PATH_MAX]);

/* Moves root/from to superseded/<n>/name with one rename. Creates folders in `name` as needed. */
DsvStatus dsvi_superseded_move(DsviSuperseded *superseded, const char *from, const char *name);

#ifdef __cplusplus
}
#endif
#endif
