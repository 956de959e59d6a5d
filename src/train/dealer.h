/* Tells every rank which batch it trains on in each pass of each step.
 *
 * Batch number b consists of the samples b * train_batch_size and the following ones, and has one size. A
 * step that begins with batch `first` trains on the next ranks x passes batches. With one size, or without
 * data.balance, rank r trains in pass p on batch first + p * ranks + r; otherwise dsvi_deal decides by
 * predicted costs. The answer is a function of the configuration, the data and the batch numbers. */
#ifndef DSVI_DEALER_H
#define DSVI_DEALER_H

#include <stdbool.h>

#include "base/status.h"
#include "train/deal.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the number of the size of a batch. NULL: all batches have size 0. */
typedef int64_t dsvi_batch_size_fn(void *context, uint64_t batch);

typedef struct DsviDealerArgs {
    int64_t ranks, passes; /* data-parallel ranks, and passes of a step */
    int64_t sizes;
    const double *cost; /* (sizes) predicted cost of a batch of each size */
    bool balance;
    dsvi_batch_size_fn *size_of;
    void *context;
} DsviDealerArgs;

typedef struct DsviDealer DsviDealer;

/* Copies the costs. */
DsvStatus dsvi_dealer_create(const DsviDealerArgs *args, DsviDealer **out);
void dsvi_dealer_free(DsviDealer **dealer);

/* Returns the number of the batch, and sets *size (may be NULL). Several threads may call at once. */
uint64_t dsvi_dealer_batch(DsviDealer *dealer, uint64_t first, int64_t rank, int64_t pass, int64_t *size);

#ifdef __cplusplus
}
#endif
#endif
