/* The CUDA backend: a device and an op table. Loaded through ops/plugin.h; tests call it directly. */
#ifndef DSVI_CUDA_H
#define DSVI_CUDA_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens a GPU of those the process sees, counted from 0 and round. Closed by backend->device->close. */
DsvStatus dsvi_cuda_open(int64_t gpu, bool deterministic, DsvBackend *backend);

/* Each source of kernels enters its ops into the table. */
void dsvi_cuda_fill_attention_merge(DsvOps *ops);
void dsvi_cuda_fill_col_sum(DsvOps *ops);
void dsvi_cuda_fill_flow(DsvOps *ops);
void dsvi_cuda_fill_heads_move(DsvOps *ops);
void dsvi_cuda_fill_layer_norm(DsvOps *ops);
void dsvi_cuda_fill_list_exchange(DsvOps *ops);
void dsvi_cuda_fill_list_rows(DsvOps *ops);
void dsvi_cuda_fill_optim(DsvOps *ops);
void dsvi_cuda_fill_patch(DsvOps *ops);
void dsvi_cuda_fill_pointwise(DsvOps *ops);
void dsvi_cuda_fill_predictor_loss(DsvOps *ops);
void dsvi_cuda_fill_profile(DsvOps *ops);
void dsvi_cuda_fill_rms_norm_rope(DsvOps *ops);
void dsvi_cuda_fill_select_histogram(DsvOps *ops);
void dsvi_cuda_fill_select_lists(DsvOps *ops);
void dsvi_cuda_fill_select_features(DsvOps *ops);
void dsvi_cuda_fill_select_threshold(DsvOps *ops);
/* For those that do it behind something of their own. */
dsvi_col_sum_fn dsvi_cuda_col_sum;
dsvi_gate_residual_fn dsvi_cuda_gate_residual_bwd;
/* `variant` of these says which kernels answered the last call, and why not the fastest (device_cuda.h). */
void dsvi_cuda_fill_attention_list(DsvStream *stream, DsvOps *ops);
/* Dense attention too, where cuDNN has no answer. */
dsvi_attention_fn dsvi_cuda_attention_list_fwd, dsvi_cuda_attention_list_bwd;
dsvi_attention_workspace_fn dsvi_cuda_attention_list_workspace;

/* Those over NVIDIA's libraries also make what the stream keeps for them, freed with the device. */
DsvStatus dsvi_cuda_fill_gemm(DsvStream *stream, DsvOps *ops);
DsvStatus dsvi_cuda_fill_attention_cudnn(DsvStream *stream, DsvOps *ops);

#ifdef __cplusplus
}
#endif
#endif
