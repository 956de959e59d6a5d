/* Names of tensors in LoRA files. Five programs write five forms of names:
 *
 *     Comfy, PEFT      diffusion_model.blocks.0.self_attn.q.lora_A.weight
 *     kohya            lora_unet_blocks_0_self_attn_q.lora_down.weight
 *     VideoX-Fun       lora_unet__blocks_0_self_attn_q.lora_down.weight
 *     diffusers        transformer.blocks.0.attn1.to_q.lora_A.weight
 *     DiffSynth        blocks.0.self_attn.q.lora_A.default.weight
 *
 * A layer is called by its diffusers name without prefix, as in weights.h: blocks.0.attn1.to_q. */
#ifndef DSVI_LORA_NAMES_H
#define DSVI_LORA_NAMES_H

#include <stdbool.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_LORA_NAME_BYTES = 128 };

/* What a tensor of a layer is. A layer W with rank r becomes W + scale (alpha / r) B A + scale diff, and its
 * bias b becomes b + scale diff_b. */
typedef enum DsviLoraPart {
    DSVI_LORA_A,         /* (r, in), also called down */
    DSVI_LORA_B,         /* (out, r), also called up */
    DSVI_LORA_ALPHA,     /* one number */
    DSVI_LORA_DIFF,      /* shaped like the weight */
    DSVI_LORA_DIFF_BIAS, /* shaped like the bias */
    DSVI_LORA_PARTS
} DsviLoraPart;

/* The forms in which files are written. */
typedef enum DsviLoraForm { DSVI_LORA_COMFY, DSVI_LORA_DIFFUSERS, DSVI_LORA_KOHYA } DsviLoraForm;

/* Finds the layer and the part that a tensor's name stands for, in any of the five forms. Returns false if
 * the name has none of these forms or names no layer of a Wan transformer. */
bool dsvi_lora_name_parse(const char *name, char layer[DSVI_LORA_NAME_BYTES], DsviLoraPart *part);

/* Returns what a file is in which this name is found, of kinds that dsv does not read, such as DoRA; NULL:
 * not known. */
const char *dsvi_lora_name_foreign(const char *name);

/* Finds the layer to which a parameter of a transformer file belongs, and whether it is the layer's bias. The
 * name may have a prefix and either naming: model.diffusion_model.blocks.0.self_attn.q.weight. */
bool dsvi_lora_name_of_param(const char *name, char layer[DSVI_LORA_NAME_BYTES], bool *bias);

/* Writes the name of a layer's tensor in one form. DSV_E_UNSUPPORTED if the form cannot express the part:
 * diffusers and kohya have no diffs. */
DsvStatus dsvi_lora_name_make(DsviLoraForm form, const char *layer, DsviLoraPart part,
                              char name[DSVI_LORA_NAME_BYTES]);

/* Finds a form by its name: "comfy", "diffusers" or "kohya". Otherwise DSV_E_USAGE. */
DsvStatus dsvi_lora_form_find(const char *name, DsviLoraForm *form);

#ifdef __cplusplus
}
#endif
#endif
