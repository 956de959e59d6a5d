/* Implements latent_file.h, the file of one encoded window, and dsvi_latent_read of latent_cache.h. */
#include "data/latent_file.h"

#include <inttypes.h>
#include <string.h>

#include "data/checked_tensor.h"
#include "data/latent_cache.h"

static const char TENSOR[] = "latent";

DsvStatus dsvi_latent_write(const char *path, const int64_t shape[4], const float *latent, uint64_t *checksum)
{
    DsviStoredTensor tensor = {.name = TENSOR, .dtype = DSVI_F32, .ndim = 4, .count = 1, .data = latent};
    for (int i = 0; i < 4; i++) {
        tensor.shape[i] = shape[i];
        tensor.count *= shape[i];
    }
    tensor.bytes = (size_t)tensor.count * sizeof *latent;
    return dsvi_checked_tensor_write(path, &tensor, NULL, checksum);
}

DsvStatus dsvi_latent_probe(const char *path)
{
    DsviCheckedTensor open;
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, DSVI_F32, -1, &open));
    dsvi_checked_tensor_close(&open);
    return DSV_OK;
}

/* shape: (4), or NULL for any */
static DsvStatus latent_file_verify(const char *path, const int64_t *shape, uint64_t *checksum)
{
    DsviCheckedTensor open;
    DsvStatus status = DSV_OK;
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, DSVI_F32, shape ? 4 : -1, &open));
    if (shape && memcmp(open.tensor->shape, shape, 4 * sizeof *shape) != 0)
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: a latent of another shape", path);
    if (status == DSV_OK)
        status = dsvi_checked_tensor_verify(&open, checksum);
    dsvi_checked_tensor_close(&open);
    return status;
}

DsvStatus dsvi_latent_verify(const char *path, uint64_t *checksum)
{
    return latent_file_verify(path, NULL, checksum);
}

DsvStatus dsvi_latent_verify_shape(const char *path, const int64_t shape[4], uint64_t *checksum)
{
    return latent_file_verify(path, shape, checksum);
}

DsvStatus dsvi_latent_read(const char *path, int64_t elements, float *latent)
{
    DsvStatus status;
    DsviCheckedTensor open;
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, DSVI_F32, -1, &open));
    if (open.tensor->count != elements)
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: %" PRId64 " numbers, expected %" PRId64, path,
                           open.tensor->count, elements);
    else
        status = dsvi_checked_tensor_read(&open, latent);
    dsvi_checked_tensor_close(&open);
    return status;
}
