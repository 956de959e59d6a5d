/* Training with offload=auto: whatever the limit of memory makes it choose, the bits are those of a run with
 * everything on the device, and the limit is kept. */
#include "test.h"

#include "late_device.h"
#include "train/tiny.h"
#include "train_rig.h"

enum { WORDS = 16, STEPS = 2, CAPS = 4 };

static const double GIB = 1073741824.0;

static DsvStatus make_copies_late(DsviTrainer *t, int step)
{
    DsviDevice *device = t->backend->device;
    if (step == 0)
        late_device(device, &device->downloads);
    return DSV_OK;
}

/* Trains with offload=auto and a limit of memory, or with offload=none and without. */
static Rig train(const char *const *form, int64_t ranks, double memory_gib, bool fits)
{
    static const char *list[WORDS];
    static char limit[64];
    int count = 0;
    list[count++] = "model.num_layers=6";
    list[count++] = "sparse.enabled=false";
    for (int i = 0; form[i]; i++)
        list[count++] = form[i];
    snprintf(limit, sizeof limit, "memory_gib=%.9g", memory_gib);
    list[count++] = limit;
    list[count++] = memory_gib > 0 ? "offload=auto" : "offload=none";
    list[count] = NULL;
    Rig rig = {.device = "cpu",
               .assignment = list,
               .ranks = ranks,
               .cp_ranks = 1,
               .stage = 1,
               .steps = STEPS,
               .fault = fits ? RIG_SOUND : RIG_NO_SAMPLE,
               .fault_rank = -1,
               .samples = 2,
               .between = memory_gib > 0 && ranks == 1 ? make_copies_late : NULL};
    rig_train(&rig);
    return rig;
}

/* Returns the least memory_gib, which the refusal of a smaller one names. */
static double floor_of(const char *const *form, int64_t ranks)
{
    static const char NEEDS[] = "the run wants at least ", WITH[] = " GiB of device memory with offload=auto";
    double gib = 0;
    Rig refused = train(form, ranks, 1e-6, false);
    const char *sentence = refused.outcome[0].sentence, *at = strstr(sentence, NEEDS);
    assert_int_equal(refused.outcome[0].status, DSV_E_NO_MEMORY);
    assert_non_null(at);
    assert_non_null(strstr(at, WITH));
    assert_non_null(strstr(at, "the most goes to "));
    gib = strtod(at + strlen(NEEDS), NULL);
    rig_free(&refused);
    return gib;
}

static void compare(const char *const *form, int64_t ranks)
{
    Rig kept = train(form, ranks, 0, true);
    double most = (double)kept.rank[0].plan.used / GIB, least = floor_of(form, ranks);
    size_t hosted = 0;
    int copies = 0;
    for (int i = 0; i < CAPS; i++) {
        double limit = least + i * (most - least) / CAPS;
        Rig planned = train(form, ranks, limit, true);
        assert_true((double)planned.rank[0].plan.used <= limit * GIB);
        rig_same_bits(&kept, &planned);
        copies += ranks > 1 || late.count > 0;
        hosted += planned.rank[0].host_plan.used > kept.rank[0].host_plan.used;
        rig_free(&planned);
    }
    assert_true(least < most && hosted > 0 && copies > 0);
    rig_free(&kept);
}

static void the_bits_are_those_with_everything_on_the_device(void **state)
{
    static const char *const FORMS[][4] = {
        {NULL},
        {"gradient_accumulation_steps=2", NULL},
        {"max_grad_norm=0", NULL},
        {"sparse.enabled=true", "mixed_precision=no", NULL},
        {"data.buckets=9x32x32,5x32x48", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof FORMS / sizeof *FORMS; i++)
        compare(FORMS[i], 1);
    compare(FORMS[0], 2);
}

/* Ranks that share a clip recompute attention together, and each would choose for itself. */
static void ranks_that_share_a_clip_are_refused(void **state)
{
    static const char *list[] = {"offload=auto", NULL};
    Rig rig = {.device = "cpu",
               .assignment = list,
               .ranks = 2,
               .cp_ranks = 2,
               .stage = 1,
               .steps = 1,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = -1};
    (void)state;
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_UNSUPPORTED);
    assert_non_null(strstr(rig.outcome[0].sentence, "offload is auto and 2 ranks share a clip"));
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bits_are_those_with_everything_on_the_device),
        cmocka_unit_test(ranks_that_share_a_clip_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
