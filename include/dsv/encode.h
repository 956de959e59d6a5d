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
 * The cache holds one safetensors file for each window of a clip, an index with their hashes, and with
 * `model_path` one file in text/ with the text states of each distinct caption and of the empty prompt. A
 * repeated call continues an interrupted one: windows and texts that the cache already holds, with the same
 * settings and the right hash, are kept. A clip is identified by the hash of its bytes: a clip that has
 * changed under its name is encoded again, a renamed or copied clip is not. Hashes are remembered, so that
 * the bytes of a clip whose size and time of modification are the same are not read again. Captions that
 * have changed are brought up to date.
 *
 * A clip that is listed twice is encoded once. A clip that cannot be decoded and a caption file that cannot
 * be used are named by a warning and left out. The file clips.csv in the cache lists every clip with the
 * numbers of its windows, frames and captions, or why it was left out.
 *
 * Threads decode windows while the model encodes; fewer than `config->threads` if their frames would take
 * more than half of the machine's memory. The text encoder is freed before the VAE is loaded.
 *
 * @param out_dir    the cache's folder, made if it is missing; it must not be the folder of the clips
 * @param model_path a published model with VAE, text encoder and tokenizer; NULL: no text states, and only
 *     codecs without weights
 * @param config     size, frames, frame rate and codec of the latents; device, mixed_precision
 * @param events     may be NULL; `progress` counts clips while they are hashed, then captions, then windows;
 *     `stop` is asked between them
 * @return DSV_E_NOT_FOUND if no clip can be used or a part of the model is missing; DSV_E_UNSUPPORTED for
 *     another model; DSV_E_SHAPE if the VAE cannot take this size; DSV_E_USAGE if `out_dir` holds the clips,
 *     was made with other settings or another model, or another process encodes into it; DSV_E_INTERRUPTED;
 *     DSV_E_NO_MEMORY; DSV_E_IO */
DsvStatus dsv_encode(const char *out_dir, const char *model_path, const DsvConfig *config,
                     const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
