/* Measures the captured mass of key lists: the fraction of a block's exact attention on the listed keys.
 * Lists are made with the operations and selectors that training uses, for any combination of options. Exact
 * attention to all keys is computed for sampled queries. */
#ifndef STUDY_METER_H
#define STUDY_METER_H

#include "sparse/selector.h"

/* Where a selector's state comes from. */
typedef enum StudySource {
    STUDY_OWN,   /* made for each block and pass from the queries and keys that the lists are for */
    STUDY_FIRST, /* made in the first pass of the study, so from another clip or noise level */
    STUDY_STORED /* read from a checkpoint's file */
} StudySource;

/* Number format to which the features of proxies and candidates are rounded before scoring. */
typedef enum StudyFormat { STUDY_F32, STUDY_BF16, STUDY_FP8, STUDY_FORMATS } StudyFormat;

/* How lists are made from the estimates. The target is a density, except with STUDY_MASS. */
typedef enum StudyRule {
    STUDY_COMMON,    /* one threshold for all heads and groups */
    STUDY_MASS,      /* one threshold as in STUDY_COMMON; the target is a fraction of the estimated mass */
    STUDY_PER_HEAD,  /* one threshold per head, chosen so that all heads have equal density */
    STUDY_TOPK,      /* the same number of spans for every head and group */
    STUDY_HEAD_TOPK, /* the same number for all groups of a head; each head's density as in STUDY_COMMON */
    STUDY_RULES
} StudyRule;

/* One way to make lists, and the targets at which it is measured. */
typedef struct StudyCase {
    const char *part; /* the part of the study, as in --parts */
    /* A value of sparse.selector, or one of three more. "mean": the exact attention, averaged over the group.
     * "nearest": the keys nearest to each query in space and time. "column": the keys nearest in the image
     * plane, over all frames. With "nearest" and "column" the order must be "raster". */
    const char *selector;
    const char *order; /* a value of sparse.order */
    int64_t group, chunk, grain, rank;
    StudySource source;
    const char *stored; /* with STUDY_STORED: a model path with sparse state */
    StudyFormat format;
    StudyRule rule;
    const double *targets; /* the last one is followed by 0 */

    struct StudyEstimator *estimator; /* made and used by the meter; with STUDY_OWN only inside a call */
} StudyCase;

/* The measurement of one case at one target, for one block in one pass. */
typedef struct StudyResult {
    const StudyCase *of;
    int64_t block;
    double target;
    double captured, density;             /* means over heads and sampled queries */
    const float *captured_of, *listed_of; /* (N, samples) captured mass and density; owned by the meter */
} StudyResult;

typedef struct StudyMeter StudyMeter;

extern const char *const study_rule_names[STUDY_RULES], *const study_format_names[STUDY_FORMATS];

/* Creates a meter for blocks of this shape (batch 1), which measures `samples` queries per head. The
 * configuration gives the seed by which queries are sampled, and options of the selectors. */
DsvStatus study_meter_open(DsviBackend *backend, const DsvConfig *settings, const DsviSparseShape *shape,
                           int64_t samples, StudyMeter **out);
void study_meter_close(StudyMeter **meter);

/* Copies a block's queries, keys and inputs, whose tokens are in raster order. Later calls measure this
 * block. */
DsvStatus study_meter_show(StudyMeter *meter, int64_t block, const DsviAttentionCall *args);

/* Measures share90 without lists: result->captured is the fraction of the keys that holds 90 % of a query's
 * attention. */
DsvStatus study_meter_share90(StudyMeter *meter, const StudyCase *of, StudyResult *result);

/* Calls `take` with the result for each target. With STUDY_FIRST, `take` is not called in the pass that sets
 * the selector's state. */
DsvStatus study_meter_case(StudyMeter *meter, StudyCase *of, DsvStatus (*take)(void *, const StudyResult *),
                           void *context);
void study_case_free(StudyCase *of);

#endif
