/* Opens the CUDA backend: the device, and the table that says which kernel implements which op on a GPU. */
#include <string.h>

#include "cuda/comm/comm_nccl.h"
#include "cuda/common/cuda.h"
#include "cuda/device_cuda.h"

/* Fills the whole op table. Every op must have a CUDA variant, because the reference implementations run on
 * the host and cannot read device memory. */
static DsvStatus cuda_table_fill(DsviStream *stream, DsviOps *ops)
{
    dsvi_cuda_fill_attention_error(ops);
    dsvi_cuda_fill_attention_merge(ops);
    dsvi_cuda_fill_bias_attention(ops);
    dsvi_cuda_fill_channel_norm(ops);
    dsvi_cuda_fill_col_sum(ops);
    dsvi_cuda_fill_flow(ops);
    dsvi_cuda_fill_frames_move(ops);
    dsvi_cuda_fill_gelu_product(ops);
    dsvi_cuda_fill_heads_move(ops);
    dsvi_cuda_fill_layer_norm(ops);
    dsvi_cuda_fill_list_exchange(ops);
    dsvi_cuda_fill_list_rows(ops);
    dsvi_cuda_fill_optim(ops);
    dsvi_cuda_fill_optim_8bit(ops);
    dsvi_cuda_fill_quant(ops);
    dsvi_cuda_fill_patch(ops);
    dsvi_cuda_fill_pointwise(ops);
    dsvi_cuda_fill_predictor_loss(ops);
    dsvi_cuda_fill_profile(ops);
    dsvi_cuda_fill_rms_norm(ops);
    dsvi_cuda_fill_rms_norm_rope(ops);
    dsvi_cuda_fill_select_histogram(ops);
    dsvi_cuda_fill_select_lists(ops);
    dsvi_cuda_fill_select_features(ops);
    dsvi_cuda_fill_select_threshold(ops);
    dsvi_cuda_fill_softmax(ops);
    dsvi_cuda_fill_attention_list(stream, ops);
    dsvi_cuda_fill_attention_tail(stream, ops);
    dsvi_cuda_fill_conv(stream, ops);
    DSVI_TRY(dsvi_cuda_fill_attention_cudnn(stream, ops));
    return dsvi_cuda_fill_gemm(stream, ops);
}

DsvStatus dsvi_cuda_open(int64_t gpu, bool deterministic, DsviBackend *backend)
{
    memset(backend, 0, sizeof *backend);
    DSVI_TRY(dsvi_device_cuda_create(gpu, deterministic, &backend->device));
    backend->join = dsvi_comm_nccl_join;
    DsvStatus status = cuda_table_fill(backend->device->stream, &backend->ops);
    if (status == DSV_OK)
        return DSV_OK;
    backend->device->close(backend->device);
    backend->device = NULL;
    return status;
}
