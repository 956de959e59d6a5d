/* Runs that trained a LoRA: their base model and the file of the LoRA. */
#ifndef DSVI_LORA_RUN_H
#define DSVI_LORA_RUN_H

#include <stdbool.h>

#include "base/fs.h"
#include "dsv/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviLoraRun {
    char checkpoint[DSVI_PATH_MAX];
    char lora[DSVI_PATH_MAX];     /* file of the LoRA in the checkpoint */
    DsvExpert expert;             /* that the LoRA was trained for */
    char settings[DSVI_PATH_MAX]; /* config.yaml of the checkpoint */
    char base[DSVI_PATH_MAX];     /* the run's model.path */
} DsviLoraRun;

/* Finds the LoRA of a run folder (of its newest undamaged checkpoint) or of a checkpoint. *found is false if
 * `path` is neither or holds no LoRA. out->base is empty. */
DsvStatus dsvi_lora_run_locate(const char *path, DsviLoraRun *out, bool *found);

/* The same, with the base model. DSV_E_NOT_FOUND if the base model is not there any more. */
DsvStatus dsvi_lora_run_find(const char *path, DsviLoraRun *out, bool *found);

#ifdef __cplusplus
}
#endif
#endif
