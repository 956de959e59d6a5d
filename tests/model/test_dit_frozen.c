/* Weights that exist in one dtype only (dit_frozen.h) give the output of weights kept as in training, to the
 * bit, and take the memory that their dtypes say. */
#include "dit_case.h"

#include "base/scratch.h"
#include "device/carve.h"
#include "model/dit/dit_frozen.h"

static void carve_frozen(void *frozen, DsviArena *arena)
{
    dsvi_dit_frozen_carve(frozen, arena);
}

static void same_output(DsviDtype act, int threads)
{
    DitCase c;
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(act);
    DsviDitFrozen *frozen;
    void *memory = NULL;
    dit_case_open(&c, &config, &shape, "base", threads, NULL);
    size_t bytes = (size_t)c.out_elements * sizeof(float);
    float *flat = dit_case_random_weights(&c.table, 0.1), *wanted = malloc(bytes);
    dit_case_set_weights(&c, flat);
    dit_case_randomise(&c, 1);
    dit_case_forward(&c);
    memcpy(wanted, c.output, bytes);

    assert_ok(dsvi_weights_write(scratch_path("model"), &c.table, flat, DSVI_F32, 1 << 16)); /* in shards */
    assert_ok(dsvi_dit_frozen_create(&c.table, act, &frozen));
    assert_ok(dsvi_device_alloc_layout(c.backend.device, carve_frozen, frozen, &memory));
    assert_ok(dsvi_dit_frozen_load(frozen, c.backend.device, scratch_path("model"), NULL));
    DsviDitWeights weights = dsvi_dit_frozen_weights(frozen);
    assert_ok(dsvi_dit_setup(c.dit, &weights));
    memset(c.weights.master, 0xff, (size_t)c.table.elements * sizeof(float)); /* must not be read any more */
    memset(c.output, 0xff, bytes);
    dit_case_forward(&c);
    assert_memory_equal(c.output, wanted, bytes);

    c.backend.device->mem_free(c.backend.device, memory);
    dsvi_dit_frozen_free(&frozen);
    dit_case_close(&c);
    assert_ok(dsvi_folder_remove(scratch_path("model")));
    free(flat);
    free(wanted);
}

static void output_is_that_of_training(void **state)
{
    (void)state;
    same_output(DSVI_F32, 1);
    same_output(DSVI_BF16, 2);
}

/* The published 14B model: 28.6 GB of weights, and 0.7 % for what is kept in F32. */
static void memory_of_14b(void **state)
{
    DsvConfig settings;
    DsviDitConfig config;
    DsviParamTable table;
    DsviDitFrozen *frozen;
    DsviArena arena;
    (void)state;
    dsv_config_defaults(&settings);
    snprintf(settings.model_preset, sizeof settings.model_preset, "wan14b");
    assert_ok(dsvi_dit_config_make(&settings, &config));
    assert_ok(dsvi_param_table_make(&config, &table));
    assert_ok(dsvi_dit_frozen_create(&table, DSVI_BF16, &frozen));
    dsvi_arena_plan(&arena);
    dsvi_dit_frozen_carve(frozen, &arena);
    assert_true((double)arena.used > 2.0 * (double)table.parameters);
    assert_true((double)arena.used < 2.05 * (double)table.parameters);
    dsvi_dit_frozen_free(&frozen);
    dsvi_param_table_free(&table);
}

static void faults_are_named(void **state)
{
    DsviDitConfig config = dit_case_small_config();
    DsviParamTable table;
    DsviDitFrozen *frozen;
    DsviBackend backend;
    void *memory = NULL;
    (void)state;
    assert_ok(dsvi_cpu_open("base", 1, &backend));
    assert_ok(dsvi_param_table_make(&config, &table));
    assert_ok(dsvi_dit_frozen_create(&table, DSVI_BF16, &frozen));
    assert_ok(dsvi_device_alloc_layout(backend.device, carve_frozen, frozen, &memory));
    assert_fails(DSV_E_NOT_FOUND, "absent",
                 dsvi_dit_frozen_load(frozen, backend.device, scratch_path("absent"), NULL));
    float one = 1;
    DsviStoredTensor other = {.name = "other",
                              .dtype = DSVI_F32,
                              .ndim = 1,
                              .shape = {1},
                              .count = 1,
                              .bytes = sizeof one,
                              .data = &one};
    assert_ok(dsvi_safetensors_write(scratch_path("other.safetensors"), &other, 1, NULL, 0));
    assert_fails(DSV_E_SHAPE, "unknown other",
                 dsvi_dit_frozen_load(frozen, backend.device, scratch_path("other.safetensors"), NULL));
    backend.device->mem_free(backend.device, memory);
    dsvi_dit_frozen_free(&frozen);
    dsvi_param_table_free(&table);
    dsvi_cpu_close(&backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_that_of_training),
        cmocka_unit_test(memory_of_14b),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
