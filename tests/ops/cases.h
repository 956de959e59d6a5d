/* The cases of each family of ops, for the checker: every backend runs the same. Cmocka assertions. */
#ifndef DSVI_CASES_H
#define DSVI_CASES_H

#include "ops/check.h"

void check_gemm_cases(const DsvBackend *backend);
void check_col_sum_cases(const DsvBackend *backend);
void check_layer_norm_cases(const DsvBackend *backend);
void check_rms_norm_rope_cases(const DsvBackend *backend);
void check_activation_cases(const DsvBackend *backend);
void check_gate_residual_cases(const DsvBackend *backend);
void check_add_cases(const DsvBackend *backend);
void check_add_rows_cases(const DsvBackend *backend);
void check_attention_merge_cases(const DsvBackend *backend);
void check_heads_move_cases(const DsvBackend *backend);
void check_patch_cases(const DsvBackend *backend);
void check_flow_cases(const DsvBackend *backend);
void check_optim_cases(const DsvBackend *backend);

#endif
