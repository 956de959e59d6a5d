/* One encoded window in a safetensors file with a checksum of its numbers. */
#ifndef DSVI_LATENT_FILE_H
#define DSVI_LATENT_FILE_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes latent (shape), F32, under a temporary name and renames the file. Stores in *checksum the XXH3 of
 * its bytes. */
DsvStatus dsvi_latent_write(const char *path, const int64_t shape[4], const float *latent,
                            uint64_t *checksum);

/* Fails unless the file has a latent and all of its bytes, as far as the header tells: numbers are not read.
 */
DsvStatus dsvi_latent_probe(const char *path);
/* Fails with DSV_E_FORMAT unless the numbers match the checksum in the file; stores the checksum in
 * *checksum. */
DsvStatus dsvi_latent_verify(const char *path, uint64_t *checksum);
/* As dsvi_latent_verify; fails with DSV_E_SHAPE if the latent has another shape. */
DsvStatus dsvi_latent_verify_shape(const char *path, const int64_t shape[4], uint64_t *checksum);

#ifdef __cplusplus
}
#endif
#endif
