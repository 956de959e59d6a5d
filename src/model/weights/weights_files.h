/* Finds the safetensors files that contain a model. */
#ifndef DSVI_WEIGHTS_FILES_H
#define DSVI_WEIGHTS_FILES_H

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* File names of transformers and VAEs in the diffusers format, which published folders with original names
 * use too. The file names of text encoders begin with "model" instead of "diffusion_pytorch_model". */
#define DSVI_WEIGHTS_SINGLE "diffusion_pytorch_model.safetensors"
#define DSVI_WEIGHTS_INDEX "diffusion_pytorch_model.safetensors.index.json"

typedef struct DsviWeightFiles {
    char **paths;
    size_t count, room; /* number of paths, and number for which memory is allocated */
} DsviWeightFiles;

/* Finds the files of `path`. If `path` is a file, it is the result. In a folder the result is the shards
 * that the folder's index names, or the file of the usual name, or the only safetensors file. DSV_E_FORMAT
 * if an index names files outside the folder; DSV_E_UNSUPPORTED for pickles. The caller must free *out with
 * dsvi_weight_files_free, also after failure. */
DsvStatus dsvi_weight_files_find(const char *path, DsviWeightFiles *out);
void dsvi_weight_files_free(DsviWeightFiles *files);

#ifdef __cplusplus
}
#endif
#endif
