/* Implements latent_file.h, the file of one encoded window, and dsvi_latent_read of latent_cache.h. */
#include "data/latent_file.h"

#include <inttypes.h>
#include <string.h>

#include "data/checked_tensor.h"
#include "data/latent_cache.h"

static const char TENSOR[] = "latent", STATES[] = "image_states";

DsvStatus dsvi_latent_write(const char *path, const int64_t shape[4], DsviImageStates states,
                            const float *latent, uint64_t *checksum)
{
    DsviStoredTensor tensors[2] = {
        {.name = TENSOR, .dtype = DSVI_F32, .ndim = 4, .count = 1, .data = latent},
        {.name = STATES, .dtype = DSVI_F32, .ndim = 2, .shape = {states.rows, states.dim}}};
    for (int i = 0; i < 4; i++) {
        tensors[0].shape[i] = shape[i];
        tensors[0].count *= shape[i];
    }
    tensors[0].bytes = (size_t)tensors[0].count * sizeof *latent;
    tensors[1].count = states.rows * states.dim;
    tensors[1].bytes = (size_t)tensors[1].count * sizeof *latent;
    tensors[1].data = latent + tensors[0].count;
    return dsvi_checked_tensor_write(path, tensors, states.rows > 0 ? 2 : 1, NULL, checksum);
}

DsvStatus dsvi_latent_probe(const char *path)
{
    DsviCheckedTensor open;
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, STATES, DSVI_F32, -1, &open));
    dsvi_checked_tensor_close(&open);
    return DSV_OK;
}

static bool has_states(const DsviCheckedTensor *open, DsviImageStates states)
{
    const DsviStoredTensor *found = open->second;
    return found ? found->ndim == 2 && found->shape[0] == states.rows && found->shape[1] == states.dim
                 : states.rows == 0;
}

/* shape: (4), or NULL for any */
static DsvStatus latent_file_verify(const char *path, const int64_t *shape, DsviImageStates states,
                                    uint64_t *checksum)
{
    DsviCheckedTensor open;
    DsvStatus status = DSV_OK;
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, STATES, DSVI_F32, shape ? 4 : -1, &open));
    if (shape && (memcmp(open.tensor->shape, shape, 4 * sizeof *shape) != 0 || !has_states(&open, states)))
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: a latent of another shape", path);
    if (status == DSV_OK)
        status = dsvi_checked_tensor_verify(&open, checksum);
    dsvi_checked_tensor_close(&open);
    return status;
}

DsvStatus dsvi_latent_verify(const char *path, uint64_t *checksum)
{
    return latent_file_verify(path, NULL, (DsviImageStates){0}, checksum);
}

DsvStatus dsvi_latent_verify_shape(const char *path, const int64_t shape[4], DsviImageStates states,
                                   uint64_t *checksum)
{
    return latent_file_verify(path, shape, states, checksum);
}

DsvStatus dsvi_latent_read(const char *path, int64_t elements, float *latent)
{
    DsvStatus status;
    DsviCheckedTensor open;
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, STATES, DSVI_F32, -1, &open));
    if (dsvi_checked_tensor_count(&open) != elements)
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: %" PRId64 " numbers, expected %" PRId64, path,
                           dsvi_checked_tensor_count(&open), elements);
    else
        status = dsvi_checked_tensor_read(&open, latent);
    dsvi_checked_tensor_close(&open);
    return status;
}
