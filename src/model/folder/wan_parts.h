/* What wan_folder.c composes: reading model_index.json, and recognising files by their tensors. Only the
 * files of this folder include this header. */
#ifndef DSVI_WAN_PARTS_H
#define DSVI_WAN_PARTS_H

#include "model/folder/wan_folder.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Records that the model is of an unsupported variant, unless an earlier reason is recorded. `where` is the
 * file and key, `variant` a phrase such as "an image-to-video model (I2V)". */
void dsvi_wan_refuse(DsviWanFolder *folder, const char *where, const char *variant);

/* Reads model_index.json of folder->path: records refusals for unsupported pipelines, and for parts of
 * classes that dsv does not implement; finds the noise level at which two experts take turns. DSV_E_FORMAT
 * for a damaged file. */
DsvStatus dsvi_wan_index_read(DsviWanFolder *folder);

/* Looks in `folder` for safetensors files that hold the part, by their tensors, and stores the path of the
 * file in out->part[part]. If several files hold the part, those whose names contain `preferred` (in any
 * case) count. DSV_E_USAGE if several are left. Stores a pickle whose name contains `pickle` in
 * out->pickle[part]. Does nothing if the part is already known or the folder does not exist. */
typedef struct DsviWanSearch {
    DsviWanPart part;
    const char *preferred, *pickle;
} DsviWanSearch;
DsvStatus dsvi_wan_files_search(DsviWanFolder *out, const char *folder, const DsviWanSearch *search);
/* Returns whether a file's tensors are those of the part: transformer, VAE or text encoder. False for files
 * that cannot be read. */
bool dsvi_wan_file_holds(const char *path, DsviWanPart part);

#ifdef __cplusplus
}
#endif
#endif
