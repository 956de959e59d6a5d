/* The haar codec: 3-D Haar wavelets with an exact inverse and without weights.
 *
 * With n = 2^spatial_levels and m = 2^temporal_levels, a block of m frames x n rows x n columns of one colour
 * becomes m n n coefficients, which are as many channels at one position of the latent. Along each axis the
 * transform replaces neighbours (a, b) by ((a + b) / 2, (a - b) / 2), and repeats this for the sums, level by
 * level. It is orthogonal except for the scale of each coefficient. Coefficients stay in place: coefficient 0
 * of an axis is the mean of the block; coefficient i is half the difference of two neighbouring ranges of
 * 2^(k-1) samples, where k = 1 + (number of zero bits at the end of i) is its level.
 *
 * The first frame is encoded alone, like a video in which all frames are equal: its temporal differences are
 * zero. So T frames, T = 1 + m j, become 1 + j latent frames, and a single picture is a valid video.
 *
 * Coefficient (i_t, i_h, i_w) of a colour is channel (i_t n n + i_h n + i_w) 3 + colour: the means of the
 * three colours come first. Each channel is divided by a constant, the geometric mean of two standard
 * deviations in natural video: that of its band, and that of the means. Means then have variance 1.
 * Differences have less variance: their standard deviation, relative to means, is the square root of the
 * same ratio in pixels. If differences were divided by their own deviation, the loss would depend mainly
 * on texture that no model predicts, because most coefficients are differences. If differences were not
 * divided at all, they would be smaller than the noise of every time step. */
#include "model/codec/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLOURS = 3,
    SPATIAL_MAX = 6,
    TEMPORAL_MAX = 4,
    VALUES_MAX = 1 << (TEMPORAL_MAX + 2 * SPATIAL_MAX), /* values of the largest block */
    TOGETHER_MAX = 16                                   /* limit of blocks that are transformed together;
                                                         * their values fill a cache line of the latent */
};

typedef struct Haar {
    DsviCodec codec;
    int spatial, temporal; /* levels */
    float *scale;          /* (coefficients of a block) divisor of each coefficient */
} Haar;

static const Haar *haar_of(const DsviCodec *codec)
{
    return (const Haar *)codec;
}

/* For each of `together` blocks, replaces the values a and b by (a + b) / 2 and (a - b) / 2. `inverse`
 * restores a and b. */
static void lift_pair(float *restrict a, float *restrict b, int64_t together, bool inverse)
{
    float half = inverse ? 1.0f : 0.5f;
    for (int64_t i = 0; i < together; i++) {
        float sum = half * (a[i] + b[i]), difference = half * (a[i] - b[i]);
        a[i] = sum;
        b[i] = difference;
    }
}

/* Applies the Haar transform, or its inverse, to `blocks` (size, together) along one axis, level by level.
 * The axis's index is the bits [low, low + levels) of an element's index in its block. */
static void lift(float *blocks, int64_t size, int64_t together, int low, int levels, bool inverse)
{
    for (int n = 0; n < levels; n++) {
        int level = inverse ? levels - 1 - n : n;
        int64_t partner = (int64_t)1 << (low + level);
        int64_t not_sums = 2 * partner - ((int64_t)1 << low); /* these bits are 0 in the index of an element
                                                               * that is a sum */
        for (int64_t i = 0; i < size; i++) {
            if (!(i & not_sums))
                lift_pair(blocks + i * together, blocks + (i + partner) * together, together, inverse);
        }
    }
}

/* Applies the Haar transform, or its inverse, to `together` blocks of (2^temporal, 2^spatial, 2^spatial)
 * values along all three axes. */
static void transform(float *blocks, int64_t together, int temporal, int spatial, bool inverse)
{
    int64_t size = (int64_t)1 << (temporal + 2 * spatial);
    lift(blocks, size, together, 0, spatial, inverse);
    lift(blocks, size, together, spatial, spatial, inverse);
    lift(blocks, size, together, 2 * spatial, temporal, inverse);
}

/* Returns the level of Haar coefficient i of an axis; 0 for the mean. */
static int codec_haar_level_of(int64_t i)
{
    int level = 0;
    if (i == 0)
        return 0;
    while (!(i >> level & 1))
        level++;
    return level + 1;
}

/* Returns the standard deviation in natural video of the Haar coefficients with these levels along time,
 * height and width (a band). Measured over 16 real clips (hand-held and fixed cameras, animation, time
 * lapse, dark and bright; scaled to 128 x 128 and 256 x 256, 12 frames per second, values in [-1, 1]). The
 * deviation depends mainly on the number of axes along which a coefficient is a difference, and on the
 * coefficient's finest level: deviations grow by about 1.3 with each level. For all bands of up to 5
 * spatial and 3 temporal levels the result is within a factor of 1.5 of the measurement. */
static double deviation_of(int level_t, int level_h, int level_w)
{
    static const double FINEST[2][3] = {
        /* differences in space: none, along one axis, along both */
        {0.45, 0.036, 0.020},   /* coefficients that are means over time */
        {0.026, 0.0058, 0.0055} /* coefficients that are differences in time */
    };
    const double growth = 1.3;
    int axes = (level_h > 0) + (level_w > 0), level = level_t;
    if (axes == 1)
        level = level_h + level_w;
    else if (axes == 2)
        level = level_h < level_w ? level_h : level_w;
    double deviation = FINEST[level_t > 0][axes];
    for (int i = 1; i < level; i++)
        deviation *= growth;
    return deviation;
}

/* Fails because the codec does not support the size `found`. The message names the nearest supported sizes;
 * these are `min` and larger ones in steps of `unit`. */
static DsvStatus fail_for_size(const Haar *haar, const char *what, int64_t found, int64_t min, int64_t unit)
{
    char nearest[64];
    if (found < min) {
        snprintf(nearest, sizeof nearest, "%lld", (long long)min);
    } else {
        int64_t below = min + (found - min) / unit * unit;
        snprintf(nearest, sizeof nearest, "%lld or %lld", (long long)below, (long long)(below + unit));
    }
    return DSVI_FAIL(DSV_E_SHAPE,
                     "codec haar with %d spatial and %d temporal levels cannot take %s %lld, "
                     "expected %s",
                     haar->spatial, haar->temporal, what, (long long)found, nearest);
}

static DsvStatus latent_shape(const DsviCodec *codec, DsviVideoShape video, DsviVideoShape *latent)
{
    const Haar *haar = haar_of(codec);
    int64_t side = (int64_t)1 << haar->spatial, frames = (int64_t)1 << haar->temporal;
    if (video.channels != COLOURS)
        return DSVI_FAIL(DSV_E_SHAPE, "codec haar takes videos of 3 colours, not %lld",
                         (long long)video.channels);
    if (video.frames < 1 || (video.frames - 1) % frames)
        return fail_for_size(haar, "num_frames", video.frames, 1, frames);
    if (video.height < side || video.height % side)
        return fail_for_size(haar, "height", video.height, side, side);
    if (video.width < side || video.width % side)
        return fail_for_size(haar, "width", video.width, side, side);
    latent->channels = COLOURS * side * side * frames;
    latent->frames = 1 + (video.frames - 1) / frames;
    latent->height = video.height / side;
    latent->width = video.width / side;
    return DSV_OK;
}

/* Neighbouring blocks of one colour in a row of the latent, and the places of their elements in video and
 * latent. They are processed together, so that loads, arithmetic and stores use whole vectors. */
typedef struct Blocks {
    const Haar *haar;
    int temporal;                /* temporal levels; 0 in the first latent frame */
    int64_t size, together;      /* elements of one block, and number of blocks processed together */
    int64_t pixel, row, frame;   /* place of element 0 of the first block in the video; strides of the
                                  * video */
    int64_t latent, coefficient; /* place of element 0 in the latent; distance between coefficients */
} Blocks;

/* Returns the group of blocks that begins at column `x` of row `row` of the latent. Rows are numbered
 * through all colours and frames. */
static Blocks blocks_at(const Haar *haar, DsviVideoShape video, DsviVideoShape latent, int64_t row, int64_t x)
{
    int64_t y = row % latent.height, f = row / latent.height % latent.frames;
    int64_t colour = row / (latent.height * latent.frames);
    int64_t first_frame = f == 0 ? 0 : 1 + ((f - 1) << haar->temporal);
    int temporal = f == 0 ? 0 : haar->temporal;
    int64_t size = (int64_t)1 << (temporal + 2 * haar->spatial), left = latent.width - x;
    int64_t max = VALUES_MAX / size < TOGETHER_MAX ? VALUES_MAX / size : TOGETHER_MAX;
    return (Blocks){
        .haar = haar,
        .temporal = temporal,
        .size = size,
        .together = left < max ? left : max,
        .pixel = ((colour * video.frames + first_frame) * video.height + (y << haar->spatial)) * video.width +
                 (x << haar->spatial),
        .row = video.width,
        .frame = video.width * video.height,
        .latent = row * latent.width + x,
        .coefficient = COLOURS * latent.frames * latent.height * latent.width,
    };
}

/* Returns the place in the video of the first element in row `i` of the first block. The rows of a block are
 * numbered through its frames. */
static int64_t pixels_at(const Blocks *b, int64_t i)
{
    int spatial = b->haar->spatial;
    return b->pixel + (i >> spatial) * b->frame + (i & (((int64_t)1 << spatial) - 1)) * b->row;
}

/* Encodes a group of blocks from pixels to latent. `values` (size, together) is scratch memory. */
static void encode_blocks(const Blocks *b, const float *pixels, float *values, float *latent)
{
    const Haar *haar = b->haar;
    int64_t side = (int64_t)1 << haar->spatial, all = (side * side) << haar->temporal, n = b->together;
    for (int64_t i = 0; i < b->size; i++) {
        const float *from = pixels + pixels_at(b, i / side) + i % side;
        for (int64_t j = 0; j < n; j++)
            values[i * n + j] = from[j * side];
    }
    transform(values, n, b->temporal, haar->spatial, false);
    for (int64_t i = 0; i < b->size; i++)
        for (int64_t j = 0; j < n; j++)
            latent[b->latent + i * b->coefficient + j] = values[i * n + j] / haar->scale[i];
    for (int64_t i = b->size; i < all; i++)
        memset(latent + b->latent + i * b->coefficient, 0, (size_t)n * sizeof *latent);
}

/* Decodes a group of blocks from latent to pixels. `values` (size, together) is scratch memory. */
static void decode_blocks(const Blocks *b, const float *latent, float *values, float *pixels)
{
    const Haar *haar = b->haar;
    int64_t side = (int64_t)1 << haar->spatial, n = b->together;
    for (int64_t i = 0; i < b->size; i++)
        for (int64_t j = 0; j < n; j++)
            values[i * n + j] = latent[b->latent + i * b->coefficient + j] * haar->scale[i];
    transform(values, n, b->temporal, haar->spatial, true);
    for (int64_t i = 0; i < b->size; i++) {
        float *to = pixels + pixels_at(b, i / side) + i % side;
        for (int64_t j = 0; j < n; j++)
            to[j * side] = values[i * n + j];
    }
}

/* Allocates scratch memory for the blocks that are processed together. This memory can take 256 KiB, too
 * much for the stack. */
static DsvStatus allocate_values(const Haar *haar, float **values)
{
    int64_t size = (int64_t)1 << (haar->temporal + 2 * haar->spatial);
    int64_t count = size * TOGETHER_MAX < VALUES_MAX ? size * TOGETHER_MAX : VALUES_MAX;
    *values = malloc((size_t)count * sizeof **values);
    return *values ? DSV_OK
                   : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers of codec haar", (long long)count);
}

static DsvStatus codec_haar_encode(const DsviCodec *codec, DsviVideoShape video, const float *pixels,
                                   float *latent)
{
    DsviVideoShape shape;
    float *values;
    DSVI_TRY(latent_shape(codec, video, &shape));
    DSVI_TRY(allocate_values(haar_of(codec), &values));
    for (int64_t row = 0; row < COLOURS * shape.frames * shape.height; row++) {
        Blocks blocks;
        for (int64_t x = 0; x < shape.width; x += blocks.together) {
            blocks = blocks_at(haar_of(codec), video, shape, row, x);
            encode_blocks(&blocks, pixels, values, latent);
        }
    }
    free(values);
    return DSV_OK;
}

static DsvStatus decode(const DsviCodec *codec, DsviVideoShape video, const float *latent, float *pixels)
{
    DsviVideoShape shape;
    float *values;
    DSVI_TRY(latent_shape(codec, video, &shape));
    DSVI_TRY(allocate_values(haar_of(codec), &values));
    for (int64_t row = 0; row < COLOURS * shape.frames * shape.height; row++) {
        Blocks blocks;
        for (int64_t x = 0; x < shape.width; x += blocks.together) {
            blocks = blocks_at(haar_of(codec), video, shape, row, x);
            decode_blocks(&blocks, latent, values, pixels);
        }
    }
    free(values);
    return DSV_OK;
}

/* Returns the number of pixels along an axis that Haar coefficient i influences when it is decoded: 2^k for
 * a difference of level k, all pixels of the block for the mean. */
static double samples_along(int64_t i, int levels)
{
    return ldexp(1, i == 0 ? levels : codec_haar_level_of(i));
}

static void pixel_errors(const DsviCodec *codec, double *error)
{
    const Haar *haar = haar_of(codec);
    int spatial = haar->spatial;
    int64_t size = (int64_t)1 << (haar->temporal + 2 * spatial), mask = ((int64_t)1 << spatial) - 1;
    for (int64_t i = 0; i < size; i++) {
        double samples = samples_along(i >> 2 * spatial, haar->temporal) *
                         samples_along(i >> spatial & mask, spatial) * samples_along(i & mask, spatial);
        for (int colour = 0; colour < COLOURS; colour++)
            error[i * COLOURS + colour] = samples * haar->scale[i] * haar->scale[i];
    }
}

static void close_haar(DsviCodec *codec)
{
    Haar *haar = (Haar *)codec;
    free(haar->scale);
    free(haar);
}

static DsvStatus check_levels(const char *key, int64_t levels, int64_t max)
{
    if (levels < 0 || levels > max)
        return DSVI_FAIL(DSV_E_USAGE, "%s is %lld, expected 0 to %lld", key, (long long)levels,
                         (long long)max);
    return DSV_OK;
}

DsvStatus dsvi_codec_haar_open(const DsvConfig *settings, DsviCodec **out)
{
    *out = NULL;
    DSVI_TRY(check_levels("codec.spatial_levels", settings->codec_spatial_levels, SPATIAL_MAX));
    DSVI_TRY(check_levels("codec.temporal_levels", settings->codec_temporal_levels, TEMPORAL_MAX));
    int spatial = (int)settings->codec_spatial_levels, temporal = (int)settings->codec_temporal_levels;
    int64_t size = (int64_t)1 << (temporal + 2 * spatial), mask = ((int64_t)1 << spatial) - 1;
    Haar *haar = calloc(1, sizeof *haar);
    float *scale = calloc((size_t)size, sizeof *scale);
    if (!haar || !scale) {
        free(haar);
        free(scale);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a codec of %lld bands", (long long)size);
    }
    haar->codec = (DsviCodec){"haar", latent_shape, codec_haar_encode, decode, pixel_errors, close_haar};
    haar->spatial = spatial;
    haar->temporal = temporal;
    haar->scale = scale;
    for (int64_t i = 0; i < size; i++)
        scale[i] = (float)sqrt(deviation_of(0, 0, 0) * deviation_of(codec_haar_level_of(i >> 2 * spatial),
                                                                    codec_haar_level_of(i >> spatial & mask),
                                                                    codec_haar_level_of(i & mask)));
    *out = &haar->codec;
    return DSV_OK;
}
