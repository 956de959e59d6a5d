/* Training steps on ranks that share clips, with plans that are chosen by measured times, and with plans that
 * change from step to step: losses and gradients equal those of one rank with the same clips. */
#include "test.h"

#include "base/rng.h"
#include "train_rig.h"

enum { STEPS = 6, HEADS = 5 };

/* 90 tokens, groups of 16; blocks become sparse after the first step. */
#define RAGGED "height=48", "width=40", "model.num_attention_heads=5", "mixed_precision=no", "cp_room=5"

static const char *const DENSE[] = {RAGGED, "sparse.enabled=false", NULL};
static const char *const LISTS[] = {RAGGED, "sparse.profile_every=2", NULL};
static const char *const UNMEASURED[] = {RAGGED, "sparse.profile_every=1000", NULL};

/* Sets a different plan for every block and step: all degrees, heads in random order. */
static DsvStatus shuffle(DsviTrainer *t, int step)
{
    for (int64_t block = 0; t->cp && block < t->config.num_layers; block++) {
        static const int64_t degree[] = {1, 2, 4};
        DsviRng rng = {3, DSVI_RNG_TEST, (uint32_t)(step * 16 + (int)block)};
        float number[HEADS];
        int32_t placement[HEADS] = {0, 1, 2, 3, 4};
        int64_t head_ranks = degree[(step + block) % 3], bound[HEADS + 1];
        dsvi_rng_fill_normal(rng, 0, number, HEADS);
        for (int i = 0; i < HEADS - 1 && head_ranks > 1; i++) {
            int other = number[i] > 0 ? HEADS - 1 : i;
            int32_t head = placement[i];
            placement[i] = placement[other];
            placement[other] = head;
        }
        for (int64_t r = 0; r <= head_ranks; r++) /* one head for each rank, all others for the last rank */
            bound[r] = r < head_ranks ? r : HEADS;
        const DsviCpPlan plan = {head_ranks, 4 / head_ranks, placement, bound};
        DSVI_TRY(dsvi_cp_set_plan(t->cp, block, &plan));
    }
    return DSV_OK;
}

typedef DsvStatus between_fn(DsviTrainer *trainer, int step);

static Rig train(const char *const *assignment, int64_t ranks, bool times_decide, between_fn *between)
{
    Rig rig = {.device = "cpu",
               .assignment = assignment,
               .ranks = ranks,
               .cp_ranks = ranks,
               .stage = 1,
               .steps = STEPS,
               .free = times_decide,
               .between = between};
    rig_train(&rig);
    return rig;
}

static void compare(const char *const *assignment, between_fn *between, bool lists)
{
    Rig one = train(assignment, 1, true, NULL), four = train(assignment, 4, true, between);
    rig_same_on_all_ranks(&four);
    rig_close_to(&one, &four, lists ? 2e-3 : 1e-5); /* a key close to the threshold may be listed or not */
    assert_int_equal(one.rank[0].report.sparse_blocks > 0, lists);
    assert_int_equal(four.rank[0].report.sparse_blocks, one.rank[0].report.sparse_blocks);
    rig_free(&one);
    rig_free(&four);
}

static void chosen_plans(void **state)
{
    (void)state;
    compare(DENSE, NULL, false);
    compare(LISTS, NULL, true);
}

static void plans_that_change(void **state)
{
    (void)state;
    compare(DENSE, shuffle, false);
    compare(UNMEASURED, shuffle, true);
}

static DsvStatus check_plans(DsviTrainer *t, int step)
{
    for (int64_t block = 0; block < t->config.num_layers; block++)
        if (t->plans || dsvi_cp_plan(t->cp, block)->head_ranks != 4)
            return DSVI_FAIL(DSV_E_INTERNAL, "step %d, block %d: another plan", step, (int)block);
    return DSV_OK;
}

/* In deterministic mode measured times must not decide plans. */
static void deterministic(void **state)
{
    (void)state;
    Rig rig = train(LISTS, 4, false, check_plans);
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chosen_plans),
        cmocka_unit_test(plans_that_change),
        cmocka_unit_test(deterministic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
