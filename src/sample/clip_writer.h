/* Writes a sampled clip in the form that the name of its file asks for.
 *
 *     clip.mp4, .mkv, .mov, .avi, .mpg   a video file (video_writer.h)
 *     frame.png                          the picture of a clip of one frame
 *     frame-%04d.png                     one picture for each frame, numbered from 0
 *     clip.safetensors                   tensor `video` (1, frames, 3, height, width) F32 in 0..1, not
 *                                        rounded */
#ifndef DSVI_CLIP_WRITER_H
#define DSVI_CLIP_WRITER_H

#include "base/fs.h"
#include "sample/video_writer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns whether `path` has one of the endings above. */
bool dsvi_clip_path_is(const char *path);
/* Checks, before long work, that a clip of so many frames can be written to `path`: DSV_E_USAGE if the name
 * does not fit, otherwise as dsvi_file_check_writable. */
DsvStatus dsvi_clip_check_path(const char *path, int64_t frames);
/* Writes the clip. Each file is written under a temporary name and then renamed. */
DsvStatus dsvi_clip_write(const char *path, const DsviVideoFrames *frames);

/* Stores in `out` the path of clip number `index` of several, of which `path` is the common name: clip.mp4
 * becomes clip-0003.mp4, and frame-%04d.png becomes frame-0003-%04d.png. */
DsvStatus dsvi_clip_numbered_path(char out[DSVI_PATH_MAX], const char *path, int64_t index);

#ifdef __cplusplus
}
#endif
#endif
