/* Assigns the items of a data set to the sizes at which they are trained (buckets), and lists what became of
 * every input. */
#ifndef DSVI_DATASET_SIZES_H
#define DSVI_DATASET_SIZES_H

#include <stdio.h>

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many windows of `length` frames the option data.windows takes from a clip with `frames` frame
 * times, at least 1. auto counts as all. */
int64_t dsvi_clip_windows_count(const DsvConfig *config, int64_t frames, int64_t length);
/* Returns the frame where window `i` of these begins. */
int64_t dsvi_clip_windows_start(const DsvConfig *config, int64_t frames, int64_t length, int64_t i);

/* Determines the sizes of the data set as data.buckets says, and assigns each item to one of them. Items that
 * fit none are moved to left_out. Without data.buckets the data set keeps its one size.
 * expand: an item becomes as many items as data.windows takes windows from its clip, unless data.windows is
 * auto. Otherwise an item of a clip has this number of windows. Weights of clips and sources become repeats
 * (dataset_sources.h). `steps` are needed for data.buckets=auto.
 * Fails with DSV_E_USAGE, naming the size, if a listed size has no clip, and with DSV_E_NOT_FOUND if no item
 * is left. */
DsvStatus dsvi_dataset_assign(DsviDataset *dataset, const DsvConfig *config, const DsviClipSteps *steps,
                              bool expand);

/* Returns the size at which item `item` is trained. */
DsviClipSize dsvi_dataset_size(const DsviDataset *dataset, const DsvConfig *config, int64_t item);

/* Numbers of the inputs of one size. samples: of an epoch, with repeats. */
typedef struct DsviSizeCount {
    int64_t clips, windows, samples;
} DsviSizeCount;
DsviSizeCount dsvi_dataset_size_count(const DsviDataset *dataset, int64_t size);

/* Writes a field of a CSV file, in quotes. */
void dsvi_csv_field(FILE *to, const char *text);

/* Writes a CSV file with a row for each input, used or left out: its path, its size, its frames, how many of
 * them are used, its windows, and why it is left out. */
DsvStatus dsvi_dataset_write_list(const DsviDataset *dataset, const DsvConfig *config, const char *path);

#ifdef __cplusplus
}
#endif
#endif
