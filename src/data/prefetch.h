/* Prepares samples ahead of the training step: worker threads decode clips and encode them to latents, and
   the training step takes samples in order. */
#ifndef DSVI_PREFETCH_H
#define DSVI_PREFETCH_H

#include "data/dataset.h"
#include "data/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Encodes the pixels of one sample of size number `size` to a latent; called from several worker threads at
 * once. */
typedef DsvStatus dsvi_encode_fn(void *context, int64_t size, const float *pixels, float *latent);
/* Returns the number of the rank's index-th sample; called from several worker threads at once. */
typedef uint64_t dsvi_sample_number_fn(void *context, uint64_t index);

typedef struct DsviPrefetch DsviPrefetch;

/* The numbers of the samples that a rank reads: `run` consecutive numbers from `first`, then `run` numbers
 * from `first` + `stride`, and so on. A single rank reads all samples: run equals stride. */
typedef struct DsviSampleSeries {
    uint64_t first, run, stride;
} DsviSampleSeries;

/* The resources from which data.workers=0 derives the number of workers. */
typedef struct DsviPrefetchResources {
    bool computes;   /* training steps are computed on the CPU cores */
    int64_t cores;   /* cores usable by this process */
    int64_t ranks;   /* ranks on this machine */
    uint64_t memory; /* bytes of memory of the machine; 0: unknown */
} DsviPrefetchResources;

/* Returns the number of worker threads, at most `slots`: data.workers if it is > 0. Otherwise 1 if steps are
 * computed on the CPU, else one less than this rank's share of the cores, at most 8; fewer if the workers and
 * ring buffers of all ranks would take more than half of the machine's memory. */
int64_t dsvi_prefetch_workers(const DsviDataset *dataset, const DsvConfig *config, int64_t slots,
                              int64_t latent_elements, const DsviPrefetchResources *share);

/* Arguments of dsvi_prefetch_start. */
typedef struct DsviPrefetchArgs {
    const DsviDataset *dataset; /* must outlive the prefetch */
    const DsvConfig *config;    /* must outlive the prefetch */
    DsviSampleSeries series;
    dsvi_sample_number_fn *number; /* replaces `series`, unless NULL */
    void *number_context;
    int64_t workers;         /* threads; at most `slots` are started, because more would have nothing to do */
    int64_t slots;           /* number of latents in the ring buffer */
    int64_t latent_elements; /* floats of the largest latent */
    const int64_t
        *size_elements; /* (sizes of the data set) floats of a latent of each size; NULL: one size */
    int64_t text_rows;  /* largest number of text states of a sample; 0: they are not read */
    /* Encodes pixels (3, frames, height, width); not called for cached latents. */
    dsvi_encode_fn *encode;
    void *encode_context;
    /* Receives one line for each item that cannot be read, called from inside dsvi_prefetch_next; or NULL. */
    void (*warn)(void *context, const char *line);
    void *warn_context;
} DsviPrefetchArgs;

/* Starts the worker threads. They prepare the samples of args->series in order, in a ring of latents. All
 * memory is allocated here. A sample that cannot be read is replaced as dsvi_dataset_sample_again defines, so
 * that the result still depends only on its number. */
DsvStatus dsvi_prefetch_start(const DsviPrefetchArgs *args, DsviPrefetch **out);

/* Waits for the next sample, copies its latent and, if args->text_rows was above 0, its text states, and sets
 * the other fields of *sample. sample->caption is owned by the dataset. A failure, also in a worker, is
 * final: all later calls fail too. */
DsvStatus dsvi_prefetch_next(DsviPrefetch *prefetch, DsviSample *sample);

/* Returns how many of the samples that dsvi_prefetch_next returned took the place of unreadable ones. */
int64_t dsvi_prefetch_replaced(const DsviPrefetch *prefetch);

/* Returns the bytes of the ring, of the frames being decoded, and of the cache of clips once it is full. */
size_t dsvi_prefetch_bytes(const DsviPrefetch *prefetch);

void dsvi_prefetch_stop(DsviPrefetch **prefetch);

#ifdef __cplusplus
}
#endif
#endif
