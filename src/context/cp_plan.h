/* How the ranks of a context group share out a block's self-attention: how many go into head parallelism, how
 * many into sequence parallelism, and which rank takes which heads (DSV, section 6.3; its program
 *
 *     minimise over degrees and placements   max over ranks of (T_comm + T_comp)
 *     such that   head ranks x sequence ranks = ranks,  head ranks <= N,  memory <= M,
 *
 * per block, solved here by trying all degrees). Numbers in, plan out: no device, no other ranks; the same
 * numbers give the same plan everywhere.
 *
 * The seconds of a step (forward pass, that of recomputation, backward pass) are modelled so, with h head
 * ranks, s sequence ranks, c own heads, S_own the tokens of a rank, T those of its head group, the largest of
 * them where they differ, e bytes an element and f bytes a feature:
 *
 *   heads for tokens, h > 1: per tensor and sample an all-to-all in which the busiest rank sends or receives
 *       D e max(S_own (N - c), (T - S_own) c) bytes              (B times: the volume that DSV v3 gives),
 *     and S_own N D e bytes are read and written to pack them;
 *     q k v there and out back; backward q k v out dout there, or over lists dout alone where recomputation
 *     has just left the rest, and dq dk dv back
 *   attention: B T S pairs a head, at the price of a pair when dense or over lists of the head's density
 *   s > 1, dense: a ring. Forward k and v make s - 1 steps, B T c D e bytes each; backward the same, and
 *     their gradients in F32. Where transfers run beside kernels attention hides them but for the backward
 *     pass's first step: its part on s - 1 of s stretches. Results are merged after each step but the first:
 *     T c D numbers, forward of one tensor, backward of three
 *   lists: every rank gets the features of all keys of its heads from all ranks, and sends its own to all:
 *     the busiest B f max((S - S_own) c, S_own (s N - c)) bytes, forward
 *   s > 1, lists: a bit for every run of the other stretches, B (S - T) c / grain, forward; the rows of k
 *     and v that some own list names, a share u of each head's, B (S - T) u 2 D e bytes, in every pass but a
 *     backward one behind recomputation; backward as much returns. Where transfers run beside kernels a
 *     head's attention on its own stretch, 1 / s of all, hides its rows. Results are merged once
 *   a selector that is taught by exact scores, with t bytes a token and head, forward: to heads its features
 *     and back their gradients, like tensors of which a row is t bytes, and of a dense block q and k as well;
 *     s > 1: k and the features of all to all of a column, (s - 1) T c (D e + t) bytes a sample, and the
 *     gradients of these back, (S - T) c t
 *   u = 1 - (1 - density)^m: as if a stretch of l = T / group lists were m = l^spread independent ones. */
#ifndef DSVI_CP_PLAN_H
#define DSVI_CP_PLAN_H

#include <stddef.h>

#include "context/context.h"
#include "context/context_costs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the blocks of a run have in common. */
typedef struct DsvCpShape {
    int64_t ranks;            /* cp_size */
    int64_t batch, tokens, heads, head_dim; /* B, S, N, D */
    const int64_t *bound;     /* (ranks + 1) where each rank's stretch begins */
    int64_t element;          /* e */
    double feature;           /* f: bytes of features that selection wants of a key of a head */
    double taught;            /* t: bytes of what a token of a head is to a selector that is taught by exact
                               * scores; 0: none is */
    int64_t group, grain;     /* queries that share a list, and keys that an entry stands for */
    bool backward, recompute; /* recompute: the backward pass attends forward once more */
    int64_t head_ranks;       /* the only degree that may be; 0: any */
    int64_t rows_most;        /* T x c that there is room for; 0: any */
    size_t memory_most;       /* bytes of DsvCpTimes.memory; 0: any */
} DsvCpShape;

/* How alike lists of neighbouring groups are, where it has not been measured. Of three real heads (4,096
 * tokens, groups of 64 and 128, densities 0.01 to 0.5, stretches of 1/2 to 1/8) it is 0.06 to 0.50 in tubes,
 * half of the time below 0.18, and 0.24 to 0.78 along Hilbert curves in the frames, half of it below 0.37. */
#define DSV_CP_SPREAD 0.25

/* What is known of a block. */
typedef struct DsvCpBlock {
    const double *density;    /* (N) of its heads' lists; NULL: it attends densely */
    double spread;            /* 0: all lists of a stretch are one; 1: independent */
} DsvCpBlock;

/* The share of other stretches' keys that `lists` lists of this density name; and the spread of which that
 * would be `share`, from 0 to 1. */
double dsvi_cp_union(double density, double lists, double spread);
double dsvi_cp_spread(double density, double lists, double share);

/* What a plan is expected to take, of the rank that takes longest; seconds a step. */
typedef struct DsvCpTimes {
    double total;             /* INFINITY: this cannot be, or does not fit */
    double heads;             /* heads for tokens and back */
    double attend;
    double sequence;          /* what other stretches send, as far as attention does not hide it */
    size_t memory;            /* bytes that the largest rank's workspace needs for it: heads forms, rows that
                               * travel or are gathered, sums */
} DsvCpTimes;

void dsvi_cp_times(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                   const DsvContextPlan *plan, DsvCpTimes *times);

enum { DSV_CP_CHOICES_MOST = DSV_DEGREES_MOST };

/* One of the plans there are: of each degree the best placement. */
typedef struct DsvCpCandidate {
    int64_t head_ranks, sequence_ranks;
    DsvCpTimes times;
} DsvCpCandidate;

/* A decision. The arrays of `plan` are the caller's `placement` and `bound`. */
typedef struct DsvCpChoice {
    int32_t *placement;       /* (N) */
    int64_t *bound;           /* (ranks + 1) */
    DsvContextPlan plan;
    DsvCpTimes times;         /* of it */
    DsvCpTimes present;       /* of the present plan by the block's new numbers; total NAN: there was none */
    bool changed;             /* it is another than the present one */
    int64_t candidates;
    DsvCpCandidate candidate[DSV_CP_CHOICES_MOST]; /* by rising head ranks */
} DsvCpChoice;

/* A present plan stays unless another is faster by this share: times waver. */
#define DSV_CP_LEAST_GAIN 0.03

/* Chooses. `present` may be NULL. DSV_E_USAGE where no plan is possible: the sentence says why. */
DsvStatus dsvi_cp_choose(const DsvContextCosts *costs, const DsvCpShape *shape, const DsvCpBlock *block,
                         const DsvContextPlan *present, DsvCpChoice *choice);

/* A placement as text, heads of one rank behind another: "0-3 7 | 4-6". */
void dsvi_cp_heads_text(const DsvContextPlan *plan, char *text, size_t text_bytes);
/* The decision on a block as one line, with its reason; the block itself is not named. */
void dsvi_cp_explain(const DsvCpChoice *choice, const DsvCpBlock *block, char *line, size_t line_bytes);

#ifdef __cplusplus
}
#endif
#endif
