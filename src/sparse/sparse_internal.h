/* What the files of the sparse layer share: DsvSparse itself, and the parts of a pass.
 *
 * sparse.c        the calls of sparse.h, in the order of a step
 * sparse_memory.c what all of it takes
 * sparse_offload.c lists on the host between a block's forward pass and its backward pass
 * sparse_select.c from a selector's features to a block's lists
 * sparse_profile.c exact measurements on sampled queries
 * sparse_share.c  what several ranks have seen, put together
 * sparse_state.c  saving, loading, copying
 * sparse_context.c a block's attention on ranks that share the samples: heads for tokens, and back
 * sparse_far.c    lists whose keys lie on several ranks */
#ifndef DSVI_SPARSE_INTERNAL_H
#define DSVI_SPARSE_INTERNAL_H

#include "context/features_exchange.h"
#include "context/rows_exchange.h"
#include "sparse/dispatch.h"
#include "sparse/selector.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Seconds of a block's attention, both ways, in a step that times them. */
typedef struct DsvSparseTimes {
    bool forward, backward;        /* what has been timed */
    double select;                 /* making its lists */
    double seconds[DSV_PASSES][2]; /* dense, over lists */
} DsvSparseTimes;

/* One block in the current step. */
typedef struct DsvSparseBlock {
    DsvLists lists;           /* of the view's heads and queries, over all keys; runs and capacity: the piece
                               * of all memory for runs that it could have; runs are made in whole_runs where
                               * keys are divided */
    int32_t *runs;            /* device memory: those that are kept begin here */
    int64_t at;               /* where they begin in the memory of all */
    int64_t kept;             /* runs of it that the backward pass will want */
    int64_t sample_count;     /* queries measured by this rank */
    DsvLists near, far;       /* where keys are divided: lists over the own keys, and over fetched ones */
    uint32_t *needs_marks, *wants_marks; /* rows_exchange.h */
    int64_t *host_first;      /* host memory, likewise */
    bool over_lists;          /* the last forward pass attended over them, so the backward pass does */
    bool fit;                 /* the last lists made are whole */
    bool measured;            /* in this step */
    bool overflowed;          /* in this step: should have attended over lists, and they did not fit */
    bool measured_fit;        /* the lists that were measured are whole */
    double measured_density, measured_mass; /* theirs; the mass as the selector estimated it */
    double overflow_density;
    double far_share;         /* of the last lists; NAN: keys are not divided */
    double seconds;           /* spent on it in this step, where that is timed */
    int64_t passes;           /* backward, likewise */
    DsvSparseTimes times;
} DsvSparseBlock;

/* What outlives a step, block by block, in host memory; saved. Running means are NaN before the first. */
typedef struct DsvSparseRecord {
    int32_t *sparse;          /* (blocks) 1: it runs over lists */
    int64_t *changes;         /* (blocks) */
    double *captured;         /* (blocks) running mean of the exact mass */
    double *listed;           /* (blocks) running mean of the density of measured lists */
    double *share90;          /* (blocks) running mean */
    float *head_captured;     /* (blocks, N) running means */
    float *head_share90;      /* (blocks, N) */
    float *head_listed;       /* (blocks, N) running means of the density of measured lists */
    double *density;          /* (blocks) of the last lists */
    double *estimated_mass;   /* (blocks) of the last lists */
    double *missed;           /* (blocks) running mean of the mass that lists missed, over what the selector
                               * believed they would */
    double *break_even;       /* (1) density up to which sparse attention pays */
} DsvSparseRecord;

/* Memory of attention on ranks that share the samples: lives inside one pass of one block, but for what
 * room_block and scored_block of DsvSparse tell, and is laid out for the head ranks of its plan. Heads forms
 * as in context.h; NULL where that plan wants none. */
typedef struct DsvSparseRoom {
    void *q, *k, *v, *out;             /* heads forms */
    void *dout, *dq, *dk, *dv;         /* heads forms, of the backward pass */
    void *moved;                       /* workspace of moves */
    float *proxies;                    /* (B, N_own, proxies of T, R) */
    float *candidates;                 /* (B, N_own, candidates of S, R) */
    void *features;                    /* workspace of their exchange */
    void *far_out, *far_lse, *far_dq;  /* attention over fetched keys */
    int32_t *needs_before, *wants_before;
    int64_t *needs_first, *wants_first;
    void *sent, *received, *compact;   /* messages; fetched k and v. In the backward pass gradients of these
                                        * take the place of `received`, and go home from `compact` */
} DsvSparseRoom;

/* Memory that blocks share, and whose it is from one call to the next. Each number is a block, or -1: none,
 * as at the start.
 *
 *                promises of the block                  set by                    cleared by
 *   scored_block its q and k are in `room`, in heads    take_scored               step_begin; attention of
 *                form: attention does not send them                               any block
 *   room_block   its q, k, v, out and fetched rows      context_attend over       step_begin; take_scored,
 *                are there: its backward pass sends     lists                     attention and backward
 *                dout alone                                                       pass of any block
 *   listed_block its lists were made last, listed_runs  take_lists                make_lists of any block
 *                of them; whether they fit is known
 * and where lists are offloaded
 *   lying[0, 1]  its lists lie at the front of `runs`,  clear_room, bring_back;   whose lists come there
 *                or at its end, or are on their way     of the one wanted next    next; its use_up
 *                                                       bring_back, use_up
 *   coming       they are on their way, and the stream  bring_back, use_up        its bring_back, which has
 *                has not been told to wait                                        the stream wait; clear_room
 */
struct DsvSparse {
    DsvBackend *backend;
    DsvConfig settings;
    DsvSparseShape shape;
    DsvDtype acc;
    DsvSparseLog *log;
    void *log_context;
    DsvSparseWatch *watch;    /* or NULL */
    void *watch_context;
    const DsvContext *context; /* NULL: this rank has its samples alone */
    DsvComm *comm;            /* NULL: one rank alone */
    DsvSelector *selector;    /* NULL: settings keep all blocks dense, and there are no lists */
    void *host_memory;        /* the device's own, of all that follows up to `device memory` */

    int32_t *order;           /* (S) */
    DsvSparseBlock *block;    /* (blocks) */
    DsvSparseRecord record;
    double *prescription;     /* (blocks, N) room for `prescribed` */
    int32_t *host_topk;       /* (N) of the view's heads */
    double *host_count, *host_mass; /* (DSV_SELECT_BINS) of all heads together */
    double *host_selected;    /* (N) estimated mass of the last lists of the view's heads */
    int64_t *host_needed;     /* (1) runs that the last lists need */
    int64_t *host_near;       /* (1) those of them that are over the own keys, where keys are divided */
    int64_t *host_first;      /* of all blocks */
    int32_t *host_sample;     /* (blocks, samples) of all queries; the view's come first, counted from its own
                               * first */
    float *host_captured;     /* (blocks, B, N, samples) */
    float *host_share90;      /* (blocks, B, N, samples) */
    float *host_listed;       /* (blocks, B, N, samples) */
    double *seen;             /* of each block in this step, see sparse_share.c */

    /* device memory */
    float *proxies, *candidates; /* of the view: the selector's, or the room's */
    float *select_lse;        /* (B, N_own, proxies) */
    double *bin_count, *bin_mass; /* (DSV_SELECT_BINS) each, one behind the other */
    int32_t *head;            /* (N) the view's heads */
    float *threshold;         /* (N) */
    int32_t *topk;            /* (N) */
    int32_t *runs;            /* (runs_room) the lists of all blocks, behind one another; of those that pass
                               * where lists are offloaded */
    int32_t *runs_aside;      /* (blocks, runs_most) those of dense blocks whose choices are timed; or NULL */
    int32_t *whole_runs;      /* (runs_most) a block's lists over all keys, where keys are divided */
    int32_t *sample;          /* (blocks, samples) */
    float *captured, *share90, *listed; /* (blocks, B, N_own, samples), the view's of all room for these */
    void *workspace;
    size_t workspace_bytes;
    DsvRowsExchange exchange; /* of the block under way, where keys are divided */
    DsvSparseRoom room;       /* in `shared`, as the workspace of dense attention is */
    int64_t room_block, scored_block; /* whose tensors lie in the room: see above */
    void *shared;
    size_t shared_bytes;

    int64_t runs_capacity;    /* of all blocks' lists */
    int64_t runs_room;        /* of lists on the device: likewise, or less where they are offloaded */
    int64_t runs_most;        /* that one block may have */
    int32_t *host_runs;       /* the caller's host memory, where lists are offloaded those of all blocks but
                               * the last, behind one another; or NULL */
    int64_t lying[2], coming; /* then, whose lists are on the device: see above */
    int64_t samples;          /* queries measured, per head */
    int64_t step;
    bool train, forced;
    double *prescribed;       /* (blocks, N) density of lists, NAN: dense; NULL: none */
    bool measuring;           /* this step takes measurements */
    bool measured;            /* the step that ended last did */
    bool times_next, timing;  /* the next step is to be timed; this one is */
    DsvAttentionCost cost;
    bool knows_cost;
    int64_t listed_block;     /* whose lists the host knows about: see above */
    int64_t listed_runs;      /* how many they are */
    double predictor_loss;
};

DsvSparseView dsvi_sparse_view(const DsvSparse *sparse, int64_t block);
/* The block's lists, of lengths that are known where its keys are divided, are those that begin here. */
void dsvi_sparse_point_lists(DsvSparse *sparse, int64_t block, int32_t *runs);

/* sparse_memory.c: host memory; how many runs there is room for; lists over all keys in a view's shape. */
DsvStatus dsvi_sparse_allocate_host(DsvSparse *sparse);
void dsvi_sparse_size_lists(DsvSparse *sparse);
void dsvi_sparse_shape_lists(const DsvSparse *sparse, const DsvSparseView *view, DsvLists *lists);
/* With a context: the room laid out for a pass of the block. */
void dsvi_sparse_lay_room(DsvSparse *sparse, int64_t block);

/* sparse_offload.c: whether lists wait on the host for their backward pass; where they do not, calls do
 * nothing. clear_room: lists of the block will be made on the device, once others have left. send_away: they
 * have been made, and their length is known. bring_back: what the device is given from here on finds the
 * block's lists, and those wanted next are on their way. use_up: nothing more wants the block's. */
bool dsvi_sparse_offloads(const DsvSparse *sparse);
bool dsvi_sparse_lies(const DsvSparse *sparse, int64_t block); /* the block's lists are on the device */
DsvStatus dsvi_sparse_clear_room(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_send_away(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_bring_back(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_use_up(DsvSparse *sparse, int64_t block);

/* Whether the block is to run over lists, if these fit. */
bool dsvi_sparse_wanted(const DsvSparse *sparse, int64_t block);
/* Density up to which blocks may run sparse. */
double dsvi_sparse_max_density(const DsvSparse *sparse);
/* Shapes of attention of the view over `keys` keys, and the tensors of `pass`, in heads form. */
DsvAttentionArgs dsvi_sparse_attention_args(const DsvSparse *sparse, const DsvSparseView *view, int64_t keys,
                                            const DsvSparseAttention *pass);

/* sparse_select.c: workspace; a block's lists, from the features its selector holds. make_lists only tells
 * the device to; attention over them may follow at once, for lists that do not fit are empty. take_lists
 * waits for the lists made last, though for nothing behind them, and sets `fit`, the record's density and
 * estimated_mass. */
size_t dsvi_sparse_select_workspace(const DsvSparse *sparse, const DsvSparseView *view);
DsvStatus dsvi_sparse_make_lists(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_take_lists(DsvSparse *sparse, int64_t block);

/* sparse_profile.c: draws the step's queries; measures a block's lists as they are; reads the results, to
 * `seen`; takes them in. */
size_t dsvi_sparse_profile_workspace(const DsvSparse *sparse, const DsvSparseView *view);
DsvStatus dsvi_sparse_profile_begin(DsvSparse *sparse);
DsvStatus dsvi_sparse_profile_pass(DsvSparse *sparse, int64_t block, double scale,
                                   const DsvSparseScored *scored);
DsvStatus dsvi_sparse_profile_read(DsvSparse *sparse);
void dsvi_sparse_profile_end(DsvSparse *sparse);

/* Attention of a block as its over_lists says, without a context: over the lists that are there. */
DsvStatus dsvi_sparse_attend(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass);
DsvStatus dsvi_sparse_attend_back(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass);

/* sparse_times.c: whether this step times both choices; both timed, forward when the block's lists are made
 * (which took `select` seconds) and taken, backward before the pass that counts; a line on it, empty where
 * they were not timed. */
bool dsvi_sparse_compares(const DsvSparse *sparse);
DsvStatus dsvi_sparse_time_forward(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass,
                                   double select);
DsvStatus dsvi_sparse_time_backward(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass);
void dsvi_sparse_tell_times(const DsvSparse *sparse, int64_t block, char *line, size_t line_bytes);

/* sparse_context.c: features to where heads are; what exact scores of the view are made of, which without a
 * context is the pass's own, and with one lies in the room until the block is attended to; with a context, a
 * block attended to (over its lists where over_lists says so), and backward. Tokens form in and out. */
DsvStatus dsvi_sparse_take_features(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_take_scored(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass,
                                  DsvSparseScored *scored);
DsvStatus dsvi_sparse_context_attend(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass);
DsvStatus dsvi_sparse_context_backward(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass);

/* sparse_far.c, where keys are divided: the lists made last into near and far ones, as far as marks go, to
 * others and from them, waiting; then, once lists are known to fit, to where the block keeps them; attention
 * over these and its backward pass, of tensors in heads form. */
DsvStatus dsvi_sparse_divide(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_keep_divided(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_far_attend(DsvSparse *sparse, int64_t block, const DsvSparseAttention *heads);
/* `fetched`: the room holds the rows. */
DsvStatus dsvi_sparse_far_backward(DsvSparse *sparse, int64_t block, const DsvSparseAttention *heads,
                                   bool fetched);

/* sparse_share.c: numbers in `seen`; the heads' means (N) of a measured block; after the call what this rank
 * has seen in the step is the mean of what all have. */
size_t dsvi_sparse_seen_count(const DsvSparse *sparse);
double *dsvi_sparse_seen_captured(const DsvSparse *sparse, int64_t block);
double *dsvi_sparse_seen_share90(const DsvSparse *sparse, int64_t block);
double *dsvi_sparse_seen_listed(const DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_agree(DsvSparse *sparse);

#ifdef __cplusplus
}
#endif
#endif
