/* Writing safetensors files. See safetensors.h. */
#include "base/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>

/* Puts one tensor's entry into the header; *offset moves on behind it. */
static bool add_tensor(cJSON *header, const DsvStoredTensor *t, size_t *offset)
{
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

/* The header as text, padded with blanks so that the data begin at a multiple of 8; free it. */
static char *make_header(const DsvStoredTensor *tensors, size_t count, const char *const (*metadata)[2],
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

static DsvStatus write_piece(int file, const char *path, const void *data, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = write(file, (const char *)data + done, bytes - done);
        if (n < 0 && errno != EINTR)
            return DSVI_FAIL(DSV_E_IO, "%s: writing failed: %s", path, strerror(errno));
        if (n > 0)
            done += (size_t)n;
    }
    return DSV_OK;
}

static DsvStatus write_file(int file, const char *path, const char *header, const DsvStoredTensor *tensors,
                            size_t count)
{
    unsigned char size[8];
    size_t bytes = strlen(header);
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)bytes >> (8 * i));
    DSVI_TRY(write_piece(file, path, size, sizeof size));
    DSVI_TRY(write_piece(file, path, header, bytes));
    for (size_t i = 0; i < count; i++)
        DSVI_TRY(write_piece(file, path, tensors[i].data, tensors[i].bytes));
    if (fsync(file) != 0)
        return DSVI_FAIL(DSV_E_IO, "%s: cannot sync it: %s", path, strerror(errno));
    return DSV_OK;
}

DsvStatus dsvi_safetensors_write(const char *path, const DsvStoredTensor *tensors, size_t count,
                                 const char *const (*metadata)[2], size_t metadata_count)
{
    DsvStatus status;
    char *header = make_header(tensors, count, metadata, metadata_count);
    if (!header)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its header", path);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) {
        status = DSVI_FAIL(DSV_E_IO, "%s: cannot write it: %s", path, strerror(errno));
    } else {
        status = write_file(file, path, header, tensors, count);
        if (close(file) != 0 && status == DSV_OK)
            status = DSVI_FAIL(DSV_E_IO, "%s: cannot close it: %s", path, strerror(errno));
    }
    free(header);
    return status;
}
