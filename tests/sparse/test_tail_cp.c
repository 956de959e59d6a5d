/* Lists with a tail on several ranks give the results, measurements and decisions of one rank, for every
 * division of the ranks into ranks that divide heads and ranks that divide tokens. */
#include "sparse/cp_run.h"

#include "dist/comm_local.h"
#include "dist/local_ranks.h"
#include "sparse/sparse_internal.h"

static const char *const tails[] = {"sparse.tail=query", "sparse.tail=key", "sparse.tail=both"};
enum { TAILS = sizeof tails / sizeof *tails };

/* 390 tokens, not a multiple of groups of 32, chunks and runs of 16: the last of each is short, and ranks
 * have different numbers of tokens. The output error of these random tensors is about 1. */
static CpRun make_run(const char *tail, int64_t batch, int64_t heads)
{
    CpRun run = {.settings = rig_settings(), .isa = "auto", .steps = 1, .forced = true};
    run.shape = rig_shape(2, batch, heads, 32, 3, 10, 13, DSVI_F32);
    rig_set(&run.settings, "sparse.max_density=1");
    rig_set(&run.settings, "sparse.list_memory=1");
    rig_set(&run.settings, "sparse.profile_every=1");
    rig_set(&run.settings, "sparse.profile_samples=13");
    rig_set(&run.settings, "sparse.target_density=0.2");
    rig_set(&run.settings, "sparse.tail_chunk=16");
    rig_set(&run.settings, "sparse.tail_run=16");
    rig_set(&run.settings, tail);
    return run;
}

/* Compares runs on 2 to 4 ranks, with every division into heads and tokens, with a run on one rank. */
static void check(CpRun *run, double bound)
{
    static RunSeen alone, shared;
    run_alone(run, &alone);
    assert_true(alone.block[0][0].report.output_error > 0.01);
    for (run->ranks = 2; run->ranks <= 4; run->ranks++)
        for (run->head_ranks = 0; run->head_ranks <= run->ranks; run->head_ranks++) {
            run->uneven = run->ranks % 2;
            if (run->head_ranks > run->shape.heads || (run->head_ranks > 0 && run->ranks % run->head_ranks))
                continue;
            run_shared(run, run->ranks - 1, &shared);
            assert_same_run(run, &alone, &shared, (RunSlack){0, bound, 1e-5});
            run_free(run, &shared);
        }
    run_free(run, &alone);
}

static void test_f32(void **state)
{
    (void)state;
    for (int i = 0; i < TAILS; i++) {
        CpRun run = make_run(tails[i], 2, 5);
        run.recompute = i == 1;
        check(&run, 1e-6);
    }
}

/* In F64 only the order of sums differs. */
static void test_f64(void **state)
{
    (void)state;
    for (int i = 0; i < TAILS; i++) {
        CpRun run = make_run(tails[i], 1, 3);
        run.isa = "ref";
        run.shape = rig_shape(1, 1, 3, 32, 2, 7, 9, DSVI_F64);
        run.recompute = true;
        check(&run, 1e-12);
    }
}

/* Results over the keys of each row of ranks are rounded to BF16 before they are merged. */
static void test_bf16(void **state)
{
    (void)state;
    for (int i = 0; i < TAILS; i++) {
        CpRun run = make_run(tails[i], 1, 4);
        run.shape.act = DSVI_BF16;
        check(&run, 1.5e-2);
    }
}

/* Spans of several keys, and runs that divide neither groups nor spans: ranks begin at multiples of 96. */
static void test_spans_and_runs(void **state)
{
    (void)state;
    for (int i = 1; i < TAILS; i++) {
        CpRun run = make_run(tails[i], 1, 4);
        rig_set(&run.settings, "sparse.grain=16");
        rig_set(&run.settings, "sparse.tail_run=48");
        rig_set(&run.settings, "sparse.tail_chunk=32");
        check(&run, 1e-6);
    }
}

/* Chunks of one query and runs of one key are dense attention, whatever the lists are, also on several
 * ranks. */
static void test_chunks_of_one_are_dense(void **state)
{
    static const double nothing[] = {NAN, NAN, NAN, NAN};
    static RunSeen dense, shared;
    CpRun run = make_run("sparse.tail=both", 1, 4);
    (void)state;
    run.shape.blocks = 1;
    run.settings.sparse_tail_run = run.settings.sparse_tail_chunk = 1;
    run.forced = false;
    run.density = nothing;
    run_alone(&run, &dense);
    run.forced = true;
    run.density = NULL;
    run.ranks = 3;
    run.head_ranks = 1;
    run_shared(&run, 0, &shared);
    const BlockSeen *a = &dense.block[0][0], *b = &shared.block[0][0];
    int64_t n = run.shape.tokens * run.shape.heads * run.shape.head_dim;
    assert_true(a->dense && !b->dense && b->report.density < 0.5);
    assert_error_below(relative_l2(DSVI_F32, b->out, DSVI_F32, a->out, n), 1e-6, "out");
    assert_error_below(relative_l2(DSVI_F32, b->dq, DSVI_F32, a->dq, n), 1e-6, "dq");
    assert_error_below(relative_l2(DSVI_F32, b->dk, DSVI_F32, a->dk, n), 1e-6, "dk");
    assert_error_below(relative_l2(DSVI_F32, b->dv, DSVI_F32, a->dv, n), 1e-6, "dv");
    run_free(&run, &dense);
    run_free(&run, &shared);
}

/* The guard decides from the output error that all ranks measure: dense first, then over lists. Plans change
 * from step to step. */
static void test_guard(void **state)
{
    (void)state;
    for (int i = 0; i < TAILS; i++) {
        static RunSeen alone;
        CpRun run = make_run(tails[i], 2, 5);
        run.forced = false;
        run.recompute = i == 1;
        run.steps = 3;
        rig_set(&run.settings, "sparse.max_error=5");
        run_alone(&run, &alone);
        assert_true(alone.block[0][0].dense && !alone.block[1][0].dense);
        run_free(&run, &alone);
        check(&run, 1e-6);
    }
}

/* Ranks first attend over lists that do not fit, which are empty, and then densely. In the second step the
 * queries attend to all keys equally, so that lists need more keys than there is memory for. */
static void test_overflow(void **state)
{
    static RunSeen alone, shared;
    CpRun run = make_run("sparse.tail=query", 1, 5);
    (void)state;
    run.steps = 2;
    run.focus[0] = 8;
    run.focus[1] = -1;
    run.head_ranks = 1;
    rig_set(&run.settings, "sparse.target_density=1");
    rig_set(&run.settings, "sparse.max_density=0.3");
    rig_set(&run.settings, "sparse.list_memory=0.3");
    run_alone(&run, &alone);
    assert_true(!alone.block[0][0].dense && alone.block[1][0].dense);
    for (run.ranks = 2; run.ranks <= 3; run.ranks++) {
        run_shared(&run, 0, &shared);
        assert_same_run(&run, &alone, &shared, (RunSlack){0, 5e-5, 1e-5}); /* dq: as in test_sparse_cp.c */
        run_free(&run, &shared);
    }
    run_free(&run, &alone);
}

/* Two runs with equal ranks have equal bits, with offloaded lists too. */
static void test_bits(void **state)
{
    (void)state;
    for (int i = 0; i < TAILS; i++) {
        static RunSeen first, second;
        CpRun run = make_run(tails[i], 1, 4);
        run.recompute = true;
        run.shape.blocks = 3;
        run.ranks = 4;
        run.head_ranks = i < 2 ? 1 : 2;
        run_shared(&run, 0, &first);
        rig_set(&run.settings, "sparse.offload_lists=true");
        run_shared(&run, 0, &second);
        size_t bytes = (size_t)(run.shape.tokens * run.shape.heads * run.shape.head_dim) * sizeof(float);
        for (int64_t block = 0; block < run.shape.blocks; block++) {
            const BlockSeen *a = &first.block[0][block], *b = &second.block[0][block];
            assert_false(a->dense);
            assert_memory_equal(a->out, b->out, bytes);
            assert_memory_equal(a->dq, b->dq, bytes);
            assert_memory_equal(a->dk, b->dk, bytes);
            assert_memory_equal(a->dv, b->dv, bytes);
        }
        run_free(&run, &first);
        run_free(&run, &second);
    }
}

/* A rank that divides tokens sends the keys and values of all ranks but one around the ring, and in the
 * backward pass their gradients too; a recomputation does not change this. */
static void test_bytes(void **state)
{
    static RunSeen seen;
    CpRun run = make_run("sparse.tail=query", 2, 4);
    uint64_t tensor = 2 * 32 * 4 * 32 * sizeof(float); /* bytes of one tensor of one rank */
    (void)state;
    run.shape = rig_shape(2, 2, 4, 32, 2, 8, 8, DSVI_F32); /* 128 tokens on 4 ranks */
    run.ranks = 4;
    run.head_ranks = 1;
    run_shared(&run, 0, &seen);
    for (int64_t r = 0; r < run.ranks; r++)
        assert_int_equal(seen.block[0][1].sent_back[r], (3 * 2 + 3 * 2) * tensor);
    run_free(&run, &seen);
}

static DsvStatus make_refused(DsviComm *comm, void *argument)
{
    DsviBackend *backend = argument;
    DsviCpGroup *group = NULL;
    DsviCp *cp = NULL;
    DsviSparse *sparse = NULL;
    DsvStatus status;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 8, 16, DSVI_F32);
    DsviCpClip of = {.tokens = 128, .heads = 2, .unit = 32, .blocks = 1};
    rig_set(&settings, "sparse.tail=key");
    rig_set(&settings, "sparse.tail_run=24");
    DSVI_TRY_GOTO(status, dsvi_cp_group_create(backend, comm, 0, &group), done);
    DSVI_TRY_GOTO(status, dsvi_cp_create(group, &of, &cp), done);
    shape.cp = cp;
    status = dsvi_sparse_create(backend, &settings, &shape, NULL, NULL, &sparse);
done:
    dsvi_sparse_free(&sparse);
    dsvi_cp_free(&cp);
    dsvi_cp_group_close(&group);
    return status;
}

static void test_runs_of_two_ranks_are_refused(void **state)
{
    RankOutcome outcome[RANKS_MAX];
    DsviBackend backend;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    run_ranks(2, 60, make_refused, &backend, outcome);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(outcome[r].status, DSV_E_USAGE);
        assert_non_null(strstr(outcome[r].sentence, "ranks divide a clip at multiples of 32 tokens, expected "
                                                    "multiples of sparse.tail_run, 24"));
    }
    dsvi_cpu_close(&backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_spans_and_runs),
        cmocka_unit_test(test_chunks_of_one_are_dense),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_runs_of_two_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
