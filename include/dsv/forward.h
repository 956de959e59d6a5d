/** @file
 * One pass of a model over tensors from a file, to compare dsv with another implementation. */
#ifndef DSV_FORWARD_H
#define DSV_FORWARD_H

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Runs the transformer forward, and backward with `grad`, and writes the results.
 *
 * Read from `in_path`, in any floating dtype:
 *
 * | tensor                  | shape            | what                                                  |
 * |-------------------------|------------------|-------------------------------------------------------|
 * | `hidden_states`         | (B, C, F, H, W)  | latents                                               |
 * | `timestep`              | (B)              | 0 to 1000                                             |
 * | `encoder_hidden_states` | (B, L, text_dim) | text rows                                             |
 * | `target`                | (B, C, F, H, W)  | with `grad` only: what the output is compared with    |
 *
 * Written to `out_path`, all in F32: `output` (B, C, F, H, W); with `grad` also `loss` (1), the mean of
 * (output - target)^2 over all elements, `grad_hidden_states`, `grad_encoder_hidden_states`, and
 * `grad.NAME` for every weight NAME of the model.
 *
 * @param model_path a run folder (its newest checkpoint), a checkpoint, or a folder with a transformer
 * @param in_path    a safetensors file
 * @param out_path   written under a temporary name and renamed
 * @param grad       whether gradients are computed too
 * @param config     device, isa, threads, mixed_precision, gradient_checkpointing and the sparse options.
 *     Attention is dense unless `sparse_enabled`; then every transformer block uses sparse attention (over
 *     key lists), even where the guard of training would choose dense attention.
 * @return DSV_E_NOT_FOUND for a missing file or tensor; DSV_E_SHAPE; DSV_E_FORMAT; DSV_E_NO_MEMORY;
 *     DSV_E_IO */
DsvStatus dsv_forward(const char *model_path, const char *in_path, const char *out_path, bool grad,
                      const DsvConfig *config);

#ifdef __cplusplus
}
#endif
#endif
