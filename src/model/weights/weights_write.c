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

struct DsviWeightsWriter {
    char folder[DSVI_PATH_MAX];
    const DsviParamTable *table;
    DsviDtype dtype;
    uint64_t shard_bytes;
    int64_t shards;                  /* files */
    int64_t shard, begin, next, end; /* current file, counted from 1, its first parameter, the next parameter
                                      * to write, and the end of the file's parameters */
    DsviSafetensorsWriter *file;     /* NULL: the next parameter begins a file */
    void *copy;                      /* room for any parameter in another dtype than F32 */
};

static void shard_name(const DsviWeightsWriter *w, int64_t shard, Name name)
{
    if (w->shards > 1)
        snprintf(name, NAME_BYTES, "diffusion_pytorch_model-%05lld-of-%05lld.safetensors", (long long)shard,
                 (long long)w->shards);
    else
        snprintf(name, NAME_BYTES, "%s", DSVI_WEIGHTS_SINGLE);
}

DsvStatus dsvi_weights_writer_open(const char *folder, const DsviParamTable *table, DsviDtype dtype,
                                   uint64_t shard_bytes, DsviWeightsWriter **out)
{
    uint64_t bytes = 0, most = 1;
    DsviWeightsWriter *w = *out = calloc(1, sizeof *w);
    if (!w)
        return weights_write_no_memory(folder);
    w->table = table;
    w->dtype = dtype;
    w->shard_bytes = shard_bytes;
    snprintf(w->folder, sizeof w->folder, "%s", folder);
    for (int64_t begin = 0; begin < table->count; w->shards++)
        begin = shard_end(table, begin, dtype, shard_bytes, &bytes);
    for (int64_t i = 0; i < table->count; i++)
        most = stored_bytes(&table->params[i], dtype) > most ? stored_bytes(&table->params[i], dtype) : most;
    DsvStatus status = dtype == DSVI_F32 || (w->copy = malloc(most)) ? dsvi_folder_make(folder)
                                                                     : weights_write_no_memory(folder);
    return status == DSV_OK ? DSV_OK : dsvi_weights_writer_finish(out, status);
}

/* Begins the file of the next parameter. */
static DsvStatus begin_shard(DsviWeightsWriter *w)
{
    char path[DSVI_PATH_MAX];
    Name name;
    uint64_t bytes;
    int64_t begin = w->begin = w->next;
    w->end = shard_end(w->table, begin, w->dtype, w->shard_bytes, &bytes);
    shard_name(w, ++w->shard, name);
    DSVI_TRY(dsvi_path_join(path, w->folder, name));
    DsviStoredTensor *tensors = calloc((size_t)(w->end - begin), sizeof *tensors);
    if (!tensors)
        return weights_write_no_memory(path);
    for (int64_t i = begin; i < w->end; i++)
        tensors[i - begin] = weights_write_describe(&w->table->params[i], w->table->params[i].name, w->dtype,
                                                    NULL);
    DsvStatus status = dsvi_safetensors_create(path, tensors, (size_t)(w->end - begin), &w->file);
    free(tensors);
    return status;
}

static DsvStatus put_param(DsviWeightsWriter *w, const float *data)
{
    const DsviParam *param = &w->table->params[w->next];
    if (!w->file)
        DSVI_TRY(begin_shard(w));
    if (w->copy)
        dsvi_convert(w->dtype, w->copy, DSVI_F32, data, param->count);
    DSVI_TRY(dsvi_safetensors_put(w->file, (size_t)(w->next - w->begin), w->copy ? w->copy : data));
    return ++w->next < w->end ? DSV_OK : dsvi_safetensors_finish(&w->file, DSV_OK);
}

DsvStatus dsvi_weights_writer_put(DsviWeightsWriter *w, int64_t bucket, const float *data)
{
    int64_t first = w->table->begin[bucket], past = w->table->begin[bucket + 1];
    for (; w->next < w->table->count && w->table->params[w->next].offset < past;)
        DSVI_TRY(put_param(w, data + (w->table->params[w->next].offset - first)));
    return DSV_OK;
}

/* Writes the index of several files. */
static DsvStatus write_index(const DsviWeightsWriter *w)
{
    DsvStatus status;
    char path[DSVI_PATH_MAX], *text = NULL;
    uint64_t bytes;
    cJSON *index = cJSON_CreateObject();
    cJSON *metadata = cJSON_AddObjectToObject(index, "metadata");
    cJSON *weight_map = cJSON_AddObjectToObject(index, "weight_map");
    double total = (double)w->table->parameters * (double)dsvi_dtype_size(w->dtype);
    DSVI_TRY_GOTO(status, dsvi_path_join(path, w->folder, DSVI_WEIGHTS_INDEX), done);
    bool whole = weight_map && cJSON_AddNumberToObject(metadata, "total_size", total);
    for (int64_t begin = 0, shard = 1; whole && begin < w->table->count; shard++) {
        Name name;
        int64_t end = shard_end(w->table, begin, w->dtype, w->shard_bytes, &bytes);
        shard_name(w, shard, name);
        for (; whole && begin < end; begin++)
            whole = cJSON_AddStringToObject(weight_map, w->table->params[begin].name, name) != NULL;
    }
    text = whole ? cJSON_Print(index) : NULL;
    status = text ? dsvi_file_write(path, text, strlen(text)) : weights_write_no_memory(path);
done:
    cJSON_free(text);
    cJSON_Delete(index);
    return status;
}

DsvStatus dsvi_weights_writer_finish(DsviWeightsWriter **writer, DsvStatus status)
{
    DsviWeightsWriter *w = *writer;
    if (!w)
        return status;
    status = dsvi_safetensors_finish(&w->file, status);
    if (status == DSV_OK && w->shards > 1)
        status = write_index(w);
    free(w->copy);
    free(w);
    *writer = NULL;
    return status;
}

DsvStatus dsvi_weights_write(const char *folder, const DsviParamTable *table, const float *flat,
                             DsviDtype dtype, uint64_t shard_bytes)
{
    DsviWeightsWriter *writer;
    DSVI_TRY(dsvi_weights_writer_open(folder, table, dtype, shard_bytes, &writer));
    DsvStatus status = DSV_OK;
    for (int64_t b = 0; b < table->buckets && status == DSV_OK; b++)
        status = dsvi_weights_writer_put(writer, b, flat + table->begin[b]);
    return dsvi_weights_writer_finish(&writer, status);
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

static DsvStatus find_array(const DsviSafetensors *file, const DsviParamTable *table, const char *array,
                            const DsviStoredTensor **tensors)
{
    Name name;
    const char *separator = find_separator(file, table, array);
    size_t found = dsvi_safetensors_count(file), expected = (size_t)table->count;
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        snprintf(name, sizeof name, "%s%s%s", array, separator, param->name);
        DSVI_TRY(dsvi_safetensors_require(file, name, param->ndim, param->shape, &tensors[i]));
        if (tensors[i]->dtype != DSVI_F32)
            return DSVI_FAIL(DSV_E_SHAPE, "%s: tensor %s is %s, expected F32", dsvi_safetensors_path(file),
                             name, dsvi_dtype_name(tensors[i]->dtype));
    }
    return found == expected ? DSV_OK
                             : DSVI_FAIL(DSV_E_SHAPE, "%s: %zu tensors, expected %zu",
                                         dsvi_safetensors_path(file), found, expected);
}

DsvStatus dsvi_flat_open(const char *path, const DsviParamTable *table, const char *array,
                         const DsviStoredTensor **tensors, DsviSafetensors **out)
{
    DSVI_TRY(dsvi_safetensors_open(path, out));
    DsvStatus status = find_array(*out, table, array, tensors);
    if (status != DSV_OK)
        dsvi_safetensors_close(out);
    return status;
}

DsvStatus dsvi_flat_read(const char *path, const DsviParamTable *table, const char *array, float *flat)
{
    DsvStatus status;
    DsviSafetensors *file = NULL;
    const DsviStoredTensor **tensors = calloc((size_t)table->count, sizeof *tensors);
    if (!tensors)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of its tensors", path);
    DSVI_TRY_GOTO(status, dsvi_flat_open(path, table, array, tensors, &file), done);
    memset(flat, 0, (size_t)table->elements * sizeof *flat);
    for (int64_t i = 0; i < table->count; i++)
        memcpy(flat + table->params[i].offset, tensors[i]->data, tensors[i]->bytes);
done:
    dsvi_safetensors_close(&file);
    free(tensors);
    return status;
}
