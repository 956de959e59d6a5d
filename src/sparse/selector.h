/* Selectors: different ways to estimate how much attention a group of queries pays to each key, with one
 * interface.
 *
 * Every selector computes features of proxies and candidates (ops/select.h). sparse_select.c makes lists from
 * them in the same way for all selectors. A selector keeps state for each block of the model and may learn
 * from each forward pass. Functions are called in this order:
 *     create, carve (planning), carve (bound), setup,
 *     then in each step: step_begin, dsvi_selector_observe for each block and forward pass, step_end.
 * With context parallelism each rank observes its own tokens. Exact scores, from which a selector may
 * learn, cover the queries and heads whose attention this rank computes (DsviSparseView). */
#ifndef DSVI_SELECTOR_H
#define DSVI_SELECTOR_H

#include "sparse/sparse.h"
#include "sparse/state_list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The part of a block's attention that this rank computes: T queries and N_local heads, over all S keys.
 * Without context parallelism T and N_local are all queries and heads. */
typedef struct DsviSparseView {
    int64_t first, queries; /* the queries are the T tokens from `first` on */
    int64_t heads;          /* N_local */
    const int32_t *head;    /* (N_local) numbers of the heads that this rank computes, host memory; NULL: all
                             * heads in order */
    bool divided;           /* the keys of one head are owned by several ranks */
} DsviSparseView;

DsviSparseView dsvi_sparse_view_of(const DsviSparseShape *shape, int64_t block);

/* Tensors in device memory from which exact attention scores are computed, for the queries and heads of
 * this rank's part of attention (DsviSparseView). */
typedef struct DsviSparseScored {
    DsviHeads q; /* (B, T, N_local, D) act */
    DsviHeads k; /* (B, S, N_local, D) act */
    DsviHeads v; /* (B, S, N_local, D) act; data NULL if this rank does not have all values */
} DsviSparseScored;

/* Features of the block that the selector observed last. */
typedef struct DsviFeatures {
    int64_t chunk;          /* consecutive queries that share one proxy, a row of query features */
    int64_t candidate_keys; /* consecutive keys that share one candidate, a row of key features */
    int64_t features;       /* R */
    bool coarse;            /* scores may be computed with reduced precision (dsvi_select_coarse) */
    double scale;           /* a score is scale times the dot product of a proxy and a candidate */
    float *proxies;         /* (B, N, ceil(tokens / chunk), R) device memory, of this rank's tokens */
    float *candidates;      /* (B, N, ceil(tokens / candidate_keys), R) device memory, of this rank's
                             * tokens */
} DsviFeatures;

typedef struct DsviSelector DsviSelector;

/* Functions that a selector implements. All except create, free and observe may be NULL. In a training step
 * `learn` is called after `observe`. */
typedef struct DsviSelectorType {
    const char *name; /* value of sparse.selector */
    bool shared;      /* layers for clips of several sizes may use one selector */
    DsvStatus (*create)(const DsvConfig *settings, const DsviSparseShape *shape, DsviSelector **out);
    void (*free)(DsviSelector *selector);
    void (*carve)(DsviSelector *selector, DsviArena *arena);
    DsvStatus (*setup)(DsviSelector *selector);
    DsvStatus (*step_begin)(DsviSelector *selector);
    /* Observes a forward pass of a block; computes DsviSelector.features if `estimate` is true. */
    DsvStatus (*observe)(DsviSelector *selector, int64_t block, const DsviAttentionCall *args, bool estimate);
    /* Learns from exact attention scores of the forward pass that `observe` has seen last. */
    DsvStatus (*learn)(DsviSelector *selector, int64_t block, const DsviAttentionCall *args,
                       const DsviSparseScored *scored);
    DsvStatus (*step_end)(DsviSelector *selector, const int32_t *sparse, double *loss);
    void (*state)(DsviSelector *selector, DsviStateList *list);
    DsvStatus (*restored)(DsviSelector *selector);
    void (*forget)(DsviSelector *selector);
} DsviSelectorType;

/* First member of the struct of each selector. DsviSelectorType.create sets the fields of `features` that
 * are not pointers (`scale` only if its value is already known at creation); dsvi_selector_create sets all
 * other fields. */
struct DsviSelector {
    const DsviSelectorType *type;
    DsviBackend *backend;
    const DsvConfig *settings; /* the caller's; must outlive the selector */
    DsviSparseShape shape;
    int64_t first, tokens; /* this rank's tokens: all, or its shard with context parallelism */
    int64_t tokens_max;    /* of all shapes that use the selector */
    int64_t cp_ranks;      /* ranks that work on the same samples, this one included; 1 without others */
    DsviFeatures features;
    DsviComm *comm;        /* all ranks that learn together, context-parallel ranks included, for host
                            * memory; NULL: this rank alone */
    DsviComm *device_comm; /* the ranks of `comm`, connected for device memory */
    int64_t step;          /* number of the current step */
    bool train;            /* the current step is a training step */
};

extern const DsviSelectorType dsvi_selector_projection, dsvi_selector_predictor, dsvi_selector_pooled,
    dsvi_selector_window;

/* Creates the selector that settings->sparse_selector names. DSV_E_USAGE if there is none of this name. */
DsvStatus dsvi_selector_create(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                               DsviSelector **out);
void dsvi_selector_free(DsviSelector **selector);
/* Takes device memory for features and state from the arena; to be called twice: while the arena only
 * counts bytes, and when it is bound to memory. */
void dsvi_selector_carve(DsviSelector *selector, DsviArena *arena);
/* Returns whether layers for clips of several sizes use one selector of this type. */
bool dsvi_selector_is_shared(const DsviSelector *selector);
/* Reserves memory for clips of another shape, before carve; without context parallelism. */
void dsvi_selector_reserve(DsviSelector *selector, const DsviSparseShape *shape);
/* Sets the shape of the clips that are observed next, to one that the selector was created for or that was
 * reserved. */
void dsvi_selector_use(DsviSelector *selector, const DsviSparseShape *shape);
/* Sets the initial state, after the arena is bound. */
DsvStatus dsvi_selector_setup(DsviSelector *selector);

/* Begins a step. `train`: the selector may learn from the passes of this step. */
DsvStatus dsvi_selector_step_begin(DsviSelector *selector, int64_t step, bool train);
/* Returns whether the selector learns from exact scores in this step; dsvi_selector_observe then needs
 * `scored`. */
bool dsvi_selector_learns(const DsviSelector *selector);
/* Observes one forward pass of a block: learns from the pass in a training step, and computes
 * DsviSelector.features if `estimate` is true. `scored` is read only if dsvi_selector_learns returns true. */
DsvStatus dsvi_selector_observe(DsviSelector *selector, int64_t block, const DsviAttentionCall *args,
                                const DsviSparseScored *scored, bool estimate);
/* Ends a step and updates what the selector has learned. sparse[block] is not 0 for sparse blocks. Sets
 * *loss to the loss that the selector minimises, mean over blocks and passes of the step; NaN for selectors
 * without gradient descent. */
DsvStatus dsvi_selector_step_end(DsviSelector *selector, const int32_t *sparse, double *loss);

/* Appends the selector's state to a list. dsvi_selector_restored must be called after this state was read
 * back or copied. */
void dsvi_selector_state(DsviSelector *selector, DsviStateList *list);
DsvStatus dsvi_selector_restored(DsviSelector *selector);
/* Forgets the statistics of earlier passes, as before the first step. A predictor keeps its weights. */
void dsvi_selector_forget(DsviSelector *selector);

/* ---- functions that the implementations of selectors call ---- */

/* Computes features of this rank's tokens: out (B, N, ceil(tokens / tokens_each), R) are the means of
 * `tokens_each` rows, `dim` wide, multiplied by `projection` (N, dim, R), or the means themselves if
 * `projection` is NULL. */
DsvStatus dsvi_selector_features(const DsviSelector *selector, DsviDtype dtype, DsviHeads rows, int64_t dim,
                                 int64_t tokens_each, const float *projection, float *out);

/* Draws `count` of `tokens` queries in ascending order, one from each of `count` ranges of equal length.
 * The drawn queries depend only on seed, step, block and `use`. Draws in one step with different `use` are
 * independent. */
typedef enum DsviDraw { DSVI_DRAW_PROFILE, DSVI_DRAW_PREDICTOR, DSVI_DRAW_COUNT } DsviDraw;
void dsvi_draw_queries(uint64_t seed, int64_t step, int64_t block, DsviDraw use, int64_t tokens,
                       int64_t count, int32_t *query);
/* Moves those of the `count` entries of `query` that belong to the view (the range of queries whose
 * attention this rank computes) to the front of `query`, as numbers relative to the view's first query.
 * Returns how many queries belong to the view. */
int64_t dsvi_keep_queries(const DsviSparseView *view, int64_t count, int32_t *query);

#ifdef __cplusplus
}
#endif
#endif
