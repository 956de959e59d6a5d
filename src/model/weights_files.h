/* Which safetensors files make up a transformer. */
#ifndef DSVI_WEIGHTS_FILES_H
#define DSVI_WEIGHTS_FILES_H

#include <stddef.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The names diffusers gives them, which published original folders use too. */
#define DSV_WEIGHTS_SINGLE "diffusion_pytorch_model.safetensors"
#define DSV_WEIGHTS_INDEX "diffusion_pytorch_model.safetensors.index.json"

typedef struct DsvWeightFiles {
    char **paths;
    size_t count, room;
} DsvWeightFiles;

/* `path` is one safetensors file, or a folder: then the shards of its index, the single file of the usual
 * name, or the only safetensors file in it. An index whose names lead out of the folder is
 * DSV_E_FORMAT; pickles are DSV_E_UNSUPPORTED. Freed with dsvi_weight_files_free, after failure too. */
DsvStatus dsvi_weight_files_find(const char *path, DsvWeightFiles *out);
void dsvi_weight_files_free(DsvWeightFiles *files);

#ifdef __cplusplus
}
#endif
#endif
