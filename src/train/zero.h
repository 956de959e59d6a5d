/* Weights, gradients and optimizer state of a model in training, divided over the ranks of a shard group as
 * the option zero_stage says (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion
 * Parameter Models"; PyTorch's FSDP is similar).
 *
 *                                         stage 1    stage 2              stage 3
 *     master weights, EMA                 shard      shard                shard                 F32
 *     moments                             shard      shard                shard                 moments.h
 *     gradients                           whole      shard + two buckets  shard + two buckets   F32
 *     compute weights                     whole      whole                shard + two buckets
 *
 * "shard" is the part of each bucket that a rank keeps (dist/shard.h). A bucket is a contiguous range of the
 * parameters, usually those of one block (model/weights/weights.h). Stages 2 and 3 have two bucket buffers,
 * so that transfers overlap with computing: while one block computes, a background thread (dist/comm_queue.h)
 * gathers the weights of the next block and sums the gradients of the previous one. Compute weights are the
 * weights that passes read: GEMM weights in the compute dtype and the others in F32. If the compute dtype is
 * F32, the compute weights are the master weights. A rank without other ranks keeps everything whole.
 *
 * With offload=states, "state" being the master weights, moments and EMA, the state of the buckets before
 * `hosted` waits in host memory from one update to the next (zero_offload.c). If the compute dtype is F32,
 * the master weights stay on the device, because passes read them.
 *
 * With offload=weights all state waits in host memory, and so do the compute weights of some or all blocks,
 * from one use to the next, and the gradients of all blocks, from the backward pass to the update
 * (zero_lend.c).
 *
 * The state that waits is updated on the device, to which it travels, or where it waits, by the CPU
 * (offload_update; zero_host_update.c).
 *
 * A rank without others that offloads something, in steps of one micro-batch without gradient clipping,
 * updates the weights of each bucket during the backward pass, as soon as their gradients are complete.
 * Gradients then take the memory of one bucket, and copies of state are hidden behind the pass. The same
 * kernels run on the same values, so the bits are the same.
 *
 * Sums over ranks are formed in rank order at every stage. Without gradient accumulation all stages therefore
 * give the same bits. With gradient accumulation they differ by rounding, because stages 2 and 3 sum over
 * ranks after each micro-batch and stage 1 once per step. If there are several shard groups (hsdp_shard_dim),
 * ranks of different groups that keep the same shard (replicas) then add the sums of their groups. */
#ifndef DSVI_ZERO_H
#define DSVI_ZERO_H

#include "base/arena.h"
#include "dist/comm_queue.h"
#include "dist/mesh.h"
#include "dist/shard.h"
#include "model/dit/dit_lent.h"
#include "ops/ops.h"
#include "train/moments.h"
#include "train/muon.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A buffer that can hold any one bucket. */
typedef struct DsviZeroBuffer {
    void *memory;
    int64_t bucket; /* the bucket in the buffer; -1: none */
    int64_t queued; /* number in the queue of the transfer that fills the buffer or sums its contents */
    const unsigned char *shard; /* of a gathered bucket: this rank's shard */
} DsviZeroBuffer;

/* The arrays of the state that an update reads and writes. */
typedef enum DsviStateArray {
    DSVI_STATE_MASTER,
    DSVI_STATE_EXP_AVG, /* moment 0 */
    DSVI_STATE_EXP_AVG_SCALES,
    DSVI_STATE_EXP_AVG_SQ, /* moment 1 */
    DSVI_STATE_EXP_AVG_SQ_SCALES,
    DSVI_STATE_EMA,
    DSVI_STATE_ARRAYS
} DsviStateArray;

/* Buckets whose state can be on the device at once, if it waits in host memory: one is uploaded, one updated
 * and one downloaded. Slots for compute weights and gradients of blocks are as many. */
enum { DSVI_STATE_SLOTS = 3 };

/* Slots of host memory for a bucket's gradients, and for its new compute weights, if the CPU updates: it
 * works on one bucket while the other slots' copies run. */
enum { DSVI_HOST_SLOTS = 2 };

/* Weights are exchanged with their moving average in pieces of this size. */
enum { DSVI_SWAP_BYTES = 4 << 20 };

typedef struct DsviZero {
    DsviBackend *backend;
    const DsviParamTable *table;
    const DsviMesh *mesh;
    DsviDtype act;
    DsviComm *shard_comm, *replica_comm; /* groups for device memory */
    DsviComm *joined[2];  /* those of shard_comm and replica_comm that dsvi_zero_open created and
                             dsvi_zero_free closes */
    void *workspace;      /* device memory for sums over ranks: a part that shard_comm and replica_comm share,
                           * and after it a part for the group of all ranks */
    DsviCommQueue *queue; /* runs transfers in the background; NULL: one rank */
    DsviShard shard;      /* division of F32 arrays among the ranks, in elements */
    DsviShard compute_shard; /* division of the compute weights among the ranks, in bytes */
    bool compute_whole; /* every rank has the compute weights of all parameters (stages 1 and 2), not only its
                           shard */
    bool last_pass;     /* the current or next backward pass is the last of its training step */
    bool fresh;         /* the first backward pass of a step has not ended yet */
    bool grad_elsewhere;  /* grad.data is memory of the caller (dsvi_zero_grad_begin) */
    bool updates_in_pass; /* the backward pass updates each bucket when its gradients are complete */
    DsviAdamwArgs update; /* with updates_in_pass: options of the update in the current pass */

    unsigned char *compute;     /* compute weights: whole, or this rank's shard */
    DsviZeroBuffer gathered[2]; /* stage 3: compute weights; bucket b is in gathered[b % 2] */
    DsviShardArray master;
    DsviShardArray grad;      /* flat: whole; packed: this rank's shard */
    DsviZeroBuffer summed[2]; /* stages 2 and 3: gradients; bucket b is in summed[b % 2] */
    DsviMoments moments;
    DsviMuon muon; /* with optimizer=muon */
    double muon_momentum;
    bool *frozen;       /* (table->count) parameters that are not trained (train_modules.h); NULL: none */
    DsviShardArray ema; /* moving average; data is NULL if ema_decay is 0 */
    void *swap; /* device memory of DSVI_SWAP_BYTES for dsvi_zero_swap_ema; NULL without validation.ema */

    /* State in host memory. `master`, `moments` and `ema` then have the shards of the other buckets only. */
    int64_t hosted;                               /* buckets [0, hosted) wait in host memory; 0: none */
    unsigned char *host_state[DSVI_STATE_ARRAYS]; /* packed shards of these buckets, host memory; NULL: all of
                                                   * the array is on the device */
    unsigned char *slot[DSVI_STATE_ARRAYS][DSVI_STATE_SLOTS]; /* device memory for the state of one bucket;
                                                               * bucket b uses slot b % DSVI_STATE_SLOTS */
    int64_t uploaded; /* the state of buckets [0, uploaded) has been uploaded for the next update, or for the
                       * current one */

    /* The update in host memory (zero_host_update.c). */
    bool host_update;                       /* the CPU updates the buckets before `hosted` */
    float *host_grad_slot[DSVI_HOST_SLOTS]; /* host memory for this rank's shard of the gradients of any such
                                             * bucket; bucket b uses slot b % DSVI_HOST_SLOTS */
    unsigned char *host_weight_slot[DSVI_HOST_SLOTS]; /* the same for compute weights */
    int64_t next_update; /* with updates_in_pass: the bucket whose gradients are on their way to the host, to
                          * be updated next; -1: none */

    /* Blocks in host memory (zero_lend.c). Block i is bucket i + 1. */
    DsviDitLent lent;       /* blocks whose compute weights wait there; count 0: none */
    bool grads_wait;        /* the gradients of all blocks wait there from the backward pass to the update */
    bool grads_sent;        /* those of the current step have been sent there */
    int64_t *compute_begin; /* (buckets + 1) byte of `compute` at which each bucket begins; lent blocks take
                             * no place */
    int64_t *grad_begin;    /* (buckets + 1) the same of elements of grad.data; gradients that wait take no
                             * place */
    unsigned char *host_weights;                  /* compute weights of lent blocks: this rank's shards */
    float *host_grads;                            /* gradients of blocks: this rank's shards */
    unsigned char *weight_slot[DSVI_STATE_SLOTS]; /* device memory for a shard of any lent block, in which
                                                   * updates write; passes read the first two (lent.slot), or
                                                   * with updates_in_pass others */
    float *grad_slot[DSVI_STATE_SLOTS]; /* device memory for this rank's shard of the gradients of any block
                                         * (with updates_in_pass: of any bucket), used in turn
                                         * (dsvi_zero_grad_slot) */

    double *square;       /* (buckets) sums of squares of this rank's shard of the summed
                           * gradients; device memory */
    double *local_square; /* (buckets) sums of squares of this rank's gradients before the sum
                           * over ranks; device memory */
    double *host_square;  /* (buckets) host memory */
    void *host_bucket;    /* host memory for any one bucket of an array, for dsvi_zero_store and _fetch */
} DsviZero;

/* Computes the division of the parameters in `table`. Keeps pointers to backend, mesh and table. */
DsvStatus dsvi_zero_make(const DsvConfig *settings, DsviBackend *backend, const DsviMesh *mesh,
                         const DsviParamTable *table, DsviZero *out);
void dsvi_zero_free(DsviZero *zero); /* accepts a zeroed struct */

/* With gradient_accumulation_steps=1 the caller provides the memory grad.data, so that it can share memory
 * with activations. Returns (buckets + 1) elements: where each bucket's gradients begin in grad.data, and
 * where the last end. The memory of a bucket may hold anything until the backward pass acquires the bucket.
 * Otherwise returns NULL, and dsvi_zero_carve takes the memory. */
const int64_t *dsvi_zero_grad_begin(const DsviZero *zero);

/* Lets the CPU update what waits in host memory, or the device. Call before dsvi_zero_host_state and
 * dsvi_zero_lend. The CPU needs dsvi_zero_can_update_on_host. */
void dsvi_zero_update_on_host(DsviZero *zero, bool host);
/* Returns whether the CPU can do the update: AdamW, with master weights that are not the compute weights. */
bool dsvi_zero_can_update_on_host(const DsviZero *zero);
/* Returns the bytes of state that waits in host memory. */
size_t dsvi_zero_waiting_state(const DsviZero *zero, const DsvConfig *settings);

/* Keeps the state of buckets [0, buckets) in host memory from now on; 0 <= buckets <= shard.buckets. Call
 * before memory is carved. */
void dsvi_zero_host_state(DsviZero *zero, int64_t buckets);

/* Keeps all state in host memory from now on, the compute weights of `blocks` blocks, spread evenly among the
 * others, and with gradient_accumulation_steps=1 the gradients of all blocks; each rank what it keeps of
 * them. Call before memory is carved. Needs dsvi_zero_can_lend; 0 <= blocks <= dsvi_zero_blocks. A later call
 * of dsvi_zero_host_state undoes it. */
void dsvi_zero_lend(DsviZero *zero, int64_t blocks);
/* Returns whether compute weights are not the master weights, and no rank keeps those of other ranks. */
bool dsvi_zero_can_lend(const DsviZero *zero);
/* Returns the number of blocks of the model: all buckets but the first and the last. */
int64_t dsvi_zero_blocks(const DsviZero *zero);

/* Takes the device memory of weights, gradients and optimizer state from the arena. The memory that the
 * arena provides must be zero. */
void dsvi_zero_carve(DsviZero *zero, const DsvConfig *settings, DsviArena *arena);
/* Takes from `arena` the host memory for sums of squares of the gradients and for one bucket. */
void dsvi_zero_carve_host(DsviZero *zero, DsviArena *arena);

/* Takes from `arena` the host memory for what waits there between uses. Copies are fastest if the memory is
 * page-locked (DsviDevice.host_alloc), but any host memory works. */
void dsvi_zero_carve_state(DsviZero *zero, const DsvConfig *settings, DsviArena *arena);

/* Creates the groups and the queue for transfers. Call after the arenas have memory. `device_all` is the
 * group of all ranks for device memory. */
DsvStatus dsvi_zero_open(DsviZero *zero, DsviComm *device_all);

/* Returns callbacks with which a model acquires and releases compute weights bucket by bucket
 * (model/dit/dit.h). At stage 3 all ranks must run the same passes in the same order. */
DsviDitWeights dsvi_zero_weights(DsviZero *zero);

/* Starts the gradients of a step at zero; the backward passes of the step add to them. Memory is not cleared
 * if the first backward pass overwrites it: the gradients of GEMM weights if gradients are whole, or the sum
 * over ranks if gradients are divided and the step has one pass. */
DsvStatus dsvi_zero_clear_gradients(DsviZero *zero);
/* With updates_in_pass, call before each backward pass instead of dsvi_zero_update after it, with the same
 * options. The pass changes the weights, whether or not gradients are finite. */
void dsvi_zero_update_in_pass(DsviZero *zero, const DsviAdamwArgs *options);
/* Call before each backward pass; `last`: it is the last of the step. During the last pass each bucket's
 * gradients are summed over ranks as soon as they are complete. If gradients are divided (stages 2 and 3),
 * this also happens during the earlier passes. */
void dsvi_zero_begin_pass(DsviZero *zero, bool last);
/* Waits until the gradients are summed over all ranks. */
DsvStatus dsvi_zero_sum_gradients(DsviZero *zero);
/* Clears the gradients of frozen parameters, and computes the sum of squares of this rank's shard of the
 * summed gradients. */
DsvStatus dsvi_zero_grad_square(DsviZero *zero, double *square);
/* *spoilt is true if the gradient of this rank's own samples, before the sum over ranks, has a value that is
 * not finite. At stages 2 and 3 only the last micro-batch is considered. */
DsvStatus dsvi_zero_grad_nonfinite(DsviZero *zero, bool *spoilt);

/* Updates the weights with the optimizer of the options, and their moving average; each rank updates its
 * shard. `options` has all fields but arrays and dtypes; Muon uses those that it has in common with AdamW,
 * and replaces gradients by its directions. At stages 1 and 2 it returns when this rank has all new compute
 * weights. */
DsvStatus dsvi_zero_update(DsviZero *zero, const DsviAdamwArgs *options);

/* Returns the array of moment 0 or 1, or of its scales. */
static inline DsviStateArray dsvi_state_moment(int moment, bool scales)
{
    return (DsviStateArray)(DSVI_STATE_EXP_AVG + 2 * moment + scales);
}
/* What rank 0 does with the buckets of an array, which pass through host memory one at a time. */
typedef struct DsviBucketIo {
    /* Called for each bucket in ascending order. dsvi_zero_store: writes the bucket's items to `data`;
     * dsvi_zero_fetch: reads them there. For a moment or its scales an item is a byte, and bucket b has
     * moments.moment[i].bytes or scale_bytes items; for other arrays an item is an F32 number. */
    DsvStatus (*bucket)(void *context, int64_t bucket, void *data);
    void *context;
} DsviBucketIo;

/* Copies what `source` of rank 0 provides to `array` of all ranks, each its shard, on the device or in host
 * memory. Called by all ranks, which ignore `source` except rank 0. */
DsvStatus dsvi_zero_store(DsviZero *zero, DsviStateArray array, const DsviBucketIo *source);
/* Passes `array` of all ranks to `sink` of rank 0; the opposite of dsvi_zero_store. */
DsvStatus dsvi_zero_fetch(DsviZero *zero, DsviStateArray array, const DsviBucketIo *sink);
/* The same from and to a whole array in host memory of rank 0, in which bucket b begins at item begin[b] of
 * its division among the ranks. */
DsvStatus dsvi_zero_store_whole(DsviZero *zero, DsviStateArray array, const void *whole);
DsvStatus dsvi_zero_fetch_whole(DsviZero *zero, DsviStateArray array, void *whole);
/* Sets all moments to zero. */
DsvStatus dsvi_zero_clear_moments(DsviZero *zero);
/* Computes the compute weights from the master weights. Call after dsvi_zero_store of the master weights. */
DsvStatus dsvi_zero_refresh(DsviZero *zero);

/* Exchanges the weights and their moving average, and computes the compute weights. A second call restores
 * every bit. Needs the option validation.ema and a moving average. Called by all ranks, between steps. */
DsvStatus dsvi_zero_swap_ema(DsviZero *zero);

/* Call with the status of anything that used the weights. After a failure, waits until no transfer of this
 * rank is in progress, because transfers access memory that may be freed next. Returns `status` and keeps its
 * error message. */
DsvStatus dsvi_zero_await_transfers(DsviZero *zero, DsvStatus status);

#ifdef __cplusplus
}
#endif
#endif
