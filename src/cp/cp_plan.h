/* Chooses how the ranks of a cp group divide a block's self-attention: the head_ranks x sequence_ranks grid
 * (the *degree* of a plan, see cp.h), and which rank computes which heads (DSV, section 6.3, which states the
 * problem
 *
 *     minimise over degrees and placements   max over ranks of (T_comm + T_comp)
 *     such that   head ranks x sequence ranks = ranks,  head ranks <= N,  memory <= M,
 *
 * for each block). All degrees are tried. The functions are pure: they use no device and no communication,
 * and the same numbers give the same plan on every rank.
 *
 * Model of the seconds of a step, which has a forward pass, perhaps a recomputation of the forward pass, and
 * a backward pass. With h head ranks, s sequence ranks, c heads on this rank, S_own tokens of a rank, T
 * tokens of its head group (the largest value if ranks or groups differ), e bytes per element and f bytes per
 * feature row:
 *
 *   exchange of tokens for heads, h > 1: for each tensor and sample an all-to-all, in which the busiest rank
 *       sends or receives D e max(S_own (N - c), (T - S_own) c) bytes (times B, this is the volume given in
 *       version 3 of the DSV paper). Packing reads and writes S_own N D e bytes.
 *     Forward: q k v to heads, out to tokens. Backward: q k v out dout to heads, dq dk dv to tokens; over
 *       lists with recomputation only dout to heads, because the recomputation has just exchanged q k v out.
 *   attention: B T S pairs (query, key) for each head, at the cost of a pair in dense attention, or over
 *     lists of the head's density.
 *   dense attention, s > 1: ring attention. Forward: k and v are sent s - 1 times, B T c D e bytes each.
 *     Backward: the same, and their gradients in F32. If transfers overlap with kernels, attention hides all
 *     transfers except the first of the backward pass. Attention overlaps with transfers during s - 1 of the
 *     s ring steps. After every ring step but the first, results of T c D numbers are merged: one tensor
 *     forward, three backward.
 *   attention over lists: every rank receives the features of all keys of its heads from all ranks, and sends
 *     its features to all ranks: B f max((S - S_own) c, S_own (s N - c)) bytes on the busiest rank, forward.
 *   attention over lists, s > 1: one bit for each span of keys that other head groups own, B (S - T) c /
 *     grain bits, forward. Keys and values that a list of this rank names, B (S - T) u 2 D e bytes for each
 *     head, where u is the fraction of keys named; in every pass except a backward pass directly after
 *     recomputation. The backward pass returns as many bytes of gradients. If transfers overlap with kernels,
 *     attention over the head group's own keys (1 / s of all) hides the transfer of other keys of the same
 *     head. Results are merged once.
 *   attention over lists with a tail, s > 1: keys and values as in dense attention with s > 1, and all other
 *     terms as over lists. Recomputation then spares no exchange.
 *   selector trained on exact scores (predictor), with t bytes per token and head, forward: its features to
 *     heads and their gradients back, as tensors with t bytes per row; in a dense block also q and k. With
 *     s > 1: k and features to all ranks of a column, (s - 1) T c (D e + t) bytes per sample, and the
 *     gradients of the features back, (S - T) c t bytes.
 *   u = 1 - (1 - density)^m, m = l^spread: the l = T / group lists of a head and rank name as many keys as m
 *     independent lists. */
#ifndef DSVI_CP_PLAN_H
#define DSVI_CP_PLAN_H

#include <stddef.h>

#include "cp/cp.h"
#include "cp/cp_costs.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes and limits that all blocks of a run have in common, from which times of plans are predicted. */
typedef struct DsviCpShape {
    int64_t ranks;                          /* cp_size */
    int64_t batch, tokens, heads, head_dim; /* B, S, N, D */
    const int64_t *bound;                   /* (ranks + 1) first token of each rank */
    int64_t element;                        /* e */
    double feature;                         /* f: bytes of features of one key of one head, for selection */
    double taught;            /* t: bytes per token and head that training of the predictor selector
                               * exchanges; 0: the selector is not trained */
    int64_t group, grain;     /* queries that share one list, and keys of a span */
    bool tail;                /* lists have a tail: ranks that divide tokens attend to all keys */
    bool backward, recompute; /* recompute: the backward pass repeats the forward attention */
    int64_t head_ranks; /* the only number of head ranks that plans may have; 0: plans may have any number */
    int64_t rows_max;   /* limit of T x c on each rank; 0: no limit */
    size_t memory_max;  /* limit of DsviCpTimes.memory, bytes; 0: no limit */
} DsviCpShape;

/* Default of DsviCpBlock.spread before it has been measured. Measured values on three heads of a trained
 * model (4,096 tokens, groups of 64 and 128, densities 0.01 to 0.5, row shards of 1/2 to 1/8 of the tokens):
 * 0.06 to 0.50 with token order `tube` (median 0.18), and 0.24 to 0.78 with token order `hilbert` (median
 * 0.37). */
#define DSVI_CP_SPREAD 0.25

/* Measured properties of a block's lists, from which its times are predicted. */
typedef struct DsviCpBlock {
    const double *density; /* (N) density of each head's lists; NULL: dense attention */
    double spread; /* how much the lists of one head on one rank differ. 0: the lists are equal; 1: the lists
                    * are independent */
} DsviCpBlock;

/* dsvi_cp_union returns the fraction of other ranks' keys that at least one of `lists` lists of this
 * density names. dsvi_cp_spread is the inverse of dsvi_cp_union: it returns the spread, 0 to 1, for which
 * this fraction is `share`. */
double dsvi_cp_union(double density, double lists, double spread);
double dsvi_cp_spread(double density, double lists, double share);

/* Predicted seconds per step of a plan, for the slowest rank. */
typedef struct DsviCpTimes {
    double total;    /* sum of the times below; INFINITY if the plan is not possible or exceeds a limit */
    double heads;    /* exchange of tokens for heads, and back */
    double attend;   /* attention, selection included */
    double sequence; /* the rest: transfers that attention does not hide, and merging of results */
    size_t memory;   /* bytes of workspace on the rank that needs most: heads forms, rows sent,
                      * received or gathered, sums */
} DsviCpTimes;

void dsvi_cp_times(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                   const DsviCpPlan *plan, DsviCpTimes *times);

enum { DSVI_CP_CHOICES_MAX = DSVI_DEGREES_MAX };

/* The fastest plan with one number of head ranks. */
typedef struct DsviCpCandidate {
    int64_t head_ranks, sequence_ranks;
    DsviCpTimes times;
} DsviCpCandidate;

/* The result of dsvi_cp_choose: the chosen plan and its alternatives. The arrays of `plan` are `placement`
 * and `bound`, which the caller provides. */
typedef struct DsviCpChoice {
    int32_t *placement; /* (N) */
    int64_t *bound;     /* (ranks + 1) */
    DsviCpPlan plan;
    DsviCpTimes times;   /* of `plan` */
    DsviCpTimes present; /* times of the present plan with the block's new densities; `total` is NAN if there
                          * is no present plan */
    bool changed;        /* `plan` differs from the present plan */
    int64_t candidates;
    DsviCpCandidate candidate[DSVI_CP_CHOICES_MAX]; /* by ascending head_ranks */
} DsviCpChoice;

/* A new plan replaces the present plan only if it is faster by this fraction, because measured times vary. */
#define DSVI_CP_GAIN_MIN 0.03

/* Chooses the plan of a block with the smallest predicted time. `present` is the plan in use, or NULL.
 * Returns DSV_E_USAGE if no plan is possible; the message gives the reason. */
DsvStatus dsvi_cp_choose(const DsviCpCosts *costs, const DsviCpShape *shape, const DsviCpBlock *block,
                         const DsviCpPlan *present, DsviCpChoice *choice);

/* Writes the heads of each head_index as text, separated by bars: "0-3 7 | 4-6". Cuts the text to
 * text_bytes. */
void dsvi_cp_heads_text(const DsviCpPlan *plan, char *text, size_t text_bytes);
/* Writes the chosen plan and the reason for it as one line, without the block's number. Cuts the line to
 * line_bytes. */
void dsvi_cp_explain(const DsviCpChoice *choice, const DsviCpBlock *block, char *line, size_t line_bytes);

#ifdef __cplusplus
}
#endif
#endif
