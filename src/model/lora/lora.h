/* A LoRA (Hu et al. 2021, arXiv 2106.09685) from a safetensors file: for some layers of a transformer two
 * thin matrices A and B whose product is added to the layer's weight; or whole differences of weights, as
 * ComfyUI reads them. */
#ifndef DSVI_LORA_H
#define DSVI_LORA_H

#include "base/safetensors.h"
#include "model/lora/lora_names.h"
#include "model/weights/weights.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Key of the metadata that names the expert for which dsv has trained a LoRA: "high" or "low". */
#define DSVI_LORA_EXPERT_KEY "dsv.expert"

typedef struct DsviLoraLayer {
    char name[DSVI_LORA_NAME_BYTES];               /* diffusers name of the layer, without .weight */
    const DsviStoredTensor *part[DSVI_LORA_PARTS]; /* NULL: not in the file. A and B occur together */
    int64_t rank, in, out; /* of A (rank, in) and B (out, rank), where a convolution's further dimensions
                            * belong to `in`; 0 without A */
    double factor;         /* alpha / rank; 1 if the file has no alpha */
} DsviLoraLayer;

typedef struct DsviLora {
    DsviSafetensors *file;
    DsviLoraLayer *layers; /* (count), in the order of strcmp of their names */
    size_t count;
} DsviLora;

/* Opens a file and checks names, shapes and dtypes against each other. DSV_E_FORMAT names the first key that
 * is no tensor of a Wan LoRA, or whose values are not finite; DSV_E_SHAPE if A and B have different ranks, or
 * one of both is missing. To be closed with dsvi_lora_close, which accepts a zeroed or half-opened struct. */
DsvStatus dsvi_lora_open(const char *path, DsviLora *out);
void dsvi_lora_close(DsviLora *lora);

/* The change of one parameter of a model. */
typedef struct DsviLoraChange {
    const DsviLoraLayer *layer; /* NULL: the LoRA does not change the parameter */
    bool bias;                  /* the parameter is the layer's bias, otherwise its weight */
    bool product;               /* dsvi_lora_add adds B A. Set to true by dsvi_lora_change; a caller that uses
                                 * the matrices otherwise sets it to false */
} DsviLoraChange;

/* Finds how the LoRA changes the parameter `name`, which may have any of the prefixes and namings of
 * transformer files. `rows` and `count`: the parameter's first dimension and number of elements. DSV_E_SHAPE
 * names file, key, the size found and the one expected. */
DsvStatus dsvi_lora_change(const DsviLora *lora, const char *name, int64_t rows, int64_t count,
                           DsviLoraChange *out);

/* Fails with DSV_E_SHAPE unless all of `changed` (lora->count), one for each layer, are true. `model` is what
 * the message calls the model that lacks the layer. */
DsvStatus dsvi_lora_expect_all(const DsviLora *lora, const bool *changed, const char *model);
/* Fails with DSV_E_SHAPE unless every layer of the LoRA is a layer of the model and fits it. */
DsvStatus dsvi_lora_check(const DsviLora *lora, const DsviParamTable *table);

/* Adds a change, times `scale`, to the parameter's values: host F32. Sums are formed in F32 in a fixed order.
 * DSV_E_NO_MEMORY. */
DsvStatus dsvi_lora_add(const DsviLora *lora, const DsviLoraChange *change, double scale, float *values);

/* Writes the LoRA in another form. The factor of each layer is divided evenly between A and B (each times the
 * square root of its size), so that readers without alpha get the same product; the kohya form gets an alpha
 * equal to the rank. Numbers keep their dtype; a layer whose factor is 1 keeps its bits. */
DsvStatus dsvi_lora_write(const DsviLora *lora, DsviLoraForm form, const char *path);

#ifdef __cplusplus
}
#endif
#endif
