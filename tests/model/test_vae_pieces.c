/* A video in strips and chunks gives the bits of the whole video, for random sizes and limits of memory; and
 * the plan of memory is exact. */
#include "test.h"

#include "../base/scratch.h"
#include "base/rng.h"
#include "model/vae/vae_layout.h"
#include "vae_case.h"

enum { VIDEOS = TEST_SANITIZED ? 64 : 320 };

/* A VAE on one backend, opened anew with each limit of memory. */
typedef struct Rig {
    DsviBackend backend;
    DsviDtype act;
    DsviVaeConfig config;
    int64_t temporal, spatial;
    uint64_t draws; /* random numbers drawn so far */
} Rig;

/* Configurations whose levels differ in number, and in where frames are halved and attention lies; the last
 * three have patches and shortcuts. */
static DsviVaeConfig config_of(int number)
{
    DsviVaeConfig config = vae_case_config(2);
    if (number == 1) {
        config.levels = 4;
        config.dim_mult[3] = 1;
        config.temporal_downsample[0] = true;
        config.temporal_downsample[1] = false;
        config.temporal_downsample[2] = true;
    }
    if (number == 2) {
        config.levels = 2;
        config.dim_mult[1] = 1;
        config.num_res_blocks = 2;
        config.decoder_base_dim = 3;
        config.attention[1] = true;
    }
    if (number == 3) {
        config.attention[0] = true;
        config.temporal_downsample[0] = true;
    }
    if (number == 4)
        config.levels = 1;
    if (number >= 5) {
        config.residual = true;
        config.patch = number == 5 ? 1 : 2;
    }
    if (number == 6) {
        const int64_t dim_mult[] = {1, 1, 2, 2};
        config.levels = 4;
        memcpy(config.dim_mult, dim_mult, sizeof dim_mult);
        config.temporal_downsample[2] = true;
        config.decoder_base_dim = 3;
    }
    if (number == 7) {
        config.levels = 1;
        config.num_res_blocks = 2;
    }
    return config;
}

enum { CONFIGS = 8 };

static int64_t draw(Rig *rig, int64_t least, int64_t most)
{
    return least + (int64_t)dsvi_rng_below((DsviRng){3, DSVI_RNG_TEST, 0}, rig->draws++,
                                           (uint64_t)(most - least + 1));
}

static DsviVae *open_vae(Rig *rig, uint64_t limit)
{
    DsviVae *vae;
    DsviVaeOptions options = {.act = rig->act, .encode = true, .decode = true, .memory_bytes = limit};
    assert_ok(dsvi_vae_open(&rig->backend, scratch_path("vae"), &options, &vae));
    return vae;
}

typedef struct Video {
    int64_t frames, height, width, pixels, moments, latents; /* sizes, and elements of the arrays */
} Video;

static Video draw_video(Rig *rig)
{
    Video v = {
        .frames = 1 + rig->temporal * draw(rig, 0, 5),
        .height = rig->spatial * draw(rig, 1, rig->spatial > 8 ? 3 : 20 / rig->spatial),
        .width = rig->spatial * draw(rig, 1, rig->spatial > 8 ? 1 : 8 / rig->spatial),
    };
    int64_t positions = (1 + (v.frames - 1) / rig->temporal) * (v.height / rig->spatial) *
                        (v.width / rig->spatial);
    v.pixels = 3 * v.frames * v.height * v.width;
    v.latents = rig->config.z_dim * positions;
    v.moments = 2 * v.latents;
    return v;
}

/* Encodes or decodes under a limit. */
static float *convert(Rig *rig, const Video *v, bool decode, uint64_t limit, const float *from)
{
    DsviVae *vae = open_vae(rig, limit);
    float *out = calloc((size_t)(decode ? v->pixels : v->moments), sizeof *out);
    assert_non_null(out);
    if (decode)
        assert_ok(dsvi_vae_decode(vae, v->frames, v->height, v->width, from, out));
    else
        assert_ok(dsvi_vae_encode(vae, v->frames, v->height, v->width, from, out));
    dsvi_vae_close(&vae);
    return out;
}

/* Returns the bytes that a plan takes under a limit; 0 if the limit is too low. */
static uint64_t planned(Rig *rig, const Video *v, bool decode, uint64_t limit)
{
    uint64_t bytes;
    DsviVae *vae = open_vae(rig, limit);
    DsvStatus status = dsvi_vae_plan(vae, decode, v->frames, v->height, v->width, &bytes);
    dsvi_vae_close(&vae);
    if (status == DSV_E_NO_MEMORY)
        return 0;
    assert_ok(status);
    assert_true(limit == 0 || bytes <= limit);
    return bytes;
}

/* The least limit under which the video can be processed. */
static uint64_t least_bytes(Rig *rig, const Video *v, bool decode, uint64_t enough)
{
    uint64_t low = 0, high = enough;
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (planned(rig, v, decode, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void check_video(Rig *rig, bool decode, bool least)
{
    Video v = draw_video(rig);
    int64_t in = decode ? v.latents : v.pixels, out = decode ? v.pixels : v.moments;
    uint64_t whole_bytes = planned(rig, &v, decode, 0), few = least_bytes(rig, &v, decode, whole_bytes);
    uint64_t limit = least ? few : few + (uint64_t)draw(rig, 0, (int64_t)(whole_bytes - few));
    float *from = vae_case_random(1000, in);
    float *whole = convert(rig, &v, decode, 0, from), *pieces = convert(rig, &v, decode, limit, from);
    if (memcmp(whole, pieces, (size_t)out * sizeof *whole) != 0)
        fail_msg("%s %lld x %lld x %lld in %llu bytes (whole: %llu): other bits",
                 decode ? "decode" : "encode", (long long)v.frames, (long long)v.height, (long long)v.width,
                 (unsigned long long)limit, (unsigned long long)whole_bytes);
    free(from);
    free(whole);
    free(pieces);
}

/* Converts a video in strips of `rows` rows and chunks of `frames` latent frames. */
static void convert_divided(Rig *rig, const DsviVaeHalf *half, const Video *v, bool decode, int64_t rows,
                            int64_t frames, float *from, float *out)
{
    DsviVaeLayout layout;
    uint64_t least;
    assert_ok(dsvi_vae_layout_make(&rig->backend, rig->act, &rig->config, half, decode, v->frames, v->height,
                                   v->width, 0, &layout, &least));
    dsvi_vae_pass_divide(&layout.strips, rows, frames);
    assert_ok(dsvi_vae_pass_measure(&layout.strips));
    dsvi_vae_pass_divide(&layout.whole, v->height / rig->spatial, frames);
    assert_ok(dsvi_vae_pass_measure(&layout.whole));
    assert_ok(dsvi_vae_layout_allocate(&layout));
    const DsviVaeEnd between = {.tensor = layout.between}, source = {.host = from}, target = {.host = out};
    assert_ok(dsvi_vae_pass_run(decode ? &layout.whole : &layout.strips, source, between));
    assert_ok(dsvi_vae_pass_run(decode ? &layout.strips : &layout.whole, between, target));
    dsvi_vae_layout_free(&layout);
}

static void check_divided(Rig *rig, bool decode)
{
    Video v = draw_video(rig);
    int64_t in = decode ? v.latents : v.pixels, out = decode ? v.pixels : v.moments;
    int64_t latent_frames = 1 + (v.frames - 1) / rig->temporal;
    int64_t rows = draw(rig, 1, v.height), frames = draw(rig, 1, latent_frames);
    DsviVaeHalf half;
    DsviTensorSet *set;
    assert_ok(dsvi_tensor_set_open(scratch_path("vae"), &set));
    assert_ok(dsvi_vae_half_make(&rig->config, decode, &half));
    assert_ok(dsvi_vae_half_load(rig->backend.device, &half, set, rig->act));
    float *from = vae_case_random(2000, in), *whole = calloc((size_t)out, 2 * sizeof *whole);
    assert_non_null(whole);
    convert_divided(rig, &half, &v, decode, v.height, latent_frames, from, whole);
    convert_divided(rig, &half, &v, decode, rows, frames, from, whole + out);
    if (memcmp(whole, whole + out, (size_t)out * sizeof *whole) != 0)
        fail_msg("%s %lld x %lld x %lld in strips of %lld and chunks of %lld: other bits",
                 decode ? "decode" : "encode", (long long)v.frames, (long long)v.height, (long long)v.width,
                 (long long)rows, (long long)frames);
    free(from);
    free(whole);
    dsvi_vae_half_free(rig->backend.device, &half);
    dsvi_tensor_set_close(&set);
}

/* Checks `videos` videos, with every configuration and in both directions. */
static void run_videos(const char *isa, DsviDtype act, int videos, bool divided)
{
    Rig rig = {.act = act};
    assert_ok(dsvi_cpu_open(isa, 2, &rig.backend));
    for (int i = 0; i < videos; i++) {
        if (i == 0 || i * CONFIGS / videos != (i - 1) * CONFIGS / videos) {
            rig.config = config_of(i * CONFIGS / videos);
            dsvi_vae_factors(&rig.config, &rig.temporal, &rig.spatial);
            vae_case_write(scratch_path("vae"), &rig.config, i % 2);
        }
        if (divided)
            check_divided(&rig, i % 2);
        else
            check_video(&rig, i % 2, i % 4 < 2);
    }
    dsvi_cpu_close(&rig.backend);
}

static void limits_of_memory_change_no_bit(void **state)
{
    (void)state;
    run_videos("auto", DSVI_F32, VIDEOS / 4, false);
    run_videos("auto", DSVI_BF16, VIDEOS / 4, false);
}

static void strips_and_chunks_change_no_bit(void **state)
{
    (void)state;
    run_videos("auto", DSVI_F32, VIDEOS / 4, true);
    run_videos("auto", DSVI_BF16, VIDEOS / 4, true);
    run_videos("ref", DSVI_F32, 2 * CONFIGS, true);
}

static void names_the_least_memory(void **state)
{
    Rig rig = {.act = DSVI_F32, .config = config_of(0)};
    uint64_t bytes;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 2, &rig.backend));
    vae_case_write(scratch_path("vae"), &rig.config, false);
    DsviVae *vae = open_vae(&rig, 1000);
    assert_fails(DSV_E_NO_MEMORY, "expected at least 0.0", dsvi_vae_plan(vae, true, 9, 256, 256, &bytes));
    const char *least = strstr(dsv_error_message(), "at least ");
    double gib = least ? strtod(least + strlen("at least "), NULL) : 0;
    dsvi_vae_close(&vae);
    assert_true(gib > 0);
    vae = open_vae(&rig, (uint64_t)(gib * (1 << 30)));
    assert_ok(dsvi_vae_plan(vae, true, 9, 256, 256, &bytes));
    dsvi_vae_close(&vae);
    dsvi_cpu_close(&rig.backend);
}

/* Published sizes are divided so that rows of strips fill the tiles of convolutions, in a few GiB. */
static void published_sizes_fill_tiles(void **state)
{
    static const struct {
        int64_t base_dim, decoder_base_dim, z_dim, patch, frames, height, width;
        double waste, gib; /* at most */
    } cases[] = {
        {160, 256, 48, 2, 121, 704, 1280, 0.03, 7.5}, /* Wan 2.2 TI2V-5B */
        {96, 96, 16, 1, 81, 480, 832, 0.12, 2.5},
        {96, 96, 16, 1, 81, 720, 1280, 0.15, 3},
    };
    DsviBackend backend;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 2, &backend));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const DsviVaeConfig config = {
            .base_dim = cases[i].base_dim,
            .decoder_base_dim = cases[i].decoder_base_dim,
            .z_dim = cases[i].z_dim,
            .levels = 4,
            .dim_mult = {1, 2, 4, 4},
            .num_res_blocks = 2,
            .patch = cases[i].patch,
            .residual = cases[i].patch > 1,
            .temporal_downsample = {false, true, true},
        };
        DsviVaeHalf half;
        DsviVaeLayout layout;
        uint64_t least;
        assert_ok(dsvi_vae_half_make(&config, true, &half));
        assert_ok(dsvi_vae_layout_make(&backend, DSVI_BF16, &config, &half, true, cases[i].frames,
                                       cases[i].height, cases[i].width, 0, &layout, &least));
        double waste = dsvi_vae_tile_waste(&layout.strips), gib = (double)layout.bytes / (double)(1 << 30);
        if (!(waste <= cases[i].waste && gib <= cases[i].gib))
            fail_msg("%lld x %lld x %lld: %.1f %% of the products are waste, in %.2f GiB",
                     (long long)cases[i].frames, (long long)cases[i].height, (long long)cases[i].width,
                     100 * waste, gib);
        dsvi_vae_layout_free(&layout);
        dsvi_vae_half_free(backend.device, &half);
    }
    dsvi_cpu_close(&backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_of_memory_change_no_bit),
        cmocka_unit_test(strips_and_chunks_change_no_bit),
        cmocka_unit_test(names_the_least_memory),
        cmocka_unit_test(published_sizes_fill_tiles),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
