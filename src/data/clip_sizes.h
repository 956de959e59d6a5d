/* Sizes at which clips are trained, called buckets in the options: a list of frames x height x width, and the
 * rule that finds the size of a clip. */
#ifndef DSVI_CLIP_SIZES_H
#define DSVI_CLIP_SIZES_H

#include "data/clip.h"
#include "dsv/config.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct DsviClipSize {
    int64_t frames, height, width;
} DsviClipSize;

enum { DSVI_CLIP_SIZES_MAX = 64, DSVI_CLIP_SIZE_BYTES = 64 /* of a size as text, the final zero included */ };

/* Without duplicates; the size with the most pixels first. */
typedef struct DsviClipSizes {
    DsviClipSize at[DSVI_CLIP_SIZES_MAX];
    int64_t count;
} DsviClipSizes;

/* The sizes that codec and model support: frames are 1 + k * frame_step, height and width are multiples of
 * pixel_step, and a token covers frame_step x pixel_step x pixel_step pixels. */
typedef struct DsviClipSteps {
    int64_t frame_step, pixel_step;
} DsviClipSteps;

bool dsvi_clip_size_same(const DsviClipSize *a, const DsviClipSize *b);
/* Writes "81x480x832" to text (DSVI_CLIP_SIZE_BYTES), and returns it. */
const char *dsvi_clip_size_text(const DsviClipSize *size, char *text);
int64_t dsvi_clip_size_tokens(const DsviClipSize *size, const DsviClipSteps *steps);

/* Adds a size at its place, unless the list has it. DSV_E_USAGE if the list is full. */
DsvStatus dsvi_clip_sizes_add(DsviClipSizes *sizes, const DsviClipSize *size);

/* Reads the option data.buckets, "1x480x832,81x480x832". DSV_E_USAGE names the part that is no size. */
DsvStatus dsvi_clip_sizes_parse(const char *text, DsviClipSizes *out);

/* Returns the index of the size at which a clip with `frames` frame times is trained, or -1. A clip is never
 * repeated or enlarged, so only sizes count that have at most the clip's frames, height and width. Of these
 * the rule takes, among those whose aspect ratio differs from the clip's by at most 10 % more than the
 * nearest, the size with the most frames, then with the most pixels. For -1 `reason` (room bytes) becomes a
 * sentence that names the clip and what it lacks. */
int64_t dsvi_clip_sizes_choose(const DsviClipSizes *sizes, const char *path, const DsviClipInfo *info,
                               int64_t frames, char *reason, size_t room);

/* Returns the size that data.buckets=auto gives a clip: the largest with at most `tokens_max` tokens, the
 * frames of `limit` and the pixels of a frame of `limit` that is not larger than the clip. Frames are 1, 1 +
 * s, 1 + 2 s or 1 + 4 k s with the frame step s. The ratio of width to height is one of seven, 2^(k/3) for k
 * from -3 to 3; the one nearest to the ratio of `limit` is replaced by that ratio, and the one nearest to its
 * reciprocal by the reciprocal. The frames are the most that the clip has; height and width are then scaled
 * down by quotients of sqrt(2) until they fit. frames is 0 if no size fits. */
DsviClipSize dsvi_clip_size_auto(const DsviClipInfo *info, int64_t frames, const DsviClipSteps *steps,
                                 const DsviClipSize *limit, int64_t tokens_max);

#ifdef __cplusplus
}
#endif
#endif
