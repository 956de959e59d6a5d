/* Training with kept activations in host memory (offload=residual) has the same bits as with them on the
 * device, and runs nothing before its copies. */
#include "test.h"

#include "late_device.h"
#include "train/tiny.h"
#include "train_rig.h"

enum { WORDS = 12, STEPS = 3, BLOCKS = 5 };

static const char *words[2][WORDS];

static DsvStatus make_copies_late(DsviTrainer *t, int step)
{
    DsviDevice *device = t->backend->device;
    if (step == 0)
        late_device(device, &device->downloads);
    return DSV_OK;
}

static Rig train(const char *const *form, bool offload, int64_t ranks, int64_t cp_ranks)
{
    const char **list = words[offload];
    int count = 0;
    list[count++] = "model.num_layers=5";
    list[count++] = "sparse.enabled=false";
    for (int i = 0; form[i]; i++)
        list[count++] = form[i];
    if (offload)
        list[count++] = "offload=residual";
    list[count] = NULL;
    Rig rig = {.device = "cpu",
               .assignment = list,
               .ranks = ranks,
               .cp_ranks = cp_ranks,
               .stage = 1,
               .steps = STEPS,
               .fault_rank = -1,
               .samples = 2,
               .between = offload && ranks == 1 ? make_copies_late : NULL};
    rig_train(&rig);
    return rig;
}

static void compare(const char *const *form, int64_t ranks, int64_t cp_ranks)
{
    Rig kept = train(form, false, ranks, cp_ranks), moved = train(form, true, ranks, cp_ranks);
    assert_int_equal(kept.rank[0].host_plan.by_class[DSVI_MEM_ACTIVATIONS], 0);
    assert_true(moved.rank[0].host_plan.by_class[DSVI_MEM_ACTIVATIONS] > 0);
    rig_same_bits(&kept, &moved);
    if (ranks == 1)
        assert_true(late.count >= STEPS * 2 * (BLOCKS - 1));
    rig_free(&kept);
    rig_free(&moved);
}

static void the_bits_are_those_without(void **state)
{
    static const char *const FORMS[][4] = {
        {"gradient_checkpointing=true", NULL},
        {"gradient_checkpointing=selective", NULL},
        {"gradient_checkpointing=selective", "gradient_accumulation_steps=2", NULL},
        {"gradient_checkpointing=selective", "sparse.enabled=true", "mixed_precision=no", NULL},
        {"gradient_checkpointing=true", "data.buckets=9x32x32,5x32x48", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        compare(FORMS[i], 1, 1);
}

static void ranks_give_the_bits_too(void **state)
{
    static const char *const FORM[] = {"gradient_checkpointing=selective", NULL};
    static const char *const BOTH[] = {"gradient_checkpointing=true", "sparse.enabled=true", NULL};
    (void)state;
    compare(FORM, 2, 1);
    compare(BOTH, 2, 2);
}

/* Nothing is kept without gradient checkpointing, so the option is refused. */
static void all_activations_are_too_many(void **state)
{
    static const char *list[] = {"offload=residual", NULL};
    Rig rig = {.device = "cpu",
               .assignment = list,
               .ranks = 1,
               .stage = 1,
               .steps = 1,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = -1};
    (void)state;
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_USAGE);
    assert_non_null(strstr(rig.outcome[0].sentence,
                           "offload is residual and gradient_checkpointing is false, expected true or "
                           "selective"));
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_without),
        cmocka_unit_test(ranks_give_the_bits_too),
        cmocka_unit_test(all_activations_are_too_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
