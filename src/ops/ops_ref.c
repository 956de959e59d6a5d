/* Fills a table of operations with the reference implementations. */
#include "ops/ops.h"

#include <string.h>

static const char REF[] = "ref";

void dsvi_ops_fill_ref(DsviOps *ops)
{
    memset(ops, 0, sizeof *ops);
    DSVI_OPS_SET(ops, gemm, dsvi_gemm_ref, REF);
    DSVI_OPS_SET(ops, col_sum, dsvi_col_sum_ref, REF);
    DSVI_OPS_SET(ops, layer_norm_fwd, dsvi_layer_norm_fwd_ref, REF);
    DSVI_OPS_SET(ops, layer_norm_bwd, dsvi_layer_norm_bwd_ref, REF);
    DSVI_OPS_SET(ops, rms_norm_rope_fwd, dsvi_rms_norm_rope_fwd_ref, REF);
    DSVI_OPS_SET(ops, rms_norm_rope_bwd, dsvi_rms_norm_rope_bwd_ref, REF);
    DSVI_OPS_SET(ops, activation_fwd, dsvi_activation_fwd_ref, REF);
    DSVI_OPS_SET(ops, activation_bwd, dsvi_activation_bwd_ref, REF);
    DSVI_OPS_SET(ops, gate_residual_fwd, dsvi_gate_residual_fwd_ref, REF);
    DSVI_OPS_SET(ops, gate_residual_bwd, dsvi_gate_residual_bwd_ref, REF);
    DSVI_OPS_SET(ops, add, dsvi_add_ref, REF);
    DSVI_OPS_SET(ops, dropout, dsvi_dropout_ref, REF);
    DSVI_OPS_SET(ops, add_rows_fwd, dsvi_add_rows_fwd_ref, REF);
    DSVI_OPS_SET(ops, add_rows_bwd, dsvi_add_rows_bwd_ref, REF);
    DSVI_OPS_SET(ops, patch_gather, dsvi_patch_gather_ref, REF);
    DSVI_OPS_SET(ops, patch_scatter, dsvi_patch_scatter_ref, REF);
    DSVI_OPS_SET(ops, noise, dsvi_noise_ref, REF);
    DSVI_OPS_SET(ops, flow_mix, dsvi_flow_mix_ref, REF);
    DSVI_OPS_SET(ops, mse, dsvi_mse_ref, REF);
    DSVI_OPS_SET(ops, time_embed, dsvi_time_embed_ref, REF);
    DSVI_OPS_SET(ops, attention_fwd, dsvi_attention_fwd_ref, REF);
    DSVI_OPS_SET(ops, attention_bwd, dsvi_attention_bwd_ref, REF);
    DSVI_OPS_SET(ops, attention_list_fwd, dsvi_attention_fwd_ref, REF);
    DSVI_OPS_SET(ops, attention_list_bwd, dsvi_attention_bwd_ref, REF);
    DSVI_OPS_SET(ops, attention_tail_fwd, dsvi_attention_tail_fwd_ref, REF);
    DSVI_OPS_SET(ops, attention_tail_bwd, dsvi_attention_tail_bwd_ref, REF);
    DSVI_OPS_SET(ops, attention_merge, dsvi_attention_merge_ref, REF);
    DSVI_OPS_SET(ops, heads_move, dsvi_heads_move_ref, REF);
    DSVI_OPS_SET(ops, select_covariance, dsvi_select_covariance_ref, REF);
    DSVI_OPS_SET(ops, select_features, dsvi_select_features_ref, REF);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_histogram, dsvi_select_histogram_ref, dsvi_select_workspace_ref,
                                REF);
    DSVI_OPS_SET(ops, select_threshold, dsvi_select_threshold_ref, REF);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, select_lists, dsvi_select_lists_ref, dsvi_select_workspace_ref, REF);
    DSVI_OPS_SET(ops, lists_divide, dsvi_lists_divide_ref, REF);
    DSVI_OPS_SET(ops, lists_emit, dsvi_lists_emit_ref, REF);
    DSVI_OPS_SET(ops, lists_part, dsvi_lists_part_ref, REF);
    DSVI_OPS_SET(ops, spans_count, dsvi_spans_count_ref, REF);
    DSVI_OPS_SET(ops, rows_take, dsvi_rows_take_ref, REF);
    DSVI_OPS_SET(ops, rows_put, dsvi_rows_put_ref, REF);
    DSVI_OPS_SET(ops, rows_add, dsvi_rows_add_ref, REF);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, profile, dsvi_profile_ref, dsvi_profile_workspace_ref, REF);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, attention_error, dsvi_attention_error_ref,
                                dsvi_attention_error_workspace_ref, REF);
    DSVI_OPS_SET_WITH_WORKSPACE(ops, predictor_loss, dsvi_predictor_loss_ref,
                                dsvi_predictor_loss_workspace_ref, REF);
    DSVI_OPS_SET(ops, conv, dsvi_conv_ref, REF);
    DSVI_OPS_SET(ops, channel_norm, dsvi_channel_norm_ref, REF);
    DSVI_OPS_SET(ops, frames_move, dsvi_frames_move_ref, REF);
    DSVI_OPS_SET(ops, rms_norm, dsvi_rms_norm_ref, REF);
    DSVI_OPS_SET(ops, gelu_product, dsvi_gelu_product_ref, REF);
    DSVI_OPS_SET(ops, softmax, dsvi_softmax_ref, REF);
    DSVI_OPS_SET(ops, bias_attention, dsvi_bias_attention_ref, REF);
    DSVI_OPS_SET(ops, f8_decode, dsvi_f8_decode_ref, REF);
    DSVI_OPS_SET(ops, sum_squares, dsvi_sum_squares_ref, REF);
    DSVI_OPS_SET(ops, adamw, dsvi_adamw_ref, REF);
    DSVI_OPS_SET(ops, adamw_8bit, dsvi_adamw_8bit_ref, REF);
    DSVI_OPS_SET(ops, muon_momentum, dsvi_muon_momentum_ref, REF);
    DSVI_OPS_SET(ops, muon_step, dsvi_muon_step_ref, REF);
}
