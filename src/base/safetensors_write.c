/* Writes safetensors files. See safetensors.h. */
#include "base/safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

static bool bytes_fit_shape(const DsviStoredTensor *t)
{
    size_t bytes = dsvi_dtype_size(t->dtype);
    for (int i = 0; i < t->ndim; i++)
        bytes *= (size_t)t->shape[i];
    return bytes == t->bytes;
}

/* Adds one tensor's entry to the header, and the tensor's bytes to *offset. Returns false if memory is
   lacking. */
static bool add_tensor(cJSON *header, const DsviStoredTensor *t, size_t *offset)
{
    DSVI_ASSERT(t->ndim >= 0 && t->ndim <= DSVI_TENSOR_MAX_DIMS && bytes_fit_shape(t));
    cJSON *entry = cJSON_AddObjectToObject(header, t->name);
    cJSON *shape = NULL, *offsets = NULL;
    bool whole = entry && cJSON_AddStringToObject(entry, "dtype", dsvi_dtype_name(t->dtype)) &&
                 (shape = cJSON_AddArrayToObject(entry, "shape"));
    for (int i = 0; whole && i < t->ndim; i++)
        whole = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i]));
    whole = whole && (offsets = cJSON_AddArrayToObject(entry, "data_offsets")) &&
            cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)*offset)) &&
            cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(*offset + t->bytes)));
    *offset += t->bytes;
    return whole;
}

/* Returns the header as text, padded with blanks so that the data begin at a multiple of 8 bytes; NULL if
 * memory is lacking. The caller frees it. */
static char *make_header(const DsviStoredTensor *tensors, size_t count, const char *const (*metadata)[2],
                         size_t metadata_count)
{
    size_t offset = 0;
    char *padded = NULL;
    cJSON *header = cJSON_CreateObject();
    cJSON *meta = header ? cJSON_AddObjectToObject(header, "__metadata__") : NULL;
    bool whole = meta && cJSON_AddStringToObject(meta, "format", "pt");
    for (size_t i = 0; whole && i < metadata_count; i++)
        whole = cJSON_AddStringToObject(meta, metadata[i][0], metadata[i][1]) != NULL;
    for (size_t i = 0; whole && i < count; i++)
        whole = add_tensor(header, &tensors[i], &offset);
    char *text = whole ? cJSON_PrintUnformatted(header) : NULL;
    if (text) {
        size_t length = strlen(text), room = (length + 7) / 8 * 8;
        padded = malloc(room + 1);
        if (padded) {
            memcpy(padded, text, length);
            memset(padded + length, ' ', room - length);
            padded[room] = 0;
        }
    }
    cJSON_free(text);
    cJSON_Delete(header);
    return padded;
}

/* Stores the length of the header as the file begins with it: 8 bytes, little-endian. */
static void store_size(size_t length, unsigned char size[8])
{
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)length >> (8 * i));
}

DsvStatus dsvi_safetensors_write(const char *path, const DsviStoredTensor *tensors, size_t count,
                                 const char *const (*metadata)[2], size_t metadata_count)
{
    unsigned char size[8];
    char *header = make_header(tensors, count, metadata, metadata_count);
    DsviFilePart *parts = calloc(count + 2, sizeof *parts);
    DsvStatus status;
    if (!header || !parts) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its header", path);
        goto done;
    }
    store_size(strlen(header), size);
    parts[0] = (DsviFilePart){size, sizeof size};
    parts[1] = (DsviFilePart){header, strlen(header)};
    for (size_t i = 0; i < count; i++)
        parts[2 + i] = (DsviFilePart){tensors[i].data, tensors[i].bytes};
    DSVI_TRY_GOTO(status, dsvi_file_write_parts(path, parts, count + 2), done);
done:
    free(parts);
    free(header);
    return status;
}

struct DsviSafetensorsWriter {
    char path[DSVI_PATH_MAX];
    int file;
    size_t *place; /* (tensors + 1) where the data of each tensor begin in the file, and where the last end */
};

DsvStatus dsvi_safetensors_create(const char *path, const DsviStoredTensor *tensors, size_t count,
                                  DsviSafetensorsWriter **out)
{
    unsigned char size[8];
    DsvStatus status;
    char *header = make_header(tensors, count, NULL, 0);
    DsviSafetensorsWriter *writer = *out = calloc(1, sizeof *writer);
    if (writer)
        writer->file = -1;
    if (!header || !writer || !(writer->place = calloc(count + 1, sizeof *writer->place))) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its header", path);
        goto fail;
    }
    size_t length = strlen(header);
    snprintf(writer->path, sizeof writer->path, "%s", path);
    writer->place[0] = sizeof size + length;
    for (size_t i = 0; i < count; i++)
        writer->place[i + 1] = writer->place[i] + tensors[i].bytes;
    store_size(length, size);
    DSVI_TRY_GOTO(status, dsvi_file_create(path, &writer->file), fail);
    DSVI_TRY_GOTO(status, dsvi_file_write_at(writer->file, path, 0, size, sizeof size), fail);
    DSVI_TRY_GOTO(status, dsvi_file_write_at(writer->file, path, sizeof size, header, length), fail);
    free(header);
    return DSV_OK;
fail:
    free(header);
    return dsvi_safetensors_finish(out, status);
}

DsvStatus dsvi_safetensors_put(DsviSafetensorsWriter *writer, size_t index, const void *data)
{
    size_t begin = writer->place[index];
    return dsvi_file_write_at(writer->file, writer->path, begin, data, writer->place[index + 1] - begin);
}

DsvStatus dsvi_safetensors_finish(DsviSafetensorsWriter **writer, DsvStatus status)
{
    DsviSafetensorsWriter *w = *writer;
    if (!w)
        return status;
    if (w->file >= 0)
        status = dsvi_file_finish(w->file, w->path, status);
    free(w->place);
    free(w);
    *writer = NULL;
    return status;
}

DsvStatus dsvi_safetensors_replace(const char *path, const DsviStoredTensor *tensors, size_t count,
                                   const char *const (*metadata)[2], size_t metadata_count)
{
    char temporary[DSVI_PATH_MAX];
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= (int)sizeof temporary)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    DsvStatus status = dsvi_safetensors_write(temporary, tensors, count, metadata, metadata_count);
    if (status == DSV_OK)
        status = dsvi_path_rename(temporary, path);
    if (status != DSV_OK) {
        dsvi_trail_add(__FILE__, __LINE__);
        unlink(temporary);
    }
    return status;
}
