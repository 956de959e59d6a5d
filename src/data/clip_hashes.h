/* A file that keeps the hashes of clips while a set of clips is read: a process that ends before the clips
 * are in the index of the latent cache does not read them again. One line of text for each clip:
 *
 *     PATH CONTENT BYTES MODIFIED CHECK
 *
 * PATH: key of the clip's path; CONTENT: key of its bytes; BYTES, MODIFIED: its stamp; CHECK: key of the line
 * before it. Lines are appended, and of several lines of one clip the last counts. A line that was written in
 * part, or was changed, fails its check and is passed over: its clip is read again. */
#ifndef DSVI_CLIP_HASHES_H
#define DSVI_CLIP_HASHES_H

#include "data/latent_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the contents of the sources (count) whose contents are unknown and that the file has with the same
 * path and stamp. Without a file nothing is set. */
DsvStatus dsvi_clip_hashes_recall(const char *file, DsviLatentSource *sources, int64_t count);

/* Appends lines for those of the sources (count) whose contents are known. */
DsvStatus dsvi_clip_hashes_append(const char *file, DsviLatentSource *const *sources, int64_t count);

#ifdef __cplusplus
}
#endif
#endif
