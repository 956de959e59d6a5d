/* Which blocks of the published 14B model wait in host memory, for devices and hosts of several sizes
 * (sample_room.h). */
#include "test.h"

#include "cpu/cpu.h"
#include "sample/sample_room.h"

static const double GIB = 1073741824.0;
static size_t free_on_host;
static int refused; /* page-locked allocations that the system still refuses */

static size_t host_available(DsviDevice *device)
{
    (void)device;
    return free_on_host;
}

static size_t nothing_used(DsviDevice *device)
{
    (void)device;
    return 0;
}

static DsvStatus refuse_to_lock(DsviDevice *device, size_t bytes, void **out)
{
    (void)device;
    *out = NULL;
    refused++;
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of page-locked host memory", bytes);
}

static void carve(void *weights, DsviArena *arena)
{
    dsvi_dit_frozen_carve(weights, arena);
    (void)dsvi_arena_take(arena, DSVI_MEM_ACTIVATIONS, (size_t)4 << 30);
}

typedef struct Room {
    DsvConfig settings;
    DsviBackend backend;
    DsviParamTable table;
    DsviDitFrozen *weights;
    DsviSampleRoom room;
} Room;

static void open_room(Room *r, const char *preset)
{
    DsviDitConfig config;
    dsv_config_defaults(&r->settings);
    snprintf(r->settings.model_preset, sizeof r->settings.model_preset, "%s", preset);
    assert_ok(dsvi_dit_config_make(&r->settings, &config));
    assert_ok(dsvi_param_table_make(&config, &r->table));
    assert_ok(dsvi_cpu_open("base", 1, &r->backend));
    assert_ok(dsvi_dit_frozen_create(&r->table, DSVI_BF16, &r->weights));
    DsviDevice *device = r->backend.device;
    device->kind = DSVI_DEVICE_CUDA; /* a CPU has no more memory than its host */
    device->host_available = host_available;
    device->memory_used = nothing_used;
    device->memory_bytes = (size_t)80 << 30;
    free_on_host = (size_t)64 << 30;
    r->room = (DsviSampleRoom){.path = "model",
                               .settings = &r->settings,
                               .device = device,
                               .weights = r->weights,
                               .layout = carve,
                               .object = r->weights};
}

static void close_room(Room *r)
{
    dsvi_dit_frozen_free(&r->weights);
    dsvi_param_table_free(&r->table);
    dsvi_cpu_close(&r->backend);
}

static void blocks_wait_if_they_must(void **state)
{
    Room r;
    char line[DSVI_SAMPLE_ROOM_LINE];
    (void)state;
    open_room(&r, "wan14b");
    assert_true(dsvi_sample_room_choose(&r.room)); /* 27 and 4 GiB in 80 */
    assert_int_equal(dsvi_dit_frozen_lent(r.weights), 0);
    dsvi_sample_room_line(&r.room, line);
    assert_string_equal(line, "");

    assert_ok(dsv_config_set(&r.settings, "memory_gib=16"));
    assert_true(dsvi_sample_room_choose(&r.room));
    int64_t limited = dsvi_dit_frozen_lent(r.weights);
    assert_true((double)r.room.plan.used <= 16 * GIB && (double)r.room.plan.used > 15.3 * GIB);
    dsvi_sample_room_line(&r.room, line);
    assert_non_null(strstr(line, "blocks ("));
    assert_ok(dsv_config_set(&r.settings, "offload=weights")); /* changes nothing beside a limit */
    assert_true(dsvi_sample_room_choose(&r.room));
    assert_int_equal(dsvi_dit_frozen_lent(r.weights), limited);

    assert_ok(dsv_config_set(&r.settings, "memory_gib=0"));
    assert_true(dsvi_sample_room_choose(&r.room));
    assert_int_equal(dsvi_dit_frozen_lent(r.weights), 40);

    assert_ok(dsv_config_set(&r.settings, "offload=none"));
    r.backend.device->memory_bytes = (size_t)16 << 30; /* leaves a GiB free */
    assert_true(dsvi_sample_room_choose(&r.room));
    assert_true((double)r.room.plan.used <= 15 * GIB && (double)r.room.plan.used > 14.3 * GIB);
    close_room(&r);
}

static void what_is_too_small_is_named(void **state)
{
    Room r;
    (void)state;
    open_room(&r, "wan14b");
    assert_ok(dsv_config_set(&r.settings, "memory_gib=5"));
    assert_false(dsvi_sample_room_choose(&r.room));
    assert_fails(DSV_E_NO_MEMORY, "of 40 blocks in host memory, and memory_gib allows 5",
                 dsvi_sample_room_refuse(&r.room));
    r.backend.device->memory_bytes = (size_t)4 << 30;
    assert_false(dsvi_sample_room_choose(&r.room));
    assert_fails(DSV_E_NO_MEMORY, "and 4.0 of 4.0 GiB are free", dsvi_sample_room_refuse(&r.room));
    r.backend.device->memory_bytes = (size_t)16 << 30;
    assert_ok(dsv_config_set(&r.settings, "memory_gib=0"));
    free_on_host = (size_t)10 << 30;
    assert_false(dsvi_sample_room_choose(&r.room));
    assert_fails(DSV_E_NO_MEMORY, "of host memory, of which 10.0 GiB are free",
                 dsvi_sample_room_refuse(&r.room));
    free_on_host = 0; /* unknown */
    assert_true(dsvi_sample_room_choose(&r.room));
    close_room(&r);
}

static int warnings;

static void count_warnings(void *context, DsvLogLevel level, const char *line)
{
    (void)context;
    warnings += level == DSV_LOG_WARNING && strstr(line, "refuses to page-lock") != NULL;
}

static void memory_that_cannot_be_locked_is_pageable(void **state)
{
    Room r;
    DsviHostPool pool = {0};
    const DsvEvents events = {.log = count_warnings};
    (void)state;
    open_room(&r, "demo");
    dsvi_dit_frozen_lend(r.weights, r.backend.device, 2, false);
    r.backend.device->host_alloc = refuse_to_lock;
    assert_ok(dsvi_sample_room_open(&r.room, &events, &pool));
    assert_int_equal(refused, 1);
    assert_int_equal(warnings, 1);
    assert_true(pool.pageable && pool.memory && pool.arena.by_class[DSVI_MEM_WEIGHTS] > 0);
    memset(pool.memory, 1, pool.arena.used);
    dsvi_host_pool_close(r.backend.device, &pool);
    assert_null(pool.memory);
    close_room(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_wait_if_they_must),
        cmocka_unit_test(what_is_too_small_is_named),
        cmocka_unit_test(memory_that_cannot_be_locked_is_pageable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
