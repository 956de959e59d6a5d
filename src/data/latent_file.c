/* See latent_file.h, and latent_cache.h for dsvi_latent_read. */
#include "data/latent_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/fs.h"
#include "base/safetensors.h"
#include "data/latent_cache.h"

static const char TENSOR[] = "latent", CHECKSUM[] = "xxh3";

DsvStatus dsvi_latent_write(const char *path, const int64_t shape[4], const float *latent, uint64_t *checksum)
{
    char temporary[DSVI_PATH_MAX], hex[17];
    const char *const metadata[1][2] = {{CHECKSUM, hex}};
    DsvStoredTensor tensor = {.name = TENSOR, .dtype = DSV_F32, .ndim = 4, .count = 1, .data = latent};
    for (int i = 0; i < 4; i++) {
        tensor.shape[i] = shape[i];
        tensor.count *= shape[i];
    }
    tensor.bytes = (size_t)tensor.count * sizeof *latent;
    *checksum = XXH3_64bits(latent, tensor.bytes);
    snprintf(hex, sizeof hex, "%016" PRIx64, *checksum);
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    DsvStatus status = dsvi_safetensors_write(temporary, &tensor, 1, metadata, 1);
    if (status == DSV_OK)
        status = dsvi_path_rename(temporary, path);
    if (status != DSV_OK) {
        dsvi_trail_add(__FILE__, __LINE__);
        unlink(temporary);
    }
    return status;
}

/* Opens a file and checks its tensor; on success both are the caller's until *file is closed. */
static DsvStatus open_checked(const char *path, DsvSafetensors **file, const DsvStoredTensor **tensor,
                              uint64_t *checksum)
{
    DsvStatus status;
    char hex[17];
    DSVI_TRY(dsvi_safetensors_open(path, file));
    DSVI_TRY_GOTO(status, dsvi_safetensors_want(*file, TENSOR, -1, NULL, tensor), fail);
    const char *told = dsvi_safetensors_metadata(*file, CHECKSUM);
    if ((*tensor)->dtype != DSV_F32 || !told) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: no file of a latent cache", path);
        goto fail;
    }
    *checksum = XXH3_64bits((*tensor)->data, (*tensor)->bytes);
    snprintf(hex, sizeof hex, "%016" PRIx64, *checksum);
    if (strcmp(hex, told) != 0) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: damaged: checksum %s, wanted %.16s", path, hex, told);
        goto fail;
    }
    return DSV_OK;
fail:
    dsvi_safetensors_close(file);
    return status;
}

DsvStatus dsvi_latent_verify(const char *path, uint64_t *checksum)
{
    DsvSafetensors *file;
    const DsvStoredTensor *tensor;
    DSVI_TRY(open_checked(path, &file, &tensor, checksum));
    dsvi_safetensors_close(&file);
    return DSV_OK;
}

DsvStatus dsvi_latent_read(const char *path, int64_t elements, float *latent)
{
    DsvStatus status = DSV_OK;
    DsvSafetensors *file;
    const DsvStoredTensor *tensor;
    uint64_t checksum;
    DSVI_TRY(open_checked(path, &file, &tensor, &checksum));
    if (tensor->count == elements)
        memcpy(latent, tensor->data, tensor->bytes);
    else
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: %" PRId64 " numbers, wanted %" PRId64, path, tensor->count,
                           elements);
    dsvi_safetensors_close(&file);
    return status;
}
