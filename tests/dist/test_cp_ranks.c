/* Training steps on ranks that share clips, in every layout of 2 and 4 ranks, against one rank with the same
 * clips: losses, gradients and weights, also with unequal numbers of tokens and with numbers of heads that
 * the ranks cannot divide. With the argument `cuda` the same on two GPUs, if two GPUs and NCCL are
 * available. */
#include "test.h"

#include "train_rig.h"

static const char *device = "cpu";
static int64_t ranks_max = 4;
/* Relative bounds. GPU kernels order their sums differently for different shapes. Lists depend on sums whose
 * order depends on the ranks: a span close to the threshold may be listed in one layout and not in another,
 * and the bounds allow for its contribution. */
static double dense_bound = 1e-5, list_bound = 1e-4, run_bound = 2e-3, bf16_bound = 4e-3;

/* 90 tokens, groups of 16: 4 ranks own 16, 32, 16 and 26 tokens. */
#define RAGGED "height=48", "width=40", "model.num_attention_heads=4"

static const char *const DENSE[] = {RAGGED, "mixed_precision=no", "sparse.enabled=false", NULL};
static const char *const TWICE[] = {RAGGED, "mixed_precision=no", "sparse.enabled=false",
                                    "gradient_accumulation_steps=2", NULL};
static const char *const AGAIN[] = {RAGGED, "mixed_precision=no", "sparse.enabled=false",
                                    "gradient_checkpointing=true", NULL};
static const char *const SELECTIVE[] = {RAGGED, "mixed_precision=no", "sparse.enabled=false",
                                        "gradient_checkpointing=selective", NULL};
static const char *const FIVE_HEADS[] = {RAGGED, "mixed_precision=no", "sparse.enabled=false",
                                         "model.num_attention_heads=5", NULL};
/* One threshold for the batch, and exploration: ranks that share all clips make the lists of one rank. */
static const char *const LISTS[] = {RAGGED, "mixed_precision=no", NULL};
static const char *const LISTS_AGAIN[] = {RAGGED,
                                          "mixed_precision=no",
                                          "gradient_checkpointing=true",
                                          "sparse.selector=pooled",
                                          "model.num_attention_heads=5",
                                          NULL};
/* Lists of equal length, which do not depend on the division of the batch, and spans of several keys. */
static const char *const COUNTED[] = {RAGGED,
                                      "mixed_precision=no",
                                      "sparse.rule=topk",
                                      "sparse.target_density=0.5",
                                      "sparse.explore_kind=none",
                                      "sparse.grain=8",
                                      NULL};
static const char *const PREDICTED[] = {RAGGED,
                                        "mixed_precision=no",
                                        "sparse.selector=predictor",
                                        "sparse.rule=topk",
                                        "sparse.target_density=0.5",
                                        "sparse.explore_kind=none",
                                        NULL};
/* The predictor is trained while all blocks are dense. */
static const char *const LEARNT[] = {RAGGED,
                                     "mixed_precision=no",
                                     "sparse.selector=predictor",
                                     "sparse.warmup_steps=1000",
                                     "model.num_attention_heads=5",
                                     NULL};
static const char *const BF16[] = {RAGGED, "mixed_precision=bf16", "sparse.enabled=false", NULL};
static const char *const USUAL[] = {RAGGED, "mixed_precision=bf16", NULL};

enum { STEPS = 4 };

/* data x sequence x head ranks, and the number of ranks that divide the state. */
typedef struct Layout {
    int64_t data, sequence, head, shard;
} Layout;

static Rig train(const char *const *assignment, const Layout *layout, int64_t stage, int steps)
{
    Rig rig = {
        .device = device,
        .assignment = assignment,
        .ranks = layout->data * layout->sequence * layout->head,
        .cp_ranks = layout->sequence * layout->head,
        .head_ranks = layout->head,
        .shard_ranks = layout->shard,
        .stage = stage,
        .steps = steps,
    };
    rig_train(&rig);
    return rig;
}

/* Compares every layout with one rank. */
static void compare(const char *const *assignment, const Layout *layout, int count, int64_t stage,
                    double bound)
{
    static const Layout alone = {1, 1, 1, 1};
    Rig one = train(assignment, &alone, 1, STEPS);
    for (int i = 0; i < count; i++) {
        const Layout *l = &layout[i];
        if (l->data * l->sequence * l->head > ranks_max)
            continue;
        Rig many = train(assignment, l, stage, STEPS);
        rig_same_on_all_ranks(&many);
        rig_close_to(&one, &many, bound);
        assert_int_equal(many.rank[0].report.sparse_blocks, one.rank[0].report.sparse_blocks);
        rig_free(&many);
    }
    rig_free(&one);
}

#define COMPARE(assignment, layouts, stage, bound) \
    compare(assignment, layouts, (int)(sizeof(layouts) / sizeof *(layouts)), stage, bound)

/* All factorisations of 2 and 4 ranks; all ranks divide the state. */
static const Layout every[] = {
    {1, 1, 2, 0}, {1, 2, 1, 0}, {2, 1, 2, 0}, {2, 2, 1, 0}, {1, 1, 4, 0}, {1, 2, 2, 0}, {1, 4, 1, 0},
};
static const Layout some[] = {{1, 2, 1, 0}, {1, 2, 2, 0}, {2, 1, 2, 0}};

static void every_layout_equals_one_rank(void **state)
{
    (void)state;
    COMPARE(DENSE, every, 1, dense_bound);
}

static void with_accumulation_and_checkpointing(void **state)
{
    (void)state;
    COMPARE(TWICE, some, 1, dense_bound);
    COMPARE(AGAIN, some, 1, dense_bound);
    COMPARE(SELECTIVE, some, 1, dense_bound);
}

/* The division of the model's state is independent of which ranks share clips. */
static void with_the_state_divided(void **state)
{
    static const Layout divided[] = {{1, 2, 2, 4}, {1, 2, 2, 2}, {2, 1, 2, 2}, {2, 1, 2, 4}, {1, 4, 1, 1}};
    (void)state;
    COMPARE(DENSE, divided, 2, dense_bound);
    COMPARE(DENSE, divided, 3, dense_bound);
}

static void heads_that_ranks_do_not_divide(void **state)
{
    (void)state;
    COMPARE(FIVE_HEADS, every, 1, dense_bound);
}

static void over_lists(void **state)
{
    static const Layout together[] = {{1, 1, 2, 0}, {1, 2, 1, 0}, {1, 1, 4, 0}, {1, 2, 2, 0}, {1, 4, 1, 0}};
    (void)state;
    COMPARE(LISTS, together, 1, list_bound);
    COMPARE(LISTS_AGAIN, together, 1, list_bound);
    COMPARE(COUNTED, every, 1, run_bound);
}

static void with_a_predictor(void **state)
{
    (void)state;
    COMPARE(PREDICTED, every, 1, run_bound);
    COMPARE(LEARNT, every, 1, dense_bound);
}

static void lists_attend_something(void **state)
{
    static const Layout layout = {1, 2, 2, 0};
    static const char *const *const assignments[] = {LISTS, LISTS_AGAIN, COUNTED, PREDICTED};
    (void)state;
    for (int i = 0; i < 4; i++) {
        Rig rig = train(assignments[i], &layout, 1, STEPS);
        assert_true(rig.rank[0].report.sparse_blocks > 0);
        assert_true(rig.rank[0].report.density < 1);
        rig_free(&rig);
    }
}

static void in_bf16(void **state)
{
    (void)state;
    COMPARE(BF16, some, 1, bf16_bound);
}

static void the_same_bits_every_time(void **state)
{
    static const Layout layout = {1, 2, 2, 0};
    Rig first = train(USUAL, &layout, 3, STEPS), second = train(USUAL, &layout, 3, STEPS);
    (void)state;
    assert_memory_equal(first.rank[0].weights, second.rank[0].weights,
                        (size_t)first.rank[0].elements * sizeof(float));
    rig_free(&first);
    rig_free(&second);
}

/* Memory for activations is proportional to the number of tokens of the rank. */
static void activations_are_divided(void **state)
{
    static const Layout alone = {1, 1, 1, 0}, shared = {1, 2, 2, 0};
    Rig one = train(DENSE, &alone, 1, 1), four = train(DENSE, &shared, 1, 1);
    (void)state;
    for (int r = 0; r < 4; r++) {
        double share = (double)four.rank[r].plan.by_class[DSVI_MEM_ACTIVATIONS] /
                       (double)one.rank[0].plan.by_class[DSVI_MEM_ACTIVATIONS];
        int64_t tokens[] = {16, 32, 16, 26};
        assert_true(share < (double)tokens[r] / 90 + 0.05);
    }
    rig_free(&one);
    rig_free(&four);
}

static void invalid_layouts(void **state)
{
    static const struct {
        const char *assignment[8];
        int64_t ranks, cp_ranks, head_ranks;
        DsvStatus status;
        const char *words;
    } mistakes[] = {
        {{NULL}, 4, 4, 0, DSV_E_USAGE, "48 tokens in shards of a multiple of 16 are too few for 4 ranks"},
        {{RAGGED}, 3, 3, 0, DSV_OK, ""},
        {{"sparse.grain=24", RAGGED},
         3,
         3,
         0,
         DSV_E_USAGE,
         "90 tokens in shards of a multiple of 48 are too few for 3"},
        {{NULL}, 3, 3, 3, DSV_E_USAGE, "2 heads are too few for 3 head-parallel ranks"},
        {{"data.buckets=17x32x32"}, 2, 2, 0, DSV_OK, ""},
        {{"data.buckets=17x32x32", "validation_at_end=true"},
         2,
         2,
         0,
         DSV_E_UNSUPPORTED,
         "the size 17x32x32, sampled and held-out clips have 5x32x32 (num_frames x height x width), and 2"},
        {{"data.buckets=17x32x32", "validation.data=held-out"},
         2,
         2,
         0,
         DSV_E_UNSUPPORTED,
         "the size 17x32x32, sampled and held-out clips have 5x32x32 (num_frames x height x width), and 2"},
        {{"data.buckets=5x32x32", "validation_at_end=true"}, 2, 2, 0, DSV_OK, ""},
        {{"data.buckets=5x32x32,9x32x32"}, 2, 2, 0, DSV_E_UNSUPPORTED, "2 sizes and 2 ranks share a clip"},
        {{NULL}, 4, 3, 0, DSV_E_USAGE, "cp_size is 3, expected a divisor of the number of ranks, 4"},
        {{NULL}, 2, 2, 4, DSV_E_USAGE, "cp_heads is 4, expected a divisor of cp_size, 2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const char *assignment[9] = {NULL};
        memcpy(assignment, mistakes[i].assignment, sizeof mistakes[i].assignment);
        Rig rig = {.device = device,
                   .assignment = assignment,
                   .ranks = mistakes[i].ranks,
                   .steps = 1,
                   .samples = 12,
                   .cp_ranks = mistakes[i].cp_ranks,
                   .head_ranks = mistakes[i].head_ranks,
                   .fault = RIG_NO_SAMPLE,
                   .fault_rank = -1};
        rig_train(&rig);
        rig_free(&rig);
        assert_int_equal(rig.outcome[0].status, mistakes[i].status);
        if (!strstr(rig.outcome[0].sentence, mistakes[i].words))
            fail_msg("%s", rig.outcome[0].sentence);
    }
}

static int run_cuda(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_equals_one_rank),
        cmocka_unit_test(with_accumulation_and_checkpointing),
        cmocka_unit_test(with_the_state_divided),
        cmocka_unit_test(heads_that_ranks_do_not_divide),
        cmocka_unit_test(over_lists),
        cmocka_unit_test(with_a_predictor),
        cmocka_unit_test(in_bf16),
    };
    device = "cuda";
    ranks_max = 2;
    dense_bound = 3e-4;
    list_bound = run_bound = 6e-2;
    bf16_bound = 0.12;
    return rig_two_gpus() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        return run_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_equals_one_rank),
        cmocka_unit_test(with_accumulation_and_checkpointing),
        cmocka_unit_test(with_the_state_divided),
        cmocka_unit_test(heads_that_ranks_do_not_divide),
        cmocka_unit_test(over_lists),
        cmocka_unit_test(with_a_predictor),
        cmocka_unit_test(lists_attend_something),
        cmocka_unit_test(in_bf16),
        cmocka_unit_test(the_same_bits_every_time),
        cmocka_unit_test(activations_are_divided),
        cmocka_unit_test(invalid_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
