/* Training on clips of several sizes: each size as alone, on one rank and on several, dealt and in order. */
#include "test.h"

#include "train_rig.h"

#define THREE_SIZES "data.buckets=9x32x48,5x32x32,1x32x32"

static Rig train(const char *const *assignment, int64_t ranks, int64_t stage, int steps)
{
    Rig rig = {.device = "cpu",
               .assignment = assignment,
               .ranks = ranks,
               .stage = stage,
               .steps = steps,
               .samples = 2 * ranks};
    rig_train(&rig);
    return rig;
}

/* A run that has three sizes and gets batches of one of them ends with the bits of a run that has only this
 * size: with lists, which the layers of the three sizes make with one shared projection, with BF16, and with
 * recomputation. */
static void each_size_has_the_bits_of_a_run_of_its_own(void **state)
{
    (void)state;
    static const char *const ALONE[][3] = {{"num_frames=9", "height=32", "width=48"},
                                           {"num_frames=5", "height=32", "width=32"},
                                           {"num_frames=1", "height=32", "width=32"}};
    static const char *const KINDS[][2] = {{"mixed_precision=no", "sparse.enabled=false"},
                                           {"mixed_precision=bf16", "gradient_checkpointing=selective"},
                                           {"mixed_precision=no", "gradient_accumulation_steps=2"}};
    for (int64_t only = 0; only < 3; only++)
        for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
            const char *const alone[] = {ALONE[only][0], ALONE[only][1], ALONE[only][2],
                                         KINDS[kind][0], KINDS[kind][1], NULL};
            const char *const among[] = {THREE_SIZES, KINDS[kind][0], KINDS[kind][1], NULL};
            Rig one = {.device = "cpu", .assignment = alone, .ranks = 1, .steps = 6, .samples = 2};
            Rig three = {.device = "cpu",
                         .assignment = among,
                         .ranks = 1,
                         .steps = 6,
                         .samples = 2,
                         .only_size = only + 1};
            rig_train(&one);
            rig_train(&three);
            rig_same_bits(&one, &three);
            rig_free(&one);
            rig_free(&three);
        }
}

/* In F32 the gradient, and all that follows from it, is the same to rounding. */
static void dealing_changes_no_gradient(void **state)
{
    (void)state;
    static const char *const DEALT[] = {THREE_SIZES, "mixed_precision=no", "sparse.enabled=false",
                                        "gradient_accumulation_steps=4", NULL};
    static const char *const IN_ORDER[] = {THREE_SIZES,
                                           "mixed_precision=no",
                                           "sparse.enabled=false",
                                           "gradient_accumulation_steps=4",
                                           "data.balance=false",
                                           NULL};
    for (int64_t ranks = 2; ranks <= 3; ranks++) {
        Rig dealt = train(DEALT, ranks, 0, 1), in_order = train(IN_ORDER, ranks, 0, 1);
        const RigRank *a = &dealt.rank[0], *b = &in_order.rank[0];
        double difference = 0, norm = 0;
        for (int64_t i = 0; i < a->elements; i++) { /* after one step: a tenth of the gradient */
            difference += pow((double)a->moment1[i] - (double)b->moment1[i], 2);
            norm += pow((double)b->moment1[i], 2);
        }
        assert_error_below(sqrt(difference / norm), 1e-6, "gradients of %d ranks", (int)ranks);
        assert_error_below(fabs(a->step[0].loss / b->step[0].loss - 1), 1e-6, "losses");
        assert_true(norm > 0);
        assert_true(difference > 0); /* the batches are summed in another order, so it was dealt */
        rig_same_on_all_ranks(&dealt);
        rig_free(&dealt);
        rig_free(&in_order);
    }
}

/* Ranks that train on different sizes at the same time communicate as ranks of one size do, at every
 * zero_stage, with lists, and end with equal weights and decisions. */
static void ranks_of_different_sizes_agree(void **state)
{
    (void)state;
    static const char *const SPARSE[] = {THREE_SIZES, "mixed_precision=bf16", "gradient_accumulation_steps=2",
                                         NULL};
    static const char *const ONCE[] = {THREE_SIZES, "mixed_precision=bf16", NULL};
    static const char *const POOLED[] = {THREE_SIZES, "sparse.selector=pooled", NULL};
    static const char *const TAIL[] = {THREE_SIZES, "sparse.tail=query", "sparse.tail_chunk=8", NULL};
    static const char *const *const RUNS[] = {SPARSE, ONCE, POOLED, TAIL};
    for (size_t run = 0; run < sizeof RUNS / sizeof *RUNS; run++) {
        Rig stage[3];
        for (int i = 0; i < 3; i++) {
            stage[i] = train(RUNS[run], 2, i + 1, 8);
            rig_same_on_all_ranks(&stage[i]);
        }
        assert_true(stage[0].rank[0].report.sparse_blocks > 0);
        if (RUNS[run] != SPARSE) /* with several passes, stage 1 sums in another order */
            rig_same_bits(&stage[0], &stage[1]);
        rig_same_bits(&stage[1], &stage[2]);
        for (int i = 0; i < 3; i++)
            rig_free(&stage[i]);
    }
}

/* The memory of several sizes is the largest of a single one, and what each size must keep. */
static void memory_is_that_of_the_largest_size(void **state)
{
    (void)state;
    static const char *const ALL[] = {THREE_SIZES, NULL};
    static const char *const LARGEST[] = {"num_frames=9", "height=32", "width=48", NULL};
    Rig all = train(ALL, 1, 0, 1), largest = train(LARGEST, 1, 0, 1);
    const size_t of_all = all.rank[0].plan.used, of_largest = largest.rank[0].plan.used;
    assert_true(of_all >= of_largest);
    assert_true(of_all - of_largest < of_largest / 4);
    rig_free(&all);
    rig_free(&largest);
}

/* The message names the sizes that do not fit, and not those that would. */
static void a_size_that_does_not_fit_is_named(void **state)
{
    (void)state;
    static const char *const ALL[] = {"data.buckets=17x96x96,1x32x32", NULL};
    Rig rig = {.device = "cpu",
               .assignment = ALL,
               .ranks = 1,
               .steps = 1,
               .samples = 2,
               .memory_bytes = 16 << 20,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = -1};
    rig_train(&rig);
    assert_int_equal(rig.outcome[0].status, DSV_E_NO_MEMORY);
    assert_non_null(strstr(rig.outcome[0].sentence, "; too large in data.buckets: 17x96x96; "));
    rig_free(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_size_has_the_bits_of_a_run_of_its_own),
        cmocka_unit_test(dealing_changes_no_gradient),
        cmocka_unit_test(ranks_of_different_sizes_agree),
        cmocka_unit_test(memory_is_that_of_the_largest_size),
        cmocka_unit_test(a_size_that_does_not_fit_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
