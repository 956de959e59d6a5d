/* Shares of the sources of a data set in its samples. */
#ifndef DSVI_DATASET_SOURCES_H
#define DSVI_DATASET_SOURCES_H

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the repeats of all items such that an epoch uses them in proportion to the weights that lists give to
 * clips and, if the sources have weights, each source in proportion to its own. Without weights nothing
 * changes. Fails with DSV_E_NOT_FOUND if a source that has a weight has no item, and with DSV_E_USAGE if an
 * item would count more than DSVI_REPEATS_MAX times as much as another. */
DsvStatus dsvi_dataset_weigh(DsviDataset *dataset);

/* Adds a remark if clips are in more than one source, under whatever paths. */
DsvStatus dsvi_dataset_remark_shared(DsviDataset *dataset);

/* Passes a line about each source to `line`: its clips, its weight and its share of the samples. Passes
 * nothing if there is one source. */
void dsvi_dataset_sources_report(const DsviDataset *dataset, void (*line)(void *context, const char *text),
                                 void *context);

#ifdef __cplusplus
}
#endif
#endif
