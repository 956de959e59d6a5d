/** @file
 * One pass of a model over tensors from a file, to compare dsv with another implementation. */
#ifndef DSV_FORWARD_H
#define DSV_FORWARD_H

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Runs a transformer or a text encoder. Which of them `model_path` names is recognised by its config.json,
 * or by the tensors of a file.
 *
 * A transformer runs forward, and backward with `grad`, and writes the results.
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
 * A model of Wan 2.1 I2V also reads `encoder_hidden_states_image` (B, R, image_dim), the states of an image;
 * one with a table of positions (FLF2V) reads those of two images, (2 B, R / 2, image_dim).
 *
 * With `timestep` (B, 2) the first latent frame has a time of its own, the first of the two, and is left out
 * of the loss (Wan 2.2 TI2V-5B, which continues a picture).
 *
 * Written to `out_path`, all in F32: `output` (B, C, F, H, W); with `grad` also `loss` (1), the mean of
 * (output - target)^2 over all elements, `grad_hidden_states`, `grad_encoder_hidden_states`
 * (and that of the image's states), and `grad.NAME` for every weight NAME of the model.
 *
 * For a text encoder (UMT5), `input_ids` and `attention_mask` (B, L), I32 or I64, are read, and
 * `last_hidden_state` (B, L, d_model) is written, with zero rows where the mask is 0. The ones of a mask must
 * follow one another. With `grad` the call fails.
 *
 * For an image encoder (CLIP), `pixel_values` (B, 3, H, W) is read, and `hidden_states` (B, R, hidden_size),
 * the states before the last layer, is written. With `grad` the call fails.
 *
 * For a VAE, `video` (B, 3, T, H, W) in [-1, 1], `latents_random` (B, z, T', H', W'), or both are read.
 * Written are `moments` (mean and log-variance of the posterior), `mode` (the mean), `latents_normalized` and
 * `decoded` (the mean, decoded) of the video, and `decoded_random`. With `grad` the call fails.
 *
 * @param model_path a run folder (its newest checkpoint), a checkpoint, a folder with a transformer, text
 *     encoder or VAE, or a safetensors file with a text encoder or VAE
 * @param in_path    a safetensors file
 * @param out_path   written under a temporary name and renamed
 * @param grad       whether gradients are computed too
 * @param config     device, isa, threads, mixed_precision, memory_gib, gradient_checkpointing and the sparse
 *     options.
 *     Attention is dense unless `sparse_enabled`; then every transformer block uses sparse attention (over
 *     key lists), even where the guard of training would choose dense attention.
 * @return DSV_E_NOT_FOUND for a missing file or tensor; DSV_E_SHAPE; DSV_E_FORMAT; DSV_E_NO_MEMORY;
 *     DSV_E_IO */
DsvStatus dsv_forward(const char *model_path, const char *in_path, const char *out_path, bool grad,
                      const DsvConfig *config);

/** dsv_forward() of a transformer with a LoRA beside its weights.
 *
 * With `grad` the gradients are those of the LoRA's matrices: `grad.NAME` for every matrix, where NAME is the
 * name in the LoRA's file, and `loss`. No gradient of the model's own weights, of the latents or of the text
 * is computed.
 * @param model_path a transformer as for dsv_forward()
 * @param lora_path  a LoRA in any form that dsv_lora_convert() reads; NULL: none, as dsv_forward()
 * @param in_path    as dsv_forward()
 * @param out_path   as dsv_forward()
 * @param grad       whether gradients are computed too
 * @param config     as dsv_forward()
 * @return DSV_E_SHAPE, naming the key, if the LoRA does not fit the model; otherwise as dsv_forward() */
DsvStatus dsv_forward_lora(const char *model_path, const char *lora_path, const char *in_path,
                           const char *out_path, bool grad, const DsvConfig *config);

#ifdef __cplusplus
}
#endif
#endif
