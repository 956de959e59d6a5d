/* Trains a small model on one or several ranks that are threads, each on the CPU or on its own GPU. Latents
 * are functions of the sample's number: n ranks see the same samples as one rank whose batch is n times as
 * large. */
#ifndef DSVI_TEST_TRAIN_RIG_H
#define DSVI_TEST_TRAIN_RIG_H

#include "local_ranks.h"
#include "train/step.h"

enum { RIG_STEPS_MAX = 20, RIG_BLOCKS_MAX = 12, RIG_SAMPLES = 4 };

/* Results of one rank. */
typedef struct RigRank {
    DsviStepResult step[RIG_STEPS_MAX];
    uint64_t sent[RIG_STEPS_MAX]; /* bytes sent until the end of each step */
    DsviArena plan, host_plan;
    unsigned char *work; /* (work_bytes) the weights for computing, after the last step */
    int64_t work_bytes;
    float *weights, *moment1, *moment2, *ema; /* (elements) gathered from all ranks; set on rank 0 only */
    int64_t elements, own, largest; /* elements: of the array, of this rank's shard, of the largest bucket */
    int64_t own_work, largest_work; /* the same for weights for computing, in bytes */
    int64_t own_first_two, own_last_two; /* this rank's bytes of the first two and last two buckets */
    DsviSparseReport report;
    double captured[RIG_BLOCKS_MAX], density[RIG_BLOCKS_MAX]; /* of each block */
    bool sparse[RIG_BLOCKS_MAX];
} RigRank;

/* The fault that is injected on one rank. */
typedef enum RigFault {
    RIG_SOUND,
    RIG_NO_SAMPLE, /* the source fails */
    RIG_NAN_SAMPLE,
    RIG_NAN_GRADIENT /* the loss stays finite */
} RigFault;

typedef struct Rig {
    const char *device;            /* "cpu" or "cuda" */
    const char *const *assignment; /* options that replace those of tiny_settings; ends with NULL */
    int64_t ranks;
    int64_t samples;     /* in a micro-batch, all ranks together; 0: RIG_SAMPLES */
    int64_t stage;       /* zero_stage; 0: the value in `assignment` */
    int64_t shard_ranks; /* hsdp_shard_dim */
    bool text;           /* samples have text states, as many rows as depend on the sample's number */
    int64_t only_size;   /* with data.buckets: 1 + the size of all batches; 0: all sizes occur */
    int64_t cp_ranks;    /* cp_size; 0: 1 */
    int64_t head_ranks;  /* cp_heads */
    size_t memory_bytes; /* simulated device memory of each rank; 0: the real memory */
    size_t host_bytes;   /* simulated host memory of the machine; 0: the real memory */
    bool free;           /* not deterministic: measured times decide plans */
    DsvStatus (*between)(DsviTrainer *trainer, int step); /* called before every step; or NULL */
    int steps;
    RigFault fault;
    int64_t fault_rank, fault_step;
    RigRank rank[RANKS_MAX];
    RankOutcome outcome[RANKS_MAX];
} Rig;

/* Trains on rig->ranks ranks; each cp group has its part of the samples as its batch. */
void rig_train(Rig *rig);
void rig_free(Rig *rig);
/* Checks that all ranks ended because of the value that was not finite on fault_rank at fault_step. */
void rig_expect_diverged(const Rig *rig);

/* Checks that all ranks have the same weights, decisions and records at the end. */
void rig_same_on_all_ranks(const Rig *rig);
/* Checks that two trainings have the same bits: loss and norm of the gradient of each step of `a`, and at the
 * end weights, moments, moving average (unless there is none), and each rank's weights for computing. */
void rig_same_bits(const Rig *a, const Rig *b);
/* Checks that two trainings with the same samples end with a relative difference of at most `bound`. */
void rig_close_to(const Rig *one, const Rig *many, double bound);

/* Checkpoints that move from one training to another. rig_checkpoints_begin makes two folders. For
 * Rig.between: rig_save_after_three_steps saves to the first folder; rig_load_then_save, before the first
 * step, loads this checkpoint and saves it to the second folder. rig_same_checkpoints checks that both
 * folders have the same files. rig_checkpoints_end removes the folders. */
void rig_checkpoints_begin(void);
DsvStatus rig_save_after_three_steps(DsviTrainer *trainer, int step);
DsvStatus rig_load_then_save(DsviTrainer *trainer, int step);
void rig_same_checkpoints(void);
void rig_checkpoints_end(void);

/* Returns whether two GPUs can train together on this machine; else prints the reason. */
bool rig_two_gpus(void);

#endif
