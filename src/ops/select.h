/* The ops of which all selectors are composed. A selector makes key lists from queries and keys.
 *
 * A selector estimates the attention of each group of queries to every candidate. A candidate stands for
 * `candidate_keys` consecutive keys: a single key, a part of a span or a span. The last candidate may stand
 * for fewer keys and weighs as much as the others. All selectors have the same form: P proxies stand for the
 * queries of a group, each proxy and each candidate has R features, and
 *     z_pc = scale f_p . f_c        a_pc = exp(z_pc - lse_p)        (softmax over all candidates)
 *     e_gc = sum over the group's proxies of w_p a_pc               (w_p: fraction of the group's queries)
 * e_gc is the estimated mean attention of the group to candidate c. Its sum over c is 1. The selectors differ
 * in their features:
 *     projection: q and k, projected to R dimensions per head; a proxy is the mean of `chunk` queries, a
 *                 candidate the mean of `candidate_keys` keys
 *     predictor:  the learned low-rank Q_lr, K_lr
 *     pooled:     mean k of a span and mean q of the group, in all D dimensions
 *     window selector: positions
 * The estimate e_gr of span r of the lists is the sum of the estimates of the span's candidates.
 *
 *     select_covariance   running second moments of q or k, for the projection
 *     select_features     means of rows, projected: the features of proxies and candidates
 *     select_histogram    lse of every proxy, and histograms of count and mass of spans over log2 e_gr
 *     select_threshold    the threshold for a fraction of the mass, limited to a fraction of the spans
 *     select_lists        the lists, by threshold or by count, plus exploration
 * The matrix of the scores z_pc is never written to memory. */
#ifndef DSVI_SELECT_H
#define DSVI_SELECT_H

#include <math.h>
#include <string.h>

#include "ops/attention.h"
#include "ops/lists.h"
#include "ops/select_counted.h"

#ifdef __cplusplus
extern "C" {
#endif

/* select_covariance: second[h] += sum of x x^T and first[h] += sum of x, over the batch and every stride-th
 * token starting at `offset`: batch * ceil((tokens - offset) / stride) rows per head. */
typedef struct DsviSelectCovarianceArgs {
    int64_t batch, heads, tokens, head_dim;
    int64_t offset, stride;
    DsviDtype act; /* activation dtype */
    DsviHeads x;   /* (B, S, N, D) act */
    float *second; /* (N, D, D), added to */
    float *first;  /* (N, D), added to */
} DsviSelectCovarianceArgs;
typedef DsvStatus dsvi_select_covariance_fn(DsviStream *stream, const DsviSelectCovarianceArgs *args);

/* select_features: y[b, h, c, :] = (mean of the rows x[b, s, h, :] with s in [c*chunk, min((c+1)*chunk, S)))
 * P[h], where P is `projection`. */
typedef struct DsviSelectFeaturesArgs {
    int64_t batch, heads, tokens, dim; /* dim: number of elements in a row of x */
    int64_t chunk;
    int64_t features;        /* R; equals dim if projection is NULL */
    DsviDtype act;           /* activation dtype */
    DsviHeads x;             /* (B, S, N, dim) act */
    const float *projection; /* (N, dim, R), or NULL: y is the mean */
    float *y;                /* (B, N, ceil(S / chunk), R) */
} DsviSelectFeaturesArgs;
typedef DsvStatus dsvi_select_features_fn(DsviStream *stream, const DsviSelectFeaturesArgs *args);

/* Bin i of a histogram holds the spans with floor((log2 e_gr + OCTAVES) * PER_OCTAVE) = i, clamped to the
 * first and last bin: bin 0 holds all estimates below 2^-OCTAVES. */
#define DSVI_SELECT_OCTAVES 32
#define DSVI_SELECT_PER_OCTAVE 64
#define DSVI_SELECT_BINS (DSVI_SELECT_OCTAVES * DSVI_SELECT_PER_OCTAVE)

typedef enum DsviExplore {
    DSVI_EXPLORE_NONE,
    DSVI_EXPLORE_RANDOM,     /* single spans, each with probability explore_rate */
    DSVI_EXPLORE_NEIGHBOURS, /* the spans next to selected spans, each with probability explore_rate */
    DSVI_EXPLORE_BLOCKS      /* aligned blocks of 64 keys, each with probability explore_rate */
} DsviExplore;

/* Position of this rank's lists among the lists of all ranks that share a clip. Each rank has the lists of
 * some heads and some groups of queries. List (b, h, g) of this rank is list (b, head[h], first_group + g)
 * among those of all ranks. If heads is 0, this rank has all lists. */
typedef struct DsviSelectPart {
    int64_t heads, groups; /* heads and groups of all ranks together */
    int64_t first_group;
    const int32_t *head; /* (N) device memory */
} DsviSelectPart;

typedef struct DsviSelectArgs {
    int64_t batch, heads;
    int64_t queries, keys;  /* S_q, S_k */
    int64_t group, chunk;   /* chunk: number of queries that a proxy stands for; divides group */
    int64_t candidate_keys; /* number of keys that a candidate stands for */
    int64_t grain;          /* grain of the lists; a multiple of candidate_keys */
    int64_t features;       /* R */
    double scale;
    bool coarse; /* round features and approximate powers of 2, which is faster: see dsvi_select_coarse */
    const float *proxies;    /* (B, N, ceil(Sq / chunk), R) */
    const float *candidates; /* (B, N, ceil(Sk / candidate_keys), R) */
    float *lse;              /* (B, N, ceil(Sq / chunk)); written by select_histogram, read by
                              * select_lists */
    DsviSelectPart part;     /* counted spans and exploration depend on a list's number among the lists of
                              * all ranks */

    /* select_histogram only */
    int64_t bin_skip;  /* number of spans left out of the histogram for each counted span: see
                        * select_counted.h */
    uint32_t bin_turn; /* differs from step to step and from block to block; changes which spans are
                        * counted */
    int64_t bin_heads; /* N: one histogram for each head; 1: one histogram for all heads */
    double *bin_count; /* (bin_heads, BINS) overwritten: number of counted spans in each bin, summed
                        * over batch and groups */
    double *bin_mass; /* (bin_heads, BINS) overwritten: sum of the estimates e_gr of the counted spans in each
                       * bin */

    /* select_lists only. A span is a winner if its e_gr >= threshold[h], or, if topk is given, if it is among
     * the topk[h] largest of its group (of equal estimates the lower span wins). The span with the largest
     * estimate (of equal ones the lowest) is always a winner, so no list is empty. A list consists of the
     * winners and of the spans that exploration adds. */
    const float *threshold; /* (N) device memory, or NULL */
    const int32_t *topk;    /* (N) device memory, or NULL; exactly one of threshold and topk is given */
    DsviExplore explore;
    double explore_rate;
    uint64_t explore_seed, explore_step; /* seed and step of the random numbers that choose explored spans */
    DsviLists *lists;      /* offsets and spans are filled; the shape fields must agree with the fields
                            * of this struct */
    double *selected_mass; /* (N) overwritten: sum of e_gr over all listed spans. Like `needed`, it is
                            * device memory or host memory from DsviDevice.host_alloc. */
    /* (1) overwritten in stream order: number of entries of all lists together. If it exceeds
     * lists->capacity, nothing beyond the capacity is written, all offsets are 0 and all lists are empty. The
     * host may therefore enqueue attention before it knows whether the lists fit; if they do not, the
     * attention results are invalid. */
    int64_t *needed;
    bool again; /* true if select_histogram ran with the same features and the workspace was not changed
                 * since: its contents are then reused */

    void *workspace;
    size_t workspace_bytes;
} DsviSelectArgs;

typedef DsvStatus dsvi_select_fn(DsviStream *stream, const DsviSelectArgs *args);
typedef size_t dsvi_select_workspace_fn(DsviStream *stream, const DsviSelectArgs *args);

/* Coarse features (DsviSelectArgs.coarse): a cheaper approximation of the estimates.
 *
 * Scores are in units of ln 2: z_pc is the dot product of dsvi_select_coarse(proxy, scale * log2 e) and
 * dsvi_select_coarse(candidate, 1). dsvi_select_coarse multiplies by the factor and rounds to 11 significant
 * bits, as many as FP16 has, but keeps the exponent range of F32. dsvi_select_power(x) approximates 2^x:
 *     lse_p = ln sum over c of power(z_pc)
 *     e_gc  = sum over the group's proxies of power(z_pc + log2 w_p - lse_p log2 e)
 * power(x) exceeds 2^x by up to 6.2 %. The excess affects the estimates and, if many candidates contribute,
 * the normaliser alike. The order of a proxy's candidates is preserved. The sum of the estimates over c
 * differs from 1 by a few percent if few candidates contribute.
 *
 * Variants may differ by DSVI_SELECT_COARSE_ERROR: absolutely in lse, and relatively in the estimates for a
 * given lse. A variant may round a power to the 8 significant bits of BF16 (2^-8), round the sum of two
 * powers likewise (2^-8), and compute exponents in fixed point with 15 fractional bits, adding the products
 * of 16 features one after another (2^-10). Features in FP8 have a larger error than all of these roundings,
 * and still lower captured mass (the fraction of exact attention that the lists hold) by only 0.001
 * (docs/study.md). On a GPU the coarse computation needs a third of the matrix products, needs no
 * exponentials, and computes powers two at a time. */
#define DSVI_SELECT_COARSE_ERROR 0x1.2p-7
#define DSVI_LOG2_E 1.4426950408889634
static inline float dsvi_select_coarse(float x, double factor)
{
    uint32_t bits;
    x *= (float)factor;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xfff + (bits >> 13 & 1)) & ~(uint32_t)0x1fff;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* Approximation of 2^x, exact for integer x and linear in between: 2^n (1 + f) where x = n + f, n integer, 0
 * <= f < 1. Returns 0 for x below -126. */
static inline double dsvi_select_power(double x)
{
    double n = floor(x);
    return x < -126 ? 0 : ldexp(1 + (x - n), (int)n);
}

/* Number of pairs of neighbouring spans in a stratum; the histogram counts one pair of each stratum
 * (select_counted.h). Tiles of DSVI_COUNTED_GROUPS groups begin at the first group of this rank. If each
 * rank's first group is a multiple of DSVI_COUNTED_GROUPS, all ranks together count exactly the spans that a
 * single rank would count. */
static inline uint32_t dsvi_select_stride(const DsviSelectArgs *args)
{
    return (uint32_t)(1 + args->bin_skip);
}

static inline int64_t dsvi_select_strata(const DsviSelectArgs *args)
{
    int64_t of_stratum = DSVI_COUNTED_SPANS * (1 + args->bin_skip);
    return ((args->keys + args->grain - 1) / args->grain + of_stratum - 1) / of_stratum;
}

/* Random numbers of exploration, the same on every backend. List n, numbered over all ranks
 * (dsvi_select_number), has `units` items to draw: its spans (RANDOM, NEIGHBOURS) or the blocks of 64 keys
 * (BLOCKS; a span belongs to the block of its first key). Unit u is explored if word u % 4 of
 * dsvi_rng_words({seed, EXPLORE, step}, n * ceil(units / 4) + u / 4) is below
 * dsvi_explore_limit(explore_rate) = explore_rate * 2^32, rounded. */
#define DSVI_EXPLORE_BLOCK 64
static inline uint64_t dsvi_explore_limit(double rate)
{
    return rate <= 0 ? 0 : rate >= 1 ? (uint64_t)1 << 32 : (uint64_t)(rate * 0x1p32 + 0.5);
}

/* select_threshold: derives the threshold from the histograms. The listed spans hold a given fraction of the
 * estimated mass, but are at most a given fraction of all spans. All heads share one threshold: heads and
 * groups with diffuse attention then get more keys at the expense of heads and groups with concentrated
 * attention, at the same total. A requested mass is reached and exceeded by less than the mass of one bin,
 * because the threshold is the lower edge of a bin. A requested number of spans is reached on average: inside
 * the bin where the number is reached, the number of estimates per unit of log2 e_gr is interpolated from the
 * neighbouring bins. Interpolation matters because, if attention is diffuse, a large part of all spans falls
 * into a single bin. */
typedef struct DsviSelectThresholdArgs {
    int64_t heads; /* N */
    int64_t bin_heads;
    const double *bin_count; /* (bin_heads, BINS) from select_histogram; all heads are summed */
    const double *bin_mass;  /* (bin_heads, BINS) from select_histogram; all heads are summed */
    double mass_fraction; /* requested fraction of the estimated attention mass, >= 0; 1: only span_fraction
                           * limits the selected spans */
    double span_fraction; /* largest fraction of all spans that may be selected, >= 0; 1: only mass_fraction
                           * limits the selected spans */
    float *threshold;     /* (N) overwritten: for all heads the larger one of dsvi_threshold_for_mass and
                           * dsvi_threshold_for_count */
} DsviSelectThresholdArgs;
typedef DsvStatus dsvi_select_threshold_fn(DsviStream *stream, const DsviSelectThresholdArgs *args);

typedef struct DsviThreshold {
    float value;  /* spans with an estimate >= value are selected; 0 selects all */
    double count; /* expected fraction of all spans that are selected */
    double mass;  /* expected fraction of the estimated mass that the selected spans hold */
} DsviThreshold;

/* Returns the highest threshold such that the spans with estimates at or above it hold at least `fraction` of
 * the estimated mass. count and mass are the histograms of select_histogram, (heads, BINS) host memory.
 * fraction >= 1 selects every span, even spans whose estimate is 0. */
DsviThreshold dsvi_threshold_for_mass(const double *count, const double *mass, int64_t heads,
                                      double fraction);
/* Returns the threshold that a fraction `fraction` of all estimates is expected to reach. The number of spans
 * that do reach it differs from the expected number by less than the number of spans in one bin. */
DsviThreshold dsvi_threshold_for_count(const double *count, const double *mass, int64_t heads,
                                       double fraction);

static inline int64_t dsvi_select_groups(const DsviSelectArgs *args)
{
    return (args->queries + args->group - 1) / args->group;
}

static inline int64_t dsvi_select_proxies(const DsviSelectArgs *args)
{
    return (args->queries + args->chunk - 1) / args->chunk;
}

static inline int64_t dsvi_select_candidates(const DsviSelectArgs *args)
{
    return (args->keys + args->candidate_keys - 1) / args->candidate_keys;
}

static inline int64_t dsvi_select_spans(const DsviSelectArgs *args)
{
    return (args->keys + args->grain - 1) / args->grain;
}

/* Numbers of proxies of a full group, and of candidates of a full span. */
static inline int64_t dsvi_select_per_group(const DsviSelectArgs *args)
{
    return args->group / args->chunk;
}

static inline int64_t dsvi_select_per_span(const DsviSelectArgs *args)
{
    return args->grain / args->candidate_keys;
}

/* Number of this rank's list n among the lists of all ranks (DsviSelectPart). part.head must be host
 * memory. */
static inline int64_t dsvi_select_number(const DsviSelectArgs *args, int64_t n)
{
    const DsviSelectPart *part = &args->part;
    int64_t groups = dsvi_select_groups(args), pair = n / groups;
    if (part->heads == 0)
        return n;
    return (pair / args->heads * part->heads + part->head[pair % args->heads]) * part->groups +
           part->first_group + n % groups;
}

/* Returns the `rotation` argument of dsvi_counted_pair (select_counted.h) for list n of this rank: it
 * determines which spans the list counts. part.head must be host memory. */
static inline uint32_t dsvi_select_rotation(const DsviSelectArgs *args, int64_t n)
{
    const DsviSelectPart *part = &args->part;
    int64_t groups = dsvi_select_groups(args), pair = n / groups, tile = n % groups / DSVI_COUNTED_GROUPS;
    if (part->heads > 0) {
        pair = pair / args->heads * part->heads + part->head[pair % args->heads];
        tile += part->first_group / DSVI_COUNTED_GROUPS;
    }
    return dsvi_counted_rotation(dsvi_select_stride(args), args->bin_turn, (uint32_t)pair, (uint32_t)tile);
}

/* Number of spans that one list contributes to the histogram; `rotation` is from dsvi_select_rotation. The
 * i-th of these spans, from 0, is dsvi_select_counted_span(args, rotation, i). */
static inline int64_t dsvi_select_counted_spans(const DsviSelectArgs *args, uint32_t rotation)
{
    int64_t strata = dsvi_select_strata(args), spans = dsvi_select_spans(args);
    uint32_t last = dsvi_counted_pair((uint32_t)(strata - 1), dsvi_select_stride(args), rotation);
    int64_t whole = DSVI_COUNTED_SPANS, left = spans - whole * last;
    return whole * (strata - 1) + (left < 0 ? 0 : left < whole ? left : whole);
}

static inline int64_t dsvi_select_counted_span(const DsviSelectArgs *args, uint32_t rotation, int64_t i)
{
    uint32_t pair = dsvi_counted_pair((uint32_t)(i / DSVI_COUNTED_SPANS), dsvi_select_stride(args), rotation);
    return DSVI_COUNTED_SPANS * (int64_t)pair + i % DSVI_COUNTED_SPANS;
}

/* Fails if the arguments violate the contract in this header. The argument `lists` is true for arguments of
 * select_lists, false for arguments of select_histogram. Every variant calls this check. */
DsvStatus dsvi_select_check(const DsviSelectArgs *args, bool lists);

dsvi_select_covariance_fn dsvi_select_covariance_ref;
dsvi_select_features_fn dsvi_select_features_ref;
dsvi_select_fn dsvi_select_histogram_ref, dsvi_select_lists_ref;
dsvi_select_threshold_fn dsvi_select_threshold_ref;
dsvi_select_workspace_fn dsvi_select_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
