/* The CUDA backend: a device (one GPU) and its op table, which holds one function per op. Programs load the
 * backend as a plugin (ops/plugin.h); tests call it directly. */
#ifndef DSVI_CUDA_H
#define DSVI_CUDA_H

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Opens GPU number `gpu` modulo the number of GPUs that the process sees, and fills *backend. The caller
 * closes it with backend->device->close. */
DsvStatus dsvi_cuda_open(int64_t gpu, bool deterministic, DsviBackend *backend);

/* Each of these functions enters the ops of one source file into the op table `ops`. */
void dsvi_cuda_fill_attention_error(DsviOps *ops);
void dsvi_cuda_fill_attention_merge(DsviOps *ops);
void dsvi_cuda_fill_bias_attention(DsviOps *ops);
void dsvi_cuda_fill_channel_norm(DsviOps *ops);
void dsvi_cuda_fill_col_sum(DsviOps *ops);
void dsvi_cuda_fill_flow(DsviOps *ops);
void dsvi_cuda_fill_frames_move(DsviOps *ops);
void dsvi_cuda_fill_gelu_product(DsviOps *ops);
void dsvi_cuda_fill_heads_move(DsviOps *ops);
void dsvi_cuda_fill_layer_norm(DsviOps *ops);
void dsvi_cuda_fill_list_exchange(DsviOps *ops);
void dsvi_cuda_fill_list_rows(DsviOps *ops);
void dsvi_cuda_fill_optim(DsviOps *ops);
void dsvi_cuda_fill_optim_8bit(DsviOps *ops);
void dsvi_cuda_fill_quant(DsviOps *ops);
void dsvi_cuda_fill_patch(DsviOps *ops);
void dsvi_cuda_fill_pointwise(DsviOps *ops);
void dsvi_cuda_fill_predictor_loss(DsviOps *ops);
void dsvi_cuda_fill_profile(DsviOps *ops);
void dsvi_cuda_fill_rms_norm(DsviOps *ops);
void dsvi_cuda_fill_rms_norm_rope(DsviOps *ops);
void dsvi_cuda_fill_select_histogram(DsviOps *ops);
void dsvi_cuda_fill_select_lists(DsviOps *ops);
void dsvi_cuda_fill_select_features(DsviOps *ops);
void dsvi_cuda_fill_select_threshold(DsviOps *ops);
void dsvi_cuda_fill_softmax(DsviOps *ops);
/* Ops (functions of the op table) that other ops of the CUDA backend call as their last step. */
dsvi_col_sum_fn dsvi_cuda_col_sum;
dsvi_gate_residual_fn dsvi_cuda_gate_residual_bwd;
/* The `variant` text of these ops in the op table names the kernels that served the last call, and why
 * faster kernels could not serve it (attention_list.cu, conv_choose.cu). The text is stored in the stream
 * (device_cuda.h). */
void dsvi_cuda_fill_attention_list(DsviStream *stream, DsviOps *ops);
void dsvi_cuda_fill_attention_tail(DsviStream *stream, DsviOps *ops);
void dsvi_cuda_fill_conv(DsviStream *stream, DsviOps *ops);
/* Attention over key lists. The functions that follow also compute dense attention (all keys) if cuDNN does
 * not support the arguments of the call. */
dsvi_attention_fn dsvi_cuda_attention_list_fwd, dsvi_cuda_attention_list_bwd;
dsvi_attention_workspace_fn dsvi_cuda_attention_list_workspace;

/* These functions also create the state of NVIDIA's libraries (cuBLASLt, cuDNN) and store it in the stream;
 * closing the device frees it. */
DsvStatus dsvi_cuda_fill_gemm(DsviStream *stream, DsviOps *ops);
DsvStatus dsvi_cuda_fill_attention_cudnn(DsviStream *stream, DsviOps *ops);

#ifdef __cplusplus
}
#endif
#endif
