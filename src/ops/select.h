/* From queries and keys to lists: the ops every selector is made of.
 *
 * A selector estimates, for each group of queries, the attention it pays to every candidate. All of
 * them come down to the same form: P proxies stand for the queries of a group, each proxy and each
 * candidate has R features, and
 *     z_pc = scale f_p . f_c        a_pc = exp(z_pc - lse_p)        (softmax over all candidates)
 *     e_gc = sum over the group's proxies of w_p a_pc               (w_p: share of the group's queries)
 * e_gc is the estimated mean attention of the group to candidate c; it sums to 1 over c. A candidate is
 * a run of `grain` keys.
 *     projection: features are q and k projected per head, a proxy is the mean of `chunk` queries
 *     predictor:  features are the learned Q_lr, K_lr
 *     pooled:     features are the mean k of `grain` keys and the mean q of the group, full D
 *     window:     features are positions
 * The estimate of a run is the sum of its candidates'; below, e_gr is that of run r of the lists.
 *
 *     select_covariance   running second moments of q or k, for the projection
 *     select_features     means of rows, projected: proxies and candidates
 *     select_histogram    lse of every proxy, and how count and mass of runs spread over log2 e_gr
 *     select_threshold    from there the threshold for a share of the mass, within a share of the runs
 *     select_lists        the lists, by threshold or by count, plus exploration
 * Scores are never written to memory as a whole. */
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

/* second[h] += sum of x x^T, first[h] += sum of x over the batch and every stride-th token from
 * `offset` on: batch * ceil((tokens - offset) / stride) rows per head. */
typedef struct DsvSelectCovarianceArgs {
    int64_t batch, heads, tokens, head_dim;
    int64_t offset, stride;
    DsvDtype act;
    DsvHeads x;        /* (B, S, N, D) act */
    float *second;     /* (N, D, D) added to */
    float *first;      /* (N, D) added to */
} DsvSelectCovarianceArgs;
typedef DsvStatus dsvi_select_covariance_fn(DsvStream *stream, const DsvSelectCovarianceArgs *args);

/* y[b, h, c, :] = (mean of rows x[b, s, h, :], s in [c*chunk, min((c+1)*chunk, S))) P[h]. */
typedef struct DsvSelectFeaturesArgs {
    int64_t batch, heads, tokens, dim; /* dim: elements of a row of x */
    int64_t chunk;
    int64_t features;                  /* R; equals dim when there is no projection */
    DsvDtype act;
    DsvHeads x;                        /* (B, S, N, dim) act */
    const float *projection;           /* (N, dim, R) or NULL: the mean itself */
    float *y;                          /* (B, N, ceil(S / chunk), R) */
} DsvSelectFeaturesArgs;
typedef DsvStatus dsvi_select_features_fn(DsvStream *stream, const DsvSelectFeaturesArgs *args);

/* Bin i of a histogram holds the runs with floor((log2 e_gr + OCTAVES) * PER_OCTAVE) = i, clamped to
 * the ends: bin 0 holds all below 2^-OCTAVES. */
#define DSV_SELECT_OCTAVES 32
#define DSV_SELECT_PER_OCTAVE 64
#define DSV_SELECT_BINS (DSV_SELECT_OCTAVES * DSV_SELECT_PER_OCTAVE)

typedef enum DsvExplore {
    DSV_EXPLORE_NONE,
    DSV_EXPLORE_RANDOM,     /* single runs, each with probability explore_rate */
    DSV_EXPLORE_NEIGHBOURS, /* the runs next to selected ones, each with that probability */
    DSV_EXPLORE_BLOCKS      /* aligned blocks of 64 keys, each with that probability */
} DsvExplore;

/* Where lists stand in a whole of which each rank has some heads and some groups: list (b, h, g) here is list
 * (b, head[h], first_group + g) there. `heads` 0: they are the whole. */
typedef struct DsvSelectPart {
    int64_t heads, groups;  /* of the whole */
    int64_t first_group;
    const int32_t *head;    /* (N) device memory */
} DsvSelectPart;

typedef struct DsvSelectArgs {
    int64_t batch, heads;
    int64_t queries, keys;      /* S_q, S_k */
    int64_t group, chunk;       /* chunk divides group: queries a proxy stands for */
    int64_t candidate_keys;     /* keys one candidate stands for: 1, or the grain */
    int64_t grain;              /* of the lists: a multiple of candidate_keys */
    int64_t features;           /* R */
    double scale;
    bool coarse;                /* features are: see dsvi_select_coarse */
    const float *proxies;       /* (B, N, ceil(Sq / chunk), R) */
    const float *candidates;    /* (B, N, ceil(Sk / candidate_keys), R) */
    float *lse;                 /* (B, N, ceil(Sq / chunk)): written by histogram, read by lists */
    DsvSelectPart part;         /* counted runs and exploration follow from a list's number in the whole */

    /* select_histogram only */
    int64_t bin_skip;           /* runs left out of the histogram for each one that is counted: see below */
    uint32_t bin_turn;          /* another number for each step and block: moves the choice of counted runs */
    int64_t bin_heads;          /* N: a histogram for each head; 1: one of all heads together */
    double *bin_count;          /* (bin_heads, BINS) overwritten: counted runs in each bin, batch and groups
                                 * summed */
    double *bin_mass;           /* (bin_heads, BINS) overwritten: their e_gr, summed */

    /* select_lists only. A run is a winner when its e_gr >= threshold[h], or, where topk is given, when it
     * is among the topk[h] largest of its group (ties: the lower run). The largest run (ties: the
     * lowest) is always a winner: no list is empty. Lists are the winners and what exploration adds. */
    const float *threshold;     /* (N) device memory, or NULL */
    const int32_t *topk;        /* (N) device memory, or NULL; exactly one of the two */
    DsvExplore explore;
    double explore_rate;
    uint64_t explore_seed, explore_step; /* draws: see dsvi_explore_limit */
    DsvLists *lists;            /* offsets and runs are filled; its shape fields agree with those here */
    double *selected_mass;      /* (N) overwritten: sum of e_gr over all listed runs. Device memory or, as
                                 * `needed`, host memory of DsvDevice.host_alloc */
    int64_t *needed;            /* (1) overwritten in stream order: runs all lists need together */
    bool again;                 /* the workspace is as select_histogram left it, of these very features */

    void *workspace;
    size_t workspace_bytes;
} DsvSelectArgs;

typedef DsvStatus dsvi_select_fn(DsvStream *stream, const DsvSelectArgs *args);
typedef size_t dsvi_select_workspace_fn(DsvStream *stream, const DsvSelectArgs *args);

/* Where features are coarse, scores are in units of ln 2 and made of dsvi_select_coarse(proxy, scale log2 e)
 * and dsvi_select_coarse(candidate, 1): the product with the factor rounded to the 11 bits of a half, but
 * with a float's range. Every power of two made of them is dsvi_select_power:
 *     lse_p = ln sum over c of power(z_pc)
 *     e_gc  = sum over the group's proxies of power(z_pc + log2 w_p - lse_p log2 e)
 * That is up to 6.2 % above 2^x, in the estimate as in the normaliser where many candidates count, and keeps
 * the order of a proxy's candidates; what estimates sum to over c is 1 but for a few percent where few
 * candidates count. Results may be off by DSVI_SELECT_COARSE_ERROR: lse by that much, estimates, given the
 * lse, by that share of themselves. For a power may be rounded to the 8 bits of a BF16 (2^-8), the sum of two
 * of them again (2^-8), and an exponent may be a number with 15 bits behind the point to which the products
 * of 16 features are added one by one (2^-10). What features in fp8 are off by is more than all that and
 * costs 0.001 of the mass (docs/study.md); a GPU makes do with a third of the products, without exponentials,
 * and takes powers two at a time. */
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

/* 2^x at whole x and straight lines between them: 2^n (1 + f) where x = n + f, n whole, 0 <= f < 1. Zero
 * below 2^-126. */
static inline double dsvi_select_power(double x)
{
    double n = floor(x);
    return x < -126 ? 0 : ldexp(1 + (x - n), (int)n);
}

/* select_lists never writes more than lists->capacity runs: where *needed is larger all offsets are 0 and
 * the lists empty. So attention over them can be enqueued before the host knows whether they fit; where they
 * did not, its results mean nothing. */

/* The histogram of a list counts one pair of runs in each stratum of 1 + bin_skip pairs (select_counted.h).
 * A rank's tiles of groups begin at its first group. Where each rank's first group is a multiple of
 * DSVI_COUNTED_GROUPS, ranks together count exactly what one rank counts for the whole. */
static inline uint32_t dsvi_select_stride(const DsvSelectArgs *args)
{
    return (uint32_t)(1 + args->bin_skip);
}

static inline int64_t dsvi_select_strata(const DsvSelectArgs *args)
{
    int64_t of_stratum = DSVI_COUNTED_RUNS * (1 + args->bin_skip);
    return ((args->keys + args->grain - 1) / args->grain + of_stratum - 1) / of_stratum;
}

/* How exploration draws, the same on every backend. List n of the whole (lists.h) owns `units` things to be
 * drawn: its runs (RANDOM, NEIGHBOURS) or the blocks of 64 keys (BLOCKS; a run belongs to the block of its
 * first key). Unit u is explored when word u % 4 of dsvi_rng_words({seed, EXPLORE, step},
 * n * ceil(units / 4) + u / 4) is below explore_rate * 2^32, rounded. */
#define DSV_EXPLORE_BLOCK 64
static inline uint64_t dsvi_explore_limit(double rate)
{
    return rate <= 0 ? 0 : rate >= 1 ? (uint64_t)1 << 32 : (uint64_t)(rate * 0x1p32 + 0.5);
}

/* From the histogram to the threshold: what holds a share of the mass, but no more than a share of the runs.
 * It is one for all heads: heads and groups whose attention is wide then get the keys they need from those
 * whose attention is narrow, at the same total. A wanted mass is met, and exceeded by less than a bin: its
 * threshold is the lower edge of one. A wanted number of runs is met on the average: inside the bin where it
 * is reached estimates are taken to lie as the bins beside it suggest, for diffuse attention puts a good part
 * of all runs into one bin. */
typedef struct DsvSelectThresholdArgs {
    int64_t heads;            /* N */
    int64_t bin_heads;
    const double *bin_count;  /* (bin_heads, BINS) as select_histogram leaves them; all heads are summed */
    const double *bin_mass;   /* (bin_heads, BINS) likewise */
    double mass_share;        /* >= 0; 1: of the runs alone */
    double run_share;         /* >= 0; 1: of the mass alone */
    float *threshold;         /* (N) overwritten: the same value for all, the higher one of
                               * dsvi_threshold_for_mass and _for_count */
} DsvSelectThresholdArgs;
typedef DsvStatus dsvi_select_threshold_fn(DsvStream *stream, const DsvSelectThresholdArgs *args);

typedef struct DsvThreshold {
    float value;  /* runs whose estimate reaches it are chosen; 0 chooses all */
    double count; /* share of all runs that reach it, or should */
    double mass;  /* share of the estimated mass that they hold, likewise */
} DsvThreshold;

/* count and mass are (heads, BINS), host memory. The highest threshold whose runs hold at least `share` of
 * the mass; share >= 1 chooses every run, even those whose estimate is 0. */
DsvThreshold dsvi_threshold_for_mass(const double *count, const double *mass, int64_t heads, double share);
/* The threshold that `share` of the runs should reach; what it really chooses differs by less than a bin. */
DsvThreshold dsvi_threshold_for_count(const double *count, const double *mass, int64_t heads, double share);

static inline int64_t dsvi_select_groups(const DsvSelectArgs *args)
{
    return (args->queries + args->group - 1) / args->group;
}

static inline int64_t dsvi_select_proxies(const DsvSelectArgs *args)
{
    return (args->queries + args->chunk - 1) / args->chunk;
}

static inline int64_t dsvi_select_candidates(const DsvSelectArgs *args)
{
    return (args->keys + args->candidate_keys - 1) / args->candidate_keys;
}

static inline int64_t dsvi_select_runs(const DsvSelectArgs *args)
{
    return (args->keys + args->grain - 1) / args->grain;
}

/* The number that list n of these has in the whole; part.head must be host memory. */
static inline int64_t dsvi_select_number(const DsvSelectArgs *args, int64_t n)
{
    const DsvSelectPart *part = &args->part;
    int64_t groups = dsvi_select_groups(args), pair = n / groups;
    if (part->heads == 0)
        return n;
    return (pair / args->heads * part->heads + part->head[pair % args->heads]) * part->groups +
           part->first_group + n % groups;
}

/* Where list n of these counts runs: the rotation of dsvi_counted_pair. part.head must be host memory. */
static inline uint32_t dsvi_select_rotation(const DsvSelectArgs *args, int64_t n)
{
    const DsvSelectPart *part = &args->part;
    int64_t groups = dsvi_select_groups(args), pair = n / groups, tile = n % groups / DSVI_COUNTED_GROUPS;
    if (part->heads > 0) {
        pair = pair / args->heads * part->heads + part->head[pair % args->heads];
        tile += part->first_group / DSVI_COUNTED_GROUPS;
    }
    return dsvi_counted_rotation(dsvi_select_stride(args), args->bin_turn, (uint32_t)pair, (uint32_t)tile);
}

/* How many runs a list with this rotation counts: run i of them, 0 <= i, is dsvi_select_counted(...). */
static inline int64_t dsvi_select_counted_runs(const DsvSelectArgs *args, uint32_t rotation)
{
    int64_t strata = dsvi_select_strata(args), runs = dsvi_select_runs(args);
    uint32_t last = dsvi_counted_pair((uint32_t)(strata - 1), dsvi_select_stride(args), rotation);
    int64_t whole = DSVI_COUNTED_RUNS, left = runs - whole * last;
    return whole * (strata - 1) + (left < 0 ? 0 : left < whole ? left : whole);
}

static inline int64_t dsvi_select_counted(const DsvSelectArgs *args, uint32_t rotation, int64_t i)
{
    uint32_t pair = dsvi_counted_pair((uint32_t)(i / DSVI_COUNTED_RUNS), dsvi_select_stride(args), rotation);
    return DSVI_COUNTED_RUNS * (int64_t)pair + i % DSVI_COUNTED_RUNS;
}

/* Refuses what no variant serves; `lists`: as arguments of select_lists. */
DsvStatus dsvi_select_check(const DsvSelectArgs *args, bool lists);

dsvi_select_covariance_fn dsvi_select_covariance_ref;
dsvi_select_features_fn dsvi_select_features_ref;
dsvi_select_fn dsvi_select_histogram_ref, dsvi_select_lists_ref;
dsvi_select_threshold_fn dsvi_select_threshold_ref;
dsvi_select_workspace_fn dsvi_select_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
