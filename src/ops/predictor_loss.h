/* The loss that teaches DSV's predictor (arXiv 2502.07590) to rank keys, with its gradient.
 *
 * For every sampled query i of every (batch, head), over all keys j:
 *     t_j = q_i . k_j / sqrt(D)             the true score, a constant here
 *     u_j = ql_i . kl_j / sqrt(R)           the predicted one
 *     both rows optionally centred: minus their mean over j
 *     cos  = u . t / (|u| |t|)
 *     loss = cos_weight (1 - cos) + norm_weight (mean over j of (u_j/|u| - t_j/|t|)^2)
 * A row u or t of norm below 1e-20, or below 1e-5 of the norm of the mean that was taken from it (all its
 * scores were equal but for rounding), counts as u/|u| = 0 and has no gradient.
 * *loss is the mean over batch, heads and samples; dql and dkl are its gradients, overwritten in full (zero
 * for queries that are not sampled). A query sampled twice counts twice. A workspace that serves a call
 * serves calls of fewer heads or samples. */
#ifndef DSVI_PREDICTOR_LOSS_H
#define DSVI_PREDICTOR_LOSS_H

#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSV_PREDICTOR_LEAST_NORM 1e-20
#define DSV_PREDICTOR_LEAST_SHARE 1e-5

typedef struct DsvPredictorLossArgs {
    int64_t batch, heads, queries, keys, head_dim;
    int64_t rank;             /* R */
    double cos_weight, norm_weight;
    bool centred;
    DsvDtype act, acc;
    DsvHeads q, k;            /* (B, Sq, N, D), (B, Sk, N, D) act */
    DsvHeads ql, kl;          /* (B, Sq, N, R), (B, Sk, N, R) acc */
    int64_t samples;
    const int32_t *sample;    /* (samples) query numbers, device memory */
    void *loss;               /* one acc */
    DsvHeads dql, dkl;        /* as ql and kl, acc */
    void *workspace;
    size_t workspace_bytes;
} DsvPredictorLossArgs;

typedef DsvStatus dsvi_predictor_loss_fn(DsvStream *stream, const DsvPredictorLossArgs *args);
typedef size_t dsvi_predictor_loss_workspace_fn(DsvStream *stream, const DsvPredictorLossArgs *args);

dsvi_predictor_loss_fn dsvi_predictor_loss_ref;
dsvi_predictor_loss_workspace_fn dsvi_predictor_loss_workspace_ref;

#ifdef __cplusplus
}
#endif
#endif
