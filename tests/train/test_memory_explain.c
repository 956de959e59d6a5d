/* What a run that does not fit is told: the sizes, the largest classes, and settings that would fit. */
#include "cpu/cpu.h"
#include "tiny.h"
#include "train/run_facts.h"
#include "train/trainer.h"

typedef struct Bench {
    DsvConfig settings;
    DsvBackend backend;
    DsvCodec *codec;
    DsvDitConfig config;
    int64_t in_channels;
    size_t kept, recomputed; /* bytes that the run plans with all activations, and with the blocks' inputs */
} Bench;

static size_t nothing_used(DsvDevice *device)
{
    (void)device;
    return 0;
}

/* Larger clips and more blocks than tiny, so that activations outweigh the gradients that lie over them. */
static void open_bench(Bench *b)
{
    enum { FRAMES = 17, SIDE = 64 };
    DsvVideoShape video = {3, FRAMES, SIDE, SIDE}, latent;
    DsvTrainer *trainer;
    DsvArena plan, host;
    memset(b, 0, sizeof *b);
    tiny_settings(&b->settings);
    b->settings.num_frames = FRAMES;
    b->settings.height = b->settings.width = SIDE;
    b->settings.model_num_layers = 6;
    assert_ok(dsvi_codec_open(&b->settings, &b->codec));
    assert_ok(b->codec->latent_shape(b->codec, video, &latent));
    assert_ok(dsvi_dit_config_make(&b->settings, &b->config));
    b->in_channels = b->config.in_channels = b->config.out_channels = latent.channels;
    assert_ok(dsvi_cpu_open("auto", 1, &b->backend));
    b->backend.device->memory_used = nothing_used;
    assert_ok(dsvi_trainer_create(&b->settings, &b->backend, NULL, b->codec, &b->config, NULL, NULL,
                                  &trainer));
    DsvConfig recomputing = b->settings;
    assert_ok(dsv_config_set(&recomputing, "gradient_checkpointing=true"));
    assert_ok(dsvi_trainer_plan(trainer, &recomputing, &plan, &host));
    b->kept = trainer->arena.used;
    b->recomputed = plan.used;
    dsvi_trainer_free(&trainer);
}

static void close_bench(Bench *b)
{
    b->codec->close(b->codec);
    dsvi_cpu_close(&b->backend);
}

static void says_what_fits(void **state)
{
    static const char *const ONE_FITS = "it would fit with gradient_checkpointing=true train_batch_size=2 ";
    DsvTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    assert_true(b.recomputed < b.kept);
    b.backend.device->memory_bytes = b.recomputed;
    assert_fails(DSV_E_NO_MEMORY, ONE_FITS,
                 dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config, NULL, NULL,
                                     &trainer));
    assert_null(trainer);
    assert_non_null(strstr(dsv_error_message(), "the most goes to "));
    close_bench(&b);
}

static size_t too_long; /* for the device to grant at once */

static DsvStatus grant_short(DsvDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes < too_long)
        return device->host_alloc(device, bytes, out);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of device memory", bytes);
}

/* By the books there is room, and the device has it in pieces. */
static void names_other_settings_than_failed(void **state)
{
    DsvTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    too_long = b.kept;
    b.backend.device->memory_bytes = 2 * b.kept;
    b.backend.device->mem_alloc = grant_short;
    assert_fails(DSV_E_NO_MEMORY, "it would fit with gradient_checkpointing=selective",
                 dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config, NULL, NULL,
                                     &trainer));
    close_bench(&b);
}

static void says_that_nothing_fits(void **state)
{
    DsvTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    b.backend.device->memory_bytes = b.recomputed / 4; /* the host's books still find room there */
    assert_fails(DSV_E_NO_MEMORY, "no checkpointing makes it fit",
                 dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config, NULL, NULL,
                                     &trainer));
    close_bench(&b);
}

/* As of a GPU, whose memory is not the host's: lists that need not lie there are the first to go. */
static void says_that_lists_may_leave(void **state)
{
    static const char *const FITS = "would fit with sparse.offload_lists=true gradient_checkpointing=false";
    DsvTrainer *trainer;
    DsvArena plan, host;
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(dsv_config_set(&b.settings, "sparse.list_memory=0.5"));
    assert_ok(dsvi_dit_config_make(&b.settings, &b.config));
    b.config.in_channels = b.config.out_channels = b.in_channels;
    assert_ok(dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config, NULL, NULL, &trainer));
    DsvConfig offloading = b.settings;
    assert_ok(dsv_config_set(&offloading, "sparse.offload_lists=true"));
    assert_ok(dsvi_trainer_plan(trainer, &offloading, &plan, &host));
    assert_true(plan.used < trainer->arena.used && host.used > trainer->host_arena.used);
    dsvi_trainer_free(&trainer);
    b.backend.device->kind = DSV_DEVICE_CUDA;
    b.backend.device->memory_bytes = plan.used;
    b.backend.device->host_bytes = host.used;
    assert_fails(DSV_E_NO_MEMORY, FITS, dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config,
                                                            NULL, NULL, &trainer));
    b.backend.device->host_bytes = host.used - 1;
    assert_fails(DSV_E_NO_MEMORY, "it", dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec,
                                                            &b.config, NULL, NULL, &trainer));
    assert_null(strstr(dsv_error_message(), "offload_lists"));
    close_bench(&b);
}

static size_t too_much; /* for the host to lock */

static DsvStatus lock_little(DsvDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes < too_much)
        return device->mem_alloc(device, bytes, out);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of page-locked host memory: out of memory", bytes);
}

/* Lists take the host's memory too: the preview tells it, and so does a failure. */
static void tells_what_lists_take_of_the_host(void **state)
{
    DsvTrainer *trainer;
    DsvRunFacts facts;
    char line[512], wanted[64];
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(dsv_config_set(&b.settings, "sparse.offload_lists=true"));
    b.backend.device->kind = DSV_DEVICE_CUDA;
    assert_ok(dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config, NULL, NULL, &trainer));
    dsvi_run_facts(trainer, 0, 0, 1, &facts);
    dsvi_run_facts_memory(&facts, line, sizeof line);
    assert_true(facts.host_lists > 0);
    assert_int_equal(facts.host + facts.host_lists, trainer->host_arena.used);
    snprintf(wanted, sizeof wanted, ", lists %.1f, program", (double)facts.host_lists / 1048576);
    assert_non_null(strstr(line, wanted));
    too_much = trainer->host_arena.used;
    dsvi_trainer_free(&trainer);
    b.backend.device->host_alloc = lock_little;
    assert_fails(DSV_E_NO_MEMORY, "sparse.offload_lists is true, and lists take ",
                 dsvi_trainer_create(&b.settings, &b.backend, NULL, b.codec, &b.config, NULL, NULL,
                                     &trainer));
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_fits), cmocka_unit_test(names_other_settings_than_failed),
        cmocka_unit_test(says_that_nothing_fits),
        cmocka_unit_test(says_that_lists_may_leave), cmocka_unit_test(tells_what_lists_take_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
