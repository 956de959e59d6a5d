/* Blocks whose weights wait in host memory (dit_lent.h): outputs have the bits of weights that stay on the
 * device, uploads are as few as the order of the blocks allows, and no work runs before its upload. */
#include "dit_case.h"

#include "base/scratch.h"
#include "device/host_pool.h"
#include "late_device.h"
#include "model/dit/dit_frozen.h"
#include "model/dit/dit_lent.h"

enum { BLOCKS = 7 };

static void carve_frozen(void *frozen, DsviArena *arena)
{
    dsvi_dit_frozen_carve(frozen, arena);
}

static void carve_frozen_host(void *frozen, DsviArena *arena)
{
    dsvi_dit_frozen_carve_host(frozen, arena);
}

/* ---- outputs ---- */

typedef struct Weights {
    DsviDitFrozen *frozen;
    void *memory;
    DsviHostPool pool;
} Weights;

static void open_weights(DitCase *c, DsviDtype act, bool f8, int64_t lent, bool turns, Weights *w)
{
    *w = (Weights){0};
    assert_ok(dsvi_dit_frozen_create(&c->table, act, &w->frozen));
    if (f8)
        assert_ok(dsvi_dit_frozen_use_f8(w->frozen, &c->backend));
    dsvi_dit_frozen_lend(w->frozen, c->backend.device, lent, turns);
    assert_ok(dsvi_device_alloc_layout(c->backend.device, carve_frozen, w->frozen, &w->memory));
    assert_ok(dsvi_host_pool_open(c->backend.device, carve_frozen_host, w->frozen, &w->pool));
    assert_int_equal(w->pool.memory != NULL, lent > 0);
    assert_ok(dsvi_dit_frozen_load(w->frozen, c->backend.device, scratch_path("model"), NULL));
    DsviDitWeights weights = dsvi_dit_frozen_weights(w->frozen);
    assert_ok(dsvi_dit_setup(c->dit, &weights));
}

static void close_weights(DitCase *c, Weights *w)
{
    dsvi_dit_frozen_free(&w->frozen);
    c->backend.device->mem_free(c->backend.device, w->memory);
    dsvi_host_pool_close(c->backend.device, &w->pool);
}

/* In a cyclic order over k lent blocks each pass uploads k of them, or none once both are in the two slots.
 */
static void same_output(DsviDtype act, bool f8)
{
    enum { PASSES = 3 };
    static const int64_t LENT[] = {0, 1, 2, 3, 5, BLOCKS};
    DitCase c;
    Weights w;
    DsviDitConfig config = dit_case_small_config();
    DsviDitShape shape = dit_case_small_shape(act);
    config.num_layers = BLOCKS;
    shape.backward = false;
    dit_case_open(&c, &config, &shape, "base", 2, NULL);
    late_device(c.backend.device, &c.backend.device->uploads);
    size_t bytes = (size_t)c.out_elements * sizeof(float);
    float *flat = dit_case_random_weights(&c.table, 0.1), *wanted = malloc(bytes);
    dit_case_randomise(&c, 1);
    assert_ok(dsvi_weights_write(scratch_path("model"), &c.table, flat, DSVI_F32, 1 << 30));
    for (size_t i = 0; i < sizeof LENT / sizeof *LENT; i++) {
        open_weights(&c, act, f8, LENT[i], false, &w);
        late.count = 0;
        for (int pass = 0; pass < PASSES; pass++) {
            memset(c.output, 0xff, bytes);
            dit_case_forward(&c);
            if (i > 0)
                assert_memory_equal(c.output, wanted, bytes);
            else
                memcpy(wanted, c.output, bytes);
        }
        assert_int_equal(late.count, LENT[i] <= DSVI_LENT_SLOTS ? LENT[i] : PASSES * LENT[i] + 1);
        close_weights(&c, &w);
    }
    dit_case_close(&c);
    assert_ok(dsvi_folder_remove(scratch_path("model")));
    free(flat);
    free(wanted);
}

static void the_bits_are_those_without(void **state)
{
    (void)state;
    same_output(DSVI_F32, false);
    same_output(DSVI_BF16, false);
    same_output(DSVI_F32, true);
    same_output(DSVI_BF16, true);
}

/* ---- order ---- */

static unsigned char host[BLOCKS][4];

static DsviLentSource host_block(const void *owner, int64_t block)
{
    (void)owner;
    return (DsviLentSource){host[block], sizeof host[block]};
}

static void expect_block(DsviDitLent *lent, DsviDitPass pass, int64_t block)
{
    unsigned char *found;
    if (dsvi_lent_number(lent, block) < 0)
        return;
    assert_ok(dsvi_lent_acquire(lent, pass, block, host_block, NULL, &found));
    assert_memory_equal(found, host[block], sizeof host[block]);
}

/* Forward and backward passes in turn upload all lent blocks but the two of the slots, each way. A forward
 * pass that follows another forward pass is right too, as in sampling between training steps. */
static void passes_forward_and_backward(void **state)
{
    (void)state;
    DsviBackend backend;
    assert_ok(dsvi_cpu_open("base", 1, &backend));
    late_device(backend.device, &backend.device->uploads);
    for (int i = 0; i < BLOCKS; i++)
        memset(host[i], i + 1, sizeof host[i]);
    for (int64_t count = 1; count <= BLOCKS; count++) {
        unsigned char slots[DSVI_LENT_SLOTS][4];
        DsviDitLent lent = {.device = backend.device, .turns = true, .blocks = BLOCKS, .count = count};
        for (int slot = 0; slot < DSVI_LENT_SLOTS; slot++)
            lent.slot[slot] = slots[slot];
        assert_ok(dsvi_lent_settle(&lent));
        int64_t found = 0;
        for (int64_t block = 0; block < BLOCKS; block++)
            if (dsvi_lent_number(&lent, block) >= 0)
                assert_int_equal(dsvi_lent_block(&lent, found++), block);
        assert_int_equal(found, count);
        for (int step = 0; step < 4; step++) {
            late.count = 0;
            for (int64_t block = 0; block < BLOCKS; block++)
                expect_block(&lent, DSVI_PASS_FORWARD, block);
            for (int64_t block = BLOCKS - 1; block >= 0; block--)
                expect_block(&lent, DSVI_PASS_BACKWARD, block);
            if (step > 0)
                assert_int_equal(late.count, count > DSVI_LENT_SLOTS ? 2 * (count - DSVI_LENT_SLOTS) : 0);
        }
        for (int i = 0; i < 2 * BLOCKS; i++)
            expect_block(&lent, DSVI_PASS_FORWARD, i % BLOCKS);
        assert_ok(dsvi_lent_settle(&lent));
    }
    dsvi_cpu_close(&backend);
}

/* ---- memory ---- */

/* The published 14B model in 8 GiB: the blocks on the device and the two slots fit, with one more block they
 * would not; the other blocks are on the host. */
static void a_limit_is_kept(void **state)
{
    const size_t limit = (size_t)8 << 30;
    DsvConfig settings;
    DsviDitConfig config;
    DsviParamTable table;
    DsviDitFrozen *frozen;
    DsviArena all, device, host_plan;
    DsviBackend backend;
    (void)state;
    dsv_config_defaults(&settings);
    assert_ok(dsv_config_set(&settings, "model.preset=wan14b"));
    assert_ok(dsvi_dit_config_make(&settings, &config));
    assert_ok(dsvi_param_table_make(&config, &table));
    assert_ok(dsvi_cpu_open("base", 1, &backend));
    assert_ok(dsvi_dit_frozen_create(&table, DSVI_BF16, &frozen));
    dsvi_arena_plan(&all);
    dsvi_dit_frozen_carve(frozen, &all);
    dsvi_dit_frozen_choose_lent(frozen, backend.device, false, limit, carve_frozen, frozen);
    dsvi_arena_plan(&device);
    dsvi_dit_frozen_carve(frozen, &device);
    dsvi_arena_plan(&host_plan);
    dsvi_dit_frozen_carve_host(frozen, &host_plan);
    size_t block = host_plan.used / (size_t)dsvi_dit_frozen_lent(frozen);
    assert_true(device.used <= limit && device.used + block > limit);
    assert_int_equal(device.used + host_plan.used, all.used + DSVI_LENT_SLOTS * block);
    dsvi_dit_frozen_choose_lent(frozen, backend.device, false, SIZE_MAX, carve_frozen, frozen);
    assert_int_equal(dsvi_dit_frozen_lent(frozen), 0);
    dsvi_dit_frozen_choose_lent(frozen, backend.device, false, 1, carve_frozen, frozen);
    assert_int_equal(dsvi_dit_frozen_lent(frozen), config.num_layers);
    dsvi_dit_frozen_free(&frozen);
    dsvi_param_table_free(&table);
    dsvi_cpu_close(&backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_without),
        cmocka_unit_test(passes_forward_and_backward),
        cmocka_unit_test(a_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
