/* The haar codec: 3-D Haar wavelets, exact inverse, no weights.
 *
 * With n = 2^spatial_levels and m = 2^temporal_levels, a block of m frames x n rows x n columns of one colour
 * becomes m n n coefficients, which stand in as many channels at one place of the latent. Along each axis
 * the transform is the lifting (a, b) -> ((a + b) / 2, (a - b) / 2) of neighbours, then again of the
 * sums, level by level: an orthogonal transform up to the scale of each coefficient.
 * In place, coefficient i of an axis is the mean of the block for i = 0; otherwise half the difference of
 * two neighbouring stretches of 2^(k-1) samples, where k = 1 + (zeros at the end of i) is its level.
 *
 * The first frame is encoded alone, as a video whose frames are all like it would be: temporal details are
 * zero. So T frames, T = 1 + m j, become 1 + j latent frames, and a single picture is a video.
 *
 * Channel (i_t n n + i_h n + i_w) 3 + colour: the three means, one for each colour, come first. Each channel
 * is divided by a fixed constant, the geometric mean of the deviations that its band and the means have in
 * natural video. Means then have unit variance and details less, by the root of what they lack in pixels:
 * divided by their own deviation, as many details as there are would make the loss a matter of texture that
 * nothing predicts; not divided at all, they would drown in the noise of every time step. */
#include "model/codec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    COLOURS = 3,
    SPATIAL_MAX = 6,
    TEMPORAL_MAX = 4,
    VALUES_MAX = 1 << (TEMPORAL_MAX + 2 * SPATIAL_MAX), /* of the largest block */
    BESIDE_MAX = 16                                     /* a cache line of the latent */
};

typedef struct Haar {
    DsvCodec codec;
    int spatial, temporal; /* levels */
    float *scale;          /* (coefficients of a block): what each is divided by */
} Haar;

static const Haar *haar_of(const DsvCodec *codec)
{
    return (const Haar *)codec;
}

/* Sums and differences of the blocks' values at two places, or what they were made of. */
static void lift_pair(float *restrict a, float *restrict b, int64_t beside, bool inverse)
{
    float half = inverse ? 1.0f : 0.5f;
    for (int64_t i = 0; i < beside; i++) {
        float sum = half * (a[i] + b[i]), difference = half * (a[i] - b[i]);
        a[i] = sum;
        b[i] = difference;
    }
}

/* One level-by-level transform along the axis whose index is bits [low, low + levels) of a block's index,
 * or its inverse; of (size, beside) values. */
static void lift(float *blocks, int64_t size, int64_t beside, int low, int levels, bool inverse)
{
    for (int n = 0; n < levels; n++) {
        int level = inverse ? levels - 1 - n : n;
        int64_t partner = (int64_t)1 << (low + level);
        int64_t not_sums = 2 * partner - ((int64_t)1 << low); /* bits that are zero in the sums so far */
        for (int64_t i = 0; i < size; i++) {
            if (!(i & not_sums))
                lift_pair(blocks + i * beside, blocks + (i + partner) * beside, beside, inverse);
        }
    }
}

/* All three axes of `beside` blocks of (2^temporal, 2^spatial, 2^spatial). */
static void transform(float *blocks, int64_t beside, int temporal, int spatial, bool inverse)
{
    int64_t size = (int64_t)1 << (temporal + 2 * spatial);
    lift(blocks, size, beside, 0, spatial, inverse);
    lift(blocks, size, beside, spatial, spatial, inverse);
    lift(blocks, size, beside, 2 * spatial, temporal, inverse);
}

/* Level of coefficient i of an axis: 0 for the mean. */
static int level_of(int64_t i)
{
    int level = 0;
    if (i == 0)
        return 0;
    while (!(i >> level & 1))
        level++;
    return level + 1;
}

/* Deviations of the bands in natural video, measured over 16 real clips (hand-held and fixed cameras,
 * animation, time lapse, dark and bright; scaled to 128 x 128 and to 256 x 256, 12 frames a second, values
 * in [-1, 1]). What matters is along how many axes a coefficient is a difference, and its finest level:
 * deviations grow by about 1.3 a level. The table is within a factor of 1.5 of what was measured in every
 * band of up to 5 spatial and 3 temporal levels. */
static double deviation_of(int level_t, int level_h, int level_w)
{
    static const double FINEST[2][3] = {
        /* differences in space: none, along one axis, along both */
        {0.45, 0.036, 0.020},   /* of a mean over time */
        {0.026, 0.0058, 0.0055} /* of a difference in time */
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

/* `least` is the smallest size the codec takes, the others follow in steps of `unit`. */
static DsvStatus refuse_size(const Haar *haar, const char *what, int64_t found, int64_t least, int64_t unit)
{
    char nearest[64];
    if (found < least) {
        snprintf(nearest, sizeof nearest, "%lld", (long long)least);
    } else {
        int64_t below = least + (found - least) / unit * unit;
        snprintf(nearest, sizeof nearest, "%lld or %lld", (long long)below, (long long)(below + unit));
    }
    return DSVI_FAIL(DSV_E_SHAPE, "codec haar with %d spatial and %d temporal levels cannot take %s %lld, "
                     "wanted %s", haar->spatial, haar->temporal, what, (long long)found, nearest);
}

static DsvStatus latent_shape(const DsvCodec *codec, DsvVideoShape video, DsvVideoShape *latent)
{
    const Haar *haar = haar_of(codec);
    int64_t side = (int64_t)1 << haar->spatial, frames = (int64_t)1 << haar->temporal;
    if (video.channels != COLOURS)
        return DSVI_FAIL(DSV_E_SHAPE, "codec haar takes videos of 3 colours, not %lld",
                         (long long)video.channels);
    if (video.frames < 1 || (video.frames - 1) % frames)
        return refuse_size(haar, "num_frames", video.frames, 1, frames);
    if (video.height < side || video.height % side)
        return refuse_size(haar, "height", video.height, side, side);
    if (video.width < side || video.width % side)
        return refuse_size(haar, "width", video.width, side, side);
    latent->channels = COLOURS * side * side * frames;
    latent->frames = 1 + (video.frames - 1) / frames;
    latent->height = video.height / side;
    latent->width = video.width / side;
    return DSV_OK;
}

/* Neighbouring blocks of one colour in a row of the latent: where their elements lie in the video and in the
 * latent. They are worked on together, so that loads, arithmetic and stores are of whole vectors. */
typedef struct Blocks {
    const Haar *haar;
    int temporal;                /* levels: none in the first latent frame */
    int64_t size, beside;        /* elements of one, and how many there are */
    int64_t pixel, row, frame;   /* of element 0 of the first in the video, and the video's strides */
    int64_t latent, coefficient; /* of element 0 in the latent, and from one coefficient to the next */
} Blocks;

/* Those at `x` of a row of the latent, where rows are counted over all colours and frames. */
static Blocks blocks_at(const Haar *haar, DsvVideoShape video, DsvVideoShape latent, int64_t row, int64_t x)
{
    int64_t y = row % latent.height, f = row / latent.height % latent.frames;
    int64_t colour = row / (latent.height * latent.frames);
    int64_t first_frame = f == 0 ? 0 : 1 + ((f - 1) << haar->temporal);
    int temporal = f == 0 ? 0 : haar->temporal;
    int64_t size = (int64_t)1 << (temporal + 2 * haar->spatial), left = latent.width - x;
    int64_t most = VALUES_MAX / size < BESIDE_MAX ? VALUES_MAX / size : BESIDE_MAX;
    return (Blocks){
        .haar = haar,
        .temporal = temporal,
        .size = size,
        .beside = left < most ? left : most,
        .pixel = ((colour * video.frames + first_frame) * video.height + (y << haar->spatial)) * video.width +
                 (x << haar->spatial),
        .row = video.width,
        .frame = video.width * video.height,
        .latent = row * latent.width + x,
        .coefficient = COLOURS * latent.frames * latent.height * latent.width,
    };
}

/* Element 0 of row `i` of each block, rows counted over all frames, in the video. */
static int64_t pixels_at(const Blocks *b, int64_t i)
{
    int spatial = b->haar->spatial;
    return b->pixel + (i >> spatial) * b->frame + (i & (((int64_t)1 << spatial) - 1)) * b->row;
}

/* values (size, beside): room for a call. */
static void encode_blocks(const Blocks *b, const float *pixels, float *values, float *latent)
{
    const Haar *haar = b->haar;
    int64_t side = (int64_t)1 << haar->spatial, all = (side * side) << haar->temporal, n = b->beside;
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

static void decode_blocks(const Blocks *b, const float *latent, float *values, float *pixels)
{
    const Haar *haar = b->haar;
    int64_t side = (int64_t)1 << haar->spatial, n = b->beside;
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

/* Room for the blocks that are worked on together; not on the stack: the largest take 256 KiB. */
static DsvStatus make_values(const Haar *haar, float **values)
{
    int64_t size = (int64_t)1 << (haar->temporal + 2 * haar->spatial);
    int64_t count = size * BESIDE_MAX < VALUES_MAX ? size * BESIDE_MAX : VALUES_MAX;
    *values = malloc((size_t)count * sizeof **values);
    return *values ? DSV_OK
                   : DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld numbers of codec haar", (long long)count);
}

static DsvStatus encode(const DsvCodec *codec, DsvVideoShape video, const float *pixels, float *latent)
{
    DsvVideoShape shape;
    float *values;
    DSVI_TRY(latent_shape(codec, video, &shape));
    DSVI_TRY(make_values(haar_of(codec), &values));
    for (int64_t row = 0; row < COLOURS * shape.frames * shape.height; row++) {
        Blocks blocks;
        for (int64_t x = 0; x < shape.width; x += blocks.beside) {
            blocks = blocks_at(haar_of(codec), video, shape, row, x);
            encode_blocks(&blocks, pixels, values, latent);
        }
    }
    free(values);
    return DSV_OK;
}

static DsvStatus decode(const DsvCodec *codec, DsvVideoShape video, const float *latent, float *pixels)
{
    DsvVideoShape shape;
    float *values;
    DSVI_TRY(latent_shape(codec, video, &shape));
    DSVI_TRY(make_values(haar_of(codec), &values));
    for (int64_t row = 0; row < COLOURS * shape.frames * shape.height; row++) {
        Blocks blocks;
        for (int64_t x = 0; x < shape.width; x += blocks.beside) {
            blocks = blocks_at(haar_of(codec), video, shape, row, x);
            decode_blocks(&blocks, latent, values, pixels);
        }
    }
    free(values);
    return DSV_OK;
}

/* The inverse adds coefficient i of an axis to this many samples: a difference of level k to 2^k, a mean to
 * all of its block. */
static double samples_along(int64_t i, int levels)
{
    return ldexp(1, i == 0 ? levels : level_of(i));
}

static void pixel_errors(const DsvCodec *codec, double *error)
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

static void close_haar(DsvCodec *codec)
{
    Haar *haar = (Haar *)codec;
    free(haar->scale);
    free(haar);
}

static DsvStatus check_levels(const char *key, int64_t levels, int64_t most)
{
    if (levels < 0 || levels > most)
        return DSVI_FAIL(DSV_E_USAGE, "%s is %lld, wanted 0 to %lld", key, (long long)levels,
                         (long long)most);
    return DSV_OK;
}

DsvStatus dsvi_codec_haar_open(const DsvConfig *settings, DsvCodec **out)
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
    haar->codec = (DsvCodec){"haar", latent_shape, encode, decode, pixel_errors, close_haar};
    haar->spatial = spatial;
    haar->temporal = temporal;
    haar->scale = scale;
    for (int64_t i = 0; i < size; i++)
        scale[i] = (float)sqrt(deviation_of(0, 0, 0) * deviation_of(level_of(i >> 2 * spatial),
                                                                    level_of(i >> spatial & mask),
                                                                    level_of(i & mask)));
    *out = &haar->codec;
    return DSV_OK;
}
