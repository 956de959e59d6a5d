/* The sizes (buckets) of a run's clips: assigns them, reports them, and numbers the samples of a rank. */
#ifndef DSVI_RUN_SIZES_H
#define DSVI_RUN_SIZES_H

#include "data/dataset_sizes.h"
#include "model/codec/codec.h"
#include "model/dit/dit_config.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Assigns the items of an open data set to the sizes of data.buckets (dsvi_dataset_assign). Clips become
 * items of one window, unless codec.name is wan: such clips are encoded whole before the run. */
DsvStatus dsvi_run_sizes_assign(DsviDataset *dataset, const DsvConfig *settings, const DsviCodec *codec,
                                const DsviDitConfig *config);

/* Reports each size with its clips, windows, batches of an epoch and tokens through `line`, if data.buckets
 * is set. */
void dsvi_run_sizes_report(const DsviDataset *dataset, const DsvConfig *settings, const DsviCodec *codec,
                           const DsviDitConfig *config, void (*line)(void *context, const char *text),
                           void *context);

/* What dsvi_run_sizes_of_batch reads; both must outlive the trainer. */
typedef struct DsviRunSizes {
    const DsviDataset *dataset;
    const DsvConfig *settings;
} DsviRunSizes;
/* Returns the size of a batch (dsvi_batch_size_fn); context: a DsviRunSizes. */
int64_t dsvi_run_sizes_of_batch(void *context, uint64_t batch);

/* What dsvi_run_sizes_number reads. */
typedef struct DsviRunNumbers {
    DsviDealer *dealer;
    uint64_t first; /* the first sample of the step with which the numbers begin */
    int64_t batch, passes, ranks, rank;
} DsviRunNumbers;
/* Prepares the numbers of the samples that the rank of `trainer` reads from now on, between two steps. A run
 * that is resumed with another train_batch_size leaves out the samples up to the next whole batch. */
void dsvi_run_sizes_begin(DsviTrainer *trainer, DsviRunNumbers *out);
/* Returns the number of the rank's index-th sample (dsvi_sample_number_fn); context: a DsviRunNumbers. */
uint64_t dsvi_run_sizes_number(void *context, uint64_t index);

#ifdef __cplusplus
}
#endif
#endif
