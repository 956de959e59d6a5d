/* LoRA files that a caller names for a model, which may have two experts. */
#ifndef DSVI_LORA_FILES_H
#define DSVI_LORA_FILES_H

#include "dsv/lora.h"
#include "model/lora/lora_set.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As in DsvSampleArgs. */
typedef struct DsviLoraFiles {
    const char *const *paths;
    const double *scales;     /* NULL: all 1 */
    const DsvExpert *experts; /* NULL: all DSV_EXPERT_BOTH */
    size_t count;
} DsviLoraFiles;

/* Refuses a folder, with the LoRA that it holds if it is a run or a checkpoint, and a pickle. */
DsvStatus dsvi_lora_file_check(const char *path);

/* Opens the files: `high` receives those of the first or only transformer of the model, `low` those of the
 * expert for low noise. two_experts: whether the model has two. DSV_E_USAGE for a LoRA that is meant for one
 * expert if the model has one transformer, or that was trained for another expert than it is meant for.
 * `model` is what messages call the model. Both sets are to be closed, also after a failure. */
DsvStatus dsvi_lora_files_open(const DsviLoraFiles *files, const char *model, bool two_experts,
                               DsviLoraSet *high, DsviLoraSet *low);

#ifdef __cplusplus
}
#endif
#endif
