/* Shared by the files of the sparse layer: DsviSparse itself, and the functions that one pass consists of.
 *
 *     sparse.c          the functions of sparse.h that a step calls, in the order of a step; reports
 *     sparse_create.c   creating and freeing a layer, and the state before the first step
 *     sparse_memory.c   memory on host and device
 *     sparse_offload.c  lists that wait in host memory for their backward pass
 *     sparse_tail.c     attention over lists, with the tail that stands in for the keys outside the lists
 *     sparse_decide.c   which blocks attend over lists: the guard, and what overrides its decisions
 *     sparse_select.c   makes a block's lists from a selector's features
 *     sparse_profile.c  exact measurements on sampled queries
 *     sparse_share.c    averages over ranks what each rank has observed in a step
 *     sparse_state.c    saving, loading and copying state
 *     sparse_times.c    times dense and sparse attention of the same tensors (sparse.time_choices)
 *     sparse_cp.c       context parallelism: a block's attention on ranks that divide the tokens
 *     sparse_far.c      context parallelism: lists whose keys several ranks own
 *
 * Words: T, N_local and the *view* are the queries and heads for which this rank computes attention of a
 * block (DsviSparseView). Keys are *divided* if several ranks own the keys of these heads (view.divided). */
#ifndef DSVI_SPARSE_INTERNAL_H
#define DSVI_SPARSE_INTERNAL_H

#include "cp/features_exchange.h"
#include "cp/rows_exchange.h"
#include "cp/cp_limits.h"
#include "sparse/guard.h"
#include "sparse/selector.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory for lists is this factor times what lists may hold, because lists differ from pass to pass, mainly
 * with the noise level. */
#define DSVI_SPARSE_SLACK 1.25

/* Seconds that one block's attention took when computed both densely and over lists (sparse_times.c). */
typedef struct DsviSparseTimes {
    bool forward, backward;         /* true for each pass that has been timed in this step */
    double select;                  /* seconds to make the lists */
    double seconds[DSVI_PASSES][2]; /* [forward, backward][0: dense, 1: over lists] */
} DsviSparseTimes;

/* State of one block in the current step: its lists, measurements and times. */
typedef struct DsviSparseBlock {
    /* Lists. */
    DsviLists lists; /* key lists of the heads and queries whose attention this rank computes, over all keys.
                      * lists.capacity: number of spans for which there is memory. Spans are stored in
                      * DsviSparse.spans, or in whole_spans if several ranks own the keys of a head */
    DsviLists near;  /* only if the block fetches keys (dsvi_sparse_fetches): the part of `lists` whose keys
                      * this rank owns. With a tail near.offsets has the offsets of the lists over one row's
                      * keys */
    DsviLists far;   /* only if the block fetches keys: the part whose keys other ranks own */
    int32_t *spans;  /* device memory: where spans that wait for the backward pass are stored */
    int64_t first_span; /* index of the block's first span among the spans of all blocks */
    int64_t kept;       /* spans that wait for the backward pass; 0 if the block attended densely */
    bool fit;           /* the lists made last fit their capacity, on all context-parallel ranks */
    void *tail_lse;     /* device memory: (sequence ranks, B, N_local, chunks of T) acc, log T_c of the last
                         * forward pass over lists, for the keys of each row of the rank grid. The
                         * backward pass reads it; NULL without a tail */
    bool over_lists;    /* the last forward pass attended over lists; the backward pass must do the same */

    /* Only if several ranks own the keys of a head: one bit for each span and pair of sample and head
     * (cp/rows_exchange.h). */
    uint32_t *needs_marks;  /* device memory: spans of other ranks that this rank's lists name */
    uint32_t *served_marks; /* device memory: spans of this rank that other ranks' lists name */
    int64_t *host_first;    /* host memory: counts of marked spans (DsviRowsMemory.host_first) */
    double far_share; /* fraction of other ranks' keys that the last lists name; NAN if this rank owns all
                       * keys of its heads */

    /* Measurements of this step. */
    bool measured;           /* the block's lists were measured */
    bool measured_fit;       /* the measured lists fit their capacity */
    bool measured_error;     /* the output error was measured */
    int64_t sample_count;    /* number of sampled queries that this rank measures */
    double measured_density; /* density of the measured lists */
    double measured_mass; /* fraction of attention that the measured lists hold by the selector's estimate */
    bool overflowed;      /* the block should have attended over lists, but they did not fit */
    double overflow_density; /* density of the lists that did not fit */
    bool overflow_logged;    /* the log says that lists outside of training did not fit */

    /* Timing. */
    double seconds; /* spent on the block in a step that dsvi_sparse_time_next has requested */
    int64_t passes; /* number of backward passes that `seconds` contains */
    DsviSparseTimes times;
} DsviSparseBlock;

/* State that persists from step to step and is saved. Host arrays. A running mean is NaN before its first
 * value. */
typedef struct DsviSparseRecord {
    int32_t *sparse;      /* (blocks) the guard's decision: 1 if the block attends over lists, 0 if densely */
    int32_t *reason;      /* (blocks) DsviGuardReason for which the block is dense, as logged last; 0: none */
    int64_t *changes;     /* (blocks) how often the guard's decision about the block changed */
    double *captured;     /* (blocks) running mean over measuring steps of the exact captured mass */
    double *listed;       /* (blocks) running mean of the density of measured lists */
    double *share90;      /* (blocks) running mean of share90, the fraction of keys that holds 90 % of a
                           * query's attention */
    float *head_captured; /* (blocks, N) running mean of each head's captured mass */
    float *head_share90;  /* (blocks, N) running mean of each head's share90 */
    float *head_listed;   /* (blocks, N) running mean of the density of each head's measured lists */
    double *error;        /* (blocks) running mean of the output error, mean over heads: relative error of the
                           * output over lists and tail */
    float *head_error;    /* (blocks, N) running mean of each head's output error */
    double *density;      /* (blocks) density of the last lists */
    double *estimated_mass; /* (blocks) attention that the last lists hold by the selector's estimate */
    double *missed;         /* (blocks) running mean of (1 - captured mass) / (1 - estimated mass): how much
                             * more the lists miss than the selector estimates */
    int64_t *measured_step; /* (1) last training step that took measurements; -1: the measurements are of
                             * lists that held more or fewer keys. The next training step replaces them */
    int32_t *finishing;     /* (1) not 0: the dense finish of training has begun (sparse.dense_finish). All
                             * blocks attend densely, in training and with the trained weights */
    double *break_even;     /* (1) density up to which sparse attention is faster than dense attention */
} DsviSparseRecord;

/* Context parallelism: device buffers of one pass of one block. They are carved from DsviSparse.shared for
 * the number of head ranks in the block's plan; a buffer that the plan does not need is NULL. Their contents
 * are valid within one pass, except as DsviSparse.room_block and scored_block promise. "Heads form" means (B,
 * T, N_local, D): all tokens of the head group, some heads (cp.h). */
typedef struct DsviSparseCpBuffers {
    void *q, *k, *v, *out;     /* these tensors in heads form */
    void *dout, *dq, *dk, *dv; /* tensors of the backward pass in heads form */
    void *moved;               /* workspace of the exchange between token form and heads form */
    float *proxies;            /* (B, N_local, proxies of T, R) */
    float *candidates;         /* (B, N_local, candidates of S, R) */
    void *features;            /* workspace of the exchange of proxies and candidates */

    /* Used if several ranks own the keys of a head: attention over fetched keys, and the exchange of keys
     * and values (cp/rows_exchange.h). */
    void *far_out, *far_lse, *far_dq; /* results over fetched keys, (B, T, N_local, D) and (B, N_local, T) */
    int32_t *needs_before, *served_before; /* DsviRowsMemory */
    int64_t *needs_first, *served_first;   /* DsviRowsMemory */
    void *sent;                            /* messages to other ranks */
    void *received; /* messages from other ranks; in the backward pass dk and dv of fetched keys */
    void *compact;  /* fetched k and v, or while lists are measured all keys and, with a tail, all values; in
                     * the backward pass then the messages that return dk and dv to the owners of the keys */
} DsviSparseCpBuffers;

/* All blocks share some buffers. The following fields of DsviSparse name the block whose data a buffer holds
 * from one call to the next; -1, also the initial value, means none.
 *
 *   scored_block  The first scored_inputs of the block's q, k and v are in `room` in heads form, so that its
 *                 attention need not exchange them. Set by dsvi_sparse_exchange_scored. Reset when a step
 *                 begins, and by attention of any block.
 *   room_block    The block's q, k, v, out and fetched keys are in `room`, so that its backward pass needs to
 *                 exchange only dout. Set by dsvi_sparse_cp_attend over lists. Reset when a step begins, and
 *                 by dsvi_sparse_exchange_scored, attention and backward pass of any block.
 *   listed_block  The block's lists were made last, they have listed_spans spans, and its `fit` is valid. Set
 *                 by dsvi_sparse_await_lists. Reset by dsvi_sparse_make_lists of any block.
 *
 * With sparse.offload_lists:
 *
 *   resident[0]   The block's lists are at the front of `spans`, or are being copied there.
 *   resident[1]   The block's lists are at the end of `spans`, or are being copied there.
 *                 dsvi_sparse_reserve_lists sets resident[0] to its block and resets resident[1].
 *                 dsvi_sparse_restore_lists and dsvi_sparse_discard_lists set one of the two when they begin
 *                 to copy lists there that the backward pass needs next.
 *                 dsvi_sparse_discard_lists resets the one that names its own block.
 *   arriving      The block's lists are being copied to the device, and the compute stream does not wait for
 *                 the copy yet. Set with `resident` when a copy begins. Reset by dsvi_sparse_restore_lists of
 *                 the block, which makes the stream wait, and by dsvi_sparse_reserve_lists. */
struct DsviSparse {
    /* Arguments with which the layer was created, and what follows from them. */
    DsviBackend *backend;
    DsvConfig settings;
    DsviSparseShape shape;
    DsviDtype acc; /* F64 if act is F64, otherwise F32 */
    DsviSparseTail tail;
    DsviSelector *selector; /* NULL: sparse.enabled is false, all blocks are dense, and no lists exist */
    bool borrows;           /* the selector is another layer's (dsvi_sparse_share) */
    DsviSparseLog *log;     /* or NULL */
    void *log_context;
    DsviSparseWatch *watch; /* or NULL */
    void *watch_context;
    int32_t *order;       /* (S) host: token order */
    double *prescription; /* (blocks, N) host: storage that `prescribed` points to */

    /* Ranks. */
    const DsviCp *cp; /* context parallelism: ranks that divide the tokens of a sample; NULL: none */
    DsviComm *comm;   /* all ranks that decide together; NULL: this rank alone */

    /* Progress of training. */
    int64_t step;
    bool train;              /* this is a training step (argument of dsvi_sparse_step_begin) */
    bool forced;             /* dsvi_sparse_force */
    double *prescribed;      /* (blocks, N) density of lists, NAN: dense; NULL unless prescribed */
    bool ran;                /* a forward pass of this training step used this layer, on any rank after
                              * dsvi_sparse_average_seen */
    bool measuring;          /* this step takes measurements */
    bool measured;           /* the step that ended last took measurements */
    bool times_next;         /* a step is to be timed (dsvi_sparse_time_next) */
    bool timing;             /* this step is timed */
    double predictor_loss;   /* of the last step; NaN without a predictor */
    DsviSparseBlock *block;  /* (blocks) state of the current step */
    DsviSparseRecord record; /* state that persists and is saved */
    DsviAttentionCost cost;  /* measured at start-up; valid if has_cost */
    bool has_cost;

    /* Lists of all blocks: device memory, except host_spans. Sizes from dsvi_sparse_size_lists. */
    int32_t *spans;         /* (spans_room) lists that wait for their backward pass, one block after another;
                             * with offload_lists, those on the device at the moment */
    int32_t *host_spans;    /* the caller's host memory: with offload_lists, the lists of all blocks except
                             * the last, one after another; otherwise NULL */
    int32_t *compare_spans; /* (blocks, spans_max) lists of dense blocks, made only to be timed; or NULL */
    /* (spans_max) used if several ranks own the keys of a head: a block's lists, before each list is split
     * into keys that this rank owns (near) and keys to fetch (far); with a tail the lists over one row's
     * keys */
    int32_t *whole_spans;
    int64_t spans_capacity; /* limit of the spans in the lists of all blocks together */
    int64_t spans_room;     /* spans that fit on the device: spans_capacity, or less with offload_lists */
    int64_t spans_max;      /* limit of the spans in the lists of one block */
    int64_t resident[2], arriving;      /* see the comment above DsviSparse */
    int64_t listed_block, listed_spans; /* see the comment above DsviSparse */

    /* Making lists: device memory, then host memory. */
    float *proxies;    /* (B, N_local, proxies, R): features of queries: the selector's array, or with context
                        * parallelism the array in `room` */
    float *candidates; /* (B, N_local, candidates, R): features of keys, in the selector's array or `room` */
    float *select_lse; /* (B, N_local, proxies) log-sum-exp of each proxy's scores */
    double *bin_count; /* (DSVI_SELECT_BINS) histogram; bin_mass follows in the same memory */
    double *bin_mass;  /* (DSVI_SELECT_BINS) */
    int32_t *head; /* (N) numbers of the heads whose attention this rank computes; context parallelism only */
    float *threshold;      /* (N) */
    int32_t *topk;         /* (N) */
    int32_t *host_topk;    /* (N) for the view's heads */
    double *host_count;    /* (DSVI_SELECT_BINS) histogram of all heads together */
    double *host_mass;     /* (DSVI_SELECT_BINS) */
    double *host_selected; /* (N) sum of the attention estimates over the last lists of each head that this
                            * rank computes */
    int64_t *host_needed;  /* (1) spans that the last lists need, even if they do not fit */
    int64_t *host_near;    /* (1) if several ranks own the keys of a head: number of spans in the last lists
                            * whose keys this rank owns */
    int64_t *host_first;   /* if several ranks own the keys of a head: memory of DsviSparseBlock.host_first of
                            * all blocks */

    /* Measurements (sparse_profile.c). */
    int64_t samples; /* sampled queries of each head, over all ranks */
    int32_t *sample; /* (blocks, samples) device copy of host_sample */
    /* Device results of ops/profile.h and ops/attention_error.h: each block has room for (B, N, samples) and
     * writes (B, N_local, samples of its view). */
    float *captured, *share90, *listed, *error, *norm;
    int32_t *host_sample; /* (blocks, samples) sampled queries; those whose attention this rank computes come
                           * first, as numbers relative to the first query that this rank has */
    /* (blocks, B, N, samples) host copies of the measured arrays of all blocks */
    float *host_captured, *host_share90, *host_listed, *host_error, *host_norm;
    double *seen; /* measurements of this step that are averaged over ranks; layout in sparse_share.c */

    /* Memory. */
    void *host_memory; /* one allocation of DsviDevice.host_alloc that holds `order`, `block`, `record`,
                        * `prescription`, `seen` and all arrays named host_*, except host_spans */
    void *workspace;   /* workspace of the backend's ops */
    size_t workspace_bytes;
    void *shared; /* context parallelism: `room`, or the workspace of dense attention */
    size_t shared_bytes;
    DsviSparseCpBuffers room; /* buffers inside `shared`, as laid out for the current block */
    int64_t room_block, scored_block, scored_inputs; /* see the comment above DsviSparse */
    DsviRowsExchange exchange; /* if several ranks own the keys of a head: exchange of keys and values of the
                                * current block */
};

DsviSparseView dsvi_sparse_view(const DsviSparse *sparse, int64_t block);
/* Returns whether the block's lists are divided into near and far lists, and the keys of far lists fetched:
 * if several ranks own the keys of a head, and lists have no tail. */
bool dsvi_sparse_fetches(const DsviSparse *sparse, int64_t block);
/* Makes the block's lists use the device memory `spans`: `lists`, or `near` and `far` if the block fetches
 * keys (the capacities of near and far must then be set). */
void dsvi_sparse_point_lists(DsviSparse *sparse, int64_t block, int32_t *spans);

/* ---- sparse_memory.c ---- */

/* Allocates all host memory of the layer, filled with zeros. */
DsvStatus dsvi_sparse_allocate_host(DsviSparse *sparse);
/* Computes spans_capacity, spans_room and spans_max from the options. */
void dsvi_sparse_size_lists(DsviSparse *sparse);
/* Sets the shape fields of `lists` for the queries and heads in `view`, over all keys. */
void dsvi_sparse_shape_lists(const DsviSparse *sparse, const DsviSparseView *view, DsviLists *lists);
/* Context parallelism: carves `room` from `shared` as the block's plan requires. Called before each pass. */
void dsvi_sparse_layout_cp_buffers(DsviSparse *sparse, int64_t block);

/* ---- sparse_offload.c: without sparse.offload_lists these functions do nothing and return DSV_OK ---- */

/* Returns whether lists wait in host memory for their backward pass. */
bool dsvi_sparse_offloads(const DsviSparse *sparse);
/* Returns whether the block's lists are on the device; always true without offloading. */
bool dsvi_sparse_lists_on_device(const DsviSparse *sparse, int64_t block);
/* To be called before lists of the block are made at the front of `spans`: the compute stream then waits
 * until earlier lists have been copied to the host. */
DsvStatus dsvi_sparse_reserve_lists(DsviSparse *sparse, int64_t block);
/* To be called when the block's lists are made and their length is known: begins to copy them to the host.
 * Lists of the last block stay on the device. */
DsvStatus dsvi_sparse_offload_lists(DsviSparse *sparse, int64_t block);
/* To be called before the block's lists are used again. Work given to the compute stream afterwards finds
 * them on the device. Also begins to copy the lists of the block needed next, if there is room for both. */
DsvStatus dsvi_sparse_restore_lists(DsviSparse *sparse, int64_t block);
/* To be called when nothing more will read the block's lists: their memory becomes free. */
DsvStatus dsvi_sparse_discard_lists(DsviSparse *sparse, int64_t block);

/* ---- sparse.c ---- */

/* Returns arguments of an attention op for the queries and heads of `view` and `keys` keys. Tensors of `pass`
 * must be in heads form. */
DsviAttentionArgs dsvi_sparse_attention_args(const DsviSparse *sparse, const DsviSparseView *view,
                                             int64_t keys, const DsviAttentionCall *pass);
/* Attention of a block, forward and backward: over its current lists if its over_lists is set, otherwise
 * dense; with context parallelism together with the other ranks (sparse_cp.c). */
DsvStatus dsvi_sparse_attend(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass);
DsvStatus dsvi_sparse_attend_bwd(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass);

/* ---- sparse_decide.c ---- */

/* Returns whether the block is to attend over lists, if they fit: by prescription, force, the dense finish,
 * or the guard. */
bool dsvi_sparse_uses_lists(const DsviSparse *sparse, int64_t block);
/* Returns the density up to which a block may be sparse: sparse.max_density or break-even, whichever is
 * less. */
double dsvi_sparse_max_density(const DsviSparse *sparse);
/* Begins or ends the dense finish, as training step number `step` requires. Logs a line when the layer enters
 * the finish. Returns whether `step` is the first step of the finish, which takes measurements so that plans
 * follow the change at once. */
bool dsvi_sparse_finish_begin(DsviSparse *sparse, int64_t step);
/* Reports that the block attends densely because its lists do not fit: at the end of a training step through
 * the guard, otherwise at once. */
void dsvi_sparse_overflow(DsviSparse *sparse, int64_t block);
/* Lets the guard decide about each block after a training step. Logs every change, and why a measured block
 * stays dense. */
void dsvi_sparse_decide(DsviSparse *sparse);
/* Passes a line to the log, unless the line is empty. */
void dsvi_sparse_log_line(const DsviSparse *sparse, const char *line);

static inline size_t dsvi_sparse_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* ---- sparse_create.c ---- */

/* Forgets measurements and decisions about blocks, as before the first step. */
void dsvi_sparse_forget_measured(DsviSparse *sparse);

/* ---- sparse_tail.c ---- */

/* Fails if attention cannot have the tail that the options name, on the ranks of `cp` (NULL: no other ranks).
 */
DsvStatus dsvi_sparse_check_tail(const DsvConfig *settings, const DsviCp *cp);
/* Returns the number of chunks of `queries` queries; 0 without a tail. */
int64_t dsvi_sparse_tail_count(const DsviSparse *sparse, int64_t queries);
/* Returns the FLOPs of the tail as a fraction of those of dense attention; 0 without a tail. */
double dsvi_sparse_tail_work(const DsviSparse *sparse);
/* Attention over the block's lists and its tail, forward and backward, when this rank has all keys of its
 * heads. Tensors of `heads` are in heads form. */
DsvStatus dsvi_sparse_attend_lists(const DsviSparse *sparse, int64_t block, const DsviAttentionCall *heads);
DsvStatus dsvi_sparse_attend_lists_bwd(const DsviSparse *sparse, int64_t block,
                                       const DsviAttentionCall *heads);
/* The attention over a block's lists and their tail to the keys of one row of the rank grid, when several
 * ranks own the keys. `rows` must exist as long as the result is used. */
typedef struct DsviSparseRows {
    const DsviSparse *sparse;
    int64_t block;
} DsviSparseRows;
DsviCpRowAttention dsvi_sparse_row_attention(DsviSparseRows *rows);

/* ---- sparse_select.c ---- */

/* Returns the bytes of workspace for making the key lists of the queries and heads in `view`. */
size_t dsvi_sparse_select_workspace(const DsviSparse *sparse, const DsviSparseView *view);
/* Makes a block's lists from the features that its selector holds. The device may still be working when this
 * returns. Attention over the lists may be enqueued at once: lists that do not fit are empty. */
DsvStatus dsvi_sparse_make_lists(DsviSparse *sparse, int64_t block);
/* Waits until the lists made last are complete, but for no work enqueued after them. Sets the block's `fit`,
 * listed_block and listed_spans, and the record's density and estimated_mass. */
DsvStatus dsvi_sparse_await_lists(DsviSparse *sparse, int64_t block);

/* ---- sparse_profile.c ---- */

/* Returns the bytes of workspace for measuring the key lists of the queries and heads in `view`. */
size_t dsvi_sparse_profile_workspace(const DsviSparse *sparse, const DsviSparseView *view);
/* Draws at random the queries on which a measuring step compares lists with exact attention. */
DsvStatus dsvi_sparse_profile_begin(DsviSparse *sparse);
/* Enqueues the measurement of a block's current lists and, if this rank has all values of its heads, of the
 * output error. */
DsvStatus dsvi_sparse_profile_pass(DsviSparse *sparse, int64_t block, double scale,
                                   const DsviSparseScored *scored);
/* Waits until the device has measured the lists of all blocks. Writes for each block the means over sampled
 * queries of captured mass, share90, density and of the squared lengths of output error and exact output of
 * each head to DsviSparse.seen. */
DsvStatus dsvi_sparse_profile_read(DsviSparse *sparse);
/* Updates the running means in DsviSparse.record with this step's measurements in DsviSparse.seen. */
void dsvi_sparse_profile_end(DsviSparse *sparse);

/* ---- sparse_times.c ---- */

/* Returns whether this step times each block both densely and over lists (sparse.time_choices). */
bool dsvi_sparse_compares(const DsviSparse *sparse);
/* Times the block's forward attention both densely and over lists, once its lists are complete. `select` is
 * the seconds that making the lists took. */
DsvStatus dsvi_sparse_time_forward(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass,
                                   double select);
/* Times the block's backward attention both densely and over lists. Overwrites dq, dk and dv: to be called
 * before the backward pass proper. */
DsvStatus dsvi_sparse_time_backward(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass);
/* Writes a line about a block's times; an empty line if it was not timed. */
void dsvi_sparse_format_times(const DsviSparse *sparse, int64_t block, char *line, size_t line_bytes);

/* ---- sparse_cp.c: with context parallelism tensors go in and out in token form ---- */

/* Sets `proxies` and `candidates`: the selector's arrays, or with context parallelism those of all ranks,
 * exchanged so that this rank has its own heads. */
DsvStatus dsvi_sparse_exchange_features(DsviSparse *sparse, int64_t block);
/* Sets `scored` to the q and k that exact scores need, and to the v that the output error needs if `values`
 * is true: the tensors of `pass`, or with context parallelism exchanged copies in `room`, valid until the
 * block's attention. v is NULL if the block fetches keys (dsvi_sparse_fetches). */
DsvStatus dsvi_sparse_exchange_scored(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass,
                                      bool values, DsviSparseScored *scored);
/* Attention of a block on context-parallel ranks, forward and backward: over lists if the block's over_lists
 * is set, otherwise dense. All ranks of the group call. */
DsvStatus dsvi_sparse_cp_attend(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass);
DsvStatus dsvi_sparse_cp_backward(DsviSparse *sparse, int64_t block, const DsviAttentionCall *pass);

/* ---- sparse_far.c: for blocks that fetch keys; all ranks of the sequence group call ---- */

/* Divides the lists made last into near lists (keys that this rank owns) and far lists (keys of other
 * ranks) as far as needed to mark the listed spans of other ranks, and exchanges these marks. Waits for
 * the device. */
DsvStatus dsvi_sparse_divide_lists(DsviSparse *sparse, int64_t block);
/* Writes the block's near lists (keys that this rank owns) and far lists (keys of other ranks) to the
 * memory where they stay until the backward pass. To be called when the lists are known to fit. */
DsvStatus dsvi_sparse_keep_divided_lists(DsviSparse *sparse, int64_t block);
/* Computes attention over near lists (keys that this rank owns) and far lists (keys of other ranks).
 * Tensors of `heads` are in heads form. */
DsvStatus dsvi_sparse_far_attend(DsviSparse *sparse, int64_t block, const DsviAttentionCall *heads);
/* Computes gradients of attention over near lists (keys that this rank owns) and far lists (keys of other
 * ranks). `fetched` true: DsviSparse.room still holds the keys and values that the forward pass fetched. */
DsvStatus dsvi_sparse_far_backward(DsviSparse *sparse, int64_t block, const DsviAttentionCall *heads,
                                   bool fetched);

/* ---- sparse_share.c ---- */

/* Returns the number of values in DsviSparse.seen, the measurements that are averaged over ranks. */
size_t dsvi_sparse_seen_count(const DsviSparse *sparse);
/* Return the address in DsviSparse.seen of the means over samples (N) of a measured block: of each head the
 * captured mass, share90, density, and the squared lengths of the output error and of the exact output. */
double *dsvi_sparse_seen_captured(const DsviSparse *sparse, int64_t block);
double *dsvi_sparse_seen_share90(const DsviSparse *sparse, int64_t block);
double *dsvi_sparse_seen_listed(const DsviSparse *sparse, int64_t block);
double *dsvi_sparse_seen_error(const DsviSparse *sparse, int64_t block);
double *dsvi_sparse_seen_norm(const DsviSparse *sparse, int64_t block);
/* Replaces what this rank has observed in the step by the mean over all ranks. All ranks call. */
DsvStatus dsvi_sparse_average_seen(DsviSparse *sparse);

#ifdef __cplusplus
}
#endif
#endif
