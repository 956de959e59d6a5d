/** @file
 * Describing what a path holds. */
#ifndef DSV_INSPECT_H
#define DSV_INSPECT_H

#include "dsv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Describes a model folder, checkpoint, safetensors file, run folder, latent cache, clip, or list or
 * folder of clips: its kind, shapes, counts and health (checksums, values that are not finite). It changes
 * nothing.
 * @param path    a file or folder
 * @param line    called for each line of the description, without a newline; must not be NULL
 * @param context handed to `line`
 * @return DSV_E_NOT_FOUND if the path is missing or of no known kind. A damaged file is described as far
 *     as it can be read; the call then returns its error, such as DSV_E_FORMAT. */
DsvStatus dsv_inspect(const char *path, void (*line)(void *context, const char *text), void *context);

#ifdef __cplusplus
}
#endif
#endif
