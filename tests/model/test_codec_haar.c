/* The haar codec: decoding inverts encoding, channels are Haar bands, latent frames are causal, and
 * unsupported sizes are refused. */
#include "test.h"

#include "base/rng.h"
#include "model/codec/codec.h"

static DsviCodec *open_levels(int spatial, int temporal)
{
    DsvConfig settings;
    DsviCodec *codec;
    dsv_config_defaults(&settings);
    settings.codec_spatial_levels = spatial;
    settings.codec_temporal_levels = temporal;
    assert_ok(dsvi_codec_open(&settings, &codec));
    return codec;
}

static int64_t elements(DsviVideoShape shape)
{
    return shape.channels * shape.frames * shape.height * shape.width;
}

/* Returns n random values in [-1, 1); the caller frees them. */
static float *random_values(int64_t n, uint32_t stream)
{
    DsviRng rng = {7, DSVI_RNG_TEST, stream};
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)(2 * dsvi_rng_uniform(rng, (uint64_t)i) - 1);
    return values;
}

static void *filled(int64_t n)
{
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        values[i] = NAN; /* so that elements that are not written show */
    return values;
}

/* Encodes and decodes. A pixel is a sum of at most 1 + 6 + 6 + 4 coefficients per axis product. Each lifting
 * step, the scaling and its inverse round a value of at most 1 once. This makes 2 (levels + 1) roundings of
 * 6e-8, less than 1e-6 for the levels tried here. */
static void check_inverse(int spatial, int temporal, int64_t frames, int64_t height, int64_t width)
{
    DsviCodec *codec = open_levels(spatial, temporal);
    DsviVideoShape video = {3, frames, height, width}, shape;
    assert_ok(codec->latent_shape(codec, video, &shape));
    assert_int_equal(shape.channels, 3 << (2 * spatial + temporal));
    assert_int_equal(shape.frames, 1 + (frames - 1) / (1 << temporal));
    assert_int_equal(shape.height << spatial, height);
    assert_int_equal(shape.width << spatial, width);
    float *pixels = random_values(elements(video), 1), *back = filled(elements(video));
    float *latent = filled(elements(shape));
    assert_ok(codec->encode(codec, video, pixels, latent));
    for (int64_t i = 0; i < elements(shape); i++)
        assert_true(isfinite(latent[i]));
    assert_ok(codec->decode(codec, video, latent, back));
    double worst = 0;
    for (int64_t i = 0; i < elements(video); i++)
        worst = fmax(worst, isnan(back[i]) ? INFINITY : fabs((double)back[i] - (double)pixels[i]));
    assert_error_below(worst, 1e-6, "levels %d and %d, %lld frames", spatial, temporal, (long long)frames);
    free(pixels);
    free(back);
    free(latent);
    codec->close(codec);
}

static void inverse_is_exact(void **state)
{
    (void)state;
    for (int spatial = 0; spatial <= 4; spatial++)
        for (int temporal = 0; temporal <= 4; temporal++)
            for (int blocks = 0; blocks <= 3; blocks++)
                check_inverse(spatial, temporal, 1 + (blocks << temporal), (int64_t)3 << spatial,
                              (int64_t)5 << spatial);
    check_inverse(6, 4, 17, 64, 128);
    check_inverse(2, 1, 17, 96, 96);
}

/* Returns the weight of sample x in coefficient i of an axis of 2^levels samples. By definition a coefficient
 * is the mean of all samples, or half the difference of two means over 2^(level - 1) samples. */
static double weight(int levels, int64_t i, int64_t x)
{
    int64_t half = 1;
    if (i == 0)
        return 1.0 / (double)((int64_t)1 << levels);
    while (!(i & half))
        half *= 2;
    /* Clearing the lowest bit of i gives the first sample of the coefficient's range. */
    int64_t start = i & ~half;
    if (x < start || x >= start + 2 * half)
        return 0;
    return (x < start + half ? 0.5 : -0.5) / (double)half;
}

/* Each channel is proportional to its Haar band; corresponding bands of rows and columns have the same
 * scale. */
static void bands_are_haar(void **state)
{
    enum { SPATIAL = 2, TEMPORAL = 2, SIDE = 4, FRAMES = 5, PLANE = SIDE * SIDE, BAND = SIDE * SIDE * 4 };
    DsviCodec *codec = open_levels(SPATIAL, TEMPORAL);
    DsviVideoShape video = {3, FRAMES, SIDE, SIDE};
    float *pixels = random_values(elements(video), 2), latent[BAND * 3 * 2];
    double scale[BAND];
    (void)state;
    assert_ok(codec->encode(codec, video, pixels, latent));
    for (int colour = 0; colour < 3; colour++) {
        for (int band = 0; band < BAND; band++) {
            double value = 0;
            for (int x = 0; x < BAND; x++) {
                double w = weight(TEMPORAL, band / PLANE, x / PLANE) *
                           weight(SPATIAL, band / SIDE % SIDE, x / SIDE % SIDE) *
                           weight(SPATIAL, band % SIDE, x % SIDE);
                value += w * (double)pixels[colour * FRAMES * PLANE + PLANE + x];
            }
            double found = latent[(band * 3 + colour) * 2 + 1];
            if (colour == 0)
                scale[band] = found / value;
            assert_true(scale[band] > 1);
            assert_error_below(fabs(found - scale[band] * value), 1e-5 * scale[band], "band %d", band);
        }
    }
    /* Bands along rows have the scale of bands along columns. Coarser bands have larger deviations and are
     * divided by larger numbers. */
    assert_error_below(fabs(scale[1] / scale[SIDE] - 1), 1e-5, "finest bands");
    assert_error_below(fabs(scale[2] / scale[2 * SIDE] - 1), 1e-5, "coarse bands");
    assert_true(scale[0] < 0.9 * scale[2] && scale[2] < 0.9 * scale[1]);
    free(pixels);
    codec->close(codec);
}

/* In a video that never changes only the means are not zero, and they equal those of the first latent
 * frame. */
static void still_video_has_only_means(void **state)
{
    DsviCodec *codec = open_levels(1, 2);
    DsviVideoShape video = {3, 9, 4, 6}, shape;
    (void)state;
    assert_ok(codec->latent_shape(codec, video, &shape));
    float *pixels = filled(elements(video)), *latent = filled(elements(shape));
    for (int64_t i = 0; i < elements(video); i++)
        pixels[i] = 0.25f * (float)(1 + i / (elements(video) / 3));
    assert_ok(codec->encode(codec, video, pixels, latent));
    int64_t channel = elements(shape) / shape.channels;
    for (int64_t i = 0; i < elements(shape); i++) {
        if (i / channel < 3)
            assert_true(latent[i] == latent[i / channel * channel] && latent[i] > 0);
        else
            assert_true(latent[i] == 0);
    }
    free(pixels);
    free(latent);
    codec->close(codec);
}

/* Decodes, for each channel, an error of one at one position of the last latent frame. */
static void pixel_errors_are_what_decoding_makes_of_an_error(void **state)
{
    enum { SPATIAL = 2, TEMPORAL = 2 };
    DsviCodec *codec = open_levels(SPATIAL, TEMPORAL);
    DsviVideoShape video = {3, 9, 8, 8}, shape;
    (void)state;
    assert_ok(codec->latent_shape(codec, video, &shape));
    double *error = filled(2 * shape.channels);
    float *latent = filled(elements(shape)), *pixels = filled(elements(video));
    int64_t place = shape.frames * shape.height * shape.width;
    codec->pixel_errors(codec, error);
    for (int64_t c = 0; c < shape.channels; c++) {
        double sum = 0;
        memset(latent, 0, (size_t)elements(shape) * sizeof *latent);
        latent[c * place + place - 1] = 1;
        assert_ok(codec->decode(codec, video, latent, pixels));
        for (int64_t i = 0; i < elements(video); i++)
            sum += (double)pixels[i] * pixels[i];
        assert_error_below(fabs(error[c] / sum - 1), 1e-6, "channel %lld", (long long)c);
    }
    free(error);
    free(latent);
    free(pixels);
    codec->close(codec);
}

/* Latent frame f depends only on the video frames that it represents. */
static void latent_frames_are_local(void **state)
{
    DsviCodec *codec = open_levels(1, 1);
    DsviVideoShape video = {3, 5, 2, 2}, shape;
    (void)state;
    assert_ok(codec->latent_shape(codec, video, &shape));
    float *pixels = random_values(elements(video), 3);
    float *before = filled(elements(shape)), *after = filled(elements(shape));
    assert_ok(codec->encode(codec, video, pixels, before));
    for (int64_t frame = 0; frame < video.frames; frame++) {
        float kept = pixels[frame * 4];
        pixels[frame * 4] += 1;
        assert_ok(codec->encode(codec, video, pixels, after));
        pixels[frame * 4] = kept;
        for (int64_t f = 0; f < shape.frames; f++) {
            bool same = true;
            for (int64_t c = 0; c < shape.channels; c++)
                same = same && before[c * shape.frames + f] == after[c * shape.frames + f];
            assert_int_equal(same, f != (frame + 1) / 2);
        }
    }
    free(pixels);
    free(before);
    free(after);
    codec->close(codec);
}

static void refuses_sizes(void **state)
{
    DsviCodec *codec = open_levels(2, 1);
    DsviVideoShape shape;
    DsvConfig settings;
    float nothing[1] = {0};
    (void)state;
    assert_fails(DSV_E_SHAPE, "num_frames 16, expected 15 or 17",
                 codec->latent_shape(codec, (DsviVideoShape){3, 16, 8, 8}, &shape));
    assert_fails(DSV_E_SHAPE, "num_frames 0, expected 1",
                 codec->latent_shape(codec, (DsviVideoShape){3, 0, 8, 8}, &shape));
    assert_fails(DSV_E_SHAPE, "height 10, expected 8 or 12",
                 codec->latent_shape(codec, (DsviVideoShape){3, 17, 10, 8}, &shape));
    assert_fails(DSV_E_SHAPE, "width 3, expected 4",
                 codec->latent_shape(codec, (DsviVideoShape){3, 17, 8, 3}, &shape));
    assert_fails(DSV_E_SHAPE, "3 colours", codec->latent_shape(codec, (DsviVideoShape){4, 17, 8, 8}, &shape));
    assert_fails(DSV_E_SHAPE, "width 6",
                 codec->encode(codec, (DsviVideoShape){3, 1, 4, 6}, nothing, nothing));
    assert_fails(DSV_E_SHAPE, "width 6",
                 codec->decode(codec, (DsviVideoShape){3, 1, 4, 6}, nothing, nothing));
    codec->close(codec);
    dsv_config_defaults(&settings);
    settings.codec_spatial_levels = 7;
    assert_fails(DSV_E_USAGE, "codec.spatial_levels", dsvi_codec_open(&settings, &codec));
    assert_null(codec);
    strcpy(settings.codec_name, "vae");
    assert_fails(DSV_E_USAGE, "no codec vae", dsvi_codec_open(&settings, &codec));
    assert_null(codec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inverse_is_exact),
        cmocka_unit_test(bands_are_haar),
        cmocka_unit_test(still_video_has_only_means),
        cmocka_unit_test(pixel_errors_are_what_decoding_makes_of_an_error),
        cmocka_unit_test(latent_frames_are_local),
        cmocka_unit_test(refuses_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
