/* The safetensors format: 8-byte little-endian header size, JSON header, tensor bytes.
 *
 * Opening a file checks everything before a caller sees data: the header size against the file size, the
 * JSON, dtypes, shapes against byte ranges, byte ranges against the file, overlaps, gaps and duplicate names.
 * Error messages name the file, the tensor, what was found and what is required. */
#ifndef DSVI_SAFETENSORS_H
#define DSVI_SAFETENSORS_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_TENSOR_MAX_DIMS 8

typedef struct DsviStoredTensor {
    const char *name;
    DsviDtype dtype;
    int ndim;
    int64_t shape[DSVI_TENSOR_MAX_DIMS];
    int64_t count; /* number of elements */
    size_t bytes;
    const void *data; /* bytes of the tensor. When reading: in the open file's memory, NULL if the file is not
                         mapped; when writing: the caller's memory */
} DsviStoredTensor;

typedef struct DsviSafetensors DsviSafetensors;

/* Opens a file and maps it read-only. Reading a page that cannot be loaded (the file was truncated, or the
 * disk fails) ends the process with SIGBUS. The data of every tensor are aligned for its dtype; a tensor that
 * is not aligned in the file is copied. Fails with DSV_E_NOT_FOUND, DSV_E_IO or DSV_E_FORMAT (also for dtypes
 * of the format that DsviDtype lacks). The caller closes *out; it is NULL after a failure. */
DsvStatus dsvi_safetensors_open(const char *path, DsviSafetensors **out);
/* Opens a file without mapping it, for files that another process may change meanwhile: `data` of the tensors
 * is NULL, and dsvi_safetensors_read reads their bytes. */
DsvStatus dsvi_safetensors_open_unmapped(const char *path, DsviSafetensors **out);
/* Reads `bytes` bytes of a tensor, beginning at its byte `from`, from a file that was opened unmapped.
 * DSV_E_IO, or DSV_E_FORMAT if the file has become shorter. Several threads may call at the same time. */
DsvStatus dsvi_safetensors_read(const DsviSafetensors *file, const DsviStoredTensor *tensor, size_t from,
                                void *out, size_t bytes);
void dsvi_safetensors_close(DsviSafetensors **file); /* *file may be NULL and becomes NULL */

const char *dsvi_safetensors_path(const DsviSafetensors *file);
size_t dsvi_safetensors_count(const DsviSafetensors *file);
/* Returns a tensor by its place in the file, 0 <= index < count. Valid until the file is closed. */
const DsviStoredTensor *dsvi_safetensors_at(const DsviSafetensors *file, size_t index);
/* Returns the tensor of this name, or NULL. */
const DsviStoredTensor *dsvi_safetensors_find(const DsviSafetensors *file, const char *name);
/* Finds a tensor that must exist with this shape: otherwise fails with DSV_E_NOT_FOUND or DSV_E_SHAPE. Any
 * shape is accepted if ndim < 0, any length in dimension i if shape[i] < 0. */
DsvStatus dsvi_safetensors_require(const DsviSafetensors *file, const char *name, int ndim,
                                   const int64_t *shape, const DsviStoredTensor **out);
/* As dsvi_safetensors_require; also fails with DSV_E_SHAPE unless the dtype is floating, as dsvi_load
 * requires. */
DsvStatus dsvi_safetensors_require_floating(const DsviSafetensors *file, const char *name, int ndim,
                                            const int64_t *shape, const DsviStoredTensor **out);
/* Returns the text of an entry of __metadata__, or NULL. */
const char *dsvi_safetensors_metadata(const DsviSafetensors *file, const char *key);

/* Writes `count` tensors in the given order. The header's metadata are {"format": "pt"} and the pairs (key,
 * value) of `metadata`, which may be NULL. Names must be unique, without control characters, and at most 1024
 * bytes long. The data begin at a multiple of 8 bytes and have no gaps; to keep all aligned, put wider dtypes
 * first. The file is synced, but written in place. */
DsvStatus dsvi_safetensors_write(const char *path, const DsviStoredTensor *tensors, size_t count,
                                 const char *const (*metadata)[2], size_t metadata_count);
/* The same for tensors whose data come one at a time, in any order. dsvi_safetensors_create writes the header
 * and ignores `data` of the tensors. dsvi_safetensors_put writes all bytes of the tensor of this index.
 * dsvi_safetensors_finish syncs the file if `status` of all before is DSV_OK, closes it in any case and
 * returns the first failure; *writer, which may be NULL, becomes NULL. */
typedef struct DsviSafetensorsWriter DsviSafetensorsWriter;
DsvStatus dsvi_safetensors_create(const char *path, const DsviStoredTensor *tensors, size_t count,
                                  DsviSafetensorsWriter **out);
DsvStatus dsvi_safetensors_put(DsviSafetensorsWriter *writer, size_t index, const void *data);
DsvStatus dsvi_safetensors_finish(DsviSafetensorsWriter **writer, DsvStatus status);

/* As dsvi_safetensors_write, under a temporary name that is renamed to `path` once all is written. */
DsvStatus dsvi_safetensors_replace(const char *path, const DsviStoredTensor *tensors, size_t count,
                                   const char *const (*metadata)[2], size_t metadata_count);

#ifdef __cplusplus
}
#endif
#endif
