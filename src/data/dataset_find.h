/* Finds the items of a data set: clips, rows of lists, and windows of latent caches. */
#ifndef DSVI_DATASET_FIND_H
#define DSVI_DATASET_FIND_H

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Adds the items of all sources that `path` names, which are not probed yet, to an empty data set. Sets its
 * sources, captions and remarks and, if the sources are latent caches, models and sizes of windows. After a
 * failure the data set may hold some items. */
DsvStatus dsvi_dataset_find(DsviDataset *dataset, const char *path, const DsvConfig *config);

/* Appends `line` to the remarks and takes ownership of it. NULL means that memory was lacking. */
DsvStatus dsvi_dataset_add_remark(DsviDataset *dataset, char *line);

DsvStatus dsvi_dataset_no_memory(void);

#ifdef __cplusplus
}
#endif
#endif
