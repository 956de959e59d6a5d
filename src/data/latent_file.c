/* Implements latent_file.h, the file of one encoded window, and dsvi_latent_read of latent_cache.h. */
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
    DsviStoredTensor tensor = {.name = TENSOR, .dtype = DSVI_F32, .ndim = 4, .count = 1, .data = latent};
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

/* Opens a latent's file. *tensor and *stored (the checksum in the file) are valid until *file is closed. The
 * file is not memory-mapped: a file that is rewritten or cannot be read must fail for one window, not kill
 * the process. */
static DsvStatus open_latent(const char *path, DsviSafetensors **file, const DsviStoredTensor **tensor,
                             const char **stored)
{
    DsvStatus status;
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, file));
    DSVI_TRY_GOTO(status, dsvi_safetensors_require(*file, TENSOR, -1, NULL, tensor), fail);
    *stored = dsvi_safetensors_metadata(*file, CHECKSUM);
    if ((*tensor)->dtype != DSVI_F32 || !*stored) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: no file of a latent cache", path);
        goto fail;
    }
    return DSV_OK;
fail:
    dsvi_safetensors_close(file);
    return status;
}

static DsvStatus latent_file_compare(const char *path, uint64_t checksum, const char *stored)
{
    char hex[17];
    snprintf(hex, sizeof hex, "%016" PRIx64, checksum);
    if (strcmp(hex, stored) != 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: damaged: checksum %s, expected %.16s", path, hex, stored);
    return DSV_OK;
}

/* Computes the checksum piece by piece, because a hostile file may claim to be larger than memory. */
static DsvStatus checksum_of(const DsviSafetensors *file, const DsviStoredTensor *tensor, uint64_t *checksum)
{
    enum { PIECE = 1 << 16 };
    unsigned char piece[PIECE];
    DsvStatus status = DSV_OK;
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a checksum", dsvi_safetensors_path(file));
    XXH3_64bits_reset(state);
    for (size_t from = 0; from < tensor->bytes && status == DSV_OK; from += PIECE) {
        size_t bytes = tensor->bytes - from < PIECE ? tensor->bytes - from : PIECE;
        status = dsvi_safetensors_read(file, tensor, from, piece, bytes);
        if (status == DSV_OK)
            XXH3_64bits_update(state, piece, bytes);
    }
    *checksum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return status;
}

DsvStatus dsvi_latent_verify(const char *path, uint64_t *checksum)
{
    DsviSafetensors *file;
    const DsviStoredTensor *tensor;
    const char *stored;
    DSVI_TRY(open_latent(path, &file, &tensor, &stored));
    DsvStatus status = checksum_of(file, tensor, checksum);
    if (status == DSV_OK)
        status = latent_file_compare(path, *checksum, stored);
    dsvi_safetensors_close(&file);
    return status;
}

DsvStatus dsvi_latent_read(const char *path, int64_t elements, float *latent)
{
    DsvStatus status;
    DsviSafetensors *file;
    const DsviStoredTensor *tensor;
    const char *stored;
    DSVI_TRY(open_latent(path, &file, &tensor, &stored));
    if (tensor->count != elements)
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: %" PRId64 " numbers, expected %" PRId64, path, tensor->count,
                           elements);
    else
        status = dsvi_safetensors_read(file, tensor, 0, latent, tensor->bytes);
    if (status == DSV_OK)
        status = latent_file_compare(path, XXH3_64bits(latent, tensor->bytes), stored);
    dsvi_safetensors_close(&file);
    return status;
}
