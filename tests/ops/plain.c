/* Straightforward implementations in single precision, from whose error the checker (check.h) computes its
 * tolerance.
 *
 * These are the sources of the reference implementations with float instead of double, so that every variable
 * and every sum is rounded to single precision. Headers are included before the macro that replaces double,
 * so that their structs and prototypes keep double. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ops/check.h"

static dsvi_gemm_fn gemm;
static dsvi_col_sum_fn col_sum;
static dsvi_layer_norm_fn layer_norm_fwd, layer_norm_bwd;
static dsvi_rms_norm_rope_fn rms_norm_rope_fwd, rms_norm_rope_bwd;
static dsvi_activation_fn activation_fwd, activation_bwd;
static dsvi_gate_residual_fn gate_residual_fwd, gate_residual_bwd;
static dsvi_add_fn add;
static dsvi_dropout_fn dropout;
static dsvi_add_rows_fn add_rows_fwd, add_rows_bwd;
static dsvi_noise_fn noise;
static dsvi_flow_mix_fn flow_mix;
static dsvi_mse_fn mse;
static dsvi_adamw_fn adamw;
static dsvi_muon_fn muon_momentum, muon_step;
static dsvi_time_embed_fn time_embed;
static dsvi_sum_squares_fn sum_squares;
static dsvi_conv_fn conv;
static dsvi_channel_norm_fn channel_norm;
static dsvi_frames_move_fn frames_move;
static dsvi_rms_norm_fn rms_norm;
static dsvi_gelu_product_fn gelu_product;
static dsvi_softmax_fn softmax;
static dsvi_bias_attention_fn bias_attention;

#define double float
#define dsvi_gemm_ref gemm
#define dsvi_col_sum_ref col_sum
#define dsvi_layer_norm_fwd_ref layer_norm_fwd
#define dsvi_layer_norm_bwd_ref layer_norm_bwd
#define dsvi_rms_norm_rope_fwd_ref rms_norm_rope_fwd
#define dsvi_rms_norm_rope_bwd_ref rms_norm_rope_bwd
#define dsvi_activation_fwd_ref activation_fwd
#define dsvi_activation_bwd_ref activation_bwd
#define dsvi_gate_residual_fwd_ref gate_residual_fwd
#define dsvi_gate_residual_bwd_ref gate_residual_bwd
#define dsvi_add_ref add
#define dsvi_dropout_ref dropout
#define dsvi_add_rows_fwd_ref add_rows_fwd
#define dsvi_add_rows_bwd_ref add_rows_bwd
#define dsvi_noise_ref noise
#define dsvi_flow_mix_ref flow_mix
#define dsvi_mse_ref mse
#define dsvi_time_embed_ref time_embed
#define dsvi_sum_squares_ref sum_squares
#define dsvi_adamw_ref adamw
#define dsvi_muon_momentum_ref muon_momentum
#define dsvi_muon_step_ref muon_step
#define dsvi_conv_ref conv
#define dsvi_channel_norm_ref channel_norm
#define dsvi_frames_move_ref frames_move
#define dsvi_rms_norm_ref rms_norm
#define dsvi_gelu_product_ref gelu_product
#define dsvi_softmax_ref softmax
#define dsvi_bias_attention_ref bias_attention
#include "ops/conv_ref.c"
#include "ops/encoder_ref.c"
#include "ops/flow_ref.c"
#include "ops/frames_ref.c"
#include "ops/gemm_ref.c"
#include "ops/norm_ref.c"
#include "ops/optim_ref.c"
#include "ops/pointwise_ref.c"
#undef double

static const char PLAIN[] = "plain F32";

void check_plain_fill(DsviOps *ops)
{
    dsvi_ops_fill_ref(ops);
    check_plain_fill_sparse(ops);
    DSVI_OPS_SET(ops, gemm, gemm, PLAIN);
    DSVI_OPS_SET(ops, col_sum, col_sum, PLAIN);
    DSVI_OPS_SET(ops, layer_norm_fwd, layer_norm_fwd, PLAIN);
    DSVI_OPS_SET(ops, layer_norm_bwd, layer_norm_bwd, PLAIN);
    DSVI_OPS_SET(ops, rms_norm_rope_fwd, rms_norm_rope_fwd, PLAIN);
    DSVI_OPS_SET(ops, rms_norm_rope_bwd, rms_norm_rope_bwd, PLAIN);
    DSVI_OPS_SET(ops, activation_fwd, activation_fwd, PLAIN);
    DSVI_OPS_SET(ops, activation_bwd, activation_bwd, PLAIN);
    DSVI_OPS_SET(ops, gate_residual_fwd, gate_residual_fwd, PLAIN);
    DSVI_OPS_SET(ops, gate_residual_bwd, gate_residual_bwd, PLAIN);
    DSVI_OPS_SET(ops, add, add, PLAIN);
    DSVI_OPS_SET(ops, dropout, dropout, PLAIN);
    DSVI_OPS_SET(ops, add_rows_fwd, add_rows_fwd, PLAIN);
    DSVI_OPS_SET(ops, add_rows_bwd, add_rows_bwd, PLAIN);
    DSVI_OPS_SET(ops, noise, noise, PLAIN);
    DSVI_OPS_SET(ops, flow_mix, flow_mix, PLAIN);
    DSVI_OPS_SET(ops, mse, mse, PLAIN);
    DSVI_OPS_SET(ops, adamw, adamw, PLAIN);
    DSVI_OPS_SET(ops, muon_momentum, muon_momentum, PLAIN);
    DSVI_OPS_SET(ops, muon_step, muon_step, PLAIN);
    DSVI_OPS_SET(ops, conv, conv, PLAIN);
    DSVI_OPS_SET(ops, channel_norm, channel_norm, PLAIN);
    DSVI_OPS_SET(ops, frames_move, frames_move, PLAIN);
    DSVI_OPS_SET(ops, rms_norm, rms_norm, PLAIN);
    DSVI_OPS_SET(ops, gelu_product, gelu_product, PLAIN);
    DSVI_OPS_SET(ops, softmax, softmax, PLAIN);
    DSVI_OPS_SET(ops, bias_attention, bias_attention, PLAIN);
    /* The contracts require angles and squares in double, so these two get no tolerance for float. */
    (void)time_embed, (void)sum_squares;
}
