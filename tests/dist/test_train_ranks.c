/* Steps on 2, 3 and 4 ranks against one rank whose batch is as large: losses, gradients and what follows
 * from them; all ranks alike to the bit; the bytes that were sent; failures and numbers that are not finite.
 * With the argument `cuda` the same on two GPUs, where there are two and NCCL. */
#include "test.h"

#include "train_rig.h"

static const char *device = "cpu";
static int64_t ranks_most = 4;
static double slack = 1; /* kernels of a GPU differ with the batch, in how they divide sums */

static const char *const DENSE[] = {"mixed_precision=no", "sparse.enabled=false", NULL};
static const char *const DENSE_TWICE[] = {
    "mixed_precision=no", "sparse.enabled=false", "gradient_accumulation_steps=2", NULL};
static const char *const DENSE_BF16[] = {"mixed_precision=bf16", "sparse.enabled=false", NULL};
/* As many keys for every list, whoever shares the batch; none drawn anew. */
static const char *const COUNTED[] = {
    "mixed_precision=no", "sparse.rule=topk", "sparse.target_density=0.5", "sparse.explore_kind=none", NULL};
static const char *const COUNTED_PREDICTOR[] = {
    "mixed_precision=no", "sparse.rule=topk", "sparse.target_density=0.5", "sparse.explore_kind=none",
    "sparse.selector=predictor", NULL};
static const char *const USUAL[] = {"mixed_precision=bf16", NULL};

static void compare(const char *const *assignment, int64_t ranks, int steps, double bound)
{
    Rig one = {.device = device, .assignment = assignment, .ranks = 1, .steps = steps};
    Rig many = {.device = device, .assignment = assignment, .ranks = ranks, .steps = steps};
    rig_train(&one);
    rig_train(&many);
    rig_same_on_all_ranks(&many);
    rig_close_to(&one, &many, slack * bound);
    rig_free(&one);
    rig_free(&many);
}

static void ranks_equal_a_larger_batch(void **state)
{
    (void)state;
    for (int64_t ranks = 2; ranks <= ranks_most; ranks += 2) {
        compare(DENSE, ranks, 6, 1e-5);
        compare(DENSE_TWICE, ranks, 3, 1e-5);
        compare(DENSE_BF16, ranks, 2, 4e-3); /* a bf16 rounding: the order of sums decides some */
    }
}

/* Lists follow from state that ranks have summed, each in its own order: at a border a key may change sides,
 * and what one key of many is worth is the bound. */
static void ranks_share_what_selection_learns(void **state)
{
    (void)state;
    for (int64_t ranks = 2; ranks <= ranks_most; ranks += 2) {
        compare(COUNTED, ranks, 6, 2e-3);
        compare(COUNTED_PREDICTOR, ranks, 6, 2e-3);
    }
}

/* With all its usual settings, exploration and thresholds of each rank's own among them. */
static void decisions_are_the_same_on_all_ranks(void **state)
{
    Rig rig = {.device = device, .assignment = USUAL, .ranks = ranks_most, .steps = 10};
    (void)state;
    rig_train(&rig);
    rig_same_on_all_ranks(&rig);
    assert_true(rig.rank[0].report.sparse_blocks > 0);
    rig_free(&rig);
}

static void the_same_bits_every_time(void **state)
{
    int64_t ranks = ranks_most < 3 ? ranks_most : 3;
    Rig first = {.device = device, .assignment = USUAL, .ranks = ranks, .steps = 5}, second = first;
    (void)state;
    rig_train(&first);
    rig_train(&second);
    assert_memory_equal(first.rank[0].weights, second.rank[0].weights,
                        (size_t)first.rank[0].elements * sizeof(float));
    rig_free(&first);
    rig_free(&second);
}

/* A dense step: the gradient but for the own part, the own part of the weights to each other rank, and what a
 * step came to. */
static void a_step_sends_what_it_must(void **state)
{
    Rig rig = {.device = device, .assignment = DENSE, .ranks = 4, .steps = 3};
    (void)state;
    rig_train(&rig);
    for (int r = 0; r < 4; r++) {
        const RigRank *rank = &rig.rank[r];
        int64_t elements = rank->elements - rank->own + 3 * rank->own;
        uint64_t sent = rank->sent[2] - rank->sent[1];
        assert_int_equal(sent, (uint64_t)elements * sizeof(float) + 3 * sizeof(DsvStepShare));
    }
    rig_free(&rig);
}

static void the_optimizer_is_divided(void **state)
{
    Rig one = {.device = device, .assignment = DENSE, .ranks = 1, .steps = 1};
    Rig four = {.device = device, .assignment = DENSE, .ranks = 4, .steps = 1};
    int64_t own = 0;
    (void)state;
    rig_train(&one);
    rig_train(&four);
    for (int r = 0; r < 4; r++) {
        const size_t *parts = four.rank[r].plan.by_class, *whole = one.rank[0].plan.by_class;
        own += four.rank[r].own;
        assert_true(parts[DSV_MEM_OPTIMIZER] < whole[DSV_MEM_OPTIMIZER] / 4 + 4096);
        assert_true(parts[DSV_MEM_EMA] < whole[DSV_MEM_EMA] / 4 + 4096);
        assert_int_equal(parts[DSV_MEM_GRADIENTS], whole[DSV_MEM_GRADIENTS]);
    }
    assert_int_equal(own, one.rank[0].elements);
    rig_free(&one);
    rig_free(&four);
}

static void a_rank_without_data_ends_all(void **state)
{
    Rig rig = {.device = device, .assignment = USUAL, .ranks = ranks_most, .steps = 6,
               .fault = RIG_NO_SAMPLE, .fault_rank = 1, .fault_step = 4};
    (void)state;
    rig_train(&rig);
    for (int r = 0; r < ranks_most; r++) {
        assert_int_equal(rig.outcome[r].status, r == 1 ? DSV_E_IO : DSV_E_RANK);
        assert_string_equal(rig.outcome[r].sentence, "rank 1: the disk is gone");
    }
    rig_free(&rig);
}

static void nan_names_its_rank(void **state)
{
    static const RigFault faults[] = {RIG_NAN_SAMPLE, RIG_NAN_GRADIENT};
    static const char *const *const assignments[] = {DENSE, DENSE_TWICE};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Rig rig = {.device = device, .assignment = assignments[i], .ranks = 3, .steps = 6,
                   .fault = faults[i], .fault_rank = 1, .fault_step = 3};
        rig_train(&rig);
        rig_expect_diverged(&rig);
        rig_free(&rig);
    }
}

/* The first projections are made inside the first step, by one rank for all. */
static void nan_in_the_first_projection_ends_all(void **state)
{
    static const char *const SPARSE[] = {NULL};
    Rig rig = {.device = device, .assignment = SPARSE, .ranks = 3, .steps = 1, .fault = RIG_NAN_SAMPLE,
               .fault_rank = 1, .fault_step = 1};
    (void)state;
    rig_train(&rig);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(rig.outcome[r].status, DSV_E_DIVERGED);
        assert_non_null(strstr(rig.outcome[r].sentence, "block 0, head 0: projection: "));
    }
    rig_free(&rig);
}

static int run_cuda(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_equal_a_larger_batch),
        cmocka_unit_test(ranks_share_what_selection_learns),
        cmocka_unit_test(decisions_are_the_same_on_all_ranks),
        cmocka_unit_test(the_same_bits_every_time),
        cmocka_unit_test(a_rank_without_data_ends_all),
    };
    device = "cuda";
    ranks_most = 2;
    slack = 30;
    return rig_two_gpus() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        return run_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_equal_a_larger_batch),
        cmocka_unit_test(ranks_share_what_selection_learns),
        cmocka_unit_test(decisions_are_the_same_on_all_ranks),
        cmocka_unit_test(the_same_bits_every_time),
        cmocka_unit_test(a_step_sends_what_it_must),
        cmocka_unit_test(the_optimizer_is_divided),
        cmocka_unit_test(a_rank_without_data_ends_all),
        cmocka_unit_test(nan_names_its_rank),
        cmocka_unit_test(nan_in_the_first_projection_ends_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
