/* What the files of the sparse layer share: DsvSparse itself, and the parts of a pass.
 *
 * sparse.c        the calls of sparse.h, in the order of a step
 * sparse_select.c from a selector's features to a block's lists
 * sparse_profile.c exact measurements on sampled queries
 * sparse_share.c  what several ranks have seen, put together
 * sparse_state.c  saving, loading, copying
 * cost.c          where sparse attention stops paying */
#ifndef DSVI_SPARSE_INTERNAL_H
#define DSVI_SPARSE_INTERNAL_H

#include "sparse/dispatch.h"
#include "sparse/selector.h"
#include "sparse/sparse.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One block in the current step. */
typedef struct DsvSparseBlock {
    DsvLists lists;           /* runs and capacity: the piece of all memory for runs that it could have */
    int64_t kept;             /* runs of it that the backward pass will want */
    bool over_lists;          /* the last forward pass attended over them, so the backward pass does */
    bool fit;                 /* the last lists made are whole */
    bool measured;            /* in this step */
    bool overflowed;          /* in this step: should have attended over lists, and they did not fit */
    bool measured_fit;        /* the lists that were measured are whole */
    double measured_density, measured_mass; /* theirs; the mass as the selector estimated it */
    double overflow_density;
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
    double *density;          /* (blocks) of the last lists */
    double *estimated_mass;   /* (blocks) of the last lists */
    double *missed;           /* (blocks) running mean of the mass that lists missed, over what the selector
                               * believed they would */
    double *break_even;       /* (1) density up to which sparse attention pays */
} DsvSparseRecord;

struct DsvSparse {
    DsvBackend *backend;
    DsvConfig settings;
    DsvSparseShape shape;
    DsvDtype acc;
    DsvSparseLog *log;
    void *log_context;
    DsvSparseWatch *watch;    /* or NULL */
    void *watch_context;
    DsvComm *comm;            /* NULL: one rank alone */
    DsvSelector *selector;    /* NULL: settings keep all blocks dense, and there are no lists */
    void *host_memory;        /* the device's own, of all that follows up to `device memory` */

    int32_t *order;           /* (S) */
    DsvSparseBlock *block;    /* (blocks) */
    DsvSparseRecord record;
    int32_t *host_topk;       /* (N) */
    double *host_count, *host_mass; /* (DSV_SELECT_BINS) of all heads together */
    double *host_selected;    /* (N) */
    int64_t *host_needed;     /* (1) runs that the last lists need */
    int32_t *host_sample;     /* (blocks, samples) */
    float *host_captured;     /* (blocks, B, N, samples) */
    float *host_share90;      /* (blocks, B, N, samples) */
    double *seen;             /* of each block in this step, see sparse_share.c */

    /* device memory */
    float *select_lse;        /* (B, N, proxies) */
    double *bin_count, *bin_mass; /* (DSV_SELECT_BINS) */
    float *threshold;         /* (N) */
    int32_t *topk;            /* (N) */
    int32_t *runs;            /* (runs_capacity) the lists of all blocks, behind one another */
    double *selected_mass;    /* (N) */
    int32_t *sample;          /* (blocks, samples) */
    float *captured, *share90; /* (blocks, B, N, samples) */
    float *listed;            /* (B, N, samples) */
    void *workspace;
    size_t workspace_bytes;

    int64_t runs_capacity;
    int64_t runs_most;        /* that one block may have */
    int64_t samples;          /* queries measured, per head */
    int64_t step;
    bool train, forced;
    bool measuring;           /* this step takes measurements */
    bool measured;            /* the step that ended last did */
    int64_t listed_block;     /* whose lists were made last */
    int64_t listed_runs;      /* how many they are */
    double predictor_loss;
};

/* Density up to which blocks may run sparse. */
double dsvi_sparse_max_density(const DsvSparse *sparse);
/* Shapes of attention over all tokens, and the tensors of `pass`. */
DsvAttentionArgs dsvi_sparse_attention_args(const DsvSparse *sparse, const DsvSparseAttention *pass);

/* sparse_select.c: workspace; a block's lists, from the features its selector holds. make_lists only tells
 * the device to; attention over them may follow at once, for lists that do not fit are empty. take_lists
 * waits for the lists made last, though for nothing behind them, and sets `fit`, the record's density and
 * estimated_mass. */
size_t dsvi_sparse_select_workspace(const DsvSparse *sparse);
DsvStatus dsvi_sparse_make_lists(DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_take_lists(DsvSparse *sparse, int64_t block);

/* sparse_profile.c: draws the step's queries; measures a block's lists as they are; reads the results, to
 * `seen`; takes them in. */
size_t dsvi_sparse_profile_workspace(const DsvSparse *sparse);
DsvStatus dsvi_sparse_profile_begin(DsvSparse *sparse);
DsvStatus dsvi_sparse_profile_pass(DsvSparse *sparse, int64_t block, const DsvSparseAttention *pass);
DsvStatus dsvi_sparse_profile_read(DsvSparse *sparse);
void dsvi_sparse_profile_end(DsvSparse *sparse);

/* sparse_share.c: numbers in `seen`; the heads' means (N) of a measured block; after the call what this rank
 * has seen in the step is the mean of what all have. */
size_t dsvi_sparse_seen_count(const DsvSparse *sparse);
double *dsvi_sparse_seen_captured(const DsvSparse *sparse, int64_t block);
double *dsvi_sparse_seen_share90(const DsvSparse *sparse, int64_t block);
DsvStatus dsvi_sparse_agree(DsvSparse *sparse);

/* cost.c: times dense attention against selection and attention over lists on random tensors of this shape,
 * at fewer tokens where it would take long. `line` says what was found. Allocates and frees what it needs. */
DsvStatus dsvi_cost_break_even(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               double *break_even, char *line, size_t line_bytes);

#ifdef __cplusplus
}
#endif
#endif
