/* Small clips with known content, written by dsv's own writer. */
#ifndef DSVI_TEST_CLIP_MAKER_H
#define DSVI_TEST_CLIP_MAKER_H

#include <stdbool.h>

#include "base/rng.h"
#include "base/scratch.h"
#include "data/clip.h"
#include "sample/video_writer.h"
#include "test.h"

enum { STAMP_BITS = 10 };

/* Numbers the frames: row stripe b of frame i is white where bit b of first + i is set, else black. */
static inline void stamp_clip(float *pixels, int64_t first, int64_t frames, int64_t height, int64_t width)
{
    for (int64_t c = 0; c < 3; c++)
        for (int64_t i = 0; i < frames; i++)
            for (int64_t y = 0; y < height; y++)
                for (int64_t x = 0; x < width; x++)
                    *pixels++ = ((first + i) >> (y * STAMP_BITS / height)) & 1 ? 1.0f : -1.0f;
}

/* The number stamped on frame i of a video, from the middle of each stripe. */
static inline int64_t read_stamp(const float *pixels, int64_t i, int64_t frames, int64_t height,
                                 int64_t width)
{
    int64_t number = 0;
    assert_true(i < frames);
    for (int64_t b = 0; b < STAMP_BITS; b++) {
        int64_t y = (2 * b + 1) * height / (2 * STAMP_BITS);
        double sum = 0;
        for (int64_t x = 0; x < width; x++)
            sum += pixels[(i * height + y) * width + x];
        number |= (int64_t)(sum > 0) << b;
    }
    return number;
}

/* Red grows to the right, green downward, blue with time, from -0.8 to 0.8. */
static inline float ramp(int64_t c, int64_t i, int64_t frames, double y, double x)
{
    double position = c == 0 ? x : c == 1 ? y : frames > 1 ? (double)i / (double)(frames - 1) : 0;
    return (float)(1.6 * position - 0.8);
}

static inline void ramp_clip(float *pixels, int64_t frames, int64_t height, int64_t width)
{
    for (int64_t c = 0; c < 3; c++)
        for (int64_t i = 0; i < frames; i++)
            for (int64_t y = 0; y < height; y++)
                for (int64_t x = 0; x < width; x++)
                    *pixels++ = ramp(c, i, frames, ((double)y + 0.5) / (double)height,
                                     ((double)x + 0.5) / (double)width);
}

static inline float *video_alloc(int64_t frames, int64_t height, int64_t width)
{
    float *pixels = (float *)malloc((size_t)(3 * frames * height * width) * sizeof *pixels);
    assert_non_null(pixels);
    return pixels;
}

/* A clip of 40 x 40 pixels whose frames are numbered from `first`. */
static inline void make_stamped(const char *encoder, const char *path, int64_t first, int64_t frames,
                                double fps)
{
    float *pixels = video_alloc(frames, 40, 40);
    stamp_clip(pixels, first, frames, 40, 40);
    assert_ok(dsvi_video_write_as(encoder, path, pixels, frames, 40, 40, fps));
    free(pixels);
}

static inline void make_ramp(const char *path, int64_t frames, int64_t height, int64_t width, double fps)
{
    float *pixels = video_alloc(frames, height, width);
    ramp_clip(pixels, frames, height, width);
    assert_ok(dsvi_video_write(path, pixels, frames, height, width, fps));
    free(pixels);
}

/* Runs the program ffmpeg in the scratch folder. A shell splits `arguments`. */
static inline void run_ffmpeg(const char *arguments)
{
    char command[2048];
    snprintf(command, sizeof command, "cd %s && ffmpeg -nostdin -v error -y %s", scratch_folder, arguments);
    if (system(command) != 0)
        fail_msg("%s", command);
}

static inline void write_bytes(const char *path, const void *data, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* Bytes with which no video format begins. */
static inline void write_noise(const char *path, size_t bytes)
{
    DsviRng rng = {11, DSVI_RNG_TEST, 0};
    unsigned char *data = (unsigned char *)malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)dsvi_rng_below(rng, i, 256);
    write_bytes(path, data, bytes);
    free(data);
}

#endif
