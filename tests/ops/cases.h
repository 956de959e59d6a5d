/* The cases of each family of operations for the checker (check.h). All backends run the same cases. Each
 * function fails the running cmocka test if a result is wrong. */
#ifndef DSVI_CASES_H
#define DSVI_CASES_H

#include "ops/check.h"

void check_gemm_cases(const DsviBackend *backend);
void check_col_sum_cases(const DsviBackend *backend);
void check_layer_norm_cases(const DsviBackend *backend);
void check_rms_norm_rope_cases(const DsviBackend *backend);
void check_activation_cases(const DsviBackend *backend);
void check_gate_residual_cases(const DsviBackend *backend);
void check_add_cases(const DsviBackend *backend);
void check_dropout_cases(const DsviBackend *backend);
void check_add_rows_cases(const DsviBackend *backend);
void check_attention_merge_cases(const DsviBackend *backend);
void check_heads_move_cases(const DsviBackend *backend);
void check_patch_cases(const DsviBackend *backend);
void check_flow_cases(const DsviBackend *backend);
void check_quant_cases(const DsviBackend *backend);
void check_optim_cases(const DsviBackend *backend);
void check_conv_cases(const DsviBackend *backend);
void check_channel_norm_cases(const DsviBackend *backend);
void check_frames_move_cases(const DsviBackend *backend);
void check_rms_norm_cases(const DsviBackend *backend);
void check_gelu_product_cases(const DsviBackend *backend);
void check_softmax_cases(const DsviBackend *backend);
void check_bias_attention_cases(const DsviBackend *backend);

#endif
