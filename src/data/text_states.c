/* Implements text_states.h. */
#include "data/text_states.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/checked_tensor.h"

static const char TENSOR[] = "states";

DsviHashKey dsvi_text_states_key(const DsviTextStore *store, const int32_t *ids, int64_t count)
{
    /* The hash of the ids is hashed again with everything else on which the states depend. */
    DsviHashKey of_ids = dsvi_hash_key_of(ids, (size_t)count * sizeof *ids);
    char text[128];
    int length = snprintf(text, sizeof text, "%s %s %s", of_ids.hex, store->encoder.hex,
                          dsvi_dtype_name(store->dtype));
    return dsvi_hash_key_of(text, (size_t)length);
}

static DsvStatus text_states_path(const DsviTextStore *store, const DsviHashKey *key,
                                  char path[DSVI_PATH_MAX])
{
    char name[DSVI_HASH_KEY_DIGITS + 16];
    snprintf(name, sizeof name, "%s.safetensors", key->hex);
    return dsvi_path_join(path, store->folder, name);
}

/* Opens the file of a key, and checks that it holds the states of this key. */
static DsvStatus text_states_open(const DsviTextStore *store, const DsviHashKey *key, DsviCheckedTensor *open)
{
    DsvStatus status;
    char path[DSVI_PATH_MAX];
    DSVI_TRY(text_states_path(store, key, path));
    DSVI_TRY(dsvi_checked_tensor_open(path, TENSOR, NULL, store->dtype, 2, open));
    if (!open->key || strcmp(open->key, key->hex) != 0)
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: the states of another text, with the key %.40s", path,
                           open->key ? open->key : "missing");
    else if (open->tensor->shape[1] != store->dim || open->tensor->shape[0] < 1)
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: states of %" PRId64 " x %" PRId64 ", expected rows of %" PRId64,
                           path, open->tensor->shape[0], open->tensor->shape[1], store->dim);
    else
        return DSV_OK;
    dsvi_checked_tensor_close(open);
    return status;
}

DsvStatus dsvi_text_states_probe(const DsviTextStore *store, const DsviHashKey *key)
{
    DsviCheckedTensor open;
    DSVI_TRY(text_states_open(store, key, &open));
    dsvi_checked_tensor_close(&open);
    return DSV_OK;
}

bool dsvi_text_states_has(const DsviTextStore *store, const DsviHashKey *key)
{
    DsviCheckedTensor open;
    uint64_t checksum;
    if (text_states_open(store, key, &open) != DSV_OK)
        return false;
    bool whole = dsvi_checked_tensor_verify(&open, &checksum) == DSV_OK;
    dsvi_checked_tensor_close(&open);
    return whole;
}

DsvStatus dsvi_text_states_write(const DsviTextStore *store, const DsviHashKey *key, int64_t count,
                                 const float *rows)
{
    char path[DSVI_PATH_MAX];
    uint64_t checksum;
    DsviStoredTensor tensor = {.name = TENSOR,
                               .dtype = store->dtype,
                               .ndim = 2,
                               .shape = {count, store->dim},
                               .count = count * store->dim};
    tensor.bytes = (size_t)tensor.count * dsvi_dtype_size(store->dtype);
    if (!dsvi_all_finite(DSVI_F32, rows, tensor.count))
        return DSVI_FAIL(DSV_E_DIVERGED,
                         "the %" PRId64 " states of a caption are not finite, expected a text encoder whose "
                         "weights are whole and do not overflow in the type of mixed_precision",
                         count);
    DSVI_TRY(text_states_path(store, key, path));
    void *data = malloc(tensor.bytes);
    if (!data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %" PRId64 " rows", path, count);
    dsvi_convert(store->dtype, data, DSVI_F32, rows, tensor.count);
    tensor.data = data;
    DsvStatus status = dsvi_checked_tensor_write(path, &tensor, 1, key->hex, &checksum);
    free(data);
    return status;
}

/* Reads the tensor, which fits into `rows`, and widens it to F32. */
static DsvStatus text_states_widen(const DsviCheckedTensor *open, float *rows)
{
    if (open->tensor->dtype == DSVI_F32)
        return dsvi_checked_tensor_read(open, rows);
    void *data = malloc(open->tensor->bytes);
    if (!data)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to read it", dsvi_safetensors_path(open->file));
    DsvStatus status = dsvi_checked_tensor_read(open, data);
    if (status == DSV_OK)
        dsvi_convert(DSVI_F32, rows, open->tensor->dtype, data, open->tensor->count);
    free(data);
    return status;
}

DsvStatus dsvi_text_states_read(const DsviTextStore *store, const DsviHashKey *key, int64_t rows_max,
                                float *rows, int64_t *count)
{
    DsvStatus status;
    DsviCheckedTensor open;
    DSVI_TRY(text_states_open(store, key, &open));
    *count = open.tensor->shape[0];
    if (*count > rows_max)
        status = DSVI_FAIL(DSV_E_SHAPE, "%s: %" PRId64 " rows, expected %" PRId64 " at most",
                           dsvi_safetensors_path(open.file), *count, rows_max);
    else
        status = text_states_widen(&open, rows);
    dsvi_checked_tensor_close(&open);
    return status;
}
