/* A safetensors file with one tensor and a checksum of its bytes, for files that dsv writes and reads again.
 */
#ifndef DSVI_CHECKED_TENSOR_H
#define DSVI_CHECKED_TENSOR_H

#include <stdint.h>

#include "base/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes `tensor` under a temporary name and renames the file. Its metadata hold the XXH3 of its bytes, which
 * is stored in *checksum, and the text `key` unless it is NULL. */
DsvStatus dsvi_checked_tensor_write(const char *path, const DsviStoredTensor *tensor, const char *key,
                                    uint64_t *checksum);

/* An open file. The pointers are valid until it is closed. */
typedef struct DsviCheckedTensor {
    DsviSafetensors *file;
    const DsviStoredTensor *tensor;
    const char *checksum, *key; /* from the metadata; key may be NULL */
} DsviCheckedTensor;

/* Opens a file whose tensor has this name and dtype, and any shape of `ndim` dimensions (any at all if < 0).
 * The file is not memory-mapped: a file that is rewritten or cannot be read must fail for one tensor, not
 * kill the process. */
DsvStatus dsvi_checked_tensor_open(const char *path, const char *name, DsviDtype dtype, int ndim,
                                   DsviCheckedTensor *out);
void dsvi_checked_tensor_close(DsviCheckedTensor *open);

/* Fails with DSV_E_FORMAT unless the bytes match the checksum in the file; stores it in *checksum. Needs
 * little memory, however large the tensor is. */
DsvStatus dsvi_checked_tensor_verify(const DsviCheckedTensor *open, uint64_t *checksum);
/* Reads all bytes of the tensor into `out`, and verifies them. After a failure `out` may contain anything. */
DsvStatus dsvi_checked_tensor_read(const DsviCheckedTensor *open, void *out);

#ifdef __cplusplus
}
#endif
#endif
