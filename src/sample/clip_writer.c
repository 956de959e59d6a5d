/* Implements clip_writer.h. */
#include "sample/clip_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/safetensors.h"
#include "sample/png_writer.h"

static bool clip_ends_with(const char *path, const char *ending)
{
    const char *dot = strrchr(path, '.');
    return dot && strcasecmp(dot, ending) == 0;
}

bool dsvi_clip_path_is(const char *path)
{
    static const char *const ENDINGS[] = {".mp4", ".mkv", ".mov", ".avi", ".mpg", ".png", ".safetensors"};
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++)
        if (clip_ends_with(path, ENDINGS[i]))
            return true;
    return false;
}

/* A place for a number in a path: %d, or %0Nd with one digit N. `length` is 0 if the path has none. */
typedef struct Place {
    size_t at, length;
    int digits;
} Place;

static Place find_place(const char *path)
{
    const char *percent = strchr(path, '%');
    if (percent && percent[1] == 'd')
        return (Place){(size_t)(percent - path), 2, 1};
    if (percent && percent[1] == '0' && percent[2] >= '1' && percent[2] <= '9' && percent[3] == 'd')
        return (Place){(size_t)(percent - path), 4, percent[2] - '0'};
    return (Place){0};
}

/* Stores in `out` the path with `number` at its place. */
static DsvStatus numbered(char out[DSVI_PATH_MAX], const char *path, Place place, int64_t number)
{
    int length = snprintf(out, DSVI_PATH_MAX, "%.*s%0*lld%s", (int)place.at, path, place.digits,
                          (long long)number, path + place.at + place.length);
    if (length >= DSVI_PATH_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    return DSV_OK;
}

DsvStatus dsvi_clip_numbered_path(char out[DSVI_PATH_MAX], const char *path, int64_t index)
{
    enum { DIGITS = 4 };
    Place place = clip_ends_with(path, ".png") ? find_place(path) : (Place){0};
    const char *dot = strrchr(path, '.');
    bool frames = place.length > 0;
    size_t at = frames ? place.at : dot ? (size_t)(dot - path) : strlen(path);
    int length = snprintf(out, DSVI_PATH_MAX, "%.*s%s%0*lld%s%s", (int)at, path, frames ? "" : "-", DIGITS,
                          (long long)index, frames ? "-" : "", path + at);
    if (length >= DSVI_PATH_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%.64s...: path longer than %d bytes", path, DSVI_PATH_MAX - 1);
    return DSV_OK;
}

DsvStatus dsvi_clip_check_path(const char *path, int64_t frames)
{
    char first[DSVI_PATH_MAX];
    Place place = find_place(path);
    if (!dsvi_clip_path_is(path))
        return DSVI_FAIL(
            DSV_E_USAGE,
            "%s: expected a name that ends with .mp4, .mkv, .mov, .avi, .mpg, .png or .safetensors", path);
    if (!clip_ends_with(path, ".png") || (frames == 1 && !place.length))
        return dsvi_file_check_writable(path);
    if (!place.length)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "%s: a PNG file holds one frame of the clip's %lld: expected a name such as frame-%%04d.png",
            path, (long long)frames);
    DSVI_TRY(numbered(first, path, place, 0));
    return dsvi_file_check_writable(first);
}

static DsvStatus write_pictures(const char *path, const DsviVideoFrames *f)
{
    char name[DSVI_PATH_MAX];
    Place place = find_place(path);
    if (!place.length)
        return dsvi_png_write(path, f, 0);
    for (int64_t i = 0; i < f->frames; i++) {
        DSVI_TRY(numbered(name, path, place, i));
        DSVI_TRY(dsvi_png_write(name, f, i));
    }
    return DSV_OK;
}

static float unit_value(float pixel)
{
    float value = pixel / 2 + 0.5f;
    return value > 1 ? 1 : value < 0 ? 0 : value;
}

static DsvStatus write_tensor(const char *path, const DsviVideoFrames *f)
{
    int64_t picture = f->height * f->width, count = 3 * f->frames * picture;
    float *video = malloc((size_t)count * sizeof *video);
    if (!video)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for %lld numbers", path, (long long)count);
    for (int64_t t = 0; t < f->frames; t++)
        for (int64_t c = 0; c < 3; c++)
            for (int64_t i = 0; i < picture; i++)
                video[(t * 3 + c) * picture + i] = unit_value(f->pixels[(c * f->frames + t) * picture + i]);
    DsviStoredTensor tensor = {.name = "video",
                               .dtype = DSVI_F32,
                               .ndim = 5,
                               .shape = {1, f->frames, 3, f->height, f->width},
                               .count = count,
                               .bytes = (size_t)count * sizeof *video,
                               .data = video};
    const char *const metadata[][2] = {{"comment", f->comment ? f->comment : ""}};
    DsvStatus status = dsvi_safetensors_replace(path, &tensor, 1, metadata, f->comment ? 1 : 0);
    free(video);
    return status;
}

DsvStatus dsvi_clip_write(const char *path, const DsviVideoFrames *frames)
{
    if (clip_ends_with(path, ".png"))
        return write_pictures(path, frames);
    return clip_ends_with(path, ".safetensors") ? write_tensor(path, frames) : dsvi_video_save(path, frames);
}
