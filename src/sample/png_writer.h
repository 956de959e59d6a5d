/* Writes one frame to a PNG file with FFmpeg's encoder. */
#ifndef DSVI_PNG_WRITER_H
#define DSVI_PNG_WRITER_H

#include "sample/video_writer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes frame `index` of `frames` as 8-bit RGB. frames->comment, ASCII text, is stored as a tEXt chunk with
 * the keyword Comment. The file is written under a temporary name and then renamed. */
DsvStatus dsvi_png_write(const char *path, const DsviVideoFrames *frames, int64_t index);

#ifdef __cplusplus
}
#endif
#endif
