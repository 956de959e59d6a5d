/** @file
 * Encoding clips to latents once, so that training need not decode them. */
#ifndef DSV_ENCODE_H
#define DSV_ENCODE_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Encodes every clip of `config->data_path` into a latent cache, which dsv_train() takes as `data.path`.
 *
 * The cache holds one safetensors file for each window of a clip and an index with their hashes. Windows that
 * the cache already holds, with the same settings and the right hash, are kept, so that a repeated call
 * continues an interrupted one. A clip whose size or time of modification has changed is encoded again. A
 * clip that is listed twice is encoded once. A clip that cannot be decoded is named by a warning and left
 * out.
 *
 * Each thread holds the frames of one window. Fewer than `config->threads` threads work if their frames
 * would take more than half of the machine's memory.
 *
 * @param out_dir the cache's folder, made if it is missing; it must not be the folder of the clips
 * @param config  size, frames, frame rate and codec of the latents
 * @param events  may be NULL; `stop` is asked between waves of windows
 * @return DSV_E_NOT_FOUND if no clip can be used; DSV_E_USAGE if `out_dir` holds the clips or another
 *     process encodes into it; DSV_E_INTERRUPTED; DSV_E_NO_MEMORY; DSV_E_IO */
DsvStatus dsv_encode(const char *out_dir, const DsvConfig *config, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
