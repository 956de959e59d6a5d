/* Telling what a path is. */
#ifndef DSV_INSPECT_H
#define DSV_INSPECT_H

#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describes the model folder, checkpoint, safetensors file, run folder, latent cache or clip at `path`:
 * what it is, shapes, counts, health (checksums, non-finite values). Calls line(context, text) for each
 * line of the description. A damaged file is described as far as it goes and returns its error. */
DsvStatus dsv_inspect(const char *path, void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
