/** @file
 * Decoding stored latents to a clip. */
#ifndef DSV_DECODE_H
#define DSV_DECODE_H

#include "dsv/config.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Sizes of a decoded clip. */
typedef struct DsvDecoded {
    int64_t frames; /**< number of frames */
    int64_t height; /**< rows of a frame */
    int64_t width;  /**< columns of a frame */
} DsvDecoded;

/** Decodes latents with the VAE of a published Wan model.
 *
 * `latents_path` is a safetensors file with the tensor `latents` (z, T, H, W) or (1, z, T, H, W) in a
 * floating dtype: normalised latents, as dsv_sample_clips() stores them and as pipelines of diffusers return
 * them with `output_type="latent"`.
 *
 * The VAE processes the clip in pieces (option memory_gib), with the same result as in one piece.
 *
 * @param model_path   a published Wan folder, a VAE folder, or a safetensors file of a VAE
 * @param latents_path a safetensors file
 * @param output_path  as DsvSampleArgs::output_path
 * @param config       fps, memory_gib, mixed_precision, model.vae, device, isa and threads
 * @param decoded      receives the sizes of the clip; may be NULL
 * @return DSV_E_NOT_FOUND for a missing file, part or tensor; DSV_E_SHAPE for latents of another VAE;
 *     DSV_E_FORMAT; DSV_E_UNSUPPORTED for another VAE; DSV_E_NO_MEMORY, with the memory that is needed;
 *     DSV_E_IO */
DsvStatus dsv_decode(const char *model_path, const char *latents_path, const char *output_path,
                     const DsvConfig *config, DsvDecoded *decoded);

#ifdef __cplusplus
}
#endif
#endif
