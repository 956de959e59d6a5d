/* Implements clip_sizes.h. */
#include "data/clip_sizes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Two aspect ratios count as equally near a clip's if the crops differ by no more than this. */
#define RATIO_SLACK 0.1

bool dsvi_clip_size_same(const DsviClipSize *a, const DsviClipSize *b)
{
    return a->frames == b->frames && a->height == b->height && a->width == b->width;
}

const char *dsvi_clip_size_text(const DsviClipSize *size, char *text)
{
    snprintf(text, DSVI_CLIP_SIZE_BYTES, "%" PRId64 "x%" PRId64 "x%" PRId64, size->frames, size->height,
             size->width);
    return text;
}

int64_t dsvi_clip_size_tokens(const DsviClipSize *size, const DsviClipSteps *steps)
{
    return (1 + (size->frames - 1) / steps->frame_step) * (size->height / steps->pixel_step) *
           (size->width / steps->pixel_step);
}

/* Returns whether size `a` comes before `b` in a list. */
static bool comes_before(const DsviClipSize *a, const DsviClipSize *b)
{
    int64_t left = a->frames * a->height * a->width, right = b->frames * b->height * b->width;
    if (left != right)
        return left > right;
    return a->frames != b->frames ? a->frames > b->frames : a->height > b->height;
}

DsvStatus dsvi_clip_sizes_add(DsviClipSizes *sizes, const DsviClipSize *size)
{
    int64_t at = sizes->count;
    for (int64_t i = 0; i < sizes->count; i++)
        if (dsvi_clip_size_same(&sizes->at[i], size))
            return DSV_OK;
    if (sizes->count == DSVI_CLIP_SIZES_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "data.buckets: more than %d sizes, expected at most so many",
                         DSVI_CLIP_SIZES_MAX);
    for (; at > 0 && comes_before(size, &sizes->at[at - 1]); at--)
        sizes->at[at] = sizes->at[at - 1];
    sizes->at[at] = *size;
    sizes->count++;
    return DSV_OK;
}

/* Reads a whole number from 1 to `most`. Returns where the number ends, or NULL. */
static const char *read_side(const char *text, int64_t most, int64_t *value)
{
    char *end;
    if (*text < '0' || *text > '9')
        return NULL;
    *value = strtoll(text, &end, 10);
    return *value >= 1 && *value <= most ? end : NULL;
}

/* Reads one size of `length` characters. */
static bool read_size(const char *text, size_t length, DsviClipSize *out)
{
    enum { FRAMES_MAX = 100000, SIDE_MAX = 16384 };
    const char *at = read_side(text, FRAMES_MAX, &out->frames);
    if (!at || *at != 'x' || !(at = read_side(at + 1, SIDE_MAX, &out->height)) || *at != 'x')
        return false;
    at = read_side(at + 1, SIDE_MAX, &out->width);
    return at && at == text + length;
}

DsvStatus dsvi_clip_sizes_parse(const char *text, DsviClipSizes *out)
{
    static const char BLANKS[] = " \t";
    out->count = 0;
    for (const char *at = text;; at++) {
        DsviClipSize size;
        at += strspn(at, BLANKS);
        size_t part = strcspn(at, ","), length = part;
        while (length > 0 && strchr(BLANKS, at[length - 1]))
            length--;
        if (!read_size(at, length, &size))
            return DSVI_FAIL(
                DSV_E_USAGE,
                "data.buckets: '%.*s' is no size, expected frames x height x width like 81x480x832",
                (int)length, at);
        DSVI_TRY(dsvi_clip_sizes_add(out, &size));
        at += part;
        if (!*at)
            return DSV_OK;
    }
}

/* Returns by how much the aspect ratios of a size and a clip differ, as the logarithm of their quotient. */
static double ratio_error(const DsviClipSize *size, const DsviClipInfo *info)
{
    return fabs(log((double)size->width / (double)size->height) -
                log((double)info->width / (double)info->height));
}

static bool fills(const DsviClipSize *size, const DsviClipInfo *info, int64_t frames)
{
    return size->frames <= frames && size->height <= info->height && size->width <= info->width;
}

/* Writes why a clip fits no size. The nearest size is the smallest, which is the last. */
static void explain_misfit(const DsviClipSizes *sizes, const char *path, const DsviClipInfo *info,
                           int64_t frames, char *reason, size_t room)
{
    char text[DSVI_CLIP_SIZE_BYTES];
    int64_t fewest = INT64_MAX;
    for (int64_t i = 0; i < sizes->count; i++)
        fewest = sizes->at[i].frames < fewest ? sizes->at[i].frames : fewest;
    if (frames < fewest)
        snprintf(reason, room, "%s: %" PRId64 " frames, shorter than every bucket, the shortest has %" PRId64,
                 path, frames, fewest);
    else
        snprintf(reason, room,
                 "%s: %" PRId64 " frames of %" PRId64 " x %" PRId64
                 " (height x width) fill no bucket without enlarging them, the smallest is %s",
                 path, frames, info->height, info->width,
                 dsvi_clip_size_text(&sizes->at[sizes->count - 1], text));
}

int64_t dsvi_clip_sizes_choose(const DsviClipSizes *sizes, const char *path, const DsviClipInfo *info,
                               int64_t frames, char *reason, size_t room)
{
    int64_t best = -1;
    double nearest = INFINITY;
    for (int64_t i = 0; i < sizes->count; i++)
        if (fills(&sizes->at[i], info, frames))
            nearest = fmin(nearest, ratio_error(&sizes->at[i], info));
    for (int64_t i = 0; i < sizes->count; i++) {
        const DsviClipSize *size = &sizes->at[i];
        if (!fills(size, info, frames) || ratio_error(size, info) > nearest + log(1 + RATIO_SLACK))
            continue;
        /* sizes with equal frames are in the order of their pixels */
        if (best < 0 || size->frames > sizes->at[best].frames)
            best = i;
    }
    if (best < 0)
        explain_misfit(sizes, path, info, frames, reason, room);
    return best;
}

/* Returns the largest of the frame numbers 1, 1 + s, 1 + 2 s, 1 + 4 s, 1 + 8 s, 1 + 12 s, ... that is at most
 * `frames`. */
static int64_t frames_below(int64_t frames, int64_t step)
{
    int64_t steps = (frames - 1) / step;
    return 1 + step * (steps >= 4 ? steps / 4 * 4 : steps >= 2 ? 2 : steps);
}

enum { RATIOS = 3 /* on each side of 1 */ };

/* Returns the logarithm (base 2) of aspect ratio number k, -RATIOS to RATIOS. The one that is nearest to the
 * ratio of `limit`, or to its reciprocal, is this ratio itself, so that clips of this shape are not cropped.
 */
static double log_ratio(const DsviClipSize *limit, int k)
{
    double own = log2((double)limit->width / (double)limit->height);
    int nearest = (int)rint(fmin(fmax(own * RATIOS, -RATIOS), RATIOS));
    if (k == nearest)
        return own;
    return k == -nearest ? -own : (double)k / RATIOS;
}

/* Returns the aspect ratio that is nearest to the clip's. */
static double nearest_ratio(const DsviClipInfo *info, const DsviClipSize *limit)
{
    double exact = log2((double)info->width / (double)info->height), best = log_ratio(limit, -RATIOS);
    for (int k = 1 - RATIOS; k <= RATIOS; k++)
        if (fabs(log_ratio(limit, k) - exact) < fabs(best - exact))
            best = log_ratio(limit, k);
    return exp2(best);
}

/* Returns the largest multiple of `step` up to a length, which may be rounded a little below one. */
static int64_t multiple_below(double length, int64_t step)
{
    return (int64_t)floor(length / (double)step + 1e-6) * step;
}

DsviClipSize dsvi_clip_size_auto(const DsviClipInfo *info, int64_t frames, const DsviClipSteps *steps,
                                 const DsviClipSize *limit, int64_t tokens_max)
{
    enum { SCALES = 16 };
    DsviClipSize size = {frames_below(frames < limit->frames ? frames : limit->frames, steps->frame_step), 0,
                         0};
    double ratio = nearest_ratio(info, limit), step = (double)steps->pixel_step;
    /* pixels of a frame: as many as the budget allows, then scaled down until the clip covers them */
    double area = (double)tokens_max / (double)(1 + (size.frames - 1) / steps->frame_step) * step * step;
    area = fmin(area, (double)(limit->height * limit->width));
    for (int scale = 0; scale < SCALES; scale++, area /= 2) {
        size.height = multiple_below(sqrt(area / ratio), steps->pixel_step);
        size.width = multiple_below(sqrt(area * ratio), steps->pixel_step);
        if (size.height > 0 && size.width > 0 && size.height <= info->height && size.width <= info->width)
            return size;
    }
    return (DsviClipSize){0};
}
