/* Training with optimizer state in host memory (offload=states), or also weights and gradients
 * (offload=weights), has the same bits as with all of it on the device, wherever the state is updated
 * (offload_update), keeps to memory_gib, and writes checkpoints that each form reads. */
#include "test.h"

#include "late_device.h"
#include "train_rig.h"

enum { WORDS = 12 };

static const char *device = "cpu";
static int64_t ranks_max = 2;

/* Six blocks make eight buckets, more than there are slots for buckets on the device. */
static Rig rig_of(const char **words, const char *const *extra, const char *offload, int64_t ranks,
                  int64_t stage, int steps)
{
    int count = 0;
    words[count++] = "model.num_layers=6";
    words[count++] = "sparse.enabled=false";
    for (int i = 0; extra[i]; i++)
        words[count++] = extra[i];
    for (; offload && *offload; offload = NULL)
        words[count++] = offload;
    words[count] = NULL;
    return (Rig){.device = device,
                 .assignment = words,
                 .ranks = ranks,
                 .stage = stage,
                 .steps = steps,
                 .fault_rank = -1,
                 .samples = 2};
}

static Rig train(const char *const *extra, const char *offload, int64_t ranks, int64_t stage, int steps)
{
    static const char *words[WORDS];
    Rig rig = rig_of(words, extra, offload, ranks, stage, steps);
    rig_train(&rig);
    return rig;
}

static size_t state_on_host(const Rig *rig)
{
    const size_t *plan = rig->rank[0].host_plan.by_class;
    return plan[DSVI_MEM_WEIGHTS] + plan[DSVI_MEM_OPTIMIZER] + plan[DSVI_MEM_EMA];
}

static void compare(const char *const *extra, const char *offload, int64_t ranks, int64_t stage, int steps)
{
    Rig kept = train(extra, NULL, ranks, stage, steps);
    Rig moved = train(extra, offload, ranks, stage, steps);
    assert_int_equal(state_on_host(&kept), 0);
    assert_true(state_on_host(&moved) > 0);
    rig_same_bits(&kept, &moved);
    rig_free(&kept);
    rig_free(&moved);
}

static void the_bits_are_those_without(void **state)
{
    static const char *const forms[][4] = {
        {"mixed_precision=bf16", NULL},
        {"mixed_precision=no", NULL},
        {"optimizer=adamw_bf16", NULL},
        {"optimizer=adamw_8bit", NULL},
        {"optimizer=muon", NULL},
        {"optimizer=muon", "mixed_precision=no", NULL},
        {"gradient_accumulation_steps=2", NULL},
        {"train_modules=attn1", NULL},
        {"max_grad_norm=0", NULL},
        {"max_grad_norm=0", "optimizer=adamw_8bit", "train_modules=attn1", NULL},
        {"max_grad_norm=0", "optimizer=muon", "mixed_precision=no", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        compare(forms[i], "offload=states", 1, 1, i == 0 ? 20 : 5);
}

static void weights_that_wait_give_the_bits(void **state)
{
    static const char *const forms[][5] = {
        {"mixed_precision=bf16", NULL},
        {"optimizer=adamw_bf16", "gradient_checkpointing=true", NULL},
        {"optimizer=adamw_8bit", "sparse.enabled=true", NULL},
        {"optimizer=muon", NULL},
        {"gradient_accumulation_steps=2", NULL},
        {"train_modules=attn1", NULL},
        {"max_grad_norm=0", "data.buckets=9x32x32,5x32x48", NULL},
    };
    static const char *const residual[] = {"gradient_checkpointing=selective", NULL};
    static const char *const in_pass[] = {"gradient_checkpointing=true", "max_grad_norm=0", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        compare(forms[i], "offload=weights", 1, 1, i == 0 ? 20 : 5);
    compare(residual, "offload=weights+residual", 1, 1, 5);
    compare(in_pass, "offload=weights+residual", 1, 1, 5);
    compare(in_pass, "offload=states+residual", 1, 1, 5);
}

/* The same with the update by the CPU, which needs no device memory for state. */
static void compare_by_cpu(const char *const *form, const char *offload, int64_t ranks, int64_t stage,
                           int steps)
{
    const char *extra[WORDS] = {"offload_update=host"};
    for (int i = 0; form[i]; i++)
        extra[i + 1] = form[i];
    Rig kept = train(form, NULL, ranks, stage, steps), travelling = train(form, offload, ranks, stage, 1);
    Rig moved = train(extra, offload, ranks, stage, steps);
    const size_t *there = travelling.rank[0].plan.by_class, *here = moved.rank[0].plan.by_class;
    assert_true(here[DSVI_MEM_OPTIMIZER] < there[DSVI_MEM_OPTIMIZER]);
    assert_true(here[DSVI_MEM_WEIGHTS] < there[DSVI_MEM_WEIGHTS]);
    rig_same_bits(&kept, &moved);
    rig_free(&kept);
    rig_free(&travelling);
    rig_free(&moved);
}

static void the_cpu_gives_the_bits_of_the_device(void **state)
{
    static const char *const forms[][4] = {
        {NULL},
        {"optimizer=adamw_bf16", NULL},
        {"optimizer=adamw_8bit", "train_modules=attn1", NULL},
        {"gradient_accumulation_steps=2", NULL},
        {"max_grad_norm=0", NULL},
        {"max_grad_norm=0", "optimizer=adamw_8bit", "train_modules=attn1", NULL},
        {"max_grad_norm=1e-3", "weight_decay=0.1", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        compare_by_cpu(forms[i], "offload=states", 1, 1, i == 0 ? 20 : 5);
        compare_by_cpu(forms[i], "offload=weights", 1, 1, 5);
    }
}

static void ranks_update_by_the_cpu(void **state)
{
    static const char *const forms[][3] = {{NULL},
                                           {"optimizer=adamw_8bit", "train_modules=attn1", NULL},
                                           {"max_grad_norm=0", "gradient_accumulation_steps=2", NULL}};
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int64_t stage = 1; stage <= 3; stage++)
            compare_by_cpu(forms[i], "offload=states", ranks_max, stage, 3);
        compare_by_cpu(forms[i], "offload=weights", ranks_max, 3, 3);
    }
}

static DsvStatus swap_averages(DsviTrainer *t, int step)
{
    return step == 2 ? dsvi_zero_swap_ema(&t->zero) : DSV_OK;
}

/* Weights and their moving average are exchanged, and training goes on from the average. */
static void averages_are_exchanged(void **state)
{
    enum { WAYS = 5 };
    static const char *const forms[][3] = {{"validation.ema=true", NULL},
                                           {"validation.ema=true", "max_grad_norm=0", NULL}};
    static const char *const offload[] = {NULL, "offload=states", "offload=weights", "offload=states",
                                          "offload=weights"};
    static const char *words[WORDS];
    (void)state;
    for (int form = 0; form < 2; form++) {
        Rig rig[WAYS];
        for (int way = 0; way < WAYS; way++) {
            const char *extra[] = {forms[form][0], forms[form][1], NULL, NULL};
            extra[1 + form] = way < 3 ? NULL : "offload_update=host";
            rig[way] = rig_of(words, extra, offload[way], 1, 1, 4);
            rig[way].between = swap_averages;
            rig_train(&rig[way]);
            rig_same_bits(&rig[0], &rig[way]);
        }
        for (int way = 0; way < WAYS; way++)
            rig_free(&rig[way]);
    }
}

enum { DOWNLOADS, UPLOADS, COPIES, STREAMS };

static int late_stream;

static DsvStatus make_copies_late(DsviTrainer *t, int step)
{
    DsviDevice *cpu = t->backend->device;
    if (step == 0 && dsvi_comm_rank(t->comm) == 0)
        late_device(cpu, late_stream == DOWNLOADS ? &cpu->downloads
                         : late_stream == UPLOADS ? &cpu->uploads
                                                  : &cpu->copies);
    return DSV_OK;
}

/* Trains with late copies on one stream, all or `some` blocks in host memory, and an update on the device
 * or, with place "host", by the CPU. */
static void compare_late(const char *const *form, int stream, bool some, const char *place)
{
    static const char *words[WORDS];
    char limit[64], update[64];
    const char *extra[] = {form[0], update, limit, NULL}, *whole[] = {form[0], update, NULL};
    snprintf(update, sizeof update, "offload_update=%s", place);
    Rig kept = train(form, NULL, 1, 1, 4), all = train(whole, "offload=weights", 1, 1, 4);
    const RigRank *x = &all.rank[0];
    double block = (double)(x->own_first_two - x->largest_work); /* the first bucket is the largest */
    double bytes = (double)x->plan.used + (some ? 1.5 * block : 0);
    snprintf(limit, sizeof limit, "memory_gib=%.17g", bytes / 1073741824.0);
    late_stream = stream;
    Rig moved = rig_of(words, extra, "offload=weights", 1, 1, 4);
    moved.between = make_copies_late;
    rig_train(&moved);
    assert_true(late.count > 0);
    assert_int_equal(state_on_host(&moved) < state_on_host(&all), some);
    rig_same_bits(&kept, &moved);
    rig_free(&kept);
    rig_free(&all);
    rig_free(&moved);
}

/* Compares with late copies on each stream, for all and some of the blocks. Only backward passes that update
 * use the third stream; with an update on the device their slots take more memory than the weights of some of
 * the six blocks. */
static void compare_late_streams(const char *place)
{
    static const char *const forms[][2] = {
        {"weight_decay=0.1", NULL}, {"gradient_accumulation_steps=2", NULL}, {"max_grad_norm=0", NULL}};
    for (int form = 0; form < 3; form++)
        for (int stream = DOWNLOADS; stream < (form == 2 ? STREAMS : COPIES); stream++)
            for (int some = 0; some < (form == 2 && strcmp(place, "device") == 0 ? 1 : 2); some++)
                compare_late(forms[form], stream, some, place);
}

/* Nothing runs before the copies that it needs. */
static void each_use_waits_for_its_copy(void **state)
{
    (void)state;
    compare_late_streams("device");
}

/* The CPU reads gradients when they are there, and writes weights when the upload of older ones is done. */
static void the_cpu_waits_for_its_copies(void **state)
{
    (void)state;
    compare_late_streams("host");
}

static void ranks_give_the_bits_too(void **state)
{
    static const char *const forms[][3] = {
        {"mixed_precision=bf16", NULL}, {"mixed_precision=no", NULL}, {"optimizer=muon", NULL}};
    (void)state;
    for (int i = 0; i < 3; i++)
        for (int64_t stage = 1; stage <= 3; stage++)
            compare(forms[i], "offload=states", ranks_max, stage, 3);
}

static void ranks_divide_weights_that_wait(void **state)
{
    static const char *const forms[][3] = {{"mixed_precision=bf16", NULL},
                                           {"optimizer=muon", NULL},
                                           {"optimizer=adamw_8bit", "train_modules=attn1", NULL},
                                           {"gradient_accumulation_steps=2", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        compare(forms[i], "offload=weights", ranks_max, 3, 4);
}

/* The same with copies of one of the ranks as late as their streams allow. */
static void ranks_wait_for_their_copies(void **state)
{
    static const char *words[WORDS];
    static const char *const plain[] = {NULL};
    (void)state;
    Rig kept = train(plain, NULL, 2, 3, 4);
    for (int way = DOWNLOADS; way < COPIES; way++) {
        late_stream = way;
        Rig moved = rig_of(words, plain, "offload=weights", 2, 3, 4);
        moved.between = make_copies_late;
        rig_train(&moved);
        assert_true(late.count > 0);
        rig_same_bits(&kept, &moved);
        rig_free(&moved);
    }
    rig_free(&kept);
}

/* Without clipping the backward pass updates: gradients then take the memory of one bucket, and a loss that
 * is not finite still ends the run before anything changes. */
static void a_pass_that_updates_needs_one_gradient(void **state)
{
    static const char *words[WORDS];
    static const char *const plain[] = {NULL}, *const unclipped[] = {"max_grad_norm=0", NULL};
    (void)state;
    Rig clipped = train(plain, "offload=states", 1, 1, 1), rig = train(unclipped, "offload=states", 1, 1, 1);
    assert_true(clipped.rank[0].plan.by_class[DSVI_MEM_GRADIENTS] >
                rig.rank[0].plan.by_class[DSVI_MEM_GRADIENTS]);
    assert_in_range(rig.rank[0].plan.by_class[DSVI_MEM_GRADIENTS],
                    (size_t)rig.rank[0].largest * sizeof(float),
                    (size_t)rig.rank[0].largest * sizeof(float) + 512);
    rig_free(&clipped);
    rig_free(&rig);
    rig = rig_of(words, unclipped, "offload=weights", 1, 1, 3);
    rig.fault = RIG_NAN_SAMPLE;
    rig.fault_rank = 0;
    rig.fault_step = 2;
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_DIVERGED);
    assert_non_null(strstr(rig.outcome[0].sentence, "step 2: loss nan"));
    rig_free(&rig);
}

static void limit_moves(const char *offload, const char *form)
{
    const char *const plain[] = {form, NULL};
    char words[64];
    Rig kept = train(plain, NULL, 1, 1, 4), all = train(plain, offload, 1, 1, 4);
    size_t most = kept.rank[0].plan.used, least = all.rank[0].plan.used;
    assert_true(least < most);
    double limit = (double)(least + most) / 2;
    snprintf(words, sizeof words, "memory_gib=%.17g", limit / 1073741824.0);
    const char *const limited[] = {form, offload, words, NULL};
    Rig some = train(limited, NULL, 1, 1, 4);
    assert_true((double)some.rank[0].plan.used <= limit);
    assert_true(state_on_host(&some) > 0 && state_on_host(&some) < state_on_host(&all));
    rig_same_bits(&kept, &some);
    rig_free(&some);
    snprintf(words, sizeof words, "memory_gib=%.17g", ((double)least - 1024) / 1073741824.0);
    static const char *list[WORDS];
    Rig none = rig_of(list, limited, NULL, 1, 1, 1);
    none.fault = RIG_NO_SAMPLE;
    rig_train(&none);
    assert_int_equal(none.outcome[0].status, DSV_E_NO_MEMORY);
    assert_non_null(strstr(none.outcome[0].sentence, "memory_gib allows"));
    rig_free(&none);
    rig_free(&kept);
    rig_free(&all);
}

static void what_the_cpu_cannot_update_is_refused(void **state)
{
    static const struct {
        const char *word[3];
        DsvStatus status;
        const char *sentence;
    } forms[] = {
        {{"offload=none"},
         DSV_E_USAGE,
         "offload_update is host and offload is none, expected states, weights"},
        {{"offload=states", "mixed_precision=no"},
         DSV_E_UNSUPPORTED,
         "offload_update is host and mixed_precision is no, expected bf16"},
        {{"offload=weights", "optimizer=muon"},
         DSV_E_UNSUPPORTED,
         "offload_update is host and optimizer is muon, expected a form of adamw"},
    };
    static const char *words[WORDS];
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        Rig rig = rig_of(words, forms[i].word, "offload_update=host", 1, 1, 1);
        rig.fault = RIG_NO_SAMPLE;
        rig_train(&rig);
        assert_int_equal(rig.outcome[0].status, forms[i].status);
        assert_non_null(strstr(rig.outcome[0].sentence, forms[i].sentence));
        rig_free(&rig);
    }
}

static void a_limit_moves_as_much_as_it_needs(void **state)
{
    (void)state;
    limit_moves("offload=states", "mixed_precision=bf16");
    limit_moves("offload=weights", "mixed_precision=bf16");
    limit_moves("offload=states", "max_grad_norm=0");
}

/* Weights in F32 are the master weights, and whole weights would wait on each rank. */
static void what_cannot_wait_is_refused(void **state)
{
    static const char *words[WORDS];
    static const char *const f32[] = {"mixed_precision=no", NULL}, *const plain[] = {NULL};
    (void)state;
    Rig rig = rig_of(words, f32, "offload=weights", 1, 1, 1);
    rig.fault = RIG_NO_SAMPLE;
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_USAGE);
    assert_non_null(strstr(rig.outcome[0].sentence, "offload is weights and mixed_precision is no"));
    rig_free(&rig);
    rig = rig_of(words, plain, "offload=weights", 2, 2, 1);
    rig.fault = RIG_NO_SAMPLE;
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_UNSUPPORTED);
    assert_non_null(
        strstr(rig.outcome[0].sentence, "offload is weights and each of 2 ranks keeps all weights"));
    rig_free(&rig);
}

/* Checkpoints move between settings of offload and numbers of ranks, and the step after them is the same. */
static void checkpoints_move_between_settings(void **state)
{
    static const char *const plain[] = {"mixed_precision=bf16", NULL};
    static const char *const codes[] = {"optimizer=adamw_8bit", NULL};
    static const char *words[WORDS];
    (void)state;
    for (int way = 0; way < 6; way++) {
        const char *const *form = way / 2 % 2 ? codes : plain;
        const char *offload = way < 4 ? "offload=states" : "offload=weights";
        int64_t stage = way < 4 ? 2 : 3;
        rig_checkpoints_begin();
        Rig first = rig_of(words, form, way % 2 ? offload : NULL, way % 2 ? ranks_max : 1, 3, 4);
        first.between = rig_save_after_three_steps;
        rig_train(&first);
        Rig second = rig_of(words, form, way % 2 ? NULL : offload, way % 2 ? 1 : ranks_max, stage, 1);
        second.between = rig_load_then_save;
        rig_train(&second);
        rig_same_checkpoints();
        Rig third = rig_of(words, form, way % 2 ? NULL : offload, first.ranks, stage, 1);
        third.between = rig_load_then_save;
        rig_train(&third);
        assert_memory_equal(&first.rank[0].step[3].loss, &third.rank[0].step[0].loss, sizeof(double));
        assert_memory_equal(first.rank[0].weights, third.rank[0].weights,
                            (size_t)first.rank[0].elements * sizeof(float));
        rig_free(&first);
        rig_free(&second);
        rig_free(&third);
        rig_checkpoints_end();
    }
}

static const DsviTrainer *failing;

static DsvStatus fail_for_state(DsviStream *stream, void *dst, const void *src, size_t bytes)
{
    const DsviTrainer *t = failing;
    (void)stream;
    if (dst == (void *)t->zero.host_state[DSVI_STATE_EXP_AVG])
        return DSVI_FAIL(DSV_E_DEVICE, "the link to the host is gone");
    memmove(dst, src, bytes);
    return DSV_OK;
}

static DsvStatus break_the_link(DsviTrainer *t, int step)
{
    failing = t;
    if (step == 2)
        t->backend->device->download = fail_for_state;
    return DSV_OK;
}

static void a_copy_that_fails_ends_the_job(void **state)
{
    static const char *const plain[] = {"mixed_precision=bf16", NULL};
    static const char *words[WORDS];
    (void)state;
    Rig rig = rig_of(words, plain, "offload=states", 1, 1, 4);
    rig.fault = RIG_NO_SAMPLE;
    rig.between = break_the_link;
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_DEVICE);
    assert_non_null(strstr(rig.outcome[0].sentence, "the link to the host is gone"));
    rig_free(&rig);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_without),
        cmocka_unit_test(weights_that_wait_give_the_bits),
        cmocka_unit_test(the_cpu_gives_the_bits_of_the_device),
        cmocka_unit_test(averages_are_exchanged),
        cmocka_unit_test(each_use_waits_for_its_copy),
        cmocka_unit_test(the_cpu_waits_for_its_copies),
        cmocka_unit_test(a_pass_that_updates_needs_one_gradient),
        cmocka_unit_test(what_cannot_wait_is_refused),
        cmocka_unit_test(what_the_cpu_cannot_update_is_refused),
        cmocka_unit_test(ranks_give_the_bits_too),
        cmocka_unit_test(ranks_divide_weights_that_wait),
        cmocka_unit_test(ranks_update_by_the_cpu),
        cmocka_unit_test(ranks_wait_for_their_copies),
        cmocka_unit_test(a_limit_moves_as_much_as_it_needs),
        cmocka_unit_test(checkpoints_move_between_settings),
        cmocka_unit_test(a_copy_that_fails_ends_the_job),
    };
    const struct CMUnitTest cuda_tests[] = {
        cmocka_unit_test(the_bits_are_those_without),
        cmocka_unit_test(weights_that_wait_give_the_bits),
        cmocka_unit_test(ranks_give_the_bits_too),
        cmocka_unit_test(ranks_divide_weights_that_wait),
        cmocka_unit_test(the_cpu_gives_the_bits_of_the_device),
        cmocka_unit_test(ranks_update_by_the_cpu),
        cmocka_unit_test(a_limit_moves_as_much_as_it_needs),
        cmocka_unit_test(checkpoints_move_between_settings),
    };
    if (argc < 2 || strcmp(argv[1], "cuda") != 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    device = "cuda";
    return rig_two_gpus() ? cmocka_run_group_tests(cuda_tests, NULL, NULL) : SKIPPED;
}
