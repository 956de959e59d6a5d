/* What a start replaces in a run's folder is kept in superseded/<n>, n from 1: checkpoints, recorded lines
 * and sampled clips of steps that the run goes back from, and settings that others take the place of. Each
 * start that replaces anything makes one such folder; nothing in them is ever read, changed or removed
 * again. */
#ifndef DSVI_SUPERSEDED_H
#define DSVI_SUPERSEDED_H

#include "base/fs.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvSuperseded {
    const char *root;            /* the run's folder; the caller's, and outlives this */
    char folder[DSVI_PATH_MAX];  /* root/superseded/<n>; "" until something is put there */
} DsvSuperseded;

/* path = where something called `name` is to be put; makes the folder at the first call. */
DsvStatus dsvi_superseded_place(DsvSuperseded *superseded, const char *name, char path[DSVI_PATH_MAX]);

/* Moves root/from to `name` in it, in one rename. Folders on the way to `name` are made. */
DsvStatus dsvi_superseded_move(DsvSuperseded *superseded, const char *from, const char *name);

#ifdef __cplusplus
}
#endif
#endif
