/* A small model on one or several ranks that are threads, each on the CPU or with a GPU of its own, fed with
 * latents that are functions of the sample's number: what n ranks see is what one rank sees whose batch is n
 * times as large. */
#ifndef DSVI_TEST_TRAIN_RIG_H
#define DSVI_TEST_TRAIN_RIG_H

#include "local_ranks.h"
#include "train/step.h"

enum { RIG_STEPS_MOST = 16, RIG_SAMPLES = 4 }; /* in a micro-batch of all ranks together */

/* What happened on one rank. */
typedef struct RigRank {
    DsvStepResult step[RIG_STEPS_MOST];
    DsvCommSent sent[RIG_STEPS_MOST]; /* by the end of each step */
    DsvArena plan;
    float *weights;          /* (elements) after the last step */
    float *moment1, *moment2, *ema; /* (elements) of all ranks together; of rank 0 */
    int64_t elements, own;
    DsvSparseReport report;
    double captured[8], density[8]; /* of each block */
    bool sparse[8];
} RigRank;

/* What goes wrong on one rank, if anything does. */
typedef enum RigFault {
    RIG_SOUND,
    RIG_NO_SAMPLE,      /* the source fails */
    RIG_NAN_SAMPLE,
    RIG_NAN_GRADIENT    /* found nowhere in the loss */
} RigFault;

typedef struct Rig {
    const char *device;            /* "cpu" or "cuda" */
    const char *const *assignment; /* over tiny_settings; up to NULL */
    int64_t ranks;
    int steps;
    RigFault fault;
    int64_t fault_rank, fault_step;
    RigRank rank[RANKS_MOST];
    RankOutcome outcome[RANKS_MOST];
} Rig;

/* Trains on rig->ranks ranks, each with a batch of RIG_SAMPLES / ranks. */
void rig_train(Rig *rig);
void rig_free(Rig *rig);

#endif
