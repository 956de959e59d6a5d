/* What the blocks of a pass keep of their activations, for clips of one size: the fastest choices in each
 * amount of device memory (train/block_plan.h), for several sets of ways that blocks may take. Times are
 * predicted with DsviTrainer.speeds. */
#ifndef DSVI_SIZE_PLANS_H
#define DSVI_SIZE_PLANS_H

#include "device/carve.h"
#include "train/block_plan.h"
#include "train/trainer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets of ways. The first three have one way each: every block keeps all, the input and the output of
 * attention, or the input. The sets from DSVI_WAY_SETS_ON_DEVICE on have ways that wait in host memory. */
enum { DSVI_WAY_SETS = 13, DSVI_WAY_SETS_ON_DEVICE = 7 };

/* Returns what way number `way` of a DsviBlockPlan keeps. */
DsviDitKept dsvi_block_way(int way);

typedef struct DsviSizePlans {
    int64_t forward, backward;    /* picoseconds of a block, without computing again */
    double ends;                  /* seconds of embeddings and head in both passes */
    size_t before[DSVI_WAY_SETS]; /* bytes of a pass beside those of the plans of a set */
    DsviBlockPlans plans[DSVI_WAY_SETS];
} DsviSizePlans;

typedef struct DsviSizePlansArgs {
    int64_t index;          /* number of the size */
    double link;            /* bytes per second for copies of activations */
    size_t limit;           /* bytes; plans whose activations take more are not wanted */
    dsvi_layout_fn *layout; /* takes the trainer's device memory */
} DsviSizePlansArgs;

/* Finds the plans of one of the trainer's sizes. Changes what the size's blocks keep. *out must be zero
 * before; the caller frees it, also after a failure. */
DsvStatus dsvi_size_plans_find(DsviTrainer *trainer, const DsviSizePlansArgs *args, DsviSizePlans *out);
void dsvi_size_plans_free(DsviSizePlans *plans);

/* Sets *out to the fastest plan of the sets [first, end) that takes at most `bytes` of memory of a pass, or
 * with `least` to the plan that takes the least. Returns the memory that the plan takes; 0: there is no plan.
 */
size_t dsvi_size_plans_choose(const DsviSizePlans *plans, int first, int end, size_t bytes, bool least,
                              const DsviBlockPlan **out);

#ifdef __cplusplus
}
#endif
#endif
