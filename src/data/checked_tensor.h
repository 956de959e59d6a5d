/* A safetensors file with one or two tensors and a checksum of their bytes, for files that dsv writes and
 * reads again. */
#ifndef DSVI_CHECKED_TENSOR_H
#define DSVI_CHECKED_TENSOR_H

#include <stdint.h>

#include "base/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes `count` tensors, 1 or 2, under a temporary name and renames the file. The second's bytes follow
 * those of the first in memory. The metadata hold the XXH3 of all bytes, which is stored in *checksum, and
 * the text `key` unless it is NULL. */
DsvStatus dsvi_checked_tensor_write(const char *path, const DsviStoredTensor *tensors, size_t count,
                                    const char *key, uint64_t *checksum);

/* An open file. The pointers are valid until it is closed. */
typedef struct DsviCheckedTensor {
    DsviSafetensors *file;
    const DsviStoredTensor *tensor, *second; /* second: NULL if the file has none */
    const char *checksum, *key;              /* from the metadata; key may be NULL */
} DsviCheckedTensor;

/* Opens a file whose tensor has this name and dtype, and any shape of `ndim` dimensions (any at all if < 0).
 * second: the name of a tensor that the file may also have, or NULL. If the file has this tensor, it must
 * have the same dtype, and the checksum covers both tensors. The file is not memory-mapped: a file that is
 * rewritten or cannot be read must fail for one tensor, not kill the process. */
DsvStatus dsvi_checked_tensor_open(const char *path, const char *name, const char *second, DsviDtype dtype,
                                   int ndim, DsviCheckedTensor *out);
void dsvi_checked_tensor_close(DsviCheckedTensor *open);
/* Returns the number of elements of all tensors. */
int64_t dsvi_checked_tensor_count(const DsviCheckedTensor *open);

/* Fails with DSV_E_FORMAT unless the bytes match the checksum in the file; stores it in *checksum. Needs
 * little memory, however large the tensor is. */
DsvStatus dsvi_checked_tensor_verify(const DsviCheckedTensor *open, uint64_t *checksum);
/* Reads the bytes of the tensor, then those of the second, into `out`, and verifies them. After a failure
 * `out` may contain anything. */
DsvStatus dsvi_checked_tensor_read(const DsviCheckedTensor *open, void *out);

#ifdef __cplusplus
}
#endif
#endif
