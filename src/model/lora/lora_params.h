/* The matrices of a LoRA beside a frozen model, in training or in one pass: a table of parameters of their
 * own, beside the table of the frozen model. A layer y = x W^T + b becomes y = x W^T + b + factor (x A^T) B^T
 * with A (rank, in) and B (out, rank).
 *
 * The table has the buckets of the model's table, so that everything that trains a model (train/zero.h) can
 * train the matrices instead. A is initialised as by the package peft, uniformly in +-1 / sqrt(in), and B is
 * zero: a new LoRA changes nothing. */
#ifndef DSVI_LORA_PARAMS_H
#define DSVI_LORA_PARAMS_H

#include "model/lora/lora.h"
#include "model/weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLoraTarget {
    int64_t weight; /* place of the layer's weight W among the model's parameters */
    int64_t a, b;   /* places of A and B among the parameters of the LoRA; A is parameter 2 i of the table,
                     * B parameter 2 i + 1, for target i */
    int64_t rank;
    double factor; /* alpha / rank */
} DsviLoraTarget;

typedef struct DsviLoraParams {
    DsviParamTable table; /* parameters blocks.0.attn1.to_q.lora_A.weight, ... */
    DsviLoraTarget *targets;
    int64_t count;
    int64_t rank_max; /* largest rank of a target */
    bool off;         /* forward passes leave the LoRA out */
} DsviLoraParams;

typedef struct DsviLoraOptions {
    int64_t rank;
    double alpha;
    const char *layers; /* the linear layers of the blocks that are adapted: names in either naming, separated
                         * by commas. A name stands for all layers that end with it, "q" for
                         * blocks.0.self_attn.q, and may contain the wildcards of fnmatch() */
} DsviLoraOptions;

/* Makes the table for a model with the parameters `model`; to be freed with dsvi_lora_params_free.
 * DSV_E_USAGE if the rank is below 1 or above the width of a layer, or a name stands for no layer. */
DsvStatus dsvi_lora_params_make(const DsviParamTable *model, const DsviLoraOptions *options,
                                DsviLoraParams *out);
/* Makes the table for the matrices of a file, which dsvi_lora_check has found to fit the model. Only linear
 * layers inside blocks become targets. */
DsvStatus dsvi_lora_params_of_file(const DsviParamTable *model, const DsviLora *lora, DsviLoraParams *out);
/* Reads the matrices of the file to the host array `flat` (params->table.elements). */
void dsvi_lora_params_read(const DsviLoraParams *params, const DsviLora *lora, float *flat);
/* Writes the matrices of `flat` to a LoRA file in the form comfy, in `dtype`. The factor of each layer is
 * divided evenly between A and B, as dsvi_lora_write does. The metadata name `expert`, "high" or "low",
 * unless it is NULL. */
DsvStatus dsvi_lora_params_write(const DsviLoraParams *params, const float *flat, DsviDtype dtype,
                                 const char *expert, const char *path);
/* Returns the tensor of the file that is parameter `index` of the table. */
const DsviStoredTensor *dsvi_lora_params_tensor(const DsviLoraParams *params, const DsviLora *lora,
                                                int64_t index);

void dsvi_lora_params_free(DsviLoraParams *params); /* accepts a zeroed struct */

/* Returns the target with this weight, or NULL. */
const DsviLoraTarget *dsvi_lora_params_find(const DsviLoraParams *params, int64_t weight);

#ifdef __cplusplus
}
#endif
#endif
