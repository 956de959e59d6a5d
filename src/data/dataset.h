/* The list of clips (or cached latents) a run trains on, and what the i-th sample is.
 *
 * A sample is a function of (seed, i): which item, where in it, which crop. The position in the data is
 * therefore one number, and a resumed run goes on with the very next sample. Each epoch is a new
 * permutation of the items. */
#ifndef DSVI_DATASET_H
#define DSVI_DATASET_H

#include <stdbool.h>

#include "base/status.h"
#include "data/clip.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvDatasetItem {
    char *path;
    char *text;       /* caption, or NULL */
    char *source;     /* the clip that a cached window was cut from; NULL: path is the clip */
    DsvClipInfo info; /* clips only */
} DsvDatasetItem;

typedef struct DsvDataset {
    DsvDatasetItem *items;
    int64_t count;
    char **left_out; /* "path: reason" of files that cannot be used */
    int64_t left_out_count;
    char **remarks; /* what the user should know of items that are used, or of their captions */
    int64_t remark_count;
    bool latents; /* items are windows of a latent cache, not clips */
} DsvDataset;

/* path: a folder of clips (itself and its direct subfolders; stem.txt beside a clip is its caption), one
 * clip, a .csv or .jsonl list (path|video|file_name, text|caption|prompt; paths relative to the list), or a
 * latent cache. Every clip is probed. No usable item is DSV_E_NOT_FOUND and says how many were tried and
 * what ailed the first. */
DsvStatus dsvi_dataset_open(const char *path, const DsvConfig *settings, DsvDataset **out);
void dsvi_dataset_close(DsvDataset **dataset);

/* Turns the clips' paths into absolute ones without links, and moves those that are there already to
 * left_out. Not for a latent cache. */
DsvStatus dsvi_dataset_unify(DsvDataset *dataset);

/* What tells this list from another, with which samples would be others. The hash is of the items' order,
 * base names (of a cached window: its source's), sizes and lengths; not of where they lie, which may differ
 * from machine to machine. */
typedef struct DsvDatasetMark {
    int64_t count; /* of items; 0: not known */
    uint64_t hash;
} DsvDatasetMark;
DsvDatasetMark dsvi_dataset_mark(const DsvDataset *dataset);

typedef struct DsvSampleRef {
    int64_t item;
    DsvClipWindow window; /* clips only */
} DsvSampleRef;

DsvSampleRef dsvi_dataset_sample(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index);

/* What sample `index` would be if the draw had fallen on `item`. */
DsvSampleRef dsvi_dataset_sample_in(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index,
                                    int64_t item);

/* The k-th of `count` samples, 0 <= k < count, that are spread evenly over the clips and, within each, over
 * its length, cropped in the middle: what a loss is measured on. They depend on no seed. */
DsvSampleRef dsvi_dataset_spread(const DsvDataset *dataset, const DsvConfig *settings, int64_t k,
                                 int64_t count);

/* Whether a failure to read a sample is its file's own, so that another sample may take its place; it is
 * final otherwise (no memory, say). */
bool dsvi_dataset_is_broken(DsvStatus status);

/* How many samples are tried in place of one that cannot be read, that one included: so many broken files
 * in a row are no accident, the disk is gone, or the folder. Each cached window is tried once. */
int64_t dsvi_dataset_tries(const DsvDataset *dataset);

/* What takes the place of sample `index` when it and those before it could not be read, 1 <= attempt: the
 * next item of the list, with another window once all items have been tried. A function of its arguments
 * alone. */
DsvSampleRef dsvi_dataset_sample_again(const DsvDataset *dataset, const DsvConfig *settings, uint64_t index,
                                       int64_t attempt);

/* The same for the k-th sample of dsvi_dataset_spread: the next item, `attempt` windows further on. */
DsvSampleRef dsvi_dataset_spread_again(const DsvDataset *dataset, const DsvConfig *settings, int64_t k,
                                       int64_t count, int64_t attempt);

#ifdef __cplusplus
}
#endif
#endif
