/* Implements dealer.h. */
#include "train/dealer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct DsviDealer {
    DsviDealerArgs args;
    double *size_cost;    /* (sizes) */
    pthread_mutex_t lock; /* protects the fields below */
    bool valid;           /* `deal` is that of the step that begins with batch `first` */
    uint64_t first;
    DsviDeal deal;
};

DsvStatus dsvi_dealer_create(const DsviDealerArgs *args, DsviDealer **out)
{
    size_t ranks = (size_t)args->ranks, count = ranks * (size_t)args->passes, sizes = (size_t)args->sizes;
    DsviDealer *d = *out = calloc(1, sizeof *d);
    if (!d)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to deal batches");
    d->args = *args;
    d->deal = (DsviDeal){.ranks = args->ranks, .passes = args->passes};
    pthread_mutex_init(&d->lock, NULL);
    d->size_cost = calloc(sizes, sizeof(double));
    d->deal.cost = calloc(count, sizeof(double));
    d->deal.load = calloc(ranks, sizeof(double));
    d->deal.dealt = calloc(count, sizeof(int64_t));
    d->deal.order = calloc(count, sizeof(int64_t));
    if (!d->size_cost || !d->deal.cost || !d->deal.load || !d->deal.dealt || !d->deal.order) {
        dsvi_dealer_free(out);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory to deal %zu batches", count);
    }
    memcpy(d->size_cost, args->cost, sizes * sizeof(double));
    return DSV_OK;
}

void dsvi_dealer_free(DsviDealer **dealer)
{
    DsviDealer *d = *dealer;
    if (!d)
        return;
    pthread_mutex_destroy(&d->lock);
    free(d->size_cost);
    free(d->deal.cost);
    free(d->deal.load);
    free(d->deal.dealt);
    free(d->deal.order);
    free(d);
    *dealer = NULL;
}

static int64_t batch_size(const DsviDealer *d, uint64_t batch)
{
    return d->args.size_of ? d->args.size_of(d->args.context, batch) : 0;
}

/* Deals the batches of the step that begins with batch `first`, unless they are dealt already. */
static void deal_step(DsviDealer *d, uint64_t first)
{
    if (d->valid && d->first == first)
        return;
    for (int64_t i = 0; i < d->deal.ranks * d->deal.passes; i++)
        d->deal.cost[i] = d->size_cost[batch_size(d, first + (uint64_t)i)];
    dsvi_deal(&d->deal);
    d->first = first;
    d->valid = true;
}

uint64_t dsvi_dealer_batch(DsviDealer *d, uint64_t first, int64_t rank, int64_t pass, int64_t *size)
{
    uint64_t batch = first + (uint64_t)(pass * d->args.ranks + rank);
    /* a single rank has nothing to share, and keeps the order of the numbers */
    if (d->args.sizes > 1 && d->args.balance && d->args.ranks > 1) {
        pthread_mutex_lock(&d->lock);
        deal_step(d, first);
        batch = first + (uint64_t)d->deal.dealt[rank * d->args.passes + pass];
        pthread_mutex_unlock(&d->lock);
    }
    if (size)
        *size = batch_size(d, batch);
    return batch;
}
