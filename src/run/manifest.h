/* manifest.json: the list of a checkpoint's files with their sizes and checksums (XXH3). */
#ifndef DSVI_MANIFEST_H
#define DSVI_MANIFEST_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_MANIFEST_NAME "manifest.json"

/* Lists and checksums every file under `folder`, syncs its folders, and writes the manifest. */
DsvStatus dsvi_manifest_write(const char *folder);

/* Returns DSV_E_FORMAT if the manifest is missing or malformed, or a file listed there is missing or
 * differs. */
DsvStatus dsvi_manifest_verify(const char *folder);
/* Checks only `part`, a file or a folder in `folder`; other files may be missing. A file in this part that
 * the manifest does not list is DSV_E_FORMAT too. */
DsvStatus dsvi_manifest_verify_part(const char *folder, const char *part);

#ifdef __cplusplus
}
#endif
#endif
