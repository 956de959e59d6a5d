/* Keeps latents of a latent cache in host memory, between the files and the ring of samples.
 *
 * The order of a rank's samples is known in advance, because it depends on the seed alone. The tier therefore
 * evicts the latent whose next use is farthest away, and does not keep a latent whose next use is farther
 * than those of all others (L. A. Belady, "A study of replacement algorithms for a virtual-storage computer",
 * IBM Syst. J. 5, 1966). If all latents have one size and all samples are known this gives the largest
 * possible number of hits. What is kept never changes what is read. */
#ifndef DSVI_LATENT_TIER_H
#define DSVI_LATENT_TIER_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLatentTier DsviLatentTier;

typedef struct DsviLatentTierArgs {
    size_t bytes_max; /* largest sum of the kept latents */
    int64_t items;    /* number of latents */
    int64_t ahead;    /* number of following samples of which the tier knows the latents, 1 or more */
    /* Return the latent of the rank's index-th sample, 0 to items - 1, and the number of its F32 elements. */
    int64_t (*item_of)(void *context, uint64_t index);
    int64_t (*elements_of)(void *context, int64_t item);
    void *context;
} DsviLatentTierArgs;

/* How a sample gets its latent. */
typedef struct DsviLatentPlace {
    int64_t item;
    enum { DSVI_LATENT_DIRECT, DSVI_LATENT_LOAD, DSVI_LATENT_HIT } way;
} DsviLatentPlace;

DsvStatus dsvi_latent_tier_create(const DsviLatentTierArgs *args, DsviLatentTier **out);

/* Decides for the next sample: the n-th call is for sample n - 1. Calls item_of at most 64 times, so that the
 * first calls know fewer samples than `ahead`. Several threads must call one at a time.
 * Each decision must be followed by one dsvi_latent_tier_read. */
DsviLatentPlace dsvi_latent_tier_plan(DsviLatentTier *tier);

/* Reads the latent of `place` as dsvi_latent_read does: from memory, or from `file`. Several threads may call
 * at once. A thread whose latent another one is reading waits for it. */
DsvStatus dsvi_latent_tier_read(DsviLatentTier *tier, DsviLatentPlace place, const char *file,
                                int64_t elements, float *latent);

/* Returns how many decisions found their latent in memory. */
int64_t dsvi_latent_tier_hits(const DsviLatentTier *tier);

void dsvi_latent_tier_free(DsviLatentTier **tier);

#ifdef __cplusplus
}
#endif
#endif
