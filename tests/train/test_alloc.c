/* After each kind of step has run once, steps and held-out losses allocate no memory in any thread of the
 * process. malloc and its relatives are defined here and replace the C library's. Sanitizers replace them
 * too, so this test is not built with sanitizers. Allocations by oneDNN are not counted: during each
 * execution oneDNN keeps the arguments in a small map. */
#include "test.h"

#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>

#include <dnnl.h>

#include "cpu/cpu.h"
#include "tiny.h"
#include "train/step.h"

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static atomic_int watching;
static atomic_long allocations;
static _Thread_local int inside_onednn;
static dnnl_status_t (*execute)(const_dnnl_primitive_t, dnnl_stream_t, int, const dnnl_exec_arg_t *);

dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                     const dnnl_exec_arg_t *args)
{
    inside_onednn++;
    dnnl_status_t status = execute(primitive, stream, count, args);
    inside_onednn--;
    return status;
}

static void note(void)
{
    if (atomic_load(&watching) && !inside_onednn)
        atomic_fetch_add(&allocations, 1);
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    note();
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note();
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    note();
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : 12;
}

/* Clips of drifting waves, which attention can learn, unlike noise. */
static DsvStatus next_latent(void *context, DsviSample *sample)
{
    int64_t elements = *(int64_t *)context;
    float *latent = sample->latent;
    for (int64_t i = 0; i < elements; i++)
        latent[i] = (float)sin(0.37 * (double)i);
    return DSV_OK;
}

static void a_step_allocates_nothing(void **state)
{
    DsvConfig settings;
    DsviBackend backend;
    DsviCodec *codec;
    DsviTrainer *trainer;
    DsviDitConfig config;
    DsviStepResult result;
    DsviVideoShape video = {3, TINY_FRAMES, TINY_SIDE, TINY_SIDE}, latent;
    DsviDataset *dataset;
    DsviHeldOutLoss held_out;
    const DsvEvents nobody = {0};
    const char *const *assignment = *state;
    const char *clips = tiny_folder();
    tiny_clips(clips, 1);
    tiny_settings(&settings);
    snprintf(settings.validation_data, sizeof settings.validation_data, "%s", clips);
    settings.validation_clips = 1;
    for (; *assignment; assignment++)
        assert_ok(dsv_config_set(&settings, *assignment));
    assert_ok(dsvi_codec_open(&settings, &codec));
    assert_ok(codec->latent_shape(codec, video, &latent));
    assert_ok(dsvi_dit_config_make(&settings, &config));
    config.in_channels = config.out_channels = latent.channels;
    assert_ok(dsvi_cpu_open("auto", 2, &backend));
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){.settings = &settings, .backend = &backend, .codec = codec, .config = &config},
        &trainer));
    assert_ok(dsvi_trainer_start_new(trainer, 1));
    assert_ok(dsvi_dataset_open(clips, &settings, &dataset));
    assert_ok(dsvi_held_out_fill(trainer->held_out, dataset, &settings, codec, NULL, NULL));
    DsviSampleSource source = {.context = &trainer->elements, .next = next_latent};

    /* Ten steps: dense steps, steps with a profile, refreshed projections, and blocks that became sparse. */
    for (int step = 0; step < 10; step++)
        assert_ok(dsvi_train_step(trainer, &source, &result));
    DsviSparseReport report;
    dsvi_sparse_report(trainer->sparse, &report);
    if (settings.sparse_enabled)
        assert_true(report.sparse_blocks > 0);
    assert_ok(dsvi_held_out_measure(trainer->held_out, trainer->sparse, &nobody, &held_out));
    atomic_store(&allocations, 0);
    atomic_store(&watching, 1);
    DsvStatus status = DSV_OK;
    for (int step = 0; step < 12 && status == DSV_OK; step++)
        status = dsvi_train_step(trainer, &source, &result);
    if (status == DSV_OK)
        status = dsvi_held_out_measure(trainer->held_out, trainer->sparse, &nobody, &held_out);
    atomic_store(&watching, 0);
    assert_ok(status);
    assert_int_equal(atomic_load(&allocations), 0);

    dsvi_dataset_close(&dataset);
    assert_ok(dsvi_folder_remove(clips));
    dsvi_trainer_free(&trainer);
    codec->close(codec);
    dsvi_cpu_close(&backend);
}

/* The counter must count an allocation. */
static void the_counter_counts(void **state)
{
    (void)state;
    atomic_store(&allocations, 0);
    atomic_store(&watching, 1);
    void *volatile memory = malloc(10);
    atomic_store(&watching, 0);
    free(memory);
    assert_int_equal(atomic_load(&allocations), 1);
}

static const char *const PROJECTION[] = {NULL};
static const char *const PREDICTOR[] = {"sparse.selector=predictor", NULL};
static const char *const DENSE[] = {"sparse.enabled=false", "gradient_checkpointing=true", NULL};

int main(void)
{
    *(void **)&execute = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    if (!execute)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test_prestate(a_step_allocates_nothing, (void *)PROJECTION),
        cmocka_unit_test_prestate(a_step_allocates_nothing, (void *)PREDICTOR),
        cmocka_unit_test_prestate(a_step_allocates_nothing, (void *)DENSE),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
