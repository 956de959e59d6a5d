/* The list of clips or cached latents that a run trains on, and the definition of its i-th sample.
 *
 * A sample is a function of (seed, i): the item, the window in the clip, and the crop. The position in the
 * data is therefore a single number, and a resumed run continues with the next sample. Each epoch is a new
 * permutation of the items. */
#ifndef DSVI_DATASET_H
#define DSVI_DATASET_H

#include <stdbool.h>

#include "base/status.h"
#include "data/captions.h"
#include "data/clip_sizes.h"
#include "data/data_sources.h"
#include "data/latent_file.h"
#include "data/text_states.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviDatasetItem {
    char *path;
    DsviCaptions captions;
    char *image;       /* of a list: the picture with which the clip of an image-to-video model begins; NULL:
                        * its own first frame */
    char *source;      /* the clip from which a cached window was taken; NULL: path is the clip */
    DsviClipInfo info; /* clips only */
    DsviClipSize window; /* cached windows only */
    int64_t size;        /* index in DsviDataset.sizes */
    int64_t from;        /* number of the source that has the item, in DsviDataset.sources */
    int64_t windows;     /* of which the item consists: 1, except of clips that are encoded whole */
    double weight;       /* how often an epoch uses the item, relative to others of its source, times repeats
                          * as they are found: finite, above 0 */
    int64_t repeats;     /* how often an epoch uses the item, 1 or more */
    int64_t start; /* clips only: the frame where the item's window begins, if DsviDataset.fixed; -1: each
                    * sample draws it */
} DsviDatasetItem;

/* A file, or a cached window, that is not used. */
typedef struct DsviLeftOut {
    char *path, *reason; /* reason: a sentence that names the file */
    int64_t from;        /* number of its source */
} DsviLeftOut;

/* Numbers of text files beside clips: found is the sum of the others. */
typedef struct DsviCaptionFileCounts {
    int64_t found, used, unusable, alone; /* unusable: without text, or not UTF-8; alone: of no clip */
} DsviCaptionFileCounts;

/* A source that data.path names. */
typedef struct DsviDatasetSource {
    DsviDataSource named;
    DsviTextStore text; /* text states of a latent cache; without a folder if there are none */
} DsviDatasetSource;

typedef struct DsviDataset {
    DsviDatasetItem *items;
    int64_t count;
    DsviDatasetSource *sources;
    int64_t source_count;
    bool weighed; /* a list gives weights to clips */
    DsviLeftOut *left_out;
    int64_t left_out_count;
    char **remarks; /* lines for the user about items that are used, or about captions */
    int64_t remark_count;
    DsviCaptionFileCounts caption_files; /* of a folder of clips */
    bool latents;          /* the items of the data set are windows of a latent cache, not clips */
    DsviTextStore text;    /* of the first source; those of others differ in the folder */
    DsviImageStates image; /* states of pictures of each window of a latent cache, or none */
    bool sized;            /* the sizes of the items are those of data.buckets */
    bool fixed;            /* each item is one window of a clip, which begins at its `start` */
    DsviClipSizes sizes;   /* at which the items are trained */
    /* The items, size after size, those of a size in ascending order. An item has as many places in an epoch
     * of its size as it repeats, one after another. NULL: there is one size, and each item is used once. */
    int64_t *order;
    int64_t *places_end; /* (count) for each item of `order`: the places of its size up to its last one */
    int64_t first_of[DSVI_CLIP_SIZES_MAX + 1]; /* where the items of a size begin in `order` */
} DsviDataset;

/* Opens the data at `path`, which names one source or several (data_sources.h): a folder of clips (including
 * its direct subfolders; the caption of clip stem.mp4 is stem.txt), a single clip, a .csv or .jsonl list
 * (path|video|file_name, text|caption|prompt; paths relative to the list), or a latent cache. All sources
 * must be latent caches of the same models, or none may be one. Every clip is probed. A caption file that is
 * not used is named by a remark. Fails with DSV_E_NOT_FOUND if no item of a source is usable; the message
 * states how many were tried and the error of the first. The captions get the option data.trigger_word
 * (trigger_word.h).
 *
 * Without data.buckets the only size is num_frames x height x width, and windows of a cache that have another
 * size are left out. With data.buckets pictures count as clips, items have no size yet, and
 * dsvi_dataset_assign (dataset_sizes.h) must follow. */
DsvStatus dsvi_dataset_open(const char *path, const DsvConfig *config, DsviDataset **out);
void dsvi_dataset_close(DsviDataset **dataset);

/* Replaces the paths of the clips by absolute paths without symbolic links, and moves duplicates to left_out.
 * Not for latent caches. */
DsvStatus dsvi_dataset_deduplicate(DsviDataset *dataset);

/* Moves the items that have a reason, reasons (count), to left_out, and takes ownership of the reasons. */
void dsvi_dataset_leave_out(DsviDataset *dataset, char **reasons);

/* Fingerprint of the list of items: lists with different samples have different fingerprints. The hash covers
 * the order of the items, base names (of a cached window: of its source), sizes and lengths. It does not
 * cover folders, which may differ from machine to machine. */
typedef struct DsviDatasetFingerprint {
    int64_t count; /* number of items; 0: unknown */
    uint64_t hash;
} DsviDatasetFingerprint;
DsviDatasetFingerprint dsvi_dataset_fingerprint(const DsviDataset *dataset);

typedef struct DsviSampleRef {
    int64_t item;
    int64_t caption;       /* number of the caption, drawn from those of the item; -1: the item has none, or
                            * the caption is dropped (caption_dropout) */
    DsviClipWindow window; /* clips only */
} DsviSampleRef;

DsviSampleRef dsvi_dataset_sample(const DsviDataset *dataset, const DsvConfig *config, uint64_t index);

/* Returns the index in dataset->sizes of the samples of batch number `batch`, which are the samples
 * batch * train_batch_size and the following ones. With several sizes an epoch is a permutation of batches: a
 * size has as many as its items fill, and items of the same size fill up its last batch. */
int64_t dsvi_dataset_batch_size(const DsviDataset *dataset, const DsvConfig *config, uint64_t batch);
/* Returns the number of batches of an epoch. With one size an epoch need not end with a batch. */
uint64_t dsvi_dataset_epoch_batches(const DsviDataset *dataset, const DsvConfig *config);

/* Returns the sample with the window and crop that sample `index` would have if its item were `item`. */
DsviSampleRef dsvi_dataset_sample_in(const DsviDataset *dataset, const DsvConfig *config, uint64_t index,
                                     int64_t item);

/* Returns the k-th of `count` fixed samples, 0 <= k < count, on which the held-out loss is measured. The
 * samples are spread evenly over the clips and over the length of each clip, cropped in the middle, with the
 * first caption of each clip. They do not depend on the seed. */
DsviSampleRef dsvi_dataset_spread(const DsviDataset *dataset, const DsvConfig *config, int64_t k,
                                  int64_t count);

/* Reads the text states of an item's caption, or of the empty prompt if `caption` is -1, from the files that
 * dsv encode wrote: *count rows of dataset->text.dim F32 each into `rows`, which has room for `rows_max`.
 * DSV_E_NOT_FOUND if the data set has no text states; DSV_E_SHAPE if there are more rows; DSV_E_FORMAT if the
 * file is damaged. */
DsvStatus dsvi_dataset_text_states(const DsviDataset *dataset, int64_t item, int64_t caption,
                                   int64_t rows_max, float *rows, int64_t *count);

/* Returns whether a failure to read a sample is due to its file, so that another sample may replace it. Other
 * failures, such as lack of memory, are final. */
bool dsvi_dataset_is_broken(DsvStatus status);

/* Number of windows that are tried for one sample. So many unreadable files in a row mean that the disk or
 * folder is gone. */
enum { DSVI_DATASET_TRIES_MAX = 16 };

/* Returns how many windows are tried for a sample of `item` before the run fails, including the sample's own.
 * So many unreadable files in a row mean that the disk or the folder is gone. Each cached window is tried at
 * most once; those of other sizes than the item's are not tried. */
int64_t dsvi_dataset_tries(const DsviDataset *dataset, int64_t item);

/* Returns the replacement of sample `index` after the sample and attempt - 1 replacements could not be read,
 * 1 <= attempt: the next item of the list, with a different window once all items were tried. attempt 0 is
 * the sample itself. */
DsviSampleRef dsvi_dataset_sample_again(const DsviDataset *dataset, const DsvConfig *config, uint64_t index,
                                        int64_t attempt);

/* Returns the replacement of the k-th sample of dsvi_dataset_spread: the next item, `attempt` windows
 * later. */
DsviSampleRef dsvi_dataset_spread_again(const DsviDataset *dataset, const DsvConfig *config, int64_t k,
                                        int64_t count, int64_t attempt);

#ifdef __cplusplus
}
#endif
#endif
