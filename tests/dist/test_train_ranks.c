/* Training steps on 2, 3 and 4 ranks against one rank with the same total batch: losses, gradients and
 * weights; equal bits on all ranks; bytes sent; failures, and values that are not finite. With the argument
 * `cuda` the same on two GPUs, if two GPUs and NCCL are available. */
#include "test.h"

#include "train_rig.h"

static const char *device = "cpu";
static int64_t ranks_max = 4;
static double slack = 1; /* GPU kernels order their sums differently for different batches */

static const char *const DENSE[] = {"mixed_precision=no", "sparse.enabled=false", NULL};
static const char *const DENSE_TWICE[] = {"mixed_precision=no", "sparse.enabled=false",
                                          "gradient_accumulation_steps=2", NULL};
static const char *const DENSE_BF16[] = {"mixed_precision=bf16", "sparse.enabled=false", NULL};
/* Lists of equal length, which do not depend on the division of the batch; no exploration. */
static const char *const COUNTED[] = {"mixed_precision=no", "sparse.rule=topk", "sparse.target_density=0.5",
                                      "sparse.explore_kind=none", NULL};
static const char *const COUNTED_PREDICTOR[] = {"mixed_precision=no",        "sparse.rule=topk",
                                                "sparse.target_density=0.5", "sparse.explore_kind=none",
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
    for (int64_t ranks = 2; ranks <= ranks_max; ranks += 2) {
        compare(DENSE, ranks, 6, 1e-5);
        compare(DENSE_TWICE, ranks, 3, 1e-5);
        compare(DENSE_BF16, ranks, 2, 4e-3); /* rounding to bf16 depends on the order of sums */
    }
}

/* The bell weighs each sample of a batch by its own noise level: a batch of four and one of one on four ranks
 * have the same gradient, which is not that of equal weights. */
static void the_bell_weighs_each_sample(void **state)
{
    static const char *const BELL[] = {"mixed_precision=no", "sparse.enabled=false", "loss_weight=bell",
                                       NULL};
    (void)state;
    compare(BELL, ranks_max, 4, 1e-5);
    Rig plain = {.device = device, .assignment = DENSE, .ranks = 1, .steps = 1};
    Rig bell = {.device = device, .assignment = BELL, .ranks = 1, .steps = 1};
    rig_train(&plain);
    rig_train(&bell);
    assert_true(plain.rank[0].step[0].loss == bell.rank[0].step[0].loss); /* is not weighted */
    assert_true(fabs(bell.rank[0].step[0].grad_norm / plain.rank[0].step[0].grad_norm - 1) > 0.01);
    rig_free(&plain);
    rig_free(&bell);
}

/* Each rank passes the text states of its own samples, with rows of zeros after them. */
static void ranks_have_the_text_of_their_samples(void **state)
{
    static const char *const WITHOUT[] = {"mixed_precision=no", "sparse.enabled=false", NULL};
    (void)state;
    Rig bare = {.device = device, .assignment = WITHOUT, .ranks = 1, .steps = 6};
    Rig one = bare, many = bare;
    one.text = many.text = true;
    many.ranks = 2;
    rig_train(&bare);
    rig_train(&one);
    rig_train(&many);
    rig_same_on_all_ranks(&many);
    rig_close_to(&one, &many, slack * 1e-5);
    assert_true(bare.rank[0].step[5].loss != one.rank[0].step[5].loss);
    rig_free(&bare);
    rig_free(&one);
    rig_free(&many);
}

/* Lists depend on state that is summed over ranks, in an order that depends on the number of ranks: a key
 * close to the threshold may be listed or not, and the bound allows for the contribution of such keys. */
static void ranks_sum_selector_state(void **state)
{
    (void)state;
    for (int64_t ranks = 2; ranks <= ranks_max; ranks += 2) {
        compare(COUNTED, ranks, 6, 2e-3);
        compare(COUNTED_PREDICTOR, ranks, 6, 2e-3);
    }
}

/* With default options, among them exploration and separate thresholds for each rank. */
static void decisions_are_the_same_on_all_ranks(void **state)
{
    Rig rig = {.device = device, .assignment = USUAL, .ranks = ranks_max, .steps = 10};
    (void)state;
    rig_train(&rig);
    rig_same_on_all_ranks(&rig);
    assert_true(rig.rank[0].report.sparse_blocks > 0);
    rig_free(&rig);
}

static void the_same_bits_every_time(void **state)
{
    int64_t ranks = ranks_max < 3 ? ranks_max : 3;
    Rig first = {.device = device, .assignment = USUAL, .ranks = ranks, .steps = 5}, second = first;
    (void)state;
    rig_train(&first);
    rig_train(&second);
    assert_memory_equal(first.rank[0].weights, second.rank[0].weights,
                        (size_t)first.rank[0].elements * sizeof(float));
    rig_free(&first);
    rig_free(&second);
}

/* In a dense step a rank sends the gradients of the other ranks' shards, its shard of the weights to each
 * other rank, and the result of the step. */
static void a_step_sends_the_expected_bytes(void **state)
{
    Rig rig = {.device = device, .assignment = DENSE, .ranks = 4, .steps = 3};
    (void)state;
    rig_train(&rig);
    for (int r = 0; r < 4; r++) {
        const RigRank *rank = &rig.rank[r];
        int64_t elements = rank->elements - rank->own + 3 * rank->own;
        uint64_t sent = rank->sent[2] - rank->sent[1];
        assert_int_equal(sent, (uint64_t)elements * sizeof(float) + 3 * sizeof(DsviStepPart));
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
        assert_true(parts[DSVI_MEM_OPTIMIZER] < whole[DSVI_MEM_OPTIMIZER] / 4 + 4096);
        assert_true(parts[DSVI_MEM_EMA] < whole[DSVI_MEM_EMA] / 4 + 4096);
        assert_int_equal(parts[DSVI_MEM_GRADIENTS], whole[DSVI_MEM_GRADIENTS]);
    }
    assert_int_equal(own, one.rank[0].elements);
    rig_free(&one);
    rig_free(&four);
}

static void a_rank_without_data_ends_all(void **state)
{
    Rig rig = {.device = device,
               .assignment = USUAL,
               .ranks = ranks_max,
               .steps = 6,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = 1,
               .fault_step = 4};
    (void)state;
    rig_train(&rig);
    for (int r = 0; r < ranks_max; r++) {
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
        Rig rig = {.device = device,
                   .assignment = assignments[i],
                   .ranks = 3,
                   .steps = 6,
                   .fault = faults[i],
                   .fault_rank = 1,
                   .fault_step = 3};
        rig_train(&rig);
        rig_expect_diverged(&rig);
        rig_free(&rig);
    }
}

/* One rank computes the first projections for all ranks, inside the first step. */
static void nan_in_the_first_projection_ends_all(void **state)
{
    static const char *const SPARSE[] = {NULL};
    Rig rig = {.device = device,
               .assignment = SPARSE,
               .ranks = 3,
               .steps = 1,
               .fault = RIG_NAN_SAMPLE,
               .fault_rank = 1,
               .fault_step = 1};
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
        cmocka_unit_test(ranks_equal_a_larger_batch), cmocka_unit_test(ranks_have_the_text_of_their_samples),
        cmocka_unit_test(ranks_sum_selector_state),   cmocka_unit_test(decisions_are_the_same_on_all_ranks),
        cmocka_unit_test(the_same_bits_every_time),   cmocka_unit_test(a_rank_without_data_ends_all),
    };
    device = "cuda";
    ranks_max = 2;
    slack = 30;
    return rig_two_gpus() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        return run_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_equal_a_larger_batch),           cmocka_unit_test(ranks_sum_selector_state),
        cmocka_unit_test(decisions_are_the_same_on_all_ranks),  cmocka_unit_test(the_same_bits_every_time),
        cmocka_unit_test(a_step_sends_the_expected_bytes),      cmocka_unit_test(the_optimizer_is_divided),
        cmocka_unit_test(a_rank_without_data_ends_all),         cmocka_unit_test(nan_names_its_rank),
        cmocka_unit_test(nan_in_the_first_projection_ends_all), cmocka_unit_test(the_bell_weighs_each_sample),
        cmocka_unit_test(ranks_have_the_text_of_their_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
