/* Sparse attention on ranks that share the samples is what one rank does alone: the same lists, results,
 * measurements and decisions, for every way of writing the ranks as heads x sequence. */
#include "sparse/context_run.h"

static ContextRun run_of(int64_t batch, int64_t heads, int64_t frames, int64_t height, int64_t width)
{
    ContextRun run = {.settings = rig_settings(), .steps = 1, .forced = true};
    run.shape = rig_shape(2, batch, heads, 32, frames, height, width, DSV_F32);
    rig_set(&run.settings, "sparse.max_density=1");
    rig_set(&run.settings, "sparse.list_memory=1");
    rig_set(&run.settings, "sparse.profile_every=1");
    rig_set(&run.settings, "sparse.profile_samples=13");
    return run;
}

/* All of 2 to 4 ranks, evenly and not. */
static void check(ContextRun *run, double bound)
{
    static RunSeen alone, shared;
    run_alone(run, &alone);
    for (run->ranks = 2; run->ranks <= 4; run->ranks++)
        for (run->head_ranks = 0; run->head_ranks <= run->ranks; run->head_ranks++)
            for (int uneven = 0; uneven < 2; uneven++) {
                run->uneven = uneven;
                if (run->head_ranks > 0 && run->ranks % run->head_ranks)
                    continue;
                run_shared(run, run->ranks - 1, &shared);
                assert_same_run(run, &alone, &shared, bound);
                run_free(run, &shared);
            }
    run_free(run, &alone);
}

static void check_settings(int64_t batch, int64_t heads, const char *const *settings, int64_t focus)
{
    ContextRun run = run_of(batch, heads, 3, 10, 13); /* 390 tokens: groups and runs are ragged */
    for (; *settings; settings++)
        rig_set(&run.settings, *settings);
    run.focus[0] = focus;
    check(&run, 1e-5);
}

static void test_by_mass(void **state)
{
    (void)state;
    check_settings(2, 5, (const char *const[]){"sparse.target_mass=0.9", NULL}, 0);
}

static void test_by_density(void **state)
{
    (void)state;
    check_settings(1, 4, (const char *const[]){"sparse.target_mass=0", "sparse.target_density=0.1", NULL}, 0);
}

static void test_topk(void **state)
{
    (void)state;
    check_settings(1, 4, (const char *const[]){"sparse.rule=topk", "sparse.target_mass=0",
                                               "sparse.target_density=0.15", NULL}, 0);
}

static void test_grain(void **state)
{
    (void)state;
    check_settings(2, 4, (const char *const[]){"sparse.grain=16", NULL}, 8);
    check_settings(1, 5, (const char *const[]){"sparse.grain=48", "sparse.target_mass=0",
                                               "sparse.target_density=0.3", NULL}, 0);
}

static void test_explore(void **state)
{
    static const char *const kinds[] = {"random", "neighbours", "blocks"};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char kind[64];
        snprintf(kind, sizeof kind, "sparse.explore_kind=%s", kinds[i]);
        check_settings(1, 4, (const char *const[]){kind, "sparse.explore=0.2", NULL}, 0);
    }
}

static void test_other_selectors(void **state)
{
    (void)state;
    check_settings(1, 4, (const char *const[]){"sparse.selector=pooled", "sparse.grain=16", NULL}, 8);
    check_settings(1, 4, (const char *const[]){"sparse.selector=window", "sparse.rule=topk",
                                               "sparse.target_mass=0", "sparse.target_density=0.1", NULL}, 0);
}

/* Plans change from step to step, and the backward pass attends again. */
static void test_steps_with_recompute(void **state)
{
    ContextRun run = run_of(1, 5, 2, 8, 8);
    (void)state;
    run.steps = 3;
    run.recompute = true;
    rig_set(&run.settings, "sparse.refresh_every=2");
    run.focus[2] = 8;
    check(&run, 1e-5);
}

/* The guard: dense and measured, sparse, overwhelmed on all ranks at once, dense again. */
static void test_guard(void **state)
{
    ContextRun run = run_of(2, 4, 1, 16, 16);
    (void)state;
    run.forced = false;
    run.steps = 5;
    rig_set(&run.settings, "sparse.max_density=0.3");
    rig_set(&run.settings, "sparse.list_memory=0.3");
    rig_set(&run.settings, "sparse.profile_every=4");
    rig_set(&run.settings, "sparse.profile_ema=0");
    run.focus[0] = run.focus[1] = run.focus[3] = run.focus[4] = 8;
    run.focus[2] = -1; /* all keys are equal: lists want everything */
    check(&run, 1e-5);
}

static void test_refusals(void **state)
{
    ContextRun run = run_of(1, 4, 1, 16, 16);
    (void)state;
    (void)run;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_mass),         cmocka_unit_test(test_by_density),
        cmocka_unit_test(test_topk),            cmocka_unit_test(test_grain),
        cmocka_unit_test(test_explore),         cmocka_unit_test(test_other_selectors),
        cmocka_unit_test(test_steps_with_recompute), cmocka_unit_test(test_guard),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
