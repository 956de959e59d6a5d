/* The message for a run that does not fit: sizes, the largest classes, and options that would fit. */
#include "memory_bench.h"

static void says_what_fits(void **state)
{
    static const char *const ONE_FITS = "it would fit with gradient_checkpointing=true train_batch_size=2 ";
    DsviTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    assert_true(b.recomputed < b.kept);
    b.backend.device->memory_bytes = b.recomputed;
    assert_fails(DSV_E_NO_MEMORY, ONE_FITS,
                 dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b.settings,
                                                        .backend = &b.backend,
                                                        .codec = b.codec,
                                                        .config = &b.config},
                                     &trainer));
    assert_null(trainer);
    assert_non_null(strstr(dsv_error_message(), "the most goes to "));
    close_bench(&b);
}

static struct {
    DsvStatus (*alloc)(DsviDevice *device, size_t bytes, void **out);
    size_t held;    /* the most bytes that the device held */
    size_t beside;  /* the largest allocation but the trainer's */
    size_t planned; /* that of the trainer */
    char line[256]; /* about measured attention */
} watched;

static DsvStatus watch_alloc(DsviDevice *device, size_t bytes, void **out)
{
    DSVI_TRY(watched.alloc(device, bytes, out));
    if (bytes != watched.planned && bytes > watched.beside)
        watched.beside = bytes;
    if (device->held_bytes > watched.held)
        watched.held = device->held_bytes;
    return DSV_OK;
}

static void keep_line(void *context, const char *line)
{
    (void)context;
    snprintf(watched.line, sizeof watched.line, "%s", line);
}

/* Creates a trainer that measures attention, and watches what its device holds. */
static void create_watched(Bench *b, const char *option)
{
    DsviTrainer *trainer;
    DsviDevice *device = b->backend.device;
    assert_ok(dsv_config_set(&b->settings, option));
    watched.held = watched.beside = 0;
    assert_ok(dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b->settings,
                                                     .backend = &b->backend,
                                                     .codec = b->codec,
                                                     .config = &b->config,
                                                     .log = keep_line},
                                  &trainer));
    assert_int_equal(trainer->arena.used, watched.planned);
    assert_int_equal(device->held_bytes, watched.planned);
    assert_int_equal(device->limit, (size_t)(b->settings.memory_gib * 1073741824.0));
    dsvi_trainer_free(&trainer);
    assert_int_equal(device->held_bytes + device->limit, 0);
}

/* Attention is measured before the trainer takes its memory, so that even a limit that the trainer fills is
 * kept; where the limit is less than the measurement wants, fewer tokens or heads are measured. */
static void measurements_keep_to_the_limit(void **state)
{
    char option[64];
    Bench b;
    (void)state;
    open_bench(&b);
    watched.planned = b.kept;
    watched.alloc = b.backend.device->mem_alloc;
    b.backend.device->mem_alloc = watch_alloc;
    b.settings.sparse_measure_cost = true;
    create_watched(&b, "memory_gib=0");
    assert_non_null(strstr(watched.line, "attention of "));
    size_t wanted = watched.beside;
    assert_true(wanted > 0 && watched.held == (wanted > b.kept ? wanted : b.kept));
    snprintf(option, sizeof option, "memory_gib=%.17g", (double)b.kept / 1073741824.0);
    create_watched(&b, option);
    assert_int_equal(watched.held, b.kept);
    assert_non_null(strstr(watched.line, "attention of "));
    close_bench(&b);
}

static size_t too_long; /* allocations of this size fail on the device */

static DsvStatus grant_short(DsviDevice *device, size_t bytes, void **out)
{
    *out = NULL;
    if (bytes < too_long)
        return device->host_alloc(device, bytes, out);
    return DSVI_FAIL(DSV_E_NO_MEMORY, "no %zu bytes of device memory", bytes);
}

/* The device has enough free memory, but not in one piece. A limit is named even if the run would fit into
 * it, because other allocations count too. */
static void names_other_settings_than_failed(void **state)
{
    DsviTrainer *trainer;
    Bench b;
    (void)state;
    open_bench(&b);
    const DsviTrainerArgs args = {
        .settings = &b.settings, .backend = &b.backend, .codec = b.codec, .config = &b.config};
    too_long = b.kept;
    b.backend.device->memory_bytes = 2 * b.kept;
    b.backend.device->mem_alloc = grant_short;
    assert_fails(DSV_E_NO_MEMORY, "it would fit with gradient_checkpointing=selective",
                 dsvi_trainer_create(&args, &trainer));
    assert_null(strstr(dsv_error_message(), "memory_gib allows"));
    b.settings.memory_gib = 1.5 * (double)b.kept / 1073741824.0;
    assert_fails(DSV_E_NO_MEMORY, "memory_gib allows", dsvi_trainer_create(&args, &trainer));
    close_bench(&b);
}

/* Writes how the message ends if options that lower memory are not enough: with the largest part of what the
 * run then takes, and with what lowers this part. */
static void end_of_message(const Bench *b, const char *lowers, char end[256])
{
    static const char *const OPTIONS[] = {"gradient_checkpointing=true", "optimizer=adamw_8bit",
                                          "train_batch_size=1"};
    Bench smaller = *b;
    DsviArena plan, host;
    int largest = 0;
    for (size_t i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        assert_ok(dsv_config_set(&smaller.settings, OPTIONS[i]));
    plan_with(&smaller, "gradient_accumulation_steps=2", &plan, &host);
    for (int c = 1; c < DSVI_MEM_CLASS_COUNT; c++)
        largest = plan.by_class[c] > plan.by_class[largest] ? c : largest;
    snprintf(end, 256, " it would still want %.3f GiB, and the largest part, %s, would be lowered by %s",
             (double)plan.used / 1073741824.0, dsvi_mem_class_name((DsviMemClass)largest), lowers);
}

/* A run on the CPU that no option makes fit: long clips, a wide model, the same beside a published model, and
 * long lists. Sizes below a GiB are not rounded to nothing. */
static void says_that_nothing_fits(void **state)
{
    static const struct {
        const char *set[4], *lowers;
    } CASES[] = {
        {{"sparse.enabled=false"}, "a smaller clip (num_frames, height, width)"},
        {{"model.ffn_dim=2048", "num_frames=5", "sparse.enabled=false"}, "a smaller model"},
        {{"model.ffn_dim=2048", "num_frames=5", "sparse.enabled=false", "model.path=published"},
         "a LoRA (lora_rank)"},
        {{"sparse.list_memory=1", "height=256", "width=256"}, "a lower sparse.list_memory"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        DsviTrainer *trainer;
        char end[256];
        Bench b;
        open_bench(&b);
        for (size_t k = 0; k < 4 && CASES[i].set[k]; k++)
            assert_ok(dsv_config_set(&b.settings, CASES[i].set[k]));
        assert_ok(dsvi_dit_config_make(&b.settings, &b.config));
        b.config.in_channels = b.config.out_channels = b.in_channels;
        end_of_message(&b, CASES[i].lowers, end);
        b.backend.device->memory_bytes = 1 << 20; /* the host's free memory suffices */
        assert_fails(DSV_E_NO_MEMORY, end,
                     dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b.settings,
                                                            .backend = &b.backend,
                                                            .codec = b.codec,
                                                            .config = &b.config},
                                         &trainer));
        assert_null(strstr(dsv_error_message(), " 0.0 "));
        assert_null(strstr(dsv_error_message(), " 0.0,"));
        close_bench(&b);
    }
}

/* As on a GPU, whose memory is separate from the host's: the message first proposes to move lists to the
 * host. */
static void says_that_lists_may_leave(void **state)
{
    static const char *const FITS = "would fit with sparse.offload_lists=true gradient_checkpointing=false";
    DsviTrainer *trainer;
    DsviArena plan, host;
    Bench b;
    (void)state;
    open_bench(&b);
    assert_ok(dsv_config_set(&b.settings, "sparse.list_memory=0.5"));
    assert_ok(dsvi_dit_config_make(&b.settings, &b.config));
    b.config.in_channels = b.config.out_channels = b.in_channels;
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &b.settings, .backend = &b.backend, .codec = b.codec, .config = &b.config},
        &trainer));
    DsvConfig offloading = b.settings;
    assert_ok(dsv_config_set(&offloading, "sparse.offload_lists=true"));
    assert_ok(dsvi_trainer_plan(trainer, &offloading, &plan, &host));
    assert_true(plan.used < trainer->arena.used && host.used > trainer->host_arena.used);
    dsvi_trainer_free(&trainer);
    b.backend.device->kind = DSVI_DEVICE_CUDA;
    b.backend.device->memory_bytes = plan.used;
    b.backend.device->host_bytes = host.used;
    assert_fails(DSV_E_NO_MEMORY, FITS,
                 dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b.settings,
                                                        .backend = &b.backend,
                                                        .codec = b.codec,
                                                        .config = &b.config},
                                     &trainer));
    b.backend.device->host_bytes = host.used - 1;
    assert_fails(DSV_E_NO_MEMORY, "it",
                 dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b.settings,
                                                        .backend = &b.backend,
                                                        .codec = b.codec,
                                                        .config = &b.config},
                                     &trainer));
    assert_null(strstr(dsv_error_message(), "offload_lists"));
    close_bench(&b);
}

/* Fails to create a trainer in the memory that the run takes with `assignments`, and checks that the message
 * proposes `words`. */
static void check_proposal(Bench *b, const char *const *assignments, const char *words)
{
    DsviTrainer *trainer;
    DsviArena plan, host;
    DsvConfig smaller = b->settings;
    assert_ok(dsvi_trainer_create(
        &(DsviTrainerArgs){
            .settings = &b->settings, .backend = &b->backend, .codec = b->codec, .config = &b->config},
        &trainer));
    for (int i = 0; assignments[i]; i++)
        assert_ok(dsv_config_set(&smaller, assignments[i]));
    assert_ok(dsvi_trainer_plan(trainer, &smaller, &plan, &host));
    assert_true(plan.used < trainer->arena.used);
    dsvi_trainer_free(&trainer);
    b->backend.device->memory_bytes = plan.used;
    assert_fails(DSV_E_NO_MEMORY, words,
                 dsvi_trainer_create(&(DsviTrainerArgs){.settings = &b->settings,
                                                        .backend = &b->backend,
                                                        .codec = b->codec,
                                                        .config = &b->config},
                                     &trainer));
}

/* When recomputing is not enough, the message proposes smaller optimizer state, or with a LoRA smaller frozen
 * weights. */
static void says_what_may_be_stored_in_8_bits(void **state)
{
    static const char *const STATE[] = {"gradient_checkpointing=true", "optimizer=adamw_8bit", NULL};
    static const char *const WEIGHTS[] = {"gradient_checkpointing=true", "base_precision=fp8", NULL};
    Bench b;
    (void)state;
    open_bench(&b);
    check_proposal(&b, STATE, "it would fit with optimizer=adamw_8bit gradient_checkpointing=true");
    close_bench(&b);
    open_bench(&b);
    b.settings.lora_rank = 4;
    check_proposal(&b, WEIGHTS, "it would fit with base_precision=fp8 gradient_checkpointing=true");
    close_bench(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_fits),
        cmocka_unit_test(measurements_keep_to_the_limit),
        cmocka_unit_test(names_other_settings_than_failed),
        cmocka_unit_test(says_that_nothing_fits),
        cmocka_unit_test(says_that_lists_may_leave),
        cmocka_unit_test(says_what_may_be_stored_in_8_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
