/* What waits in host memory: how much, as planned, and what is said of it. */
#include "memory_bench.h"

#include "run/run_facts.h"

static size_t too_much; /* pinned allocations of this size fail on the host */

static DsvStatus lock_little(DsviDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes < too_much)
        return device->mem_alloc(device, bytes, out);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of page-locked host memory: out of memory", bytes);
}

/* Lists also take host memory: the memory plan shows it, and so does the message of a failure. */
static void tells_what_lists_take_of_the_host(void **state)
{
    DsviTrainer *trainer;
    DsviRunFacts facts;
    char line[512], wanted[64];
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(dsv_config_set(&b.settings, "sparse.offload_lists=true"));
    b.backend.device->kind = DSVI_DEVICE_CUDA;
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &b.settings, .backend = &b.backend, .codec = b.codec, .config = &b.config},
        &trainer));
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
                 dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b.settings,
                                                        .backend = &b.backend,
                                                        .codec = b.codec,
                                                        .config = &b.config},
                                     &trainer));
    close_bench(&b);
}

static int slow_lines; /* about memory that could not be page-locked */

static void count_slow(void *context, const char *line)
{
    (void)context;
    slow_lines += strstr(line, "offload=states: the system refuses to page-lock ") != NULL;
}

/* A run whose state cannot be page-locked uses pageable memory, and says so once. */
static void says_once_that_memory_is_pageable(void **state)
{
    DsviTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(dsv_config_set(&b.settings, "offload=states"));
    const DsviTrainerArgs args = {.settings = &b.settings,
                                  .backend = &b.backend,
                                  .codec = b.codec,
                                  .config = &b.config,
                                  .log = count_slow};
    assert_ok(dsvi_trainer_create(&args, &trainer));
    assert_int_equal(slow_lines, 0);
    assert_false(trainer->waiting.pageable);
    too_much = trainer->waiting.arena.used;
    dsvi_trainer_free(&trainer);
    b.backend.device->host_alloc = lock_little;
    assert_ok(dsvi_trainer_create(&args, &trainer));
    assert_int_equal(slow_lines, 1);
    assert_true(trainer->waiting.pageable);
    dsvi_trainer_free(&trainer);
    close_bench(&b);
}

static char update_line[256]; /* about the place of the update */

static void keep_update_line(void *context, const char *line)
{
    (void)context;
    if (strncmp(line, "offload_update=auto: ", 21) == 0)
        snprintf(update_line, sizeof update_line, "%s", line);
}

/* offload_update=auto takes the faster place for the speeds of link and host memory, or the one that keeps to
 * memory_gib, and says so. */
static void the_update_goes_where_it_is_faster(void **state)
{
    static const struct {
        const char *option;
        double link, update; /* GB/s */
        bool by_cpu;
        const char *end;
    } CASES[] = {
        {"offload=states", 50, 100, false, "; the device updates"},
        {"offload=states", 50, 500, true, " 500 GB/s of host memory in AdamW of the CPU; the CPU updates"},
        {"offload=weights", 50, 500, true, "; the CPU updates"},
        {"offload_update=device", 50, 500, false, ""},
        {"offload_update=host", 500, 1, true, ""},
    };
    size_t least[2]; /* device memory by the place */
    Bench b;
    (void)state;
    open_bench(&b);
    b.backend.device->kind = DSVI_DEVICE_CUDA;
    for (size_t i = 0; i <= sizeof CASES / sizeof *CASES; i++) {
        bool limited = i == sizeof CASES / sizeof *CASES;
        size_t c = limited ? 0 : i; /* the first case again, with memory for one place only */
        const DsviDeviceSpeeds speeds = {
            .flops = 1e15, .memory = 1e13, .link = CASES[c].link * 1e9, .update = CASES[c].update * 1e9};
        DsviTrainer *trainer;
        update_line[0] = 0;
        if (limited) {
            assert_true(least[1] < least[0]);
            b.settings.memory_gib = (double)least[1] / 1073741824.0;
            assert_ok(dsv_config_set(&b.settings, "offload_update=auto"));
        }
        assert_ok(dsv_config_set(&b.settings, CASES[c].option));
        assert_ok(dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b.settings,
                                                         .backend = &b.backend,
                                                         .codec = b.codec,
                                                         .config = &b.config,
                                                         .speeds = &speeds,
                                                         .plan_log = keep_update_line},
                                      &trainer));
        assert_int_equal(trainer->zero.host_update, limited || CASES[c].by_cpu);
        assert_non_null(strstr(update_line, limited ? "; the CPU updates" : CASES[c].end));
        assert_int_equal(update_line[0] == 0, CASES[c].end[0] == 0);
        if (i < 2)
            least[i] = trainer->arena.used;
        dsvi_trainer_free(&trainer);
    }
    close_bench(&b);
}

enum { LINE_BYTES = 512 };

static size_t host_free;

static size_t host_available(DsviDevice *device)
{
    (void)device;
    return host_free;
}

/* Creates a trainer, which must take the memory that was planned, and writes its facts and their line. */
static DsviTrainer *create_as_planned(Bench *b, const DsviArena *plan, const DsviArena *host,
                                      DsviRunFacts *facts, char line[LINE_BYTES])
{
    const DsviTrainerArgs args = {
        .settings = &b->settings, .backend = &b->backend, .codec = b->codec, .config = &b->config};
    DsviTrainer *trainer;
    assert_ok(dsvi_trainer_create(&args, &trainer));
    assert_int_equal(trainer->arena.used, plan->used);
    assert_int_equal(trainer->host_arena.used, host->used);
    dsvi_run_facts(trainer, 0, 0, 1, facts);
    dsvi_run_facts_memory(facts, line, LINE_BYTES);
    return trainer;
}

/* Trained weights wait in host memory with all state and the gradients of the blocks; the plan counts them.
 */
static void trained_weights_leave_for_a_limit(void **state)
{
    DsviArena kept, states, lent, some, host[4];
    DsviRunFacts facts;
    char option[64], line[LINE_BYTES];
    Bench b;
    (void)state;
    open_bench(&b);
    b.backend.device->kind = DSVI_DEVICE_CUDA;
    plan_with(&b, "offload_update=device", &kept, &host[0]);
    plan_with(&b, "offload=states", &states, &host[1]);
    plan_with(&b, "offload=weights", &lent, &host[2]);
    assert_true(lent.used < kept.used && states.used < kept.used);
    size_t weights = host[2].by_class[DSVI_MEM_WEIGHTS] - host[1].by_class[DSVI_MEM_WEIGHTS];
    size_t gradients = host[2].by_class[DSVI_MEM_GRADIENTS], block = weights / 6;
    assert_int_equal(host[1].by_class[DSVI_MEM_GRADIENTS], 0);
    assert_int_equal(host[2].used - host[1].used, weights + gradients);
    assert_in_range(gradients, weights, 2 * weights); /* F32 beside BF16 and some F32 */
    snprintf(option, sizeof option, "memory_gib=%.17g", (double)(lent.used + 2 * block) / 1073741824.0);
    plan_with(&b, option, &some, &host[3]);
    assert_int_equal(some.used, lent.used + 2 * block);
    assert_int_equal(host[3].used, host[2].used - 2 * block);
    DsviTrainer *trainer = create_as_planned(&b, &some, &host[3], &facts, line);
    assert_int_equal(facts.host_gradients, gradients);
    assert_int_equal(facts.host + facts.host_gradients + facts.host_state, host[3].used);
    assert_non_null(strstr(line, ", weights and optimizer state "));
    assert_non_null(strstr(line, ", gradients "));
    dsvi_trainer_free(&trainer);
    close_bench(&b);
}

/* Frozen weights beside a LoRA wait in host memory, as many as memory_gib requires; the plan counts them
 * there, and a host that is too small is refused before anything is allocated. */
static void frozen_weights_leave_for_a_limit(void **state)
{
    DsviArena kept, lent, some, kept_host, lent_host, some_host;
    DsviTrainer *trainer;
    DsviRunFacts facts;
    char option[64], line[LINE_BYTES];
    Bench b;
    (void)state;
    open_bench(&b);
    const DsviTrainerArgs args = {
        .settings = &b.settings, .backend = &b.backend, .codec = b.codec, .config = &b.config};
    b.settings.lora_rank = 4;
    b.backend.device->kind = DSVI_DEVICE_CUDA;
    plan_with(&b, NULL, &kept, &kept_host);
    plan_with(&b, "offload=weights", &lent, &lent_host);
    size_t block = (lent_host.used - kept_host.used) / 6; /* all six wait, two of them have slots */
    assert_true(block > 0);
    assert_int_equal(kept.used - lent.used, 4 * block);
    snprintf(option, sizeof option, "memory_gib=%.17g", (double)(lent.used + 2 * block) / 1073741824.0);
    plan_with(&b, option, &some, &some_host);
    assert_int_equal(some.used, lent.used + 2 * block);
    assert_int_equal(some_host.used, lent_host.used - 2 * block);
    trainer = create_as_planned(&b, &some, &some_host, &facts, line);
    assert_int_equal(facts.host_weights, 4 * block);
    assert_int_equal(facts.host + facts.host_weights, some_host.used);
    assert_non_null(strstr(line, ", weights of blocks "));
    dsvi_trainer_free(&trainer);
    b.backend.device->host_available = host_available;
    host_free = some_host.used - 1;
    assert_fails(DSV_E_NO_MEMORY, "1 rank on this machine wants ", dsvi_trainer_create(&args, &trainer));
    b.settings.memory_gib = (double)(lent.used - 1) / 1073741824.0;
    assert_fails(DSV_E_NO_MEMORY, " with offload=weights, memory_gib allows",
                 dsvi_trainer_create(&args, &trainer));
    close_bench(&b);
}

/* With device=cpu what waits in host memory is in the memory of the device, so both count together, and the
 * message proposes that nothing waits. */
static void waiting_saves_nothing_on_a_cpu(void **state)
{
    static const char *const OFFLOAD[] = {"offload=states", "offload=auto"};
    (void)state;
    for (size_t i = 0; i < sizeof OFFLOAD / sizeof *OFFLOAD; i++) {
        DsviArena plan, host, none, none_host;
        DsviTrainer *trainer;
        char words[128];
        Bench b;
        open_bench(&b);
        const DsviTrainerArgs args = {
            .settings = &b.settings, .backend = &b.backend, .codec = b.codec, .config = &b.config};
        b.settings.deterministic = true;
        b.settings.sparse_enabled = false;
        plan_with(&b, "gradient_checkpointing=true", &none, &none_host);
        plan_with(&b, OFFLOAD[i], &plan, &host);
        if (i == 1) {
            b.settings.memory_gib = (double)(none.used - 4096) / 1073741824.0;
            plan_with(&b, "offload_update=device", &plan, &host);
        }
        assert_true(none.used + none_host.used < plan.used + host.used && plan.used < none.used);
        b.backend.device->host_available = host_available;
        host_free = plan.used + host.used;
        assert_ok(dsvi_trainer_create(&args, &trainer));
        dsvi_trainer_free(&trainer);
        host_free--;
        snprintf(words, sizeof words,
                 " GiB of device memory and host memory (the same with device=cpu) with %s", OFFLOAD[i]);
        assert_fails(DSV_E_NO_MEMORY, words, dsvi_trainer_create(&args, &trainer));
        assert_non_null(strstr(dsv_error_message(), ": 1 bytes are missing; the most goes to "));
        assert_non_null(
            strstr(dsv_error_message(), "it would fit with offload=none gradient_checkpointing=true"));
        /* Both count also if the device's part alone is too large. */
        host_free = plan.used - 1;
        assert_fails(DSV_E_NO_MEMORY, words, dsvi_trainer_create(&args, &trainer));
        close_bench(&b);
    }
}

/* What is kept of all blocks but the last waits in host memory; the device keeps buffers for two blocks of
 * it, and the input of the head has one of them. */
static void kept_activations_leave(void **state)
{
    DsviArena kept, moved, kept_host, moved_host;
    Bench b;
    (void)state;
    open_bench(&b);
    b.settings.lora_rank = 4; /* its gradients, which share memory with activations, are small */
    plan_with(&b, "gradient_checkpointing=true", &kept, &kept_host);
    plan_with(&b, "offload=residual", &moved, &moved_host);
    size_t block = (moved_host.used - kept_host.used) / 5;
    assert_true(block > 0);
    /* Gradients, which took memory of activations, now take their own. */
    assert_true(kept.used - moved.used <= 5 * block && kept.used - moved.used > 4 * block);
    plan_with(&b, "gradient_checkpointing=selective", &moved, &moved_host);
    plan_with(&b, "offload=none", &kept, &kept_host);
    assert_true(moved_host.used - kept_host.used > 5 * block);
    assert_true(kept.used - moved.used > 5 * block);
    close_bench(&b);
}

/* offload=auto chooses what waits in host memory, and a host that is too small for the least is refused
 * before anything is allocated. */
static void the_planner_needs_a_host(void **state)
{
    DsviArena kept, lent, kept_host, lent_host;
    DsviTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    const DsviTrainerArgs args = {
        .settings = &b.settings, .backend = &b.backend, .codec = b.codec, .config = &b.config};
    b.settings.lora_rank = 4;
    b.settings.deterministic = true;
    b.backend.device->kind = DSVI_DEVICE_CUDA;
    plan_with(&b, "gradient_checkpointing=true", &kept, &kept_host);
    plan_with(&b, "offload=weights+residual", &lent, &lent_host);
    assert_ok(dsv_config_set(&b.settings, "offload=auto"));
    b.settings.memory_gib = (double)(lent.used + 1) / 1073741824.0;
    assert_ok(dsvi_trainer_create(&args, &trainer));
    assert_true(trainer->arena.used <= lent.used && trainer->host_arena.used > kept_host.used);
    assert_int_equal(dsvi_dit_frozen_lent(trainer->frozen), 6);
    dsvi_trainer_free(&trainer);
    b.backend.device->host_available = host_available;
    host_free = kept_host.used;
    assert_fails(DSV_E_NO_MEMORY, "1 rank on this machine wants ", dsvi_trainer_create(&args, &trainer));
    b.settings.memory_gib = (double)kept.used / 1073741824.0 + 1e-4;
    assert_ok(dsvi_trainer_create(&args, &trainer));
    assert_int_equal(trainer->host_arena.used, kept_host.used);
    dsvi_trainer_free(&trainer);
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trained_weights_leave_for_a_limit),
        cmocka_unit_test(frozen_weights_leave_for_a_limit),
        cmocka_unit_test(kept_activations_leave),
        cmocka_unit_test(waiting_saves_nothing_on_a_cpu),
        cmocka_unit_test(says_once_that_memory_is_pageable),
        cmocka_unit_test(the_update_goes_where_it_is_faster),
        cmocka_unit_test(the_planner_needs_a_host),
        cmocka_unit_test(tells_what_lists_take_of_the_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
