/** @file
 * LoRA files: other forms of names, and adding a LoRA to the weights of a model. */
#ifndef DSV_LORA_H
#define DSV_LORA_H

#include <stddef.h>

#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which transformers of a model of two experts (Wan 2.2 A14B) a LoRA changes. */
typedef enum DsvExpert {
    DSV_EXPERT_BOTH, /**< both; also for models of one transformer */
    DSV_EXPERT_HIGH, /**< the expert for high noise, `transformer` */
    DSV_EXPERT_LOW   /**< the expert for low noise, `transformer_2` */
} DsvExpert;

/** Writes a LoRA in another form of names.
 *
 * Five forms are read: those of ComfyUI and PEFT, kohya's scripts, VideoX-Fun, diffusers and DiffSynth. The
 * written file has no alpha: alpha / rank is divided evenly between the matrices A and B, so that every
 * reader gets the same product. Only the form kohya gets an alpha, equal to the rank. Numbers keep their
 * dtype.
 * @param in_path  a safetensors file
 * @param out_path replaced if it exists
 * @param form     "comfy", "diffusers" or "kohya". comfy is read by ComfyUI, diffusers and musubi-tuner
 * @return DSV_E_FORMAT, naming the first key that belongs to no Wan LoRA; DSV_E_SHAPE; DSV_E_UNSUPPORTED if
 *     the LoRA has differences of whole weights, which only comfy can hold; DSV_E_USAGE; DSV_E_NOT_FOUND;
 *     DSV_E_NO_MEMORY; DSV_E_IO */
DsvStatus dsv_lora_convert(const char *in_path, const char *out_path, const char *form);

/** Writes a copy of a model to which a LoRA has been added.
 *
 * All files of the model are copied with their names, tensors and dtypes; the tensors that the LoRA changes
 * are W + scale (alpha / rank) B A, rounded once. A model of two experts gets the LoRA in both. Needs memory
 * for the changed tensors of the model's largest file.
 * @param model_path a folder with transformer/, a transformer folder, or a safetensors file
 * @param lora_path  a LoRA in any form that dsv_lora_convert() reads
 * @param scale      factor of the LoRA's change, usually 1
 * @param out_folder made if it is missing; must be empty
 * @return DSV_E_USAGE if `out_folder` holds files; DSV_E_SHAPE, naming the key, if the LoRA is of another
 *     model, before anything is written; DSV_E_FORMAT if a changed number is not finite; otherwise as
 *     dsv_lora_convert() */
DsvStatus dsv_lora_merge(const char *model_path, const char *lora_path, double scale, const char *out_folder);

/** Writes a copy of a model to which several LoRAs have been added, as dsv_lora_merge() does.
 * @param model_path as for dsv_lora_merge(); a folder that also has transformer_2/ has two experts
 * @param lora_paths (count) LoRAs in any form that dsv_lora_convert() reads
 * @param scales     (count) factor of each LoRA's change; NULL: all 1
 * @param experts    (count) transformers that each LoRA changes; NULL: all DSV_EXPERT_BOTH
 * @param count      number of LoRAs, at most 16
 * @param out_folder made if it is missing; must be empty
 * @return as dsv_lora_merge(); DSV_E_USAGE for a LoRA of an expert if the model has one transformer, or of
 *     another expert than the one for which dsv trained the LoRA */
DsvStatus dsv_lora_merge_experts(const char *model_path, const char *const *lora_paths, const double *scales,
                                 const DsvExpert *experts, size_t count, const char *out_folder);

#ifdef __cplusplus
}
#endif
#endif
