/* Selectors: the ways to estimate the attention a group of queries pays to every key, behind one interface.
 *
 * Whatever the way, it ends in features of proxies and candidates (ops/select.h); from there on
 * sparse_select.c is the same for all. A selector keeps state for every block of the model and may learn from
 * each pass. Calls come in this order:
 *     create, carve (planning), carve (bound), setup,
 *     then per step: step_begin, look for each block and pass, step_end.
 * With a context every rank looks at its own tokens; what it learns from exact scores it learns from those of
 * its view. */
#ifndef DSVI_SELECTOR_H
#define DSVI_SELECTOR_H

#include "sparse/sparse.h"
#include "sparse/state_list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A block's attention as this rank does it: T queries and N_own heads against all S keys. Without a context
 * these are all queries and heads. */
typedef struct DsvSparseView {
    int64_t first, queries;   /* T, from token `first` on */
    int64_t heads;            /* N_own */
    const int32_t *head;      /* (heads) which they are; NULL: all, in order */
    bool divided;             /* the keys lie on several ranks */
} DsvSparseView;

DsvSparseView dsvi_sparse_view_of(const DsvSparseShape *shape, int64_t block);

/* What exact scores of a view are made of, device memory. */
typedef struct DsvSparseScored {
    const void *q;            /* (B, T, N_own, D) act */
    const void *k;            /* (B, S, N_own, D) act */
} DsvSparseScored;

/* Features of the block looked at last. */
typedef struct DsvFeatures {
    int64_t chunk;          /* queries a proxy stands for */
    int64_t candidate_keys; /* keys a candidate stands for */
    int64_t features;       /* R */
    bool coarse;            /* they may count as coarse (ops/select.h) */
    double scale;
    float *proxies;         /* (B, N, ceil(tokens / chunk), R) device memory, of the own tokens */
    float *candidates;      /* (B, N, ceil(tokens / candidate_keys), R) device memory, likewise */
} DsvFeatures;

typedef struct DsvSelector DsvSelector;

/* What one way implements. Any but `create`, `free` and `look` may be NULL: nothing to do. `learn` follows
 * `look` in a training step. */
typedef struct DsvSelectorType {
    const char *name; /* as sparse.selector */
    DsvStatus (*create)(const DsvConfig *settings, const DsvSparseShape *shape, DsvSelector **out);
    void (*free)(DsvSelector *selector);
    void (*carve)(DsvSelector *selector, DsvArena *arena);
    DsvStatus (*setup)(DsvSelector *selector);
    DsvStatus (*step_begin)(DsvSelector *selector);
    DsvStatus (*look)(DsvSelector *selector, int64_t block, const DsvSparseAttention *args, bool estimate);
    DsvStatus (*learn)(DsvSelector *selector, int64_t block, const DsvSparseAttention *args,
                       const DsvSparseScored *scored);
    DsvStatus (*step_end)(DsvSelector *selector, const int32_t *sparse, double *loss);
    void (*state)(DsvSelector *selector, DsvStateList *list);
    DsvStatus (*restored)(DsvSelector *selector);
} DsvSelectorType;

/* The head of every selector's struct. A type's create sets what `features` holds but memory (scale where it
 * is known by then), the rest is set for it. */
struct DsvSelector {
    const DsvSelectorType *type;
    DsvBackend *backend;
    const DsvConfig *settings; /* the caller's, outlive the selector */
    DsvSparseShape shape;
    int64_t first, tokens;     /* the own tokens: all, or those that a context gives */
    int64_t context_ranks;     /* that share samples with this one, itself included */
    DsvFeatures features;
    DsvComm *comm;             /* the ranks that learn together, those of a context with their part of the
                                * tokens; NULL: one alone */
    DsvComm *device_comm;      /* the same for device memory */
    int64_t step;              /* of step_begin */
    bool train;
};

extern const DsvSelectorType dsvi_selector_projection, dsvi_selector_predictor, dsvi_selector_pooled,
    dsvi_selector_window;

/* The selector of settings->sparse_selector. */
DsvStatus dsvi_selector_create(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                               DsvSelector **out);
void dsvi_selector_free(DsvSelector **selector);
void dsvi_selector_carve(DsvSelector *selector, DsvArena *arena);
DsvStatus dsvi_selector_setup(DsvSelector *selector);

/* `train`: passes of this step may be learnt from. */
DsvStatus dsvi_selector_step_begin(DsvSelector *selector, int64_t step, bool train);
/* Whether passes of this step are learnt from by exact scores. */
bool dsvi_selector_learns(const DsvSelector *selector);
/* One forward pass of one block: learns from it in a training step, and fills `features` if `estimate`.
 * `scored` is read where the selector learns by it. */
DsvStatus dsvi_selector_look(DsvSelector *selector, int64_t block, const DsvSparseAttention *args,
                             const DsvSparseScored *scored, bool estimate);
/* sparse[block]: whether it runs over lists. *loss: what learning minimises, mean over blocks and passes of
 * the step; NaN where nothing is learnt by descent. */
DsvStatus dsvi_selector_step_end(DsvSelector *selector, const int32_t *sparse, double *loss);

/* Adds what must be saved; dsvi_selector_restored after it was read back. */
void dsvi_selector_state(DsvSelector *selector, DsvStateList *list);
DsvStatus dsvi_selector_restored(DsvSelector *selector);

/* For implementations. */

/* out (B, N, ceil(S / tokens_each), R) = means of `tokens_each` rows (dim wide), projected where there is a
 * projection (N, dim, R). */
DsvStatus dsvi_selector_features(const DsvSelector *selector, DsvDtype dtype, DsvHeads rows, int64_t dim,
                                 int64_t tokens_each, const float *projection, float *out);

/* `count` queries out of `tokens`, one from each of `count` equal stretches, the same
 * for the same (settings' seed, step, block, use). `use` keeps several draws of one step apart. */
typedef enum DsvDraw { DSV_DRAW_PROFILE, DSV_DRAW_PREDICTOR, DSV_DRAW_COUNT } DsvDraw;
void dsvi_draw_queries(uint64_t seed, int64_t step, int64_t block, DsvDraw use, int64_t tokens, int64_t count,
                       int32_t *query);
/* Those of them that are the view's come first and are counted from its own first; returns how many. */
int64_t dsvi_keep_queries(const DsvSparseView *view, int64_t count, int32_t *query);

#ifdef __cplusplus
}
#endif
#endif
