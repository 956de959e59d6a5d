/* zero_stage: training has the same bits at all stages, and memory and bytes sent equal the formulas of
 * docs/parallelism.md. Failures inside a step end all ranks with one message. */
#include "test.h"

#include "train_rig.h"

static const char *device = "cpu";
static int64_t ranks_max = 4, ranks_odd = 3;
static double slack = 1; /* GPU kernels order their sums differently for different batches */

static const char *const DENSE[] = {"mixed_precision=no", "sparse.enabled=false", NULL};
static const char *const DEEP[] = {"mixed_precision=no", "sparse.enabled=false", "model.num_layers=12",
                                   "model.text_dim=32", NULL};
static const char *const DEEP_SELECTIVE[] = {"mixed_precision=no",
                                             "sparse.enabled=false",
                                             "model.num_layers=12",
                                             "model.text_dim=32",
                                             "gradient_checkpointing=selective",
                                             NULL};
static const char *const DENSE_BF16[] = {"mixed_precision=bf16", "sparse.enabled=false", NULL};
static const char *const PADDED[] = {/* slots of 16 elements, which no weight fills completely */
                                     "mixed_precision=no",
                                     "sparse.enabled=false",
                                     "model.num_attention_heads=1",
                                     "model.attention_head_dim=34",
                                     "model.ffn_dim=70",
                                     NULL};
static const char *const AGAIN[] = {"gradient_checkpointing=true", NULL};
static const char *const SELECTIVE[] = {"gradient_checkpointing=selective", "mixed_precision=no", NULL};
static const char *const USUAL[] = {"mixed_precision=bf16", NULL};
static const char *const SHARED[] = {"cp_size=2", "mixed_precision=no", "sparse.enabled=false", NULL};
static const char *const SHARED_SPARSE[] = {"cp_size=4", "cp_heads=2", NULL};
static const char *const TWICE[] = {"mixed_precision=no", "sparse.enabled=false",
                                    "gradient_accumulation_steps=2", NULL};
static const char *const TWICE_BF16[] = {"mixed_precision=bf16", "gradient_accumulation_steps=2", NULL};

static Rig train(const char *const *assignment, int64_t ranks, int64_t stage, int steps)
{
    Rig rig = {.device = device,
               .assignment = assignment,
               .ranks = ranks,
               .stage = stage,
               .steps = steps,
               .samples = 12};
    rig_train(&rig);
    return rig;
}

static void stages_give_the_same_bits(void **state)
{
    static const char *const *const assignments[] = {DENSE, DENSE_BF16, PADDED, AGAIN, SELECTIVE, USUAL};
    (void)state;
    for (size_t i = 0; i < sizeof assignments / sizeof *assignments; i++) {
        for (int64_t ranks = 2; ranks <= ranks_max; ranks++) {
            Rig first = train(assignments[i], ranks, 1, 4);
            for (int64_t stage = 2; stage <= 3; stage++) {
                Rig other = train(assignments[i], ranks, stage, 4);
                rig_same_bits(&first, &other);
                rig_free(&other);
            }
            rig_free(&first);
        }
    }
}

/* Weights and gradients are transferred concurrently with the exchanges of context parallelism. */
static void ranks_that_share_clips_divide_the_state(void **state)
{
    static const char *const *const assignments[] = {SHARED, SHARED_SPARSE};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Rig first = train(assignments[i], 4, 1, 4);
        for (int64_t stage = 2; stage <= 3; stage++) {
            Rig other = train(assignments[i], 4, stage, 4);
            rig_same_bits(&first, &other);
            rig_free(&other);
        }
        rig_free(&first);
    }
}

/* At stage 1 micro-batches are added before the sum over ranks, at stages 2 and 3 after it. */
static void accumulated_gradients_agree(void **state)
{
    (void)state;
    for (int64_t ranks = 2; ranks <= ranks_max; ranks++) {
        Rig first = train(TWICE, ranks, 1, 3), second = train(TWICE, ranks, 2, 3);
        Rig third = train(TWICE, ranks, 3, 3);
        rig_close_to(&first, &second, slack * 1e-5);
        rig_same_bits(&second, &third);
        rig_free(&first);
        rig_free(&second);
        rig_free(&third);
    }
    Rig second = train(TWICE_BF16, ranks_odd, 2, 4), third = train(TWICE_BF16, ranks_odd, 3, 4);
    rig_same_bits(&second, &third);
    rig_free(&second);
    rig_free(&third);
}

static void ranks_equal_one_rank(void **state)
{
    static const char *const *const assignments[] = {DENSE, TWICE};
    (void)state;
    for (int i = 0; i < 2; i++) {
        Rig one = train(assignments[i], 1, 3, 3);
        for (int64_t ranks = 2; ranks <= ranks_max; ranks++) {
            for (int64_t stage = 2; stage <= 3; stage++) {
                Rig many = train(assignments[i], ranks, stage, 3);
                rig_close_to(&one, &many, slack * 1e-5);
                rig_free(&many);
            }
        }
        rig_free(&one);
    }
}

/* Shard groups that are replicas of each other. */
static void replicas_add_their_sums(void **state)
{
    Rig one = train(DENSE, 1, 1, 3);
    (void)state;
    for (int64_t shard_ranks = 1; shard_ranks <= 2; shard_ranks++) {
        Rig stage[3];
        for (int i = 0; i < 3; i++) {
            stage[i] = (Rig){.device = device,
                             .assignment = DENSE,
                             .ranks = 4,
                             .shard_ranks = shard_ranks,
                             .stage = i + 1,
                             .steps = 3,
                             .samples = 12};
            rig_train(&stage[i]);
            rig_close_to(&one, &stage[i], slack * 1e-5);
            rig_same_bits(&stage[0], &stage[i]);
        }
        assert_int_equal(stage[0].rank[0].own + (shard_ranks > 1 ? stage[0].rank[1].own : 0),
                         one.rank[0].elements);
        for (int i = 0; i < 3; i++)
            rig_free(&stage[i]);
    }
    rig_free(&one);
}

static size_t round_up(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* Compares planned memory with the formulas of docs/parallelism.md. */
static void check_memory_formulas(const char *const *assignment, size_t act)
{
    Rig one = train(assignment, 1, 1, 1);
    size_t whole = round_up((size_t)one.rank[0].work_bytes);
    size_t gradients = round_up((size_t)one.rank[0].elements * 4);
    assert_int_equal(one.rank[0].plan.by_class[DSVI_MEM_WEIGHTS], whole + (act == 4 ? 0 : gradients));
    for (int64_t stage = 1; stage <= 3; stage++) {
        Rig rig = train(assignment, 3, stage, 1);
        for (int r = 0; r < 3; r++) {
            const RigRank *rank = &rig.rank[r];
            const size_t *plan = rank->plan.by_class;
            size_t own = round_up((size_t)rank->own * 4), own_work = round_up((size_t)rank->own_work);
            size_t bucket = round_up((size_t)rank->largest * 4);
            size_t work_bucket = round_up((size_t)rank->largest_work);
            size_t work = stage < 3 ? whole : own_work + 2 * work_bucket;
            size_t master = act == 4 ? 0 : own;
            assert_int_equal(plan[DSVI_MEM_WEIGHTS], work + master);
            assert_int_equal(plan[DSVI_MEM_GRADIENTS], stage < 2 ? gradients : own + 2 * bucket);
            assert_int_equal(plan[DSVI_MEM_OPTIMIZER], 2 * own);
            assert_int_equal(plan[DSVI_MEM_EMA], own);
        }
        rig_free(&rig);
    }
    rig_free(&one);
}

static void each_stage_takes_its_memory(void **state)
{
    (void)state;
    check_memory_formulas(DENSE, 4);
    check_memory_formulas(DENSE_BF16, 2);
}

static DsvStatus join_nobody(const DsviBackend *backend, DsviComm *host, DsviComm **out)
{
    (void)backend, (void)host, (void)out;
    return DSV_OK;
}

/* Checks the device memory for sums of gradients, where the largest bucket has `elements` elements: at most
 * 16 MiB per rank, and not more than the bucket, except for the rounding of each rank's shard. */
static void room_for_sums(int64_t shards, int64_t replicas, int64_t elements)
{
    enum { OTHER = 256 << 10, MOST = 16 << 20, UNIT = 4096 };
    int64_t begin[] = {0, 1600, 1600 + elements}, gemm[] = {800, 1600 + 16};
    DsviParamTable table = {.elements = begin[2], .buckets = 2, .begin = begin, .gemm = gemm};
    DsviMesh mesh = {
        .data_ranks = shards * replicas, .cp_ranks = 1, .shard_ranks = shards, .replica_ranks = replicas};
    DsviBackend backend = {.join = join_nobody};
    DsvConfig settings;
    DsviArena arena;
    DsviZero zero;
    dsv_config_defaults(&settings);
    dsvi_arena_plan(&arena);
    assert_ok(dsvi_zero_make(&settings, &backend, &mesh, &table, &zero));
    dsvi_zero_carve(&zero, &settings, &arena);
    int64_t ranks = shards > replicas ? shards : replicas, sums = elements * 4 + ranks * UNIT;
    sums = sums < ranks * MOST ? sums : ranks * MOST;
    sums += shards > 1 && replicas > 1 ? shards * replicas * OTHER : 0;
    assert_in_range(arena.by_class[DSVI_MEM_SCRATCH], shards * replicas > 1 ? 1 : 0, sums);
    dsvi_zero_free(&zero);
}

static void sums_take_the_documented_memory(void **state)
{
    (void)state;
    room_for_sums(1, 1, 1 << 20);
    room_for_sums(2, 1, 1 << 20);
    room_for_sums(512, 1, 350 << 20); /* a block of a model with 14 billion parameters */
    room_for_sums(1, 512, 350 << 20);
    room_for_sums(8, 64, 350 << 20);
    room_for_sums(64, 8, 1000);
}

/* Gives the device as much memory as `fitting` needs at `stage`, trains at stage 1, and checks that the
 * message contains `words`. One sample per rank, so that gradients are larger than the activations that alias
 * them. */
static void check_message(const char *const *fitting, int64_t stage, const char *words)
{
    Rig rig = {.device = device,
               .assignment = DEEP,
               .ranks = 3,
               .stage = 1,
               .steps = 1,
               .samples = 3,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = -1};
    Rig fits = rig;
    fits.assignment = fitting;
    fits.stage = stage;
    rig_train(&fits);
    for (int r = 0; r < 3; r++)
        rig.memory_bytes = fits.rank[r].plan.used > rig.memory_bytes ? fits.rank[r].plan.used
                                                                     : rig.memory_bytes;
    rig_train(&rig);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(rig.outcome[r].status, DSV_E_NO_MEMORY);
        if (!strstr(rig.outcome[r].sentence, words))
            fail_msg("%s", rig.outcome[r].sentence);
    }
    rig_free(&rig);
    rig_free(&fits);
}

static void out_of_memory_names_options_that_fit(void **state)
{
    (void)state;
    check_message(DEEP, 2, "it would fit with zero_stage=2 gradient_checkpointing=false train_batch_size=1 ");
    check_message(DEEP_SELECTIVE, 3,
                  "it would fit with zero_stage=3 gradient_checkpointing=selective train_batch_size=1 ");
}

/* The host memory suffices for each rank alone, but not for all ranks of the machine. */
static void ranks_of_a_machine_share_its_memory(void **state)
{
    char words[96];
    (void)state;
    Rig fits = train(DEEP, 3, 1, 1);
    Rig rig = {.device = device,
               .assignment = DEEP,
               .ranks = 3,
               .stage = 1,
               .steps = 1,
               .samples = 12,
               .fault = RIG_NO_SAMPLE,
               .fault_rank = -1};
    for (int r = 0; r < 3; r++)
        rig.host_bytes += fits.rank[r].host_plan.used;
    rig_train(&rig);
    for (int r = 0; r < 3; r++)
        assert_int_equal(rig.outcome[r].status, DSV_OK);
    rig_free(&rig);
    snprintf(words, sizeof words, "3 ranks on this machine want %.1f GiB of its memory, and it has ",
             (double)rig.host_bytes / 1073741824);
    rig.host_bytes--;
    rig_train(&rig);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(rig.outcome[r].status, DSV_E_NO_MEMORY);
        assert_non_null(strstr(rig.outcome[r].sentence, words));
    }
    rig_free(&rig);
    rig_free(&fits);
}

/* Bytes that a rank sends in a step after the first: the other ranks' shards of the gradients, once per step
 * (stage 1) or per micro-batch; its shard of the weights to each other rank, once per step, or at stage 3
 * once per pass except for the two buckets that are still gathered from the previous pass; and the result of
 * the step. */
static uint64_t expected_bytes(const RigRank *rank, int64_t ranks, int64_t stage, int64_t passes)
{
    uint64_t gradients = (uint64_t)(rank->elements - rank->own) * 4;
    uint64_t weights = (uint64_t)rank->own_work;
    if (stage >= 2)
        gradients *= (uint64_t)passes;
    if (stage == 3)
        weights = (uint64_t)passes * (2 * weights - (uint64_t)rank->own_last_two) -
                  (uint64_t)(passes - 1) * (uint64_t)rank->own_first_two;
    return gradients + (uint64_t)(ranks - 1) * (weights + sizeof(DsviStepPart));
}

static void a_step_sends_the_expected_bytes(void **state)
{
    static const char *const *const assignments[] = {DENSE, DENSE_BF16, TWICE};
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int64_t stage = 1; stage <= 3; stage++) {
            Rig rig = train(assignments[i], 3, stage, 3);
            for (int r = 0; r < 3; r++) {
                const RigRank *rank = &rig.rank[r];
                assert_int_equal(rank->sent[2] - rank->sent[1],
                                 expected_bytes(rank, 3, stage, i == 2 ? 2 : 1));
            }
            rig_free(&rig);
        }
    }
}

/* Two shard groups of two ranks: a rank sends its replica half of the group's sums, and then the total of the
 * other half. */
static void replicas_send_the_expected_bytes(void **state)
{
    (void)state;
    for (int64_t stage = 1; stage <= 3; stage++) {
        Rig rig = {
            .device = device, .assignment = TWICE, .ranks = 4, .shard_ranks = 2, .stage = stage, .steps = 3};
        rig_train(&rig);
        for (int r = 0; r < 4; r++) {
            const RigRank *rank = &rig.rank[r];
            uint64_t sums = stage > 1 ? 2 : 1, shares = 2 * sizeof(DsviStepPart);
            assert_int_equal(rank->sent[2] - rank->sent[1],
                             expected_bytes(rank, 2, stage, 2) + shares + sums * (uint64_t)rank->own * 4);
        }
        rig_free(&rig);
    }
}

/* The other ranks are waiting for weights or for gradients when the failure occurs. */
static void a_failure_ends_all_with_one_sentence(void **state)
{
    (void)state;
    for (int64_t stage = 1; stage <= 3; stage++) {
        for (int64_t at = 1; at <= 4; at++) {
            Rig rig = {.device = device,
                       .assignment = TWICE_BF16,
                       .ranks = ranks_odd,
                       .stage = stage,
                       .steps = 4,
                       .fault = RIG_NO_SAMPLE,
                       .fault_rank = 1,
                       .fault_step = at};
            rig_train(&rig);
            for (int r = 0; r < ranks_odd; r++) {
                assert_int_equal(rig.outcome[r].status, r == 1 ? DSV_E_IO : DSV_E_RANK);
                assert_string_equal(rig.outcome[r].sentence, "rank 1: the disk is gone");
            }
            rig_free(&rig);
        }
    }
}

static void nan_names_its_rank(void **state)
{
    (void)state;
    for (int64_t stage = 1; stage <= 3; stage++) {
        Rig rig = {.device = device,
                   .assignment = DENSE,
                   .ranks = ranks_odd,
                   .stage = stage,
                   .steps = 6,
                   .fault = RIG_NAN_SAMPLE,
                   .fault_rank = 1,
                   .fault_step = 3};
        rig_train(&rig);
        rig_expect_diverged(&rig);
        rig_free(&rig);
    }
}

static int run_cuda(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(accumulated_gradients_agree),
        cmocka_unit_test(ranks_equal_one_rank),
        cmocka_unit_test(nan_names_its_rank),
        cmocka_unit_test(a_failure_ends_all_with_one_sentence),
    };
    device = "cuda";
    ranks_max = ranks_odd = 2;
    slack = 30;
    return rig_two_gpus() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        return run_cuda();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_give_the_same_bits),
        cmocka_unit_test(ranks_that_share_clips_divide_the_state),
        cmocka_unit_test(accumulated_gradients_agree),
        cmocka_unit_test(ranks_equal_one_rank),
        cmocka_unit_test(replicas_add_their_sums),
        cmocka_unit_test(each_stage_takes_its_memory),
        cmocka_unit_test(sums_take_the_documented_memory),
        cmocka_unit_test(out_of_memory_names_options_that_fit),
        cmocka_unit_test(ranks_of_a_machine_share_its_memory),
        cmocka_unit_test(a_step_sends_the_expected_bytes),
        cmocka_unit_test(replicas_send_the_expected_bytes),
        cmocka_unit_test(a_failure_ends_all_with_one_sentence),
        cmocka_unit_test(nan_names_its_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
