/* Several LoRAs with their scales, which are added to the weights of one model. */
#ifndef DSVI_LORA_SET_H
#define DSVI_LORA_SET_H

#include "model/lora/lora.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DSVI_LORAS_MAX = 16 };

typedef struct DsviLoraSet {
    DsviLora lora[DSVI_LORAS_MAX];
    double scale[DSVI_LORAS_MAX];
    size_t count;
} DsviLoraSet;

/* Opens the files. scales: (count), or NULL: all 1. DSV_E_USAGE for more than DSVI_LORAS_MAX files or a scale
 * that is not finite. To be closed with dsvi_lora_set_close, which accepts a zeroed or half-opened struct. */
DsvStatus dsvi_lora_set_open(const char *const *paths, const double *scales, size_t count, DsviLoraSet *out);
void dsvi_lora_set_close(DsviLoraSet *set);

/* Returns whether a LoRA of the set changes the parameter. dsvi_lora_check must have succeeded for all. */
bool dsvi_lora_set_changes(const DsviLoraSet *set, const DsviParam *param);
/* Adds all changes of a parameter to its values: host (param->count) F32. */
DsvStatus dsvi_lora_set_add(const DsviLoraSet *set, const DsviParam *param, float *values);

/* Fails unless every layer of each LoRA is a layer of the transformer `from`, a folder or a safetensors file,
 * and fits it. */
DsvStatus dsvi_lora_set_fit(const DsviLoraSet *set, const char *from);
/* Writes a copy of the transformer `from` in which the LoRAs are added to the weights, for which
 * dsvi_lora_set_fit must have succeeded. The folder `to` exists and receives files of the same names with the
 * same tensors in the same dtypes; each changed number is rounded once. Needs memory for the changed tensors
 * of the largest file. DSV_E_FORMAT if a changed number is not finite. */
DsvStatus dsvi_lora_set_merge(const DsviLoraSet *set, const char *from, const char *to);

#ifdef __cplusplus
}
#endif
#endif
