/* Single-precision implementations as in plain.c, for attention and the other operations of sparse
 * attention. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ops/sparse_cases.h"

static dsvi_attention_fn attention_fwd, attention_bwd;
static dsvi_attention_tail_fn attention_tail_fwd, attention_tail_bwd;
static dsvi_attention_merge_fn attention_merge;
static dsvi_select_covariance_fn select_covariance;
static dsvi_select_features_fn select_features;
static dsvi_predictor_loss_fn predictor_loss;
static dsvi_predictor_loss_workspace_fn predictor_loss_workspace;
static DsvStatus attention_check(const DsviAttentionArgs *args);
static DsvStatus attention_tail_check(const DsviAttentionTailArgs *args);
static float attention_operand(DsviDtype act, float x);
static float heads_dot(DsviDtype dtype, const DsviHeads *q, int64_t i, const DsviHeads *k, int64_t j,
                       int64_t b, int64_t h, int64_t dim);

#define double float
#define dsvi_attention_check attention_check
#define dsvi_attention_operand attention_operand
#define dsvi_attention_tail_check attention_tail_check
#define dsvi_heads_dot heads_dot
#define dsvi_attention_fwd_ref attention_fwd
#define dsvi_attention_bwd_ref attention_bwd
#define dsvi_attention_tail_fwd_ref attention_tail_fwd
#define dsvi_attention_tail_bwd_ref attention_tail_bwd
#define dsvi_attention_merge_ref attention_merge
#define dsvi_select_covariance_ref select_covariance
#define dsvi_select_features_ref select_features
#define dsvi_predictor_loss_ref predictor_loss
#define dsvi_predictor_loss_workspace_ref predictor_loss_workspace
#include "ops/attention_merge_ref.c"
#include "ops/attention_ref.c"
#include "ops/attention_tail_ref.c"
#include "ops/predictor_loss_ref.c"
#include "ops/select_features_ref.c"
#undef double

static const char PLAIN[] = "plain F32";

void check_plain_fill_sparse(DsviOps *ops)
{
    DSVI_OPS_SET(ops, attention_fwd, attention_fwd, PLAIN);
    DSVI_OPS_SET(ops, attention_bwd, attention_bwd, PLAIN);
    DSVI_OPS_SET(ops, attention_list_fwd, attention_fwd, PLAIN);
    DSVI_OPS_SET(ops, attention_list_bwd, attention_bwd, PLAIN);
    DSVI_OPS_SET(ops, attention_tail_fwd, attention_tail_fwd, PLAIN);
    DSVI_OPS_SET(ops, attention_tail_bwd, attention_tail_bwd, PLAIN);
    DSVI_OPS_SET(ops, attention_merge, attention_merge, PLAIN);
    DSVI_OPS_SET(ops, select_covariance, select_covariance, PLAIN);
    DSVI_OPS_SET(ops, select_features, select_features, PLAIN);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, predictor_loss, predictor_loss, predictor_loss_workspace, PLAIN);
}
