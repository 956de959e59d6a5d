/* Writes a transformer's weights in the files of diffusers. Also writes and reads other arrays with one
 * value per parameter element, such as optimizer moments. */
#include "model/weights/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "model/weights/weights_files.h"

enum { NAME_BYTES = 160 };

typedef char Name[NAME_BYTES];

static DsvStatus weights_write_no_memory(const char *path)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to write it", path);
}

static DsviStoredTensor weights_write_describe(const DsviParam *param, const char *name, DsviDtype dtype,
                                               const void *data)
{
    DsviStoredTensor tensor = {.name = name,
                               .dtype = dtype,
                               .ndim = param->ndim,
                               .count = param->count,
                               .bytes = (size_t)param->count * dsvi_dtype_size(dtype),
                               .data = data};
    memcpy(tensor.shape, param->shape, sizeof tensor.shape);
    return tensor;
}

static uint64_t stored_bytes(const DsviParam *param, DsviDtype dtype)
{
    return (uint64_t)param->count * dsvi_dtype_size(dtype);
}

/* Returns the end of the shard that begins with parameter `begin`, one past its last parameter, and sets
 * the number of bytes of the shard. A shard has as many parameters as fit, at least one. */
static int64_t shard_end(const DsviParamTable *table, int64_t begin, DsviDtype dtype, uint64_t shard_bytes,
                         uint64_t *bytes)
{
    int64_t end = begin;
    *bytes = 0;
    do
        *bytes += stored_bytes(&table->params[end++], dtype);
    while (end < table->count && *bytes + stored_bytes(&table->params[end], dtype) <= shard_bytes);
    return end;
}

/* Writes parameters [begin, end), `bytes` in total, to one file. F32 is written directly from `flat`, other
 * dtypes from a converted copy. */
static DsvStatus write_shard(const char *path, const DsviParamTable *table, int64_t begin, int64_t end,
                             uint64_t bytes, const float *flat, DsviDtype dtype)
{
    DsvStatus status;
    DsviStoredTensor *tensors = calloc((size_t)(end - begin), sizeof *tensors);
    char *copy = dtype == DSVI_F32 ? NULL : malloc(bytes);
    char *next = copy;
    if (!tensors || (dtype != DSVI_F32 && !copy)) {
        status = weights_write_no_memory(path);
        goto done;
    }
    for (int64_t i = begin; i < end; i++) {
        const DsviParam *param = &table->params[i];
        const void *data = flat + param->offset;
        if (copy) {
            dsvi_convert(dtype, next, DSVI_F32, data, param->count);
            data = next;
            next += stored_bytes(param, dtype);
        }
        tensors[i - begin] = weights_write_describe(param, param->name, dtype, data);
    }
    DSVI_TRY_GOTO(status, dsvi_safetensors_write(path, tensors, (size_t)(end - begin), NULL, 0), done);
done:
    free(tensors);
    free(copy);
    return status;
}

/* Writes all shards, and adds their parameters to the index. */
static DsvStatus write_shards(const char *folder, const DsviParamTable *table, const float *flat,
                              DsviDtype dtype, uint64_t shard_bytes, int64_t shards, cJSON *weight_map)
{
    char path[DSVI_PATH_MAX];
    Name name;
    int64_t begin = 0;
    for (int64_t shard = 1; shard <= shards; shard++) {
        uint64_t bytes;
        int64_t end = shard_end(table, begin, dtype, shard_bytes, &bytes);
        snprintf(name, sizeof name, "diffusion_pytorch_model-%05lld-of-%05lld.safetensors", (long long)shard,
                 (long long)shards);
        DSVI_TRY(dsvi_path_join(path, folder, name));
        DSVI_TRY(write_shard(path, table, begin, end, bytes, flat, dtype));
        for (; begin < end; begin++)
            if (!cJSON_AddStringToObject(weight_map, table->params[begin].name, name))
                return weights_write_no_memory(path);
    }
    return DSV_OK;
}

static DsvStatus write_sharded(const char *folder, const DsviParamTable *table, const float *flat,
                               DsviDtype dtype, uint64_t shard_bytes, int64_t shards)
{
    DsvStatus status;
    char path[DSVI_PATH_MAX], *text = NULL;
    cJSON *index = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(index, "metadata");
    cJSON *weight_map = cJSON_AddObjectToObject(index, "weight_map");
    double total = (double)table->parameters * (double)dsvi_dtype_size(dtype);
    DSVI_TRY_GOTO(status, dsvi_path_join(path, folder, DSVI_WEIGHTS_INDEX), done);
    if (!weight_map || !cJSON_AddNumberToObject(metadata, "total_size", total)) {
        status = weights_write_no_memory(path);
        goto done;
    }
    DSVI_TRY_GOTO(status, write_shards(folder, table, flat, dtype, shard_bytes, shards, weight_map), done);
    text = cJSON_Print(index);
    status = text ? dsvi_file_write(path, text, strlen(text)) : weights_write_no_memory(path);
done:
    cJSON_free(text);
    cJSON_Delete(index);
    return status;
}

DsvStatus dsvi_weights_write(const char *folder, const DsviParamTable *table, const float *flat,
                             DsviDtype dtype, uint64_t shard_bytes)
{
    char path[DSVI_PATH_MAX];
    int64_t shards = 0;
    uint64_t bytes = 0;
    DSVI_TRY(dsvi_folder_make(folder));
    for (int64_t begin = 0; begin < table->count; shards++)
        begin = shard_end(table, begin, dtype, shard_bytes, &bytes);
    if (shards > 1)
        return write_sharded(folder, table, flat, dtype, shard_bytes, shards);
    DSVI_TRY(dsvi_path_join(path, folder, DSVI_WEIGHTS_SINGLE));
    return write_shard(path, table, 0, table->count, bytes, flat, dtype);
}

DsvStatus dsvi_flat_write(const char *path, const DsviParamTable *table, const char *array, const float *flat)
{
    DsvStatus status;
    size_t count = (size_t)table->count;
    Name *names = calloc(count, sizeof *names);
    DsviStoredTensor *tensors = calloc(count, sizeof *tensors);
    if (!names || !tensors) {
        status = weights_write_no_memory(path);
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        const DsviParam *param = &table->params[i];
        snprintf(names[i], NAME_BYTES, "%s.%s", array, param->name);
        tensors[i] = weights_write_describe(param, names[i], DSVI_F32, flat + param->offset);
    }
    DSVI_TRY_GOTO(status, dsvi_safetensors_write(path, tensors, count, NULL, 0), done);
done:
    free(names);
    free(tensors);
    return status;
}

/* Returns the separator between the names of array and parameter: a dot, or nothing in files of version
 * 0.1. */
static const char *find_separator(const DsviSafetensors *file, const DsviParamTable *table, const char *array)
{
    Name name;
    snprintf(name, sizeof name, "%s%s", array, table->params[0].name);
    return dsvi_safetensors_find(file, name) ? "" : ".";
}

static DsvStatus weights_write_read_array(const DsviSafetensors *file, const DsviParamTable *table,
                                          const char *array, float *flat)
{
    Name name;
    const char *separator = find_separator(file, table, array);
    memset(flat, 0, (size_t)table->elements * sizeof *flat);
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        const DsviStoredTensor *tensor;
        snprintf(name, sizeof name, "%s%s%s", array, separator, param->name);
        DSVI_TRY(dsvi_safetensors_require(file, name, param->ndim, param->shape, &tensor));
        if (tensor->dtype != DSVI_F32)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, expected F32", dsvi_safetensors_path(file),
                             name, dsvi_dtype_name(tensor->dtype));
        memcpy(flat + param->offset, tensor->data, tensor->bytes);
    }
    return DSV_OK;
}

DsvStatus dsvi_flat_read(const char *path, const DsviParamTable *table, const char *array, float *flat)
{
    DsvStatus status;
    DsviSafetensors *file;
    DSVI_TRY(dsvi_safetensors_open(path, &file));
    size_t found = dsvi_safetensors_count(file), expected = (size_t)table->count;
    DSVI_TRY_GOTO(status, weights_write_read_array(file, table, array, flat), done);
    status = found == expected
                 ? DSV_OK
                 : DSVI_FAIL(DSV_E_SHAPE, "%s: %zu tensors, expected %zu", path, found, expected);
done:
    dsvi_safetensors_close(&file);
    return status;
}
