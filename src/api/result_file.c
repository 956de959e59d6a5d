/* Implements result_file.h. */
#include "api/result_file.h"

#include <stdio.h>
#include <unistd.h>

#include "base/fs.h"

DsvStatus dsvi_result_file_write(const char *path, const DsviStoredTensor *tensors, size_t count)
{
    char temporary[DSVI_PATH_MAX];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    DsvStatus status = dsvi_safetensors_write(temporary, tensors, count, NULL, 0);
    if (status == DSV_OK)
        status = dsvi_path_rename(temporary, path);
    if (status != DSV_OK)
        unlink(temporary);
    return status;
}
