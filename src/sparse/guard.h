/* The guard: decides from measurements whether a block is sparse or dense. sparse.h states the rule. */
#ifndef DSVI_GUARD_H
#define DSVI_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bounds that the measurements of a block must meet for the block to be sparse. */
typedef struct DsviGuard {
    double min_mass;      /* smallest captured mass (fraction of exact attention that the key lists hold) of a
                           * sparse block, mean over heads */
    double min_head_mass; /* smallest captured mass of the worst head of a sparse block; min_mass applies
                           * instead if min_mass is less */
    bool by_error;        /* true: the output error decides instead of captured mass */
    double max_error;     /* by_error: largest output error of a sparse block, mean over heads */
    double max_head_error; /* by_error: largest output error of the worst head of a sparse block; max_error
                            * applies instead if max_error is more */
    double max_density;    /* largest density of a sparse block's lists */
    bool slower_above;     /* max_density is the density above which lists are slower than dense attention */
    double hysteresis;     /* how far a sparse block must miss a bound before it becomes dense */
} DsviGuard;

/* Reasons why a block attends densely. The values are saved in checkpoints and can be combined by "or". */
typedef enum DsviGuardReason {
    DSVI_GUARD_LIST_MEMORY = 1, /* the lists do not fit into their memory */
    DSVI_GUARD_DENSITY = 2,     /* the lists hold too many keys */
    DSVI_GUARD_BLOCK = 4, /* the block's output error or captured mass, mean over heads, misses its bound */
    DSVI_GUARD_HEAD = 8,  /* the output error or captured mass of the worst head misses its bound */
} DsviGuardReason;

/* What is known about a block at the end of a step. */
typedef struct DsviGuardView {
    bool sparse;     /* the guard's decision so far */
    bool measured;   /* the block's lists were made and measured in this step */
    bool overflowed; /* the block attended densely in this step because its lists did not fit into memory */
    bool fit;        /* the measured lists fit into their memory */
    double captured; /* running mean over measuring steps of the captured mass; NaN before the first
                      * measurement */
    double density;  /* running mean over measuring steps of the density of lists; NaN before the first
                      * measurement */
    int64_t worst_head;   /* by_error: the head with the largest output error; otherwise the head whose lists
                           * hold the smallest fraction of its attention */
    double head_captured; /* running mean over measuring steps of worst_head's captured mass; NaN before the
                           * first measurement */
    double error;      /* running mean over measuring steps of the output error (relative error of attention's
                        * output over lists and tail), mean over heads; NaN before the first measurement */
    double head_error; /* running mean over measuring steps of worst_head's output error; NaN before the first
                        * measurement */
    double needed;     /* if overflowed or not fit: density of the lists that did not fit */
    double capacity;   /* largest density of lists that fit into their memory */
} DsviGuardView;

/* Returns whether the block is sparse from the next step on. *reason is the DsviGuardReason for which the
 * block is dense, or 0 if the block is sparse or no reason has been given yet; the call updates *reason.
 * Writes a sentence to `line`, without a newline, if the block turns sparse or dense. Also writes one if a
 * measured block stays dense and no reason was given yet, or the block now meets the bound that was given as
 * the reason. Otherwise `line` is empty. */
bool dsvi_guard_decide(const DsviGuard *guard, const DsviGuardView *view, int64_t block, int32_t *reason,
                       char *line, size_t line_bytes);

#ifdef __cplusplus
}
#endif
#endif
