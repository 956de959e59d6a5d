/* Clips to cached latents, once, so that training need not decode. */
#ifndef DSV_ENCODE_H
#define DSV_ENCODE_H

#include "dsv/config.h"
#include "dsv/events.h"
#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Encodes every clip of config->data_path into latents of config's size, frames, rate and codec, in
 * out_dir: one safetensors file per window of a clip and an index with their hashes. Items already there
 * under the same settings and with the right hash are kept: an interrupted call goes on where it was. A clip
 * whose file has another size or time of change than when it was encoded is encoded anew; one that is listed
 * twice, by whatever path, is encoded once. Each thread holds the frames of a window: where those of
 * config->threads would pass half of the machine's memory, fewer work. */
DsvStatus dsv_encode(const char *out_dir, const DsvConfig *config, const DsvEvents *events);

#ifdef __cplusplus
}
#endif
#endif
