/* The state of a model in training, divided over the ranks of a shard group as zero_stage says (Rajbhandari
 * et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models").
 *
 *                                         stage 1    stage 2              stage 3
 *     master weights, moments, average    own        own                  own                   F32
 *     gradients                           whole      own and two buckets  own and two buckets   F32
 *     weights to compute with             whole      whole                own and two buckets
 *
 * "own" are a rank's stretches (dist/shard.h); a bucket is a stretch of the parameters (model/weights.h), and
 * the buffers for two of them are what a pass uses and what comes or goes meanwhile: while a block computes,
 * the weights of the next are gathered and the gradients of the one before are summed, on a thread of their
 * own (dist/comm_queue.h). A model computes with the compute dtype's copy of its GEMM weights and with F32
 * copies of the rest; in F32 they are the master weights themselves. A rank that is alone has everything
 * whole.
 *
 * Sums are formed in the order of the ranks at every stage: without gradient accumulation all stages give the
 * same bits. Stages 2 and 3 sum over the ranks after each micro-batch and stage 1 once a step, so that with
 * it they differ by rounding. Ranks that keep the same part, in different shard groups (hsdp_shard_dim), add
 * the sums of their groups. */
#ifndef DSVI_ZERO_H
#define DSVI_ZERO_H

#include "base/arena.h"
#include "dist/comm_queue.h"
#include "dist/mesh.h"
#include "dist/shard.h"
#include "model/dit.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Room for one bucket. */
typedef struct DsvZeroBuffer {
    void *memory;
    int64_t bucket; /* whose it is; -1: nobody's */
    int64_t work;   /* number of what fills it, or empties it, in the queue */
} DsvZeroBuffer;

typedef struct DsvZero {
    DsvBackend *backend;
    const DsvParamTable *table;
    const DsvMesh *mesh;
    DsvDtype act;
    DsvComm *shard_comm, *replica_comm; /* for device memory */
    DsvComm *joined[2];                 /* those of them that were made for it, to be closed */
    void *room;                         /* what sums over them want; behind it, those over all ranks */
    DsvCommQueue *queue;                /* NULL: one rank alone */
    DsvShard shard;                     /* in elements, F32 */
    DsvShard work_shard;                /* in bytes, of the weights to compute with */
    bool work_whole;
    bool last_pass;                     /* the backward pass that goes on, or comes next, is a step's last */
    bool fresh;                         /* its first backward pass is to come, or is under way */
    bool grad_elsewhere;                /* grad.data is the caller's */

    unsigned char *work;                /* whole, or own stretches */
    DsvZeroBuffer gathered[2];          /* bucket b in number b % 2 */
    DsvShardArray master;
    DsvShardArray grad;                 /* flat: whole */
    DsvZeroBuffer summed[2];
    DsvShardArray moment1, moment2;
    DsvShardArray ema;                  /* data NULL when ema_decay is 0 */
    double *square;                     /* (buckets) of the own stretches of the sums; device memory */
    double *made_square;                /* (buckets) of what this rank added to them; device memory */
    double *host_square;                /* (buckets) */
} DsvZero;

/* Divides what `table` describes; backend, mesh and table are kept. */
DsvStatus dsvi_zero_make(const DsvConfig *settings, DsvBackend *backend, const DsvMesh *mesh,
                         const DsvParamTable *table, DsvZero *out);
void dsvi_zero_free(DsvZero *zero); /* takes one of zeros */

/* Where a step has one backward pass grad.data is the caller's: in elements, where each bucket's gradients
 * begin in it and where the last end. A bucket's may hold anything until the backward pass enters it. Else
 * NULL, and they are planned here. */
const int64_t *dsvi_zero_grad_begin(const DsvZero *zero);

/* Device memory, zero when bound; host memory. */
void dsvi_zero_carve(DsvZero *zero, const DsvConfig *settings, DsvArena *arena);
void dsvi_zero_carve_host(DsvZero *zero, DsvArena *arena);

/* After binding. `device_all`: mesh->all for device memory. */
DsvStatus dsvi_zero_open(DsvZero *zero, DsvComm *device_all);

/* What models compute with, lent stretch by stretch: with several ranks all make the same passes at the same
 * time where stage 3 has the weights divided. */
DsvDitWeights dsvi_zero_weights(DsvZero *zero);

/* Gradients begin anew, and the backward passes of a step add to them. Zeros are written where they are added
 * to first: not where the first backward pass writes them, as those of GEMM weights where they are whole, or
 * its sum over the ranks where they are divided and the pass is the only one. */
DsvStatus dsvi_zero_clear_gradients(DsvZero *zero);
/* A backward pass follows. In a step's last one gradients go to be summed over the ranks as they are
 * finished; in those before it too where they are divided. */
void dsvi_zero_begin_pass(DsvZero *zero, bool last);
/* Waits until they are summed over all ranks. */
DsvStatus dsvi_zero_sum_gradients(DsvZero *zero);
/* Of the own stretches of the sum. */
DsvStatus dsvi_zero_grad_square(DsvZero *zero, double *square);
/* Whether this rank's own samples gave a gradient that is not finite; in stages 2 and 3 those of the last
 * micro-batch. */
DsvStatus dsvi_zero_grad_spoilt(DsvZero *zero, bool *spoilt);

/* Moves the weights, each rank its own stretches of them, and their average; `how`: an update but for its
 * arrays. */
DsvStatus dsvi_zero_update(DsvZero *zero, const DsvAdamwArgs *how);

/* One of the arrays above in the layout of the table, `flat` of rank 0, to the ranks that keep it, and back.
 * Host memory; on the other ranks scratch, dsvi_zero_host_elements() of them. */
DsvStatus dsvi_zero_store(DsvZero *zero, const float *flat, DsvShardArray array);
DsvStatus dsvi_zero_fetch(DsvZero *zero, DsvShardArray array, float *flat);
int64_t dsvi_zero_host_elements(const DsvZero *zero);
/* After the master weights were stored. */
DsvStatus dsvi_zero_refresh(DsvZero *zero);

/* With the failure of whatever used the weights, or DSV_OK: nothing of this rank is under way when it
 * returns. Returns `status`, and leaves its sentence. */
DsvStatus dsvi_zero_settle(DsvZero *zero, DsvStatus status);

#ifdef __cplusplus
}
#endif
#endif
