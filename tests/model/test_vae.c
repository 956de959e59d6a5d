/* The VAE's files and arguments: names of both schemes, a file without config.json, every way in which files
 * or sizes do not fit, and the VAE as a codec of several threads. */
#include "test.h"

#include <pthread.h>

#include "../base/scratch.h"
#include "base/safetensors.h"
#include "model/codec/codec.h"
#include "model/vae/vae_parts.h"
#include "vae_case.h"

static DsviBackend backend;

static const DsviVaeOptions BOTH = {.act = DSVI_F32, .encode = true, .decode = true};

static DsvStatus open_close(const char *path)
{
    DsviVae *vae;
    DsvStatus status = dsvi_vae_open(&backend, path, &BOTH, &vae);
    assert_true((status == DSV_OK) == (vae != NULL));
    dsvi_vae_close(&vae);
    return status;
}

/* ---- config.json ---- */

static DsvStatus read_config(const char *text, DsviVaeConfig *out)
{
    assert_ok(dsvi_file_write(scratch_path("config.json"), text, strlen(text)));
    return dsvi_vae_config_read(scratch_path("config.json"), out);
}

static void published_values_are_the_default(void **state)
{
    DsviVaeConfig config;
    int64_t temporal, spatial;
    (void)state;
    assert_ok(read_config("{}", &config));
    assert_int_equal(config.base_dim, 96);
    assert_int_equal(config.decoder_base_dim, 96);
    assert_int_equal(config.z_dim, 16);
    assert_int_equal(config.levels, 4);
    assert_int_equal(config.num_res_blocks, 2);
    dsvi_vae_factors(&config, &temporal, &spatial);
    assert_int_equal(temporal, 4);
    assert_int_equal(spatial, 8);
    assert_true(config.mean[0] == -0.7571 && config.std[15] == 1.9160);
}

static void refuses_configs(void **state)
{
    static const struct {
        const char *text, *words;
        DsvStatus status;
    } bad[] = {
        {"[]", "not a JSON object", DSV_E_FORMAT},
        {"{\"_class_name\": \"AutoencoderKL\"}", "AutoencoderKLWan", DSV_E_UNSUPPORTED},
        {"{\"is_residual\": 1}", "is_residual", DSV_E_FORMAT},
        {"{\"patch_size\": 0}", "patch_size", DSV_E_FORMAT},
        {"{\"patch_size\": 2}", "in_channels is 3, expected 12", DSV_E_UNSUPPORTED},
        {"{\"is_residual\": true, \"dim_mult\": [1, 2, 3, 3]}", "dim_mult[2] is 3, expected a divisor of 16",
         DSV_E_FORMAT},
        {"{\"is_residual\": true, \"dim_mult\": [1, 4, 2, 2]}", "dim_mult[1] is 4 after 2",
         DSV_E_UNSUPPORTED},
        {"{\"in_channels\": 12}", "in_channels", DSV_E_UNSUPPORTED},
        {"{\"base_dim\": 0}", "base_dim", DSV_E_FORMAT},
        {"{\"base_dim\": 1e300}", "base_dim", DSV_E_FORMAT},
        {"{\"base_dim\": \"96\"}", "base_dim", DSV_E_FORMAT},
        {"{\"z_dim\": 65}", "z_dim", DSV_E_FORMAT},
        {"{\"z_dim\": 8}", "latents_mean", DSV_E_FORMAT},
        {"{\"num_res_blocks\": -1}", "num_res_blocks", DSV_E_FORMAT},
        {"{\"dim_mult\": []}", "dim_mult", DSV_E_FORMAT},
        {"{\"dim_mult\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}", "dim_mult", DSV_E_FORMAT},
        {"{\"dim_mult\": [1, 0.5, 1, 1]}", "dim_mult[1]", DSV_E_FORMAT},
        {"{\"dim_mult\": [1, 2]}", "temperal_downsample", DSV_E_FORMAT},
        {"{\"base_dim\": 1, \"dim_mult\": [1, 1, 1, 1]}", "2 or more", DSV_E_FORMAT},
        {"{\"temperal_downsample\": [true]}", "list of 3", DSV_E_FORMAT},
        {"{\"temperal_downsample\": [1, 0, 0]}", "temperal_downsample[0]", DSV_E_FORMAT},
        {"{\"attn_scales\": 1}", "attn_scales", DSV_E_FORMAT},
        {"{\"latents_mean\": [1]}", "latents_mean", DSV_E_FORMAT},
        {"{\"latents_std\": [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]}", "latents_std[0]",
         DSV_E_FORMAT},
    };
    DsviVaeConfig config;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(bad[i].status, bad[i].words, read_config(bad[i].text, &config));
    assert_fails(DSV_E_NOT_FOUND, "nowhere", dsvi_vae_config_read(scratch_path("nowhere"), &config));
}

/* ---- weights ---- */

/* The published shape but few channels, so that the file tells the whole configuration. */
static DsviVaeConfig published_config(void)
{
    DsviVaeConfig config;
    assert_ok(read_config("{\"base_dim\": 2, \"num_res_blocks\": 1}", &config));
    return config;
}

/* The published shape of Wan 2.2 with few channels. */
static DsviVaeConfig wan22_config(void)
{
    DsviVaeConfig config;
    assert_ok(read_config("{\"base_dim\": 2, \"num_res_blocks\": 1, \"z_dim\": 48, \"is_residual\": true, "
                          "\"patch_size\": 2, \"in_channels\": 12, \"out_channels\": 12}",
                          &config));
    return config;
}

/* Returns the normalised moments of a video (3, 5, 32, 32). `elements`: of the latents. */
static float *encode_with(const char *path, const float *video, int64_t *elements)
{
    DsviVae *vae;
    assert_ok(dsvi_vae_open(&backend, path, &BOTH, &vae));
    const DsviVaeConfig *config = dsvi_vae_config(vae);
    int64_t temporal, spatial;
    dsvi_vae_factors(config, &temporal, &spatial);
    int64_t positions = 2 * (32 / spatial) * (32 / spatial);
    *elements = config->z_dim * positions;
    float *moments = malloc((size_t)(2 * *elements) * sizeof *moments);
    assert_non_null(moments);
    assert_ok(dsvi_vae_encode(vae, 5, 32, 32, video, moments));
    dsvi_vae_normalize(config, positions, moments);
    dsvi_vae_close(&vae);
    return moments;
}

static void check_file_alone(const DsviVaeConfig *config)
{
    const char *file = "vae/diffusion_pytorch_model.safetensors";
    float *video = vae_case_random(1, 3 * 5 * 32 * 32);
    int64_t n, found_n;
    vae_case_write(scratch_path("vae"), config, false);
    assert_true(dsvi_vae_is(scratch_path("vae")));
    float *wanted = encode_with(scratch_path("vae"), video, &n);
    for (int original = 0; original < 2; original++) {
        vae_case_write(scratch_path("vae"), config, original);
        assert_true(dsvi_vae_is(scratch_path(file)));
        for (int alone = 0; alone < 2; alone++) {
            float *found = encode_with(scratch_path(alone ? file : "vae"), video, &found_n);
            assert_int_equal(found_n, n);
            assert_memory_equal(found, wanted, (size_t)n * sizeof *found);
            free(found);
        }
    }
    free(wanted);
    free(video);
}

static void a_file_alone_tells_the_configuration(void **state)
{
    DsviVaeConfig config = published_config();
    (void)state;
    check_file_alone(&config);
    config = wan22_config();
    check_file_alone(&config);
}

static void wan22_has_the_published_number_of_weights(void **state)
{
    DsviVaeConfig config;
    int64_t count = 0;
    (void)state;
    assert_ok(
        read_config("{\"base_dim\": 160, \"decoder_base_dim\": 256, \"z_dim\": 48, \"is_residual\": true, "
                    "\"patch_size\": 2, \"in_channels\": 12, \"out_channels\": 12}",
                    &config));
    for (int decode = 0; decode < 2; decode++) {
        DsviVaeHalf half;
        assert_ok(dsvi_vae_half_make(&config, decode, &half));
        for (int64_t p = 0; p < half.param_count; p++) {
            int64_t elements = 1;
            for (int i = 0; i < half.params[p].ndim; i++)
                elements *= half.params[p].shape[i];
            count += half.params[p].mean ? 0 : elements;
        }
        dsvi_vae_half_free(NULL, &half);
    }
    assert_int_equal(count, 704688668);
}

static void wan22_has_its_own_statistics(void **state)
{
    const DsviVaeConfig config = wan22_config();
    int64_t temporal, spatial;
    (void)state;
    dsvi_vae_factors(&config, &temporal, &spatial);
    assert_int_equal(temporal, 4);
    assert_int_equal(spatial, 16);
    assert_true(config.mean[0] == -0.2289 && config.mean[47] == -0.0667);
    assert_true(config.std[0] == 0.4765 && config.std[47] == 0.7744);
    assert_fails(DSV_E_SHAPE, "height 24, expected 16 or 32", dsvi_vae_check_size(&config, 5, 24, 32));
}

/* Copies the file of weights to the folder "other", without the tensor number `left_out` and with the first
 * two dimensions of tensor number `turned` exchanged. */
static void copy_changed(size_t left_out, size_t turned, const DsviStoredTensor *added)
{
    DsviSafetensors *file;
    assert_ok(dsvi_safetensors_open(scratch_path("vae/diffusion_pytorch_model.safetensors"), &file));
    size_t count = dsvi_safetensors_count(file), n = 0;
    DsviStoredTensor *tensors = calloc(count + 1, sizeof *tensors);
    assert_non_null(tensors);
    for (size_t i = 0; i < count; i++) {
        if (i == left_out)
            continue;
        tensors[n] = *dsvi_safetensors_at(file, i);
        if (i == turned) {
            int64_t first = tensors[n].shape[0];
            tensors[n].shape[0] = tensors[n].shape[1];
            tensors[n].shape[1] = first;
        }
        n++;
    }
    if (added)
        tensors[n++] = *added;
    assert_ok(dsvi_folder_make(scratch_path("other")));
    assert_ok(dsvi_safetensors_write(scratch_path("other/diffusion_pytorch_model.safetensors"), tensors, n,
                                     NULL, 0));
    free(tensors);
    dsvi_safetensors_close(&file);
}

static void refuses_weights(void **state)
{
    DsviVaeConfig config = vae_case_config(2);
    const float number = 1;
    const DsviStoredTensor extra = {"encoder.extra.weight", DSVI_F32, 1, {1}, 1, sizeof number, &number};
    (void)state;
    vae_case_write(scratch_path("vae"), &config, false);
    copy_changed(SIZE_MAX, SIZE_MAX, NULL);
    vae_case_write_config(scratch_path("other"), &config);
    assert_ok(open_close(scratch_path("other")));
    copy_changed(4, SIZE_MAX, NULL);
    assert_fails(DSV_E_NOT_FOUND, "down_blocks.0.conv1.", open_close(scratch_path("other")));
    copy_changed(SIZE_MAX, 0, NULL);
    assert_fails(DSV_E_SHAPE, "encoder.conv_in.weight", open_close(scratch_path("other")));
    copy_changed(SIZE_MAX, SIZE_MAX, &extra);
    assert_fails(DSV_E_SHAPE, "encoder.extra.weight", open_close(scratch_path("other")));
    config.dim_mult[2] = 1;
    vae_case_write_config(scratch_path("other"), &config);
    assert_fails(DSV_E_SHAPE, "expected", open_close(scratch_path("other")));
    assert_fails(DSV_E_NOT_FOUND, "nowhere", open_close(scratch_path("nowhere")));
}

static void refuses_files_without_a_config(void **state)
{
    DsviVaeConfig config = vae_case_config(2);
    const char *file = scratch_path("single/diffusion_pytorch_model.safetensors");
    const float number = 1;
    const DsviStoredTensor other = {"blocks.0.weight", DSVI_F32, 1, {1}, 1, sizeof number, &number};
    (void)state;
    vae_case_write(scratch_path("single"), &config, true);
    assert_fails(DSV_E_UNSUPPORTED, "3 latent channels, expected 16", open_close(file));
    config.patch = 2;
    config.residual = true;
    vae_case_write(scratch_path("single"), &config, true);
    assert_fails(DSV_E_UNSUPPORTED, "3 latent channels, expected 48", open_close(file));
    assert_ok(dsvi_safetensors_write(file, &other, 1, NULL, 0));
    assert_false(dsvi_vae_is(file));
    assert_fails(DSV_E_NOT_FOUND, "expected the tensors of a Wan VAE", open_close(file));
}

/* ---- sizes ---- */

static void names_the_nearest_sizes(void **state)
{
    DsviVaeConfig config;
    (void)state;
    assert_ok(read_config("{}", &config));
    assert_ok(dsvi_vae_check_size(&config, 81, 480, 832));
    assert_ok(dsvi_vae_check_size(&config, 1, 8, 8));
    assert_fails(DSV_E_SHAPE, "num_frames 80, expected 77 or 81", dsvi_vae_check_size(&config, 80, 480, 832));
    assert_fails(DSV_E_SHAPE, "num_frames 0, expected 1", dsvi_vae_check_size(&config, 0, 480, 832));
    assert_fails(DSV_E_SHAPE, "height 481, expected 480 or 488", dsvi_vae_check_size(&config, 81, 481, 832));
    assert_fails(DSV_E_SHAPE, "width 7, expected 8", dsvi_vae_check_size(&config, 81, 480, 7));
    assert_fails(DSV_E_SHAPE, "width", dsvi_vae_check_size(&config, 81, 480, INT64_MAX));
    assert_fails(DSV_E_SHAPE, "height", dsvi_vae_check_size(&config, 81, INT64_MIN, 8));
}

static void a_half_that_is_not_loaded_is_refused(void **state)
{
    const DsviVaeConfig config = vae_case_config(2);
    const DsviVaeOptions decoder = {.act = DSVI_F32, .decode = true};
    DsviVae *vae;
    float number = 0;
    uint64_t bytes;
    (void)state;
    vae_case_write(scratch_path("vae"), &config, false);
    assert_ok(dsvi_vae_open(&backend, scratch_path("vae"), &decoder, &vae));
    assert_fails(DSV_E_USAGE, "encoder", dsvi_vae_encode(vae, 1, 4, 4, &number, &number));
    assert_fails(DSV_E_USAGE, "encoder", dsvi_vae_plan(vae, false, 1, 4, 4, &bytes));
    assert_ok(dsvi_vae_plan(vae, true, 1, 4, 4, &bytes));
    assert_fails(DSV_E_SHAPE, "height 5", dsvi_vae_decode(vae, 1, 5, 4, &number, &number));
    dsvi_vae_close(&vae);
}

/* ---- codec ---- */

enum { THREADS = 4, PIXELS = 3 * 3 * 8 * 4, LATENTS = 3 * 2 * 2 };

static const DsviVideoShape VIDEO = {3, 3, 8, 4};

typedef struct Call {
    const DsviCodec *codec;
    const float *video;
    float latent[LATENTS], pixels[PIXELS];
    DsvStatus status;
} Call;

static void *encode_and_decode(void *context)
{
    Call *call = context;
    call->status = call->codec->encode(call->codec, VIDEO, call->video, call->latent);
    if (call->status == DSV_OK)
        call->status = call->codec->decode(call->codec, VIDEO, call->latent, call->pixels);
    return NULL;
}

static void threads_share_a_codec(void **state)
{
    const DsviVaeConfig config = vae_case_config(2);
    DsviVideoShape latent, grey = {1, 3, 8, 4};
    DsviVae *vae;
    DsviCodec *codec;
    Call calls[THREADS];
    pthread_t threads[THREADS];
    float moments[2 * LATENTS], pixels[PIXELS];
    (void)state;
    vae_case_write(scratch_path("vae"), &config, false);
    assert_ok(dsvi_vae_open(&backend, scratch_path("vae"), &BOTH, &vae));
    assert_ok(dsvi_codec_wan_open(vae, &codec));
    assert_ok(codec->latent_shape(codec, VIDEO, &latent));
    assert_int_equal(latent.channels * latent.frames * latent.height * latent.width, LATENTS);
    assert_fails(DSV_E_SHAPE, "colours", codec->latent_shape(codec, grey, &latent));
    float *video = vae_case_random(3, PIXELS);
    for (int i = 0; i < THREADS; i++) {
        calls[i] = (Call){.codec = codec, .video = video};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_and_decode, &calls[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_ok(dsvi_vae_encode(vae, 3, 8, 4, video, moments));
    assert_ok(dsvi_vae_decode(vae, 3, 8, 4, moments, pixels));
    dsvi_vae_normalize(&config, LATENTS / 3, moments);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(calls[i].status, DSV_OK);
        assert_memory_equal(calls[i].latent, moments, sizeof calls[i].latent);
        /* normalising and back may change the last bit of a latent */
        assert_error_below(relative_l2(DSVI_F32, calls[i].pixels, DSVI_F32, pixels, PIXELS), 1e-5, "decoded");
    }
    free(video);
    codec->close(codec);
    dsvi_vae_close(&vae);
}

static int set_up(void **state)
{
    return scratch_make(state) || dsvi_cpu_open("auto", 2, &backend) != DSV_OK;
}

static int tear_down(void **state)
{
    dsvi_cpu_close(&backend);
    return scratch_remove(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values_are_the_default),
        cmocka_unit_test(refuses_configs),
        cmocka_unit_test(a_file_alone_tells_the_configuration),
        cmocka_unit_test(refuses_weights),
        cmocka_unit_test(refuses_files_without_a_config),
        cmocka_unit_test(names_the_nearest_sizes),
        cmocka_unit_test(a_half_that_is_not_loaded_is_refused),
        cmocka_unit_test(threads_share_a_codec),
        cmocka_unit_test(wan22_has_its_own_statistics),
        cmocka_unit_test(wan22_has_the_published_number_of_weights),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
