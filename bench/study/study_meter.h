/* How much of a block's real attention lists hold, for any choice of how they are made: with the ops and
 * selectors that training uses, measured exactly (all keys) on sampled queries. */
#ifndef STUDY_METER_H
#define STUDY_METER_H

#include "sparse/selector.h"

/* Where a selector's state comes from. */
typedef enum StudySource {
    STUDY_OWN,   /* made anew from the very queries and keys it selects from */
    STUDY_FIRST, /* from the first pass of the study: of another clip, at another noise level */
    STUDY_STORED /* from a checkpoint's file */
} StudySource;

/* In what the features of proxies and candidates are kept before they are scored. */
typedef enum StudyFormat { STUDY_F32, STUDY_BF16, STUDY_FP8, STUDY_FORMATS } StudyFormat;

/* How the estimates become lists. A target is a density, but for STUDY_MASS. */
typedef enum StudyRule {
    STUDY_COMMON,    /* one threshold for all heads and groups */
    STUDY_MASS,      /* the same, for a share of the estimated mass */
    STUDY_PER_HEAD,  /* a threshold for each head, at which all heads are equally dense */
    STUDY_TOPK,      /* the same number of runs for every head and group */
    STUDY_HEAD_TOPK, /* the same number for every group of a head; heads share as under STUDY_COMMON */
    STUDY_RULES
} StudyRule;

/* One way to make lists, and the targets it is tried at. */
typedef struct StudyCase {
    const char *part;      /* of the study it belongs to */
    /* As sparse.selector; or "mean": the true mean attention of the group; "nearest", "column": no selector
     * but each query's nearest keys, through time or in the image plane alone (order is then "raster"). */
    const char *selector;
    const char *order;     /* as sparse.order */
    int64_t group, chunk, grain, rank;
    StudySource source;
    const char *stored;    /* of STUDY_STORED: a model path with sparse state */
    StudyFormat format;
    StudyRule rule;
    const double *targets; /* ends with 0 */

    struct StudyEstimator *estimator; /* the meter's: what outlives a pass, unless source is STUDY_OWN */
} StudyCase;

/* What one case gave in one block of one pass. */
typedef struct StudyResult {
    const StudyCase *of;
    int64_t block;
    double target;
    double captured, density; /* means over heads and sampled queries */
    const float *captured_of, *listed_of; /* (N, samples) */
} StudyResult;

typedef struct StudyMeter StudyMeter;

extern const char *const study_rule_names[STUDY_RULES], *const study_format_names[STUDY_FORMATS];

/* Measures blocks of this shape (batch 1) on `samples` queries a head. Settings give the seed. */
DsvStatus study_meter_open(DsvBackend *backend, const DsvConfig *settings, const DsvSparseShape *shape,
                           int64_t samples, StudyMeter **out);
void study_meter_close(StudyMeter **meter);

/* Takes what a block hands over, its tokens in raster order, as the subject of what follows. */
DsvStatus study_meter_show(StudyMeter *meter, int64_t block, const DsvSparseAttention *args);

/* Share of the keys that hold 90 % of each query's mass, in place of a captured mass; no lists are made. */
DsvStatus study_meter_share90(StudyMeter *meter, const StudyCase *of, StudyResult *result);

/* Calls `take` with the result for each target; a case of STUDY_FIRST gives none in the pass it learns
 * from. */
DsvStatus study_meter_case(StudyMeter *meter, StudyCase *of, DsvStatus (*take)(void *, const StudyResult *),
                           void *context);
void study_case_free(StudyCase *of);

#endif
