/* One encoded window in a safetensors file with a checksum of its numbers: the tensor `latent` and, if the
 * model takes them, the states of the window's pictures, `image_states`. */
#ifndef DSVI_LATENT_FILE_H
#define DSVI_LATENT_FILE_H

#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Number of states of the pictures of a window and width of a state; both 0: none. */
typedef struct DsviImageStates {
    int64_t rows, dim;
} DsviImageStates;

/* Writes latent (shape), F32, followed by states (rows, dim), under a temporary name and renames the file.
 * Stores in *checksum the XXH3 of its bytes. */
DsvStatus dsvi_latent_write(const char *path, const int64_t shape[4], DsviImageStates states,
                            const float *latent, uint64_t *checksum);

/* Fails unless the file has a latent and all of its bytes, as far as the header tells: numbers are not read.
 */
DsvStatus dsvi_latent_probe(const char *path);
/* Fails with DSV_E_FORMAT unless the numbers match the checksum in the file; stores the checksum in
 * *checksum. */
DsvStatus dsvi_latent_verify(const char *path, uint64_t *checksum);
/* As dsvi_latent_verify; fails with DSV_E_SHAPE if the latent or the states have another shape. */
DsvStatus dsvi_latent_verify_shape(const char *path, const int64_t shape[4], DsviImageStates states,
                                   uint64_t *checksum);

#ifdef __cplusplus
}
#endif
#endif
