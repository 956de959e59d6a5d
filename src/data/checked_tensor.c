/* Implements checked_tensor.h. */
#include "data/checked_tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

static const char CHECKSUM[] = "xxh3", KEY[] = "key";

enum { CHECKSUM_BYTES = 17 }; /* of a checksum as text, the final zero included */

DsvStatus dsvi_checked_tensor_write(const char *path, const DsviStoredTensor *tensors, size_t count,
                                    const char *key, uint64_t *checksum)
{
    char hex[CHECKSUM_BYTES];
    const char *const metadata[2][2] = {{CHECKSUM, hex}, {KEY, key}};
    *checksum = XXH3_64bits(tensors->data, tensors->bytes + (count > 1 ? tensors[1].bytes : 0));
    snprintf(hex, sizeof hex, "%016" PRIx64, *checksum);
    return dsvi_safetensors_replace(path, tensors, count, metadata, key ? 2 : 1);
}

DsvStatus dsvi_checked_tensor_open(const char *path, const char *name, const char *second, DsviDtype dtype,
                                   int ndim, DsviCheckedTensor *out)
{
    const int64_t any[DSVI_TENSOR_MAX_DIMS] = {-1, -1, -1, -1, -1, -1, -1, -1};
    DsvStatus status;
    *out = (DsviCheckedTensor){0};
    DSVI_TRY(dsvi_safetensors_open_unmapped(path, &out->file));
    DSVI_TRY_GOTO(status, dsvi_safetensors_require(out->file, name, ndim, any, &out->tensor), fail);
    out->second = second ? dsvi_safetensors_find(out->file, second) : NULL;
    out->checksum = dsvi_safetensors_metadata(out->file, CHECKSUM);
    out->key = dsvi_safetensors_metadata(out->file, KEY);
    if (out->tensor->dtype != dtype || (out->second && out->second->dtype != dtype) || !out->checksum) {
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

int64_t dsvi_checked_tensor_count(const DsviCheckedTensor *open)
{
    return open->tensor->count + (open->second ? open->second->count : 0);
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

/* Adds the bytes of a tensor piece by piece, because a hostile file may claim to be larger than memory. */
static DsvStatus add_tensor(const DsviCheckedTensor *open, const DsviStoredTensor *tensor,
                            XXH3_state_t *state)
{
    enum { PIECE = 1 << 16 };
    unsigned char piece[PIECE];
    for (size_t from = 0; from < tensor->bytes; from += PIECE) {
        size_t bytes = tensor->bytes - from < PIECE ? tensor->bytes - from : PIECE;
        DSVI_TRY(dsvi_safetensors_read(open->file, tensor, from, piece, bytes));
        XXH3_64bits_update(state, piece, bytes);
    }
    return DSV_OK;
}

static DsvStatus checksum_of(const DsviCheckedTensor *open, uint64_t *checksum)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a checksum", dsvi_safetensors_path(open->file));
    XXH3_64bits_reset(state);
    DsvStatus status = add_tensor(open, open->tensor, state);
    if (status == DSV_OK && open->second)
        status = add_tensor(open, open->second, state);
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
    size_t bytes = open->tensor->bytes;
    DSVI_TRY(dsvi_safetensors_read(open->file, open->tensor, 0, out, bytes));
    if (open->second)
        DSVI_TRY(
            dsvi_safetensors_read(open->file, open->second, 0, (char *)out + bytes, open->second->bytes));
    bytes += open->second ? open->second->bytes : 0;
    return checked_tensor_compare(open, XXH3_64bits(out, bytes));
}
