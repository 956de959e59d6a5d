/* Dynamic sparse self-attention for all blocks of a model: select, attend, measure, decide.
 *
 * One DsvSparse serves one model. For each block it keeps: the selector's state (projection or
 * predictor), the lists of the last forward pass, a profile (exact captured mass and sparsity on sampled
 * queries), and whether the block runs dense or over lists. The model calls dsvi_sparse_forward and
 * _backward in place of attention; the training loop calls dsvi_sparse_step_begin and _end.
 *
 * Lists hold target_mass of the attention, but no more than target_density of the keys: wide attention is cut
 * short, which costs training little while min_mass is held (docs/study.md), and narrow attention takes what
 * it needs.
 *
 * The rule (the guard): every profile_every steps each block's lists are measured against exact
 * attention. A block runs sparse when the captured mass (a running mean) is at least min_mass, that of its
 * worst head at least min_head_mass (or min_mass, if less), and its lists are no denser than max_density
 * (lowered at start-up to where sparse attention stops paying on this machine). The block returns to dense
 * attention when it misses one of these bounds by more than the hysteresis. A dense block's lists are made
 * only on measuring steps. Before step warmup_steps nothing changes. Every change is one log line with its
 * reason.
 *
 * With a context its ranks share the samples: each calls with its tokens of them, all make the same calls,
 * and what they do together is what one rank does alone: thresholds, lists (bit by bit, where the sums that
 * the projection is made of are exact), measurements and decisions, and but for the order of sums what a
 * predictor learns. One exception: from 8,192 runs on, ranks that divide the tokens elsewhere than at
 * multiples of eight groups sample other runs for the threshold than one rank does; the threshold is common
 * to all ranks, but may differ slightly from that of one rank, and so may the lists. A block whose lists do
 * not fit on one of them runs dense on all. Plans of the context may be changed between steps
 * (dsvi_context_set_plan); memory is planned for the most heads and tokens that a plan may give this rank
 * (DsvContextShape.rows_most), and for every key of other ranks: fetched rows always fit. */
#ifndef DSVI_SPARSE_H
#define DSVI_SPARSE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/safetensors.h"
#include "context/context.h"
#include "context/context_costs.h"
#include "dist/comm.h"
#include "dsv/config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvSparse DsvSparse;

typedef struct DsvSparseShape {
    int64_t blocks;               /* of the model */
    int64_t batch, tokens, heads, head_dim; /* B, S, N, D */
    int64_t grid[3];              /* tokens = frames * rows * columns, in patches */
    DsvDtype act;
    bool backward;                /* lists are kept per block until its backward pass: forward passes go
                                   * from block 0 up, backward passes down */
    const DsvContext *context;    /* the ranks that share the samples, each with a stretch of the S tokens;
                                   * NULL: this rank has them alone */
} DsvSparseShape;

/* What a block hands over. All (B, S, N, D) act contiguous in token order, device memory; with a context
 * S are the rank's own tokens. */
typedef struct DsvSparseAttention {
    double scale;
    const void *q, *k, *v;        /* after norm and RoPE */
    const void *hidden;           /* (B, S, C) act: what fed the q and k projections */
    void *out;                    /* (B, S, N, D) act */
    void *lse;                    /* (B, N, S) acc; with a context (B, N_own, T): dsvi_context_lse_bytes */
    bool recompute;               /* the forward pass again, for gradient checkpointing: same lists, no
                                   * measuring, no predictor learning */
    /* backward only */
    const void *dout;
    void *dq, *dk, *dv;
} DsvSparseAttention;

/* What happened, for metrics and the progress line. */
typedef struct DsvSparseReport {
    int64_t blocks, sparse_blocks;
    double density;               /* mean over blocks; a dense block counts 1 */
    double captured_mass;         /* exact, mean over sparse blocks; NaN while there are none */
    double predictor_loss;        /* mean over blocks; NaN without a predictor */
} DsvSparseReport;

typedef struct DsvSparseBlockReport {
    bool sparse;
    bool over_lists;          /* its last pass attended over its lists: they found room */
    double captured_mass;         /* running mean of the exact measurement; NaN before the first */
    double density;               /* of its last lists, 1 before the first */
    double estimated_mass;        /* what the selector thought its last lists hold */
    double share90;               /* running mean over heads: keys for 90 % of a query's mass */
    const float *head_captured;   /* (N) running means */
    const float *head_share90;    /* (N) */
    int64_t changes;              /* times it changed sides */
} DsvSparseBlockReport;

/* One line about a decision, without newline. */
typedef void DsvSparseLog(void *context, const char *line);

/* Sees a block's forward pass before it attends. */
typedef DsvStatus DsvSparseWatch(void *context, int64_t block, const DsvSparseAttention *args);

/* Settings are the sparse.* ones. `log` may be NULL. */
DsvStatus dsvi_sparse_create(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                             DsvSparseLog *log, void *log_context, DsvSparse **out);
void dsvi_sparse_free(DsvSparse **sparse);
/* Before setup: the ranks of `comm`, with `device_comm` for device memory, train the same model on samples
 * of their own, and call setup, step_begin, forward of each block, step_end and spread together. What is
 * measured, learnt and decided is then that of all samples, and the same on all ranks; lists and thresholds
 * are each rank's own. */
void dsvi_sparse_share(DsvSparse *sparse, DsvComm *comm, DsvComm *device_comm);
/* Device memory: what lasts; what a call uses, and is free for anything between calls. */
void dsvi_sparse_carve(DsvSparse *sparse, DsvArena *arena);
void dsvi_sparse_carve_call(DsvSparse *sparse, DsvArena *arena);
/* The device's own host memory, for lists that wait there for their backward pass: wanted by a layer with
 * sparse.offload_lists, a backward pass and several blocks, nothing for any other. The caller frees it after
 * the layer. */
void dsvi_sparse_carve_host(DsvSparse *sparse, DsvArena *arena);
/* After binding: initial state, and the cost measurement when settings ask for it. */
DsvStatus dsvi_sparse_setup(DsvSparse *sparse);

/* The token order: host array (S), order[s] = raster position of token s. */
const int32_t *dsvi_sparse_order(const DsvSparse *sparse);

/* Steps count from 1. `train`: predictors learn and profiles are taken; otherwise the lists alone are made
 * and the dispatch state stays as it is (sampling, validation). */
DsvStatus dsvi_sparse_step_begin(DsvSparse *sparse, int64_t step, bool train);
DsvStatus dsvi_sparse_forward(DsvSparse *sparse, int64_t block, const DsvSparseAttention *args);
/* q, k, v and out are those of the block's last forward pass; ranks that share the samples may have kept what
 * that sent of them, where no other pass came between. */
DsvStatus dsvi_sparse_backward(DsvSparse *sparse, int64_t block, const DsvSparseAttention *args);
/* Updates predictors and takes decisions. */
DsvStatus dsvi_sparse_step_end(DsvSparse *sparse);

/* Shows every forward pass of every block to `watch` from now on: for studies of real attention. */
void dsvi_sparse_watch(DsvSparse *sparse, DsvSparseWatch *watch, void *watch_context);

/* Forgets measurements and decisions: all blocks dense, as before the first step. */
void dsvi_sparse_restart(DsvSparse *sparse);

/* All blocks over lists from now on, guard aside: for dsv forward, tests and benchmarks. */
void dsvi_sparse_force(DsvSparse *sparse, bool sparse_everywhere);

/* How dense lists are from now on, guard and targets aside, for benchmarks of a sparsity that is known
 * beforehand: density (blocks, N) of each head's lists; a block whose numbers are NAN runs dense. With
 * sparse.rule=topk every list of a head has that share of the runs; by threshold the lists of a block have
 * the mean of its heads, as the threshold has it. Copied. There must be a selector. */
void dsvi_sparse_prescribe(DsvSparse *sparse, const double *density);

/* Whether the step that ended last took exact measurements. */
bool dsvi_sparse_measured(const DsvSparse *sparse);
void dsvi_sparse_report(const DsvSparse *sparse, DsvSparseReport *report);
void dsvi_sparse_block_report(const DsvSparse *sparse, int64_t block, DsvSparseBlockReport *report);
/* What the heads of a block cost, as plans of a context go by: density (N) of each head's lists, running
 * means of measured ones; 1 where the block runs dense or nothing has been measured. All ranks have the same.
 */
void dsvi_sparse_burden(const DsvSparse *sparse, int64_t block, double *density);
/* The share of other ranks' keys that the last lists of a block name, of this rank; NAN where it has all keys
 * of its heads, or ran dense. */
double dsvi_sparse_far_share(const DsvSparse *sparse, int64_t block);
/* The next step times attention of every block, with selection and all that ranks send for it, unless it
 * takes measurements: the device is waited for around each. */
void dsvi_sparse_time_next(DsvSparse *sparse);
/* Seconds of a block's forward and backward pass in the step that ended last; NAN where it was not timed. */
double dsvi_sparse_seconds(const DsvSparse *sparse, int64_t block);
/* What attention costs, as setup has measured it: the same on all ranks; NULL where it has not. */
const DsvAttentionCost *dsvi_sparse_attention_cost(const DsvSparse *sparse);
/* The lists of a block's last forward pass (device memory), or NULL when it ran dense. With a context those
 * of the own heads and queries, over all keys; where these lie on several ranks, of the block listed last
 * alone. NULL too while they are on the host. */
const DsvLists *dsvi_sparse_lists(const DsvSparse *sparse, int64_t block);

/* Selector, profile and dispatch state to one safetensors file and back, bit-exactly. A file of another
 * selector, rank or model shape is an error. */
DsvStatus dsvi_sparse_save(DsvSparse *sparse, const char *path);
DsvStatus dsvi_sparse_load(DsvSparse *sparse, const char *path);
/* What rank 0 has loaded, to all ranks. */
DsvStatus dsvi_sparse_spread(DsvSparse *sparse);
/* The state that save would write, from one to another of the same model whose batch or tokens may differ:
 * validation samples with what training has learned. A `to` without a backward pass has no part for what only
 * learning wants. */
DsvStatus dsvi_sparse_copy(DsvSparse *to, const DsvSparse *from);
/* Writes the lists of a block as offsets, runs and their shape. */
DsvStatus dsvi_sparse_dump_lists(DsvSparse *sparse, int64_t block, const char *path);

#ifdef __cplusplus
}
#endif
#endif
