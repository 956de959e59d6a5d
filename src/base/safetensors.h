/* The safetensors format: 8-byte little-endian header size, JSON header, tensor bytes.
 *
 * The reader trusts nothing: header size against file size, JSON shape, dtypes, shapes against byte
 * ranges, ranges against the file, overlaps and duplicate names are checked before a byte of data is
 * handed out, and every refusal names the file, the tensor, what was found and what was wanted. */
#ifndef DSVI_SAFETENSORS_H
#define DSVI_SAFETENSORS_H

#include <stdbool.h>

#include "base/dtype.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSV_TENSOR_MAX_DIMS 8

typedef struct DsvStoredTensor {
    const char *name;
    DsvDtype dtype;
    int ndim;
    int64_t shape[DSV_TENSOR_MAX_DIMS];
    int64_t count;    /* elements */
    size_t bytes;
    const void *data; /* reader: inside the mapped file, or NULL; writer: the caller's memory */
} DsvStoredTensor;

typedef struct DsvSafetensors DsvSafetensors;

/* Maps the file read-only. A page that cannot be read ends the process with SIGBUS, be it that the file has
 * shrunk or that the disk fails. Data are aligned as their dtype requires: tensors that the file holds
 * elsewhere are copied. DSV_E_NOT_FOUND, DSV_E_IO, DSV_E_FORMAT (also dtypes of
 * the format that DsvDtype has not). On success *out is the caller's, to be closed; else NULL. */
DsvStatus dsvi_safetensors_open(const char *path, DsvSafetensors **out);
/* The same without a map, for files that others may write to while they are read: `data` of the tensors is
 * NULL, dsvi_safetensors_read fetches their bytes. */
DsvStatus dsvi_safetensors_open_unmapped(const char *path, DsvSafetensors **out);
/* `bytes` bytes of a tensor, from its byte `from` on, as the file has them now. The file was opened unmapped.
 * DSV_E_IO; DSV_E_FORMAT: the file has become shorter. Several threads may call at once. */
DsvStatus dsvi_safetensors_read(const DsvSafetensors *file, const DsvStoredTensor *tensor, size_t from,
                                void *out, size_t bytes);
void dsvi_safetensors_close(DsvSafetensors **file); /* takes a pointer to NULL too; nulls the pointer */

const char *dsvi_safetensors_path(const DsvSafetensors *file);
size_t dsvi_safetensors_count(const DsvSafetensors *file);
/* Tensors in the order of their bytes. Valid until close. */
const DsvStoredTensor *dsvi_safetensors_at(const DsvSafetensors *file, size_t index);
/* NULL when there is none of that name. */
const DsvStoredTensor *dsvi_safetensors_find(const DsvSafetensors *file, const char *name);
/* As find, but a missing name or another shape is an error that names both. ndim < 0: any shape;
 * shape[i] < 0: any length there. */
DsvStatus dsvi_safetensors_want(const DsvSafetensors *file, const char *name, int ndim,
                                const int64_t *shape, const DsvStoredTensor **out);
/* As want, and of a floating dtype: what dsvi_load and dsvi_convert take. DSV_E_SHAPE names any other. */
DsvStatus dsvi_safetensors_want_floating(const DsvSafetensors *file, const char *name, int ndim,
                                         const int64_t *shape, const DsvStoredTensor **out);
/* An entry of __metadata__, or NULL. */
const char *dsvi_safetensors_metadata(const DsvSafetensors *file, const char *key);

/* Writes `count` tensors in the given order, with {"format": "pt"} and `metadata` (pairs key, value;
 * may be NULL) in the header. Names are unique, without control characters, of at most 1024 bytes. The data
 * begin at a multiple of 8 and follow without gaps, so wider dtypes should come first. The file is written
 * whole and synced, but not renamed: see base/fs.h. */
DsvStatus dsvi_safetensors_write(const char *path, const DsvStoredTensor *tensors, size_t count,
                                 const char *const (*metadata)[2], size_t metadata_count);

#ifdef __cplusplus
}
#endif
#endif
