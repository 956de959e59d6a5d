/** @file
 * Sampling clips from trained and from published models. */
#ifndef DSV_SAMPLE_H
#define DSV_SAMPLE_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/lora.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What dsv_sample_clips() samples. Set it up with dsv_sample_args_defaults(), then set what differs. Texts
 * are the caller's, in UTF-8, and must stay valid during the call. */
typedef struct DsvSampleArgs {
    /** sizeof(DsvSampleArgs) where the caller was compiled; dsv_sample_args_defaults() sets it. */
    size_t bytes;
    /** A published Wan folder or file, a run folder (its newest checkpoint), a checkpoint, a pipeline folder
     * with transformer/, or a transformer folder. transformer_ema in a checkpoint is the moving average of
     * its weights. */
    const char *model_path;
    /** The clip: .mp4, .mkv, .mov, .avi or .mpg; .png for one frame; a name with %04d and .png for one
     * picture per frame; or .safetensors for the tensor `video` (1, frames, 3, height, width) in 0..1. If
     * there are several prompts, their clips are numbered: clip.mp4 becomes clip-0000.mp4 and so on. Files
     * are written under temporary names and renamed. */
    const char *output_path;
    const char *const *prompts; /**< published models: one clip for each prompt; or NULL */
    size_t prompt_count;        /**< number of prompts */
    const char *prompts_path; /**< a text file with one prompt on each line, instead of `prompts`; or NULL */
    const char *negative_prompt; /**< what guidance leads away from; NULL: the empty text */
    /** A safetensors file with `encoder_hidden_states` (rows, text_dim) in a floating dtype, instead of
     * prompts. A published model with a guidance_scale above 1 also needs `negative_encoder_hidden_states`.
     * NULL: a trained model is sampled unconditionally. */
    const char *text_path;
    /** Image-to-video models: a picture (PNG or JPEG) of the clip's first frame. It is scaled to cover the
     * clip's height and width, and its middle is used. NULL for all other models; TI2V-5B of Wan 2.2 works
     * with and without. */
    const char *image_path;
    /** A picture of the last frame, which FLF2V of Wan 2.1 needs and I2V-A14B of Wan 2.2 may have; or NULL */
    const char *last_image_path;
    /** Published models: a safetensors file with the tensor `noise` (1, C, F, H, W) or (C, F, H, W), with
     * which sampling begins; NULL: noise is drawn from the option seed. */
    const char *noise_path;
    /** Published models: a safetensors file that receives the tensor `latents` (1, C, F, H, W), as it is
     * after the last step and before decoding; NULL: none. */
    const char *latents_path;
    /** Published models with sparse.enabled=true: a run or checkpoint of the same model or of its LoRA, or
     * its sparse.safetensors. Each clip begins with the selector's state and the sparse blocks of this file.
     * NULL: each clip begins dense, and blocks become sparse by what is measured while it is sampled. */
    const char *sparse_path;
    const char *const *lora_paths; /**< LoRAs that are added to the transformer's weights, in any form that
                                    * dsv_lora_convert() reads; or NULL */
    const double *lora_scales;     /**< factor of each LoRA's change; NULL: all 1 */
    size_t lora_count;             /**< number of LoRAs, at most 16 */
    const DsvExpert *lora_experts; /**< transformers that each LoRA changes; NULL: all DSV_EXPERT_BOTH */
} DsvSampleArgs;

/** Clears the arguments, for a caller whose DsvSampleArgs has `bytes` bytes. Called by the macro
 * dsv_sample_args_defaults().
 * @param args  overwritten
 * @param bytes sizeof(DsvSampleArgs) of the caller */
void dsv_sample_args_defaults_sized(DsvSampleArgs *args, size_t bytes);

/** Clears the arguments.
 * @param args (DsvSampleArgs *) overwritten */
#define dsv_sample_args_defaults(args) dsv_sample_args_defaults_sized((args), sizeof(DsvSampleArgs))

/** Samples clips and writes them to files.
 *
 * With a published model the text encoder, the image encoder of models that have one, the transformer and the
 * VAE are loaded and freed one after another. The options model.vae, model.text_encoder and model.tokenizer
 * name parts that lie elsewhere.
 *
 * @param args   model, texts and files
 * @param config width, height, num_frames, fps, sampler, guidance, steps, seed and device. Start from the
 * options that belong to the model: dsv_config_of_run().
 * @param events may be NULL; `progress` counts the sampling steps of all clips
 * @return DSV_E_USAGE for arguments that contradict each other; DSV_E_NOT_FOUND; DSV_E_FORMAT for a damaged
 *     checkpoint or file; DSV_E_SHAPE if the model does not fit the clip or the codec; DSV_E_UNSUPPORTED for
 *     other kinds of Wan models; DSV_E_NO_MEMORY; DSV_E_INTERRUPTED; DSV_E_IO */
DsvStatus dsv_sample_clips(const DsvSampleArgs *args, const DsvConfig *config, const DsvEvents *events);

/** Samples one clip of a model: dsv_sample_clips() with a model, a text file and an output.
 *
 * @param model_path as DsvSampleArgs::model_path
 * @param text_path  as DsvSampleArgs::text_path
 * @param video_path as DsvSampleArgs::output_path
 * @param config     as for dsv_sample_clips()
 * @param events     may be NULL
 * @return as dsv_sample_clips() */
DsvStatus dsv_sample(const char *model_path, const char *text_path, const char *video_path,
                     const DsvConfig *config, const DsvEvents *events);

/** Loads the options that belong to a model over `config`: those that a run or checkpoint was trained with,
 * or for a published Wan model device=auto, size, frames, steps and guidance of the published pipelines, and
 * sampler and flow_shift of its scheduler_config.json. A run that trained a published model or its LoRA
 * is sampled densely, as the model is: sparse.enabled becomes false, and sparse.dense_finish 0.
 * @param path   a model path as for dsv_sample_clips()
 * @param config changed if options are found; model.vae, model.text_encoder and model.tokenizer are read
 * @param found  set to whether options belong to `path`
 * @return as dsv_config_load(); DSV_E_NOT_FOUND if there is no model at `path`; DSV_E_UNSUPPORTED for a
 *     scheduler_config.json with settings that dsv does not implement */
DsvStatus dsv_config_of_run(const char *path, DsvConfig *config, bool *found);

#ifdef __cplusplus
}
#endif
#endif
