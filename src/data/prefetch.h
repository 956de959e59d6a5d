/* Samples ready ahead of the step: worker threads decode and encode, the step takes them in order. */
#ifndef DSVI_PREFETCH_H
#define DSVI_PREFETCH_H

#include "data/dataset.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a latent of the pixels of one sample; called from worker threads, several at once. */
typedef DsvStatus dsvi_encode_fn(void *context, const float *pixels, float *latent);

typedef struct DsvPrefetch DsvPrefetch;

/* Numbers of samples: `run` of them from `first` on, as many from `first` + `stride` on, and so forth. A rank
 * alone has them all: run equals stride. */
typedef struct DsvSampleSeries {
    uint64_t first, run, stride;
} DsvSampleSeries;

/* What data.workers=0 goes by. */
typedef struct DsvPrefetchShare {
    bool computes;   /* the cores have the steps to compute */
    int64_t cores;   /* usable by this process */
    int64_t ranks;   /* on this machine */
    uint64_t memory; /* bytes of the machine; 0: not known */
} DsvPrefetchShare;

/* How many threads prepare samples: data.workers, or where that is 0 one beside steps on the CPU, else one
 * less than this rank's share of the cores, at most 8, fewer where what they and the ring hold would pass
 * half of the memory on all ranks of the machine; never more than slots. */
int64_t dsvi_prefetch_workers(const DsvDataset *dataset, const DsvConfig *settings, int64_t slots,
                              int64_t latent_elements, const DsvPrefetchShare *share);

/* Starts `workers` threads that prepare the samples of `series` in order into a ring of `slots` latents of
 * `latent_elements` F32, allocated here and never again; threads beyond `slots` would never work, and are not
 * started. `encode` turns pixels (3, num_frames, height, width) into a latent; it is not called for cached
 * latents. The dataset must outlive it. A sample that cannot be read is replaced as dsvi_dataset_sample_again
 * says, so that it still depends on its number alone; its item is reported once through `warn`, from inside
 * dsvi_prefetch_next. */
DsvStatus dsvi_prefetch_start(const DsvDataset *dataset, const DsvConfig *settings,
                              DsvSampleSeries series, int64_t workers, int64_t slots,
                              int64_t latent_elements, dsvi_encode_fn *encode, void *encode_context,
                              void (*warn)(void *context, const char *line), void *warn_context,
                              DsvPrefetch **out);

/* Waits for the next sample and copies its latent; *text (owned by the dataset) may be NULL afterwards.
 * *passed_over: how many windows could not be read before the one that it was made of; 0: it is the one
 * drawn. A failure, a worker's included, is final: so is the next call's. */
DsvStatus dsvi_prefetch_next(DsvPrefetch *prefetch, float *latent, const char **text, int64_t *passed_over);

/* Bytes held by the ring, the frames being decoded and the clips kept (once all of them are). */
size_t dsvi_prefetch_bytes(const DsvPrefetch *prefetch);

void dsvi_prefetch_stop(DsvPrefetch **prefetch);

#ifdef __cplusplus
}
#endif
#endif
