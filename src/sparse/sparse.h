/* Dynamic sparse self-attention for all blocks of a model: makes key lists, attends over them, measures them,
 * and decides which blocks use them.
 *
 * One DsviSparse serves one model. For each block it keeps the selector's state (projection or predictor),
 * the lists of the last forward pass, a profile (exact captured mass and sparsity of sampled queries), and
 * whether the block attends densely or over lists. The model calls dsvi_sparse_forward and
 * dsvi_sparse_backward where it would otherwise call attention. The training loop calls
 * dsvi_sparse_step_begin and dsvi_sparse_step_end.
 *
 * The lists of a block hold the fraction target_density of the keys, or min_keys keys if those are more. With
 * target_mass above 0 they hold fewer keys if these suffice for the fraction target_mass of the attention.
 * Lists of wide attention are then cut short, which costs training little (docs/study.md).
 *
 * With a tail (sparse.tail, ops/attention_tail.h) means of keys approximate the keys outside the lists (the
 * default), or means of queries attend to these keys, or means of queries attend to means of keys.
 *
 * The guard is the rule that decides. In the first step, every profile_every steps, and in step warmup_steps,
 * each block's lists are measured against exact attention. A block becomes sparse when all of these hold:
 *   - without a tail: the running mean of its captured mass is at least min_mass, and the captured mass of
 *     its worst head is at least min_head_mass, or min_mass if that is less;
 *   - with a tail: the running mean of its output error is at most max_error, and the output error of its
 *     worst head is at most max_head_error, or max_error if that is more. The output error is the relative
 *     error of attention's output over lists and tail (ops/attention_error.h);
 *   - its lists are no denser than max_density. Start-up lowers max_density to the density at which sparse
 *     attention stops being faster on this machine.
 * A sparse block becomes dense again when it misses one of these bounds by more than the hysteresis. While a
 * block is dense, its lists are made on measuring steps only. No block changes before step warmup_steps.
 * Every change is logged as one line with its reason.
 *
 * In the dense finish, the fraction dense_finish of the run's steps at its end, all blocks attend densely.
 * Measurements go on, but the guard's decisions stay as they are. A layer that loads the state of a training
 * run that stopped in its finish attends densely too outside of training steps, unless its own
 * dense_finish is 0.
 *
 * Context parallelism: with `cp` set, several ranks work on the same samples. Each rank passes its own shard
 * of the tokens, and all ranks make the same calls. Together they compute what one rank would compute alone:
 * thresholds, lists (bit for bit, if the sums behind the projection are exact), measurements and decisions.
 * What a predictor learns differs only through the order of summation. One exception: with 8,192 spans or
 * more, ranks whose shards do not begin at multiples of eight groups sample other spans for the threshold
 * than one rank does. The threshold is then still the same on all ranks, but it and the lists may differ
 * slightly from those of one rank. A block whose lists do not fit on one of the ranks attends densely on all
 * of them. Parallel plans may be changed between steps (dsvi_cp_set_plan). Memory is planned for the largest
 * number of heads and tokens that a plan may give this rank (DsviCpClip.rows_max), and for all keys of other
 * ranks, so fetched keys and values always fit. */
#ifndef DSVI_SPARSE_H
#define DSVI_SPARSE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/safetensors.h"
#include "cp/cp.h"
#include "cp/cp_costs.h"
#include "dist/comm.h"
#include "dsv/config.h"
#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviSparse DsviSparse;

typedef struct DsviSparseShape {
    int64_t blocks;                         /* blocks of the model */
    int64_t batch, tokens, heads, head_dim; /* B, S, N, D; S counts the tokens of all ranks */
    int64_t grid[3];                        /* frames, rows, columns, in patches; their product is S */
    DsviDtype act;                          /* type of q, k, v and of attention's output */
    bool backward;    /* true: each block's lists are kept until its backward pass. Forward passes must then
                       * go from block 0 upwards, and backward passes downwards */
    const DsviCp *cp; /* the ranks that work on the same samples, each with a shard of the S tokens. NULL:
                       * this rank has all tokens */
} DsviSparseShape;

/* Where the rows of the tensors of one attention call are, for tensors that are not contiguous. */
typedef struct DsviAttentionRows {
    DsviHeads q, k, v, out;     /* (B, S, N, D) act */
    DsviHeads dout, dq, dk, dv; /* backward only */
} DsviAttentionRows;

/* The tensors of one attention call. All are device memory in token order, (B, S, N, D) act unless noted, and
 * contiguous unless `rows` is given. With context parallelism S counts this rank's tokens only. */
typedef struct DsviAttentionCall {
    double scale;          /* factor by which q k^T is multiplied before the softmax */
    const void *q, *k, *v; /* q and k after norm and RoPE */
    const void *hidden;    /* (B, S, C) act: the input of the q and k projections. Only the predictor reads
                            * it */
    void *out;             /* (B, S, N, D) act: written by the forward pass, read by the backward pass */
    void *lse;             /* (B, N, S) acc: log-sum-exp of each query. With context parallelism (B, N_local,
                            * T), of dsvi_cp_lse_bytes */
    bool recompute;        /* true: gradient checkpointing repeats the forward pass. It uses the same lists,
                            * measures nothing, and teaches no predictor */
    /* Read and written by the backward pass only; dq, dk and dv are overwritten. */
    const void *dout;
    void *dq, *dk, *dv;
    const DsviAttentionRows *rows; /* NULL, as always with context parallelism, or all (B, S, N, D) tensors of
                                    * the call, whose pointers above are then not read */
} DsviAttentionCall;

/* The tail of attention over lists (ops/attention_tail.h). */
typedef struct DsviSparseTail {
    int64_t chunk, run; /* queries of a proxy query, keys of a mean key; chunk 0: no tail */
} DsviSparseTail;

/* Return q, k and v of a call whose queries are this rank's `tokens` tokens. */
static inline DsviHeads dsvi_call_q(const DsviAttentionCall *call, int64_t tokens, int64_t heads,
                                    int64_t head_dim)
{
    return call->rows ? call->rows->q : dsvi_heads(call->q, tokens, heads, head_dim);
}

static inline DsviHeads dsvi_call_k(const DsviAttentionCall *call, int64_t tokens, int64_t heads,
                                    int64_t head_dim)
{
    return call->rows ? call->rows->k : dsvi_heads(call->k, tokens, heads, head_dim);
}

static inline DsviHeads dsvi_call_v(const DsviAttentionCall *call, int64_t tokens, int64_t heads,
                                    int64_t head_dim)
{
    return call->rows ? call->rows->v : dsvi_heads(call->v, tokens, heads, head_dim);
}

/* State of all blocks together, for metrics and the progress line. */
typedef struct DsviSparseReport {
    int64_t blocks, sparse_blocks;
    double density; /* density of the key lists in the last pass, mean over blocks; a block that attended
                     * densely counts as 1 */
    double work;    /* FLOPs of attention in the last pass, lists and tails, as a fraction of those of dense
                     * attention */
    double captured_mass;  /* fraction of exact attention that the key lists hold: running mean over measuring
                            * steps, then mean over sparse blocks; NaN without sparse blocks */
    double output_error;   /* relative error of attention's output over lists and tail: running mean over
                            * measuring steps, then mean over sparse blocks; NaN without sparse blocks */
    double predictor_loss; /* mean over blocks in the last step; NaN without a predictor */
} DsviSparseReport;

/* State of one block. Pointers remain valid as long as the DsviSparse. */
typedef struct DsviSparseBlockReport {
    bool sparse;          /* the guard's decision */
    bool over_lists;      /* the last pass attended over lists: false too if they did not fit */
    double captured_mass; /* running mean over measuring steps of the exact captured mass; NaN before the
                           * first measurement */
    double output_error; /* running mean over measuring steps of the relative error of attention's output over
                          * lists and tail, mean over heads; NaN before the first measurement. Not
                          * measured in steps in which several ranks own the keys of a head, except with a
                          * tail */
    double density;      /* density of the lists made last; 1 before the first lists are made */
    double estimated_mass;      /* fraction of attention that the last lists hold by the selector's
                                 * estimate */
    double share90;             /* smallest fraction of keys that holds 90 % of a query's attention: mean
                                 * over heads, then running mean over measuring steps */
    const float *head_captured; /* (N) captured_mass of each head */
    const float *head_error;    /* (N) output_error of each head */
    const float *head_share90;  /* (N) share90 of each head */
    int64_t changes;            /* how often the guard changed its decision */
} DsviSparseBlockReport;

/* Receives one line about a decision, without a newline. `context` is the log_context of
 * dsvi_sparse_create. */
typedef void DsviSparseLog(void *context, const char *line);

/* Called with a block's tensors before its forward pass attends. A failure ends the forward pass. */
typedef DsvStatus DsviSparseWatch(void *context, int64_t block, const DsviAttentionCall *args);

/* Returns whether the dense finish has begun, in which all blocks attend densely. */
bool dsvi_sparse_finishing(const DsviSparse *sparse);
/* Return whether the options ask for a tail, and the tail that they name. */
bool dsvi_sparse_has_tail(const DsvConfig *settings);
DsviSparseTail dsvi_sparse_tail_of(const DsvConfig *settings);
/* Returns the number of tokens at whose multiples ranks may divide a clip (DsviCpClip.unit). No group, span
 * or run of a tail then has tokens of two ranks. */
int64_t dsvi_sparse_unit(const DsvConfig *settings);
/* Returns the fraction of `tokens` keys that the lists of a block may hold, as mean over its heads:
 * sparse.target_density, or sparse.min_keys if those are more. 0: no limit. */
double dsvi_sparse_list_density(const DsvConfig *settings, int64_t tokens);
/* Returns the FLOPs of attention to `tokens` tokens, over lists as long as they may be and their tail, as a
 * fraction of those of dense attention. Lists are at most as dense as sparse.max_density. 1: sparse attention
 * is off, or all lists would be denser, so that all blocks stay dense. */
double dsvi_sparse_expected_work(const DsvConfig *settings, int64_t tokens);
/* Returns the bytes of the features of one key of one head, from which lists are selected; ranks that share a
 * clip exchange them. If several keys share a feature row, it is the bytes of the row divided by their
 * number. */
double dsvi_sparse_feature_bytes(const DsvConfig *settings, int64_t head_dim);
/* Creates the layer from the sparse.* options. Copies `settings`; `log` may be NULL. The backend and
 * shape->cp must outlive the layer. */
DsvStatus dsvi_sparse_create(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                             DsviSparseLog *log, void *log_context, DsviSparse **out);
void dsvi_sparse_free(DsviSparse **sparse);
/* Makes a layer use the learned projection of `owner`, a layer of the same model for clips of another size.
 * Both are trained in turn. What the projection learns from, queries and keys after their norms, depends on
 * the weights far more than on the size of a clip, and a size that is seldom trained gets a projection that
 * is up to date. Measurements, the guard's decisions and thresholds remain separate, because the density of
 * lists that pays depends on the number of tokens. To be called after create and before carve; `owner` must
 * be carved, set up and begun first in each step, ended first, and freed last. Other selectors learn nothing
 * and are not shared, except the predictor: DSV_E_UNSUPPORTED. */
DsvStatus dsvi_sparse_share(DsviSparse *sparse, const DsviSparse *owner);
/* Sets the ranks that train the same model on different samples: `comm` moves host memory, `device_comm`
 * device memory. To be called before setup. From then on all of them must call setup, step_begin, forward of
 * each block, step_end and dsvi_sparse_broadcast together. Measurements, learning and decisions are then
 * averaged over all samples and equal on all ranks. Lists and thresholds remain separate for each rank. */
void dsvi_sparse_set_comm(DsviSparse *sparse, DsviComm *comm, DsviComm *device_comm);
/* Take device memory from the arena; to be called twice: while the arena only counts bytes, and when it is
 * bound to memory (base/arena.h). dsvi_sparse_carve takes what must persist between calls.
 * dsvi_sparse_carve_call takes what is used inside a call only: the caller may use that memory for other
 * things between calls. dsvi_sparse_carve consists of dsvi_sparse_carve_state and dsvi_sparse_carve_lists:
 * the lists need memory from a forward pass to the end of its backward pass only. */
void dsvi_sparse_carve(DsviSparse *sparse, DsviArena *arena);
void dsvi_sparse_carve_state(DsviSparse *sparse, DsviArena *arena);
void dsvi_sparse_carve_lists(DsviSparse *sparse, DsviArena *arena);
void dsvi_sparse_carve_call(DsviSparse *sparse, DsviArena *arena);
/* Replaces the memory that dsvi_sparse_carve_call took: `workspace` is 64-byte aligned device memory of at
 * least as many bytes. */
void dsvi_sparse_set_workspace(DsviSparse *sparse, void *workspace);
/* Takes host memory for the key lists that are kept there from forward to backward pass. Takes nothing
 * unless sparse.offload_lists is true, shape.backward is set and the model has several blocks. The arena
 * must be bound to memory of DsviDevice.host_alloc, which the caller frees after dsvi_sparse_free. */
void dsvi_sparse_carve_host(DsviSparse *sparse, DsviArena *arena);
/* With sparse.measure_cost, measures what attention costs on this machine, unless this was done before. Takes
 * device memory for the time of the call; measures fewer tokens where memory is short. May be called before
 * the arenas are bound, when the device still has all its memory. */
DsvStatus dsvi_sparse_measure(DsviSparse *sparse);
/* To be called once after the arenas are bound: sets the initial state of the selector, and calls
 * dsvi_sparse_measure. */
DsvStatus dsvi_sparse_setup(DsviSparse *sparse);

/* The token order, a host array (S): order[s] is the raster position of token s. Valid until free. */
const int32_t *dsvi_sparse_order(const DsviSparse *sparse);

/* Begins step number `step`, counted from 1. `train` true: the selector learns, profiles are taken, and the
 * guard decides. A clip of a published model, for which nothing has been learned, is sampled with true as
 * well; only predictors learn nothing then, because the layer has no backward pass. False, for sampling and
 * validation with what training has learned: lists are made, and the guard's decisions stay as they are. */
DsvStatus dsvi_sparse_step_begin(DsviSparse *sparse, int64_t step, bool train);
/* Adds what has been measured since the step began to the running means, and measures the next forward pass
 * of each block too, if this step takes measurements. To be called between the passes of a step that must all
 * be measured; otherwise only the first pass of a step is. The guard decides at the end of the step. */
DsvStatus dsvi_sparse_measure_again(DsviSparse *sparse);
/* Attention of one block, dense or over lists as the guard has decided. Writes args->out and args->lse. */
DsvStatus dsvi_sparse_forward(DsviSparse *sparse, int64_t block, const DsviAttentionCall *args);
/* Gradients of one block's attention. q, k, v and out must be unchanged since the block's last forward
 * pass: context-parallel ranks reuse the tensors that they exchanged in that forward pass if no other pass
 * came between. */
DsvStatus dsvi_sparse_backward(DsviSparse *sparse, int64_t block, const DsviAttentionCall *args);
/* Ends a step: updates selectors and, in a training step, lets the guard decide about each block. */
DsvStatus dsvi_sparse_step_end(DsviSparse *sparse);

/* Calls `watch` before each forward pass of each block from now on, recomputations excepted. Programs that
 * study real attention use this. */
void dsvi_sparse_watch(DsviSparse *sparse, DsviSparseWatch *watch, void *watch_context);

/* Forgets measurements, decisions and what the selector has gathered: all blocks are dense again, as before
 * the first step. A predictor keeps its weights. */
void dsvi_sparse_restart(DsviSparse *sparse);

/* Makes all blocks attend over lists, whatever the guard decided, also in the dense finish; false restores
 * the guard's decisions. For dsv forward, tests and benchmarks. */
void dsvi_sparse_force(DsviSparse *sparse, bool sparse_everywhere);

/* Sets the density of lists from now on, in place of guard and targets; for benchmarks at a known sparsity.
 * density (blocks, N) is copied: one value for each head, or NAN for all heads of a block that attends
 * densely. With sparse.rule=topk every list of a head has its density. With the threshold rule the lists of a
 * block have the mean density of its heads, as nearly as the threshold can be placed. sparse.enabled must be
 * true. */
void dsvi_sparse_prescribe(DsviSparse *sparse, const double *density);

/* Returns whether the step that ended last took exact measurements. */
bool dsvi_sparse_measured(const DsviSparse *sparse);
void dsvi_sparse_report(const DsviSparse *sparse, DsviSparseReport *report);
void dsvi_sparse_block_report(const DsviSparse *sparse, int64_t block, DsviSparseBlockReport *report);
/* Fills density (N) with the expected density of each head's lists, from which parallel plans estimate the
 * cost of heads: the running mean of measured lists; before a measurement the prescribed density, or 1. It is
 * 1 for a dense block. Equal on all ranks. */
void dsvi_sparse_head_densities(const DsviSparse *sparse, int64_t block, double *density);
/* Returns the fraction of other ranks' keys that this rank's last lists of the block name. NAN if this rank
 * has all keys of its heads, or the block attended densely. */
double dsvi_sparse_far_fraction(const DsviSparse *sparse, int64_t block);
/* Requests timing of the next training step that takes no measurements: attention of every block, including
 * selection and communication. The host waits for the device before and after each pass of that step. */
void dsvi_sparse_time_next(DsviSparse *sparse);
/* Returns the seconds that forward and backward pass of a block took together, per backward pass, in the step
 * that ended last. NAN if that step was not timed. */
double dsvi_sparse_seconds(const DsviSparse *sparse, int64_t block);
/* Returns the cost of attention that setup has measured, equal on all ranks, or NULL if it measured
 * nothing. */
const DsviAttentionCost *dsvi_sparse_attention_cost(const DsviSparse *sparse);
/* Returns the lists of the block's last forward pass (device memory), or NULL if the block attended densely,
 * or if the lists were overwritten or moved to the host since. With context parallelism they are the lists of
 * this rank's heads and queries, over all keys. If keys are divided among ranks, or without a backward pass,
 * only the lists made last are available. */
const DsviLists *dsvi_sparse_lists(const DsviSparse *sparse, int64_t block);

/* Attention over lists, with the layer's tail, for benchmarks that bring the keys of other ranks themselves.
 * `args` has lists of dsvi_sparse_lists and all keys of its heads; its workspace has
 * dsvi_sparse_args_workspace bytes. The backward pass follows the block's forward pass. */
size_t dsvi_sparse_args_workspace(const DsviSparse *sparse, const DsviAttentionArgs *args);
DsvStatus dsvi_sparse_attend_args(const DsviSparse *sparse, int64_t block, const DsviAttentionArgs *args);
DsvStatus dsvi_sparse_attend_args_bwd(const DsviSparse *sparse, int64_t block, const DsviAttentionArgs *args);

/* dsvi_sparse_save writes the state of selector, profile and guard to one safetensors file; dsvi_sparse_load
 * reads it back, bit for bit. The selector's state is in the owner's file only (dsvi_sparse_share). A file of
 * another selector, rank (sparse.rank) or model shape is DSV_E_SHAPE. A file written without sparse attention
 * is accepted and changes nothing. If lists may hold more or fewer keys than those of the file
 * (sparse.target_density, sparse.min_keys, sparse.target_mass), or the file does not say how many, the next
 * training step measures all blocks. */
DsvStatus dsvi_sparse_save(DsviSparse *sparse, const char *path);
DsvStatus dsvi_sparse_load(DsviSparse *sparse, const char *path);
/* Checks that dsvi_sparse_load would accept the file's description, without reading the state.
 * DSV_E_NOT_FOUND for a file written without sparse attention. */
DsvStatus dsvi_sparse_check_file(const DsviSparse *sparse, const char *path);
/* Broadcasts the state of rank 0, loaded from a file, to all ranks of dsvi_sparse_set_comm. */
DsvStatus dsvi_sparse_broadcast(DsviSparse *sparse);
/* Copies the state that save would write to a layer of the same model, whose batch or tokens may differ.
 * With this copy validation samples use what training has learned. A `to` made without a backward pass has
 * no memory for state that only learning needs, and does not receive it. */
DsvStatus dsvi_sparse_copy(DsviSparse *to, const DsviSparse *from);

#ifdef __cplusplus
}
#endif
#endif
