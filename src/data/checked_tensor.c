/* Implements checked_tensor.h. */
#include "data/checked_tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

static const char CHECKSUM[] = "xxh3", KEY[] = "key";

enum { CHECKSUM_BYTES = 17 }; /* of a checksum as text, the final zero included */

DsvStatus dsvi_checked_tensor_write(const char *path, const DsviStoredTensor *tensor, const char *key,
                                    uint64_t *checksum)
{
    char hex[CHECKSUM_BYTES];
    const char *const metadata[2][2] = {{CHECKSUM, hex}, {KEY, key}};
    *checksum = XXH3_64bits(tensor->data, tensor->bytes);
    snprintf(hex, sizeof hex, "%016" PRIx64, *checksum);
    return dsvi_safetensors_replace(path, tensor, 1, metadata, key ? 2 : 1);
}

DsvStatus dsvi_checked_tensor_open(const char *path, const char *name, DsviDtype dtype, int ndim,
                                   DsviCheckedTensor *out)
{
    const int64_t any[DSVI_TENSOR_MAX_DIMS] = {-1, -1, -1, -1, -1, -1, -1, -1};
    DsvStatus status;
    *out = (DsviCheckedTensor){0};
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &out->file));
    DSVI_TRY_GOTO(status, dsvi_safetensors_require(out->file, name, ndim, any, &out->tensor), fail);
    out->checksum = dsvi_safetensors_metadata(out->file, CHECKSUM);
    out->key = dsvi_safetensors_metadata(out->file, KEY);
    if (out->tensor->dtype != dtype || !out->checksum) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: no file of a latent cache: expected %s as %s with a checksum",
                           path, name, dsvi_dtype_name(dtype));
        goto fail;
    }
    return DSV_OK;
fail:
    dsvi_checked_tensor_close(out);
    return status;
}

void dsvi_checked_tensor_close(DsviCheckedTensor *open)
{
    dsvi_safetensors_close(&open->file);
    *open = (DsviCheckedTensor){0};
}

static DsvStatus checked_tensor_compare(const DsviCheckedTensor *open, uint64_t checksum)
{
    char hex[CHECKSUM_BYTES];
    snprintf(hex, sizeof hex, "%016" PRIx64, checksum);
    if (strcmp(hex, open->checksum) != 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: damaged: checksum %s, expected %.16s",
                         dsvi_safetensors_path(open->file), hex, open->checksum);
    return DSV_OK;
}

/* Computes the checksum piece by piece, because a hostile file may claim to be larger than memory. */
static DsvStatus checksum_of(const DsviCheckedTensor *open, uint64_t *checksum)
{
    enum { PIECE = 1 << 16 };
    unsigned char piece[PIECE];
    DsvStatus status = DSV_OK;
    const DsviStoredTensor *tensor = open->tensor;
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a checksum", dsvi_safetensors_path(open->file));
    XXH3_64bits_reset(state);
    for (size_t from = 0; from < tensor->bytes && status == DSV_OK; from += PIECE) {
        size_t bytes = tensor->bytes - from < PIECE ? tensor->bytes - from : PIECE;
        status = dsvi_safetensors_read(open->file, tensor, from, piece, bytes);
        if (status == DSV_OK)
            XXH3_64bits_update(state, piece, bytes);
    }
    *checksum = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return status;
}

DsvStatus dsvi_checked_tensor_verify(const DsviCheckedTensor *open, uint64_t *checksum)
{
    DSVI_TRY(checksum_of(open, checksum));
    return checked_tensor_compare(open, *checksum);
}

DsvStatus dsvi_checked_tensor_read(const DsviCheckedTensor *open, void *out)
{
    DSVI_TRY(dsvi_safetensors_read(open->file, open->tensor, 0, out, open->tensor->bytes));
    return checked_tensor_compare(open, XXH3_64bits(out, open->tensor->bytes));
}
