/* Which blocks run over lists: the rule of sparse.h, as one function of what was measured. */
#ifndef DSVI_DISPATCH_H
#define DSVI_DISPATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsvGuard {
    double min_mass, min_head_mass, max_density, hysteresis;
} DsvGuard;

/* What is known of a block at the end of a step. */
typedef struct DsvGuardView {
    bool sparse;          /* the side it is on */
    bool measured;        /* its lists were made and measured in this step */
    bool overflowed;      /* it ran dense in this step because its lists did not fit */
    bool fit;             /* the measured lists fit into their memory */
    double captured;      /* running mean of the exact mass they hold; NaN before the first */
    int64_t worst_head;   /* the head whose lists hold the smallest fraction of its mass */
    double head_captured; /* running mean of that fraction; NaN before the first */
    double density;       /* running mean of theirs */
    double needed;        /* density of the lists that did not fit */
    double capacity;      /* density that fits */
} DsvGuardView;

/* The side the block is on from the next step. Where it changes, `line` gets the reason. */
bool dsvi_guard_decide(const DsvGuard *guard, const DsvGuardView *view, int64_t block, char *line,
                       size_t line_bytes);

#ifdef __cplusplus
}
#endif
#endif
