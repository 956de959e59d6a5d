/* A small model on one or several ranks that are threads, each on the CPU or with a GPU of its own, fed with
 * latents that are functions of the sample's number: what n ranks see is what one rank sees whose batch is n
 * times as large. */
#ifndef DSVI_TEST_TRAIN_RIG_H
#define DSVI_TEST_TRAIN_RIG_H

#include "local_ranks.h"
#include "train/step.h"

enum { RIG_STEPS_MOST = 16, RIG_BLOCKS_MOST = 12, RIG_SAMPLES = 4 };

/* What happened on one rank. */
typedef struct RigRank {
    DsvStepResult step[RIG_STEPS_MOST];
    uint64_t sent[RIG_STEPS_MOST]; /* bytes, by the end of each step */
    DsvArena plan, host_plan;
    unsigned char *work;     /* (work_bytes) what a pass computes with after the last step */
    int64_t work_bytes;
    float *weights, *moment1, *moment2, *ema; /* (elements) of all ranks together; of rank 0 */
    int64_t elements, own, largest; /* of a packed array, of the largest bucket */
    int64_t own_work, largest_work; /* the same in bytes of what passes compute with */
    int64_t own_first_two, own_last_two; /* of the buckets that a pass begins and ends with */
    DsvSparseReport report;
    double captured[RIG_BLOCKS_MOST], density[RIG_BLOCKS_MOST]; /* of each block */
    bool sparse[RIG_BLOCKS_MOST];
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
    int64_t samples;               /* in a micro-batch of all ranks together; 0: RIG_SAMPLES */
    int64_t stage;                 /* zero_stage; 0: as assigned */
    int64_t shard_ranks;           /* hsdp_shard_dim */
    int64_t context_ranks;         /* cp_size; 0: 1 */
    int64_t head_ranks;            /* cp_heads */
    size_t memory_bytes;           /* that the device of each rank has; 0: as it is */
    size_t host_bytes;             /* that the machine has, likewise */
    bool free;                     /* not deterministic: times decide on plans */
    DsvStatus (*between)(DsvTrainer *trainer, int step); /* before steps from 0 on; or NULL */
    int steps;
    RigFault fault;
    int64_t fault_rank, fault_step;
    RigRank rank[RANKS_MOST];
    RankOutcome outcome[RANKS_MOST];
} Rig;

/* Trains on rig->ranks ranks, each context group with its part of the samples as a batch. */
void rig_train(Rig *rig);
void rig_free(Rig *rig);
/* Every rank has ended for what rank fault_rank met at fault_step, which was not finite. */
void rig_expect_diverged(const Rig *rig);

/* All ranks have ended with the same weights, decisions and records. */
void rig_same_on_all_ranks(const Rig *rig);
/* Both have had the same samples, and end as closely alike as `bound` says, relative. */
void rig_close_to(const Rig *one, const Rig *many, double bound);

/* Whether two GPUs can train together here; else says why not. */
bool rig_two_gpus(void);

#endif
