/* The loss that trains the DSV paper's predictor (arXiv 2502.07590) to rank keys, with its gradient.
 *
 * For every sampled query i of every (batch, head), over all keys j:
 *     t_j = q_i . k_j / sqrt(D)             true score, treated as a constant
 *     u_j = ql_i . kl_j / sqrt(R)           predicted score
 *     with `centred`, the mean over j is subtracted from both rows
 *     cos  = u . t / (|u| |t|)
 *     loss = cos_weight (1 - cos) + norm_weight (mean over j of (u_j/|u| - t_j/|t|)^2)
 * Degenerate rows: if the norm of u or t is below 1e-20, or below 1e-5 of the norm of the subtracted mean
 * (all scores were equal up to rounding), the normalised row is taken as 0 and has no gradient. *loss is the
 * mean over batch, heads and samples. dql and dkl are the gradients of *loss. Every row of dql and dkl is
 * overwritten; rows of dql of queries that are not sampled become 0. A query that is sampled twice counts
 * twice. A workspace that suffices for a call also suffices for a call with fewer heads or samples. */
#ifndef DSVI_PREDICTOR_LOSS_H
#define DSVI_PREDICTOR_LOSS_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_PREDICTOR_MIN_NORM 1e-20
#define DSVI_PREDICTOR_MIN_FRACTION 1e-5

typedef struct DsviPredictorLossArgs {
    int64_t batch, heads, queries, keys, head_dim;
    int64_t rank; /* R */
    double cos_weight, norm_weight;
    bool centred;
    DsviDtype act, acc; /* activation dtype, accumulation dtype */
    DsviHeads q, k;     /* (B, Sq, N, D), (B, Sk, N, D) act */
    DsviHeads ql, kl;   /* (B, Sq, N, R), (B, Sk, N, R) acc */
    int64_t samples;
    const int32_t *sample; /* (samples) query numbers, device memory */
    void *loss;            /* (1) acc */
    DsviHeads dql, dkl;    /* shaped like ql and kl, acc */
    void *workspace;
    size_t workspace_bytes;
} DsviPredictorLossArgs;

typedef DsvStatus dsvi_predictor_loss_fn(DsviStream *stream, const DsviPredictorLossArgs *args);
typedef size_t dsvi_predictor_loss_workspace_fn(DsviStream *stream, const DsviPredictorLossArgs *args);

dsvi_predictor_loss_fn dsvi_predictor_loss_ref;
dsvi_predictor_loss_workspace_fn dsvi_predictor_loss_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
