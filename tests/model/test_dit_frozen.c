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

/* Replaces the matrices of blocks in `flat` by what their codes stand for. */
static void round_to_codes(const DsviParamTable *table, float *flat)
{
    for (int64_t i = 0; i < table->count; i++) {
        const DsviParam *param = &table->params[i];
        if (!param->in_compute_dtype || strncmp(param->name, "blocks.", 7) != 0)
            continue;
        float *x = flat + param->offset, *scale = malloc((size_t)param->count * sizeof *scale);
        uint8_t *code = malloc((size_t)param->count);
        dsvi_f8_encode(param->count, x, code, scale);
        for (int64_t n = 0; n < param->count; n++)
            x[n] = scale[n / DSVI_F8_BLOCK] * (float)dsvi_load(DSVI_F8_E4M3, code, n);
        free(scale);
        free(code);
    }
}

/* Runs the case with frozen weights of the file at scratch_path("model"). */
static void forward_frozen(DitCase *c, DsviDtype act, bool f8, size_t *memory_bytes)
{
    DsviDitFrozen *frozen;
    DsviArena plan;
    void *memory = NULL;
    assert_ok(dsvi_dit_frozen_create(&c->table, act, &frozen));
    if (f8)
        assert_ok(dsvi_dit_frozen_use_f8(frozen, &c->backend));
    dsvi_arena_plan(&plan);
    dsvi_dit_frozen_carve(frozen, &plan);
    *memory_bytes = plan.used;
    assert_ok(dsvi_device_alloc_layout(c->backend.device, carve_frozen, frozen, &memory));
    assert_ok(dsvi_dit_frozen_load(frozen, c->backend.device, scratch_path("model"), NULL));
    DsviDitWeights weights = dsvi_dit_frozen_weights(frozen);
    assert_ok(dsvi_dit_setup(c->dit, &weights));
    memset(c->output, 0xff, (size_t)c->out_elements * sizeof(float));
    dit_case_forward(c);
    c->backend.device->mem_free(c->backend.device, memory);
    dsvi_dit_frozen_free(&frozen);
}

/* Weights in 8 bits give the bits of weights that were rounded to the same codes before, and an output that
 * is close to the output of the weights as they are. */
static void output_with_8_bits(DsviDtype act)
{
    DitCase c;
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(act);
    size_t exact_bytes, coded_bytes;
    dit_case_open(&c, &config, &shape, "base", 2, NULL);
    size_t bytes = (size_t)c.out_elements * sizeof(float);
    float *flat = dit_case_random_weights(&c.table, 0.1), *exact = malloc(bytes), *coded = malloc(bytes);
    dit_case_randomise(&c, 1);
    assert_ok(dsvi_weights_write(scratch_path("model"), &c.table, flat, DSVI_F32, 1 << 30));
    forward_frozen(&c, act, false, &exact_bytes);
    memcpy(exact, c.output, bytes);
    forward_frozen(&c, act, true, &coded_bytes);
    memcpy(coded, c.output, bytes);
    round_to_codes(&c.table, flat);
    assert_ok(dsvi_weights_write(scratch_path("model"), &c.table, flat, DSVI_F32, 1 << 30));
    forward_frozen(&c, act, false, &exact_bytes);
    assert_memory_equal(coded, c.output, bytes);
    double error = relative_l2(DSVI_F32, coded, DSVI_F32, exact, c.out_elements);
    assert_true(error > 0);
    assert_error_below(error, 0.05, "output of weights in 8 bits");
    dit_case_close(&c);
    assert_ok(dsvi_folder_remove(scratch_path("model")));
    free(flat);
    free(exact);
    free(coded);
}

static void weights_in_8_bits_are_close(void **state)
{
    (void)state;
    output_with_8_bits(DSVI_F32);
    output_with_8_bits(DSVI_BF16);
}

/* One byte per element of the blocks' matrices and 4 / 128 for scales, two for other GEMM weights, four for
 * what is kept in F32, and one decoded block in BF16. */
static double bytes_in_8_bits(const DsviParamTable *table)
{
    double sum = 0;
    for (int64_t s = 0; s < table->buckets; s++) {
        bool block = s > 0 && s < table->buckets - 1;
        sum += 4 * (double)(table->gemm[s] - table->begin[s]);
        sum += (block ? 1 + 4.0 / DSVI_F8_BLOCK : 2) * (double)(table->begin[s + 1] - table->gemm[s]);
    }
    return sum + 2 * (double)(table->begin[2] - table->gemm[1]);
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
    DsviBackend backend = {0};
    assert_ok(dsvi_dit_frozen_use_f8(frozen, &backend));
    dsvi_arena_plan(&arena);
    dsvi_dit_frozen_carve(frozen, &arena);
    assert_error_below(fabs((double)arena.used / bytes_in_8_bits(&table) - 1), 1e-5, "bytes in 8 bits");
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
        cmocka_unit_test(weights_in_8_bits_are_close),
        cmocka_unit_test(memory_of_14b),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
