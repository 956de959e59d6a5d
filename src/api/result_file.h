/* Writes a file of results that a call returns. */
#ifndef DSVI_RESULT_FILE_H
#define DSVI_RESULT_FILE_H

#include "base/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the tensors under a temporary name, which it renames to `path` if all could be written. */
DsvStatus dsvi_result_file_write(const char *path, const DsviStoredTensor *tensors, size_t count);

#ifdef __cplusplus
}
#endif
#endif
