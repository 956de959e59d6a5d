/* The list of a checkpoint's files with sizes and checksums. */
#ifndef DSVI_MANIFEST_H
#define DSVI_MANIFEST_H

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSVI_MANIFEST_NAME "manifest.json"

/* Lists and checksums every file under `folder`, syncs its folders, and writes the manifest. */
DsvStatus dsvi_manifest_write(const char *folder);

/* DSV_E_FORMAT when the manifest is missing or malformed, or a file it lists is missing or differs. */
DsvStatus dsvi_manifest_verify(const char *folder);
/* The same for the file `part`, or the files of the folder `part`, alone: others may be gone. A file of it
 * that the manifest does not list is DSV_E_FORMAT too. */
DsvStatus dsvi_manifest_verify_part(const char *folder, const char *part);

#ifdef __cplusplus
}
#endif
#endif
