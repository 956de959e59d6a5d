/* Sparse attention with context parallelism gives the lists, results, measurements and decisions of one rank,
 * for every division of the ranks into ranks that divide heads and ranks that divide tokens. */
#include "sparse/cp_run.h"

#include "cp/cp_plan.h"
#include "dist/comm_local.h"
#include "dist/local_ranks.h"
#include "sparse/sparse_internal.h"

static CpRun make_run(int64_t batch, int64_t heads, int64_t frames, int64_t height, int64_t width)
{
    CpRun run = {.settings = rig_settings(), .isa = "auto", .steps = 1, .forced = true};
    run.shape = rig_shape(2, batch, heads, 32, frames, height, width, DSVI_F32);
    rig_set(&run.settings, "sparse.max_density=1");
    rig_set(&run.settings, "sparse.list_memory=1");
    rig_set(&run.settings, "sparse.profile_every=1");
    rig_set(&run.settings, "sparse.profile_samples=13");
    return run;
}

/* Error bound for queries that attend to few keys of one direction. Their contributions to dq cancel up to a
 * fiftieth, so that the relative error of dq is larger. */
#define FOCUSED 5e-5

/* Compares runs on 2 to 4 ranks, with every division into heads and tokens, with a run on one rank. Heads are
 * divided evenly and unevenly; with sanitizers only unevenly, because the code is the same. */
static void check(CpRun *run, double bound)
{
    static RunSeen alone, shared;
    run_alone(run, &alone);
    for (run->ranks = 2; run->ranks <= 4; run->ranks++)
        for (run->head_ranks = 0; run->head_ranks <= run->ranks; run->head_ranks++)
            for (int uneven = TEST_SANITIZED; uneven < 2; uneven++) {
                run->uneven = uneven;
                if (run->head_ranks > 0 && run->ranks % run->head_ranks)
                    continue;
                if (run->head_ranks > run->shape.heads)
                    continue;
                run_shared(run, run->ranks - 1, &shared);
                assert_same_run(run, &alone, &shared, (RunSlack){0, bound, 1e-5});
                run_free(run, &shared);
            }
    run_free(run, &alone);
}

static void check_settings(int64_t batch, int64_t heads, const char *const *settings, int64_t focus)
{
    CpRun run = make_run(batch, heads, 3, 10, 13); /* 390 tokens: the last group and span are shorter */
    for (; *settings; settings++)
        rig_set(&run.settings, *settings);
    run.focus[0] = focus;
    check(&run, focus > 0 ? FOCUSED : 1e-5);
}

static void test_by_mass(void **state)
{
    (void)state;
    check_settings(2, 5, (const char *const[]){"sparse.target_mass=0.9", NULL}, 0);
}

/* The clip is so long that the histogram counts only a sample of the spans. The groups of each rank begin at
 * a multiple of eight, so that the histograms of the ranks add up to that of one rank. */
static void test_by_density_of_a_sample(void **state)
{
    static RunSeen alone, shared;
    CpRun run = make_run(1, 3, 8, 32, 32);
    (void)state;
    rig_set(&run.settings, "sparse.target_mass=0");
    rig_set(&run.settings, "sparse.target_density=0.02");
    run_alone(&run, &alone);
    run.ranks = 4;
    run.uneven = true;
    for (run.head_ranks = 1; run.head_ranks <= 2; run.head_ranks++) {
        run_shared(&run, 1, &shared);
        assert_same_run(&run, &alone, &shared, (RunSlack){0, 1e-5, 1e-5});
        run_free(&run, &shared);
    }
    run_free(&run, &alone);
}

static void test_by_density(void **state)
{
    (void)state;
    check_settings(1, 4, (const char *const[]){"sparse.target_mass=0", "sparse.target_density=0.1", NULL}, 0);
}

static void test_topk(void **state)
{
    (void)state;
    check_settings(1, 4,
                   (const char *const[]){"sparse.rule=topk", "sparse.target_mass=0",
                                         "sparse.target_density=0.15", NULL},
                   0);
}

/* Each head has its prescribed number of keys, on whichever rank it is. A block that is prescribed to run
 * dense runs dense. */
static void test_prescribed(void **state)
{
    static const double density[] = {0.4, 0.3, 0.1, 0.02, NAN, NAN, NAN, NAN};
    CpRun run = make_run(1, 4, 3, 10, 13);
    (void)state;
    run.density = density;
    run.forced = false;
    run.recompute = true;
    run.steps = 2;
    rig_set(&run.settings, "sparse.target_density=0.1");
    rig_set(&run.settings, "sparse.rule=topk");
    check(&run, 1e-5);
}

static void test_grain(void **state)
{
    (void)state;
    check_settings(2, 4, (const char *const[]){"sparse.grain=16", NULL}, 8);
    check_settings(1, 5,
                   (const char *const[]){"sparse.grain=48", "sparse.target_mass=0",
                                         "sparse.target_density=0.3", NULL},
                   0);
}

/* The last of the 390 keys make a short span, whose last mean is of two keys. */
static void test_key_chunk(void **state)
{
    (void)state;
    check_settings(2, 4, (const char *const[]){"sparse.grain=8", "sparse.key_chunk=4", NULL}, 8);
    check_settings(1, 5,
                   (const char *const[]){"sparse.grain=16", "sparse.key_chunk=4", "sparse.target_mass=0",
                                         "sparse.target_density=0.3", NULL},
                   0);
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
    check_settings(1, 4,
                   (const char *const[]){"sparse.selector=window", "sparse.rule=topk", "sparse.target_mass=0",
                                         "sparse.target_density=0.1", NULL},
                   0);
}

static CpRun predictor_run(int64_t batch, int64_t heads, int64_t frames, int64_t height, int64_t width)
{
    CpRun run = make_run(batch, heads, frames, height, width);
    rig_set(&run.settings, "sparse.selector=predictor");
    rig_set(&run.settings, "sparse.predictor_samples=11");
    return run;
}

static void test_predictor(void **state)
{
    CpRun run = predictor_run(2, 5, 3, 10, 13);
    (void)state;
    check(&run, 1e-5);
}

/* Only one sampled token: all ranks that divide the tokens except one have nothing from which to learn. */
static void test_predictor_of_one_sample(void **state)
{
    CpRun run = predictor_run(1, 4, 3, 10, 13);
    (void)state;
    rig_set(&run.settings, "sparse.predictor_samples=1");
    rig_set(&run.settings, "sparse.predictor_centred=false");
    rig_set(&run.settings, "sparse.grain=16");
    check(&run, 1e-5);
}

/* From the second step on, lists are made with the trained predictor. In the block that is prescribed to run
 * dense no lists are made or measured, but its predictor learns too. */
static void test_predictor_in_f64(void **state)
{
    static const double density[] = {0.3, 0.3, 0.3, NAN, NAN, NAN};
    CpRun run = predictor_run(1, 3, 2, 7, 9);
    (void)state;
    run.isa = "ref";
    run.shape.act = DSVI_F64;
    run.density = density;
    run.forced = false;
    run.recompute = true;
    run.steps = 2;
    check(&run, 1e-12);
}

static void test_predictor_in_bf16(void **state)
{
    CpRun run = predictor_run(1, 4, 2, 10, 13);
    (void)state;
    run.shape.act = DSVI_BF16;
    check(&run, 1.5e-2);
}

/* In F64 only the order of sums differs. */
static void test_f64(void **state)
{
    CpRun run = make_run(1, 3, 2, 7, 9);
    (void)state;
    run.isa = "ref";
    run.shape.blocks = 1;
    run.shape.act = DSVI_F64;
    run.recompute = true;
    run.focus[0] = 8;
    rig_set(&run.settings, "sparse.grain=16");
    check(&run, 1e-12);
}

/* As on GPUs, the results for the near and the far lists are rounded to BF16 before they are merged. */
static void test_bf16(void **state)
{
    CpRun run = make_run(1, 4, 2, 10, 13);
    (void)state;
    run.shape.act = DSVI_BF16;
    run.recompute = true;
    check(&run, 1.5e-2);
}

static uint64_t sent_back_by_all(const CpRun *run, const BlockSeen *seen)
{
    uint64_t sum = 0;
    for (int64_t r = 0; r < run->ranks; r++)
        sum += seen->sent_back[r];
    return sum;
}

/* A backward pass that directly follows the forward pass of its block, as for the last block or after a
 * recomputation, does not send q, k, v or keys again. Ranks that divide heads exchange only dout, dq, dk and
 * dv, which have equal sizes. Ranks that divide tokens send back as many rows as they fetched in the forward
 * pass. */
static void test_nothing_is_sent_twice(void **state)
{
    static RunSeen once, again;
    CpRun run = make_run(1, 4, 2, 8, 8);
    uint64_t tensor = 2 * 64 * 2 * 32 * sizeof(float); /* bytes of a tensor of both ranks */
    (void)state;
    run.ranks = 2;
    for (run.head_ranks = 1; run.head_ranks <= 2; run.head_ranks++) {
        run.recompute = false;
        run_shared(&run, 0, &once);
        run.recompute = true;
        run_shared(&run, 0, &again);
        uint64_t first = sent_back_by_all(&run, &once.block[0][0]);
        uint64_t last = sent_back_by_all(&run, &once.block[0][1]);
        uint64_t least = sent_back_by_all(&run, &again.block[0][0]);
        assert_int_equal(last, sent_back_by_all(&run, &again.block[0][1]));
        assert_int_equal(first, 2 * least);
        assert_true(least > 0 && (run.head_ranks == 1 || (least == 4 * tensor && last == least)));
        run_free(&run, &once);
        run_free(&run, &again);
    }
}

/* Sets costs with which each byte that is sent takes one second, and nothing else takes time. */
static void make_byte_costs(DsviCpCosts *costs)
{
    memset(costs, 0, sizeof *costs);
    dsvi_price_add(&costs->attention.lists[0], 0, 0);
    for (int64_t ranks = 2; ranks <= 4; ranks++) {
        DsviLinkCost *link = &costs->link[costs->link_count++];
        link->ranks = ranks;
        for (int i = 0; i < 2; i++) {
            dsvi_price_add(&link->head_exchange, i, i);
            dsvi_price_add(&link->sequence_exchange, i, i);
        }
    }
}

/* Returns the bytes that, according to the costs of parallel plans, training the predictor adds to the
 * forward pass of a block with these densities. */
static double planned_training_bytes(const CpRun *run, const double *density)
{
    static const int32_t placement[] = {0, 1, 2, 3};
    static const int64_t bounds[][5] = {{0, 4}, {0, 2, 4}, {0}, {0, 1, 2, 3, 4}};
    static const int64_t tokens[] = {0, 32, 64, 96, 128};
    const DsviCpPlan plan = {run->head_ranks, 4 / run->head_ranks, placement, bounds[run->head_ranks - 1]};
    const DsviCpBlock block = {.density = density};
    DsviCpShape shape = {
        .ranks = 4,
        .batch = 2,
        .tokens = 128,
        .heads = 4,
        .head_dim = 32,
        .bound = tokens,
        .element = 4,
        .group = 32,
        .grain = 1,
        .backward = true,
    };
    DsviCpCosts costs;
    DsviCpTimes untaught, taught;
    make_byte_costs(&costs);
    dsvi_cp_times(&costs, &shape, &block, &plan, &untaught);
    shape.taught = 2 * (double)run->settings.sparse_rank * sizeof(float);
    dsvi_cp_times(&costs, &shape, &block, &plan, &taught);
    return taught.total - untaught.total;
}

/* The bytes that plans count for training the predictor equal the bytes that each rank sends for it. */
static void test_training_bytes_are_planned(void **state)
{
    static RunSeen watched, taught;
    static const double density[] = {0.3, 0.3, 0.3, 0.3, NAN, NAN, NAN, NAN};
    CpRun run = predictor_run(2, 4, 2, 8, 8);
    (void)state;
    run.density = density;
    run.forced = false;
    run.ranks = 4;
    for (run.head_ranks = 1; run.head_ranks <= 4; run.head_ranks *= 2) {
        run.validation = true;
        run_shared(&run, 0, &watched);
        run.validation = false;
        run_shared(&run, 0, &taught);
        for (int block = 0; block < 2; block++) {
            double priced = planned_training_bytes(&run, block == 0 ? density : NULL);
            const BlockSeen *a = &taught.block[0][block], *b = &watched.block[0][block];
            assert_true(a->dense == (block == 1) && b->dense == a->dense);
            for (int r = 0; r < 4; r++)
                assert_int_equal(a->sent[r] - b->sent[r], priced);
        }
        run_free(&run, &watched);
        run_free(&run, &taught);
    }
}

/* All ranks use the same projection, even if the moments of one rank differ: queries of one rank are compared
 * with keys of another, so both must be projected with the same matrices. */
static void test_one_projection_for_all(void **state)
{
    static RunSeen seen;
    CpRun run = make_run(1, 3, 2, 8, 8);
    (void)state;
    rig_set(&run.settings, "sparse.refresh_every=1");
    run.ranks = 3;
    run.steps = 2;
    run.drifts = true;
    run_shared(&run, 0, &seen);
    assert_true(seen.projection_count > 0);
    for (int r = 1; r < 3; r++)
        assert_memory_equal(seen.projection[r], seen.projection[0],
                            (size_t)seen.projection_count * sizeof(float));
    run_free(&run, &seen);
}

/* Plans change from step to step, and the forward pass is repeated before each backward pass. */
static void test_steps_with_recompute(void **state)
{
    CpRun run = make_run(1, 5, 2, 8, 8);
    (void)state;
    run.steps = 3;
    run.recompute = true;
    rig_set(&run.settings, "sparse.refresh_every=2");
    run.focus[2] = 8;
    check(&run, FOCUSED);
}

/* The guard on all ranks: dense and measured, sparse, lists that do not fit, dense, sparse again. */
static void test_guard(void **state)
{
    CpRun run = make_run(2, 5, 1, 16, 16);
    (void)state;
    run.forced = false;
    run.steps = 5;
    rig_set(&run.settings, "sparse.max_density=0.3");
    rig_set(&run.settings, "sparse.list_memory=0.3");
    rig_set(&run.settings, "sparse.profile_every=4");
    rig_set(&run.settings, "sparse.profile_ema=0");
    run.focus[0] = run.focus[1] = run.focus[3] = run.focus[4] = 8;
    run.focus[2] = -1; /* equal attention: lists need all keys, which do not fit on some rank */
    check(&run, FOCUSED);
}

/* The guard uses the worst head of all ranks. Lists of a fifth of the keys hold all mass of three heads and a
 * fifth of the mass of the first head: enough for the first bound, too little for the second. */
static void test_guard_of_heads(void **state)
{
    static const struct {
        const char *bound;
        bool sparse;
    } cases[] = {{"sparse.min_head_mass=0.1", true}, {"sparse.min_head_mass=0.3", false}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        static RunSeen alone;
        CpRun run = make_run(1, 4, 1, 16, 16);
        run.forced = false;
        run.steps = 1; /* in later steps each head would get as many keys as it was measured to need */
        run.wide_heads = 1;
        run.focus[0] = run.focus[1] = 8;
        rig_set(&run.settings, "sparse.rule=topk");
        rig_set(&run.settings, "sparse.target_density=0.2");
        rig_set(&run.settings, "sparse.min_mass=0.5");
        rig_set(&run.settings, cases[i].bound);
        run_alone(&run, &alone);
        for (int64_t block = 0; block < run.shape.blocks; block++)
            assert_int_equal(alone.block[0][block].report.sparse, cases[i].sparse);
        run_free(&run, &alone);
        check(&run, FOCUSED);
    }
}

/* If the lists do not fit on one rank, here the rank with the wide heads, the block runs dense on all
 * ranks. */
static void test_overflow_of_one_rank(void **state)
{
    static RunSeen alone, shared;
    CpRun run = make_run(1, 6, 1, 16, 16);
    (void)state;
    run.ranks = run.head_ranks = 3;
    run.shape.blocks = 1;
    run.focus[0] = 8;
    run.wide_heads = 2;
    rig_set(&run.settings, "sparse.max_density=0.4");
    rig_set(&run.settings, "sparse.list_memory=0.4");
    run_alone(&run, &alone);
    run_shared(&run, 0, &shared);
    for (int64_t i = 0; i < run.shape.blocks; i++) {
        const BlockSeen *a = &alone.block[0][i], *b = &shared.block[0][i];
        int64_t n = run.shape.tokens * run.shape.heads * run.shape.head_dim;
        assert_false(a->dense);
        assert_true(b->dense);
        for (int64_t list = 0; list < run.shape.heads * 8; list++)
            assert_int_equal(b->lengths[list], 0); /* no rank ran over lists */
        assert_error_below(fabs(a->report.density - b->report.density), 1e-9, "density");
        assert_error_below(relative_l2(DSVI_F32, b->out, DSVI_F32, a->out, n), 0.5, "out");
    }
    run_free(&run, &alone);
    run_free(&run, &shared);
}

/* Offloaded lists give the same bits as lists that stay on the device, also when ranks divide the keys. */
static void test_offload(void **state)
{
    static RunSeen kept, offloaded;
    CpRun run = make_run(1, 4, 3, 10, 13);
    (void)state;
    run.shape.blocks = 4;
    run.steps = 2;
    run.ranks = 4;
    rig_set(&run.settings, "sparse.target_mass=0");
    rig_set(&run.settings, "sparse.target_density=0.2");
    rig_set(&run.settings, "sparse.max_density=0.4");
    rig_set(&run.settings, "sparse.list_memory=0.3");
    for (int64_t head_ranks = 0; head_ranks <= 4; head_ranks += head_ranks < 2 ? 1 : 2) {
        run.head_ranks = head_ranks;
        run.recompute = head_ranks != 2;
        rig_set(&run.settings, "sparse.offload_lists=false");
        run_shared(&run, 0, &kept);
        rig_set(&run.settings, "sparse.offload_lists=true");
        run_shared(&run, 0, &offloaded);
        for (int64_t i = 0; i < run.shape.blocks; i++)
            assert_false(offloaded.block[1][i].dense);
        assert_same_run(&run, &kept, &offloaded, (RunSlack){0, 0, 1e-300});
        run_free(&run, &kept);
        run_free(&run, &offloaded);
    }
}

static DsvStatus measure_room(DsviBackend *backend, DsviCpGroup *group, int64_t head_ranks, size_t *bytes)
{
    DsviCp *cp = NULL;
    DsviSparse *sparse = NULL;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 4, 32, 2, 8, 8, DSVI_F32);
    DsviCpClip of = {.tokens = 128, .heads = 4, .unit = 32, .blocks = 1, .head_ranks = head_ranks};
    DsviArena plan;
    DsvStatus status;
    DSVI_TRY_GOTO(status, dsvi_cp_create(group, &of, &cp), done);
    shape.cp = cp;
    DSVI_TRY_GOTO(status, dsvi_sparse_create(backend, &settings, &shape, NULL, NULL, &sparse), done);
    dsvi_arena_plan(&plan);
    dsvi_sparse_carve(sparse, &plan);
    *bytes = sparse->shared_bytes;
done:
    dsvi_sparse_free(&sparse);
    dsvi_cp_free(&cp);
    return status;
}

static DsvStatus measure_rooms(DsviComm *comm, void *argument)
{
    DsviBackend *backend = argument;
    DsviCpGroup *group = NULL;
    DsvStatus status;
    size_t any, bytes[3] = {0}, largest = 0;
    DSVI_TRY_GOTO(status, dsvi_cp_group_create(backend, comm, 0, &group), done);
    DSVI_TRY_GOTO(status, measure_room(backend, group, 0, &any), done);
    for (int i = 0; i < 3; i++) {
        DSVI_TRY_GOTO(status, measure_room(backend, group, 1 << i, &bytes[i]), done);
        largest = bytes[i] > largest ? bytes[i] : largest;
    }
    EXPECT(any == largest && bytes[0] != bytes[2]);
done:
    dsvi_cp_group_close(&group);
    return status;
}

/* Memory that suffices for plans with any number of head ranks equals the memory of the plan that needs
 * most. */
static void test_memory_of_the_largest_plan(void **state)
{
    DsviBackend backend;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    run_ranks_well(4, measure_rooms, &backend);
    dsvi_cpu_close(&backend);
}

typedef struct Refused {
    DsviBackend backend;
    const char *setting;
} Refused;

static DsvStatus make_refused(DsviComm *comm, void *argument)
{
    Refused *refused = argument;
    DsviBackend *backend = &refused->backend;
    DsviCpGroup *group = NULL;
    DsviCp *cp = NULL;
    DsviSparse *sparse = NULL;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 16, 16, DSVI_F32);
    DsviCpClip of = {.tokens = 256, .heads = 2, .unit = 32, .blocks = 1};
    DsvStatus status;
    rig_set(&settings, refused->setting);
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

static void test_refusals(void **state)
{
    static const struct {
        const char *setting, *words;
        DsvStatus status;
    } cases[] = {
        {"sparse.time_choices=true", "sparse.time_choices is true and 2 ranks share a clip", DSV_E_USAGE},
    };
    RankOutcome outcome[RANKS_MAX];
    Refused refused;
    (void)state;
    assert_ok(dsvi_cpu_open("auto", 1, &refused.backend));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused.setting = cases[i].setting;
        run_ranks(2, 60, make_refused, &refused, outcome);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(outcome[r].status, cases[i].status);
            assert_non_null(strstr(outcome[r].sentence, cases[i].words));
        }
    }
    dsvi_cpu_close(&refused.backend);
}

/* Creates a sparse layer on the first of `ranks` ranks. With a fixed number of head ranks (1) nothing is sent
 * while the groups are created, so that the other ranks need not run. */
static DsvStatus create_on_first_of(int64_t ranks, const char *tail)
{
    DsviComm *comm[80];
    DsviBackend backend;
    DsviCpGroup *group = NULL;
    DsviCp *cp = NULL;
    DsviSparse *sparse = NULL;
    DsvConfig settings = rig_settings();
    DsviSparseShape shape = rig_shape(1, 1, 2, 32, 1, 32, 80, DSVI_F32);
    rig_set(&settings, tail);
    rig_set(&settings, "sparse.tail_run=32");
    DsviCpClip of = {.tokens = 32 * 80, .heads = 2, .unit = 32, .blocks = 1};
    assert_ok(dsvi_cpu_open("auto", 1, &backend));
    assert_ok(dsvi_comm_local_create(ranks, 60, comm));
    assert_ok(dsvi_cp_group_create(&backend, comm[0], 1, &group));
    assert_ok(dsvi_cp_create(group, &of, &cp));
    shape.cp = cp;
    DsvStatus status = dsvi_sparse_create(&backend, &settings, &shape, NULL, NULL, &sparse);
    dsvi_sparse_free(&sparse);
    dsvi_cp_free(&cp);
    dsvi_cp_group_close(&group);
    for (int64_t r = 0; r < ranks; r++)
        dsvi_comm_close(&comm[r]);
    dsvi_cpu_close(&backend);
    return status;
}

static void test_more_ranks_than_lists_divide_into(void **state)
{
    (void)state;
    assert_ok(create_on_first_of(64, "sparse.tail=none"));
    assert_fails(DSV_E_UNSUPPORTED,
                 "65 ranks divide the tokens of a clip in every plan there may be, expected "
                 "at most 64",
                 create_on_first_of(65, "sparse.tail=none"));
    assert_ok(create_on_first_of(65, "sparse.tail=key")); /* with a tail no keys are fetched */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_mass),
        cmocka_unit_test(test_by_density),
        cmocka_unit_test(test_by_density_of_a_sample),
        cmocka_unit_test(test_topk),
        cmocka_unit_test(test_grain),
        cmocka_unit_test(test_key_chunk),
        cmocka_unit_test(test_explore),
        cmocka_unit_test(test_other_selectors),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_steps_with_recompute),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_guard_of_heads),
        cmocka_unit_test(test_overflow_of_one_rank),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_nothing_is_sent_twice),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_prescribed),
        cmocka_unit_test(test_predictor),
        cmocka_unit_test(test_predictor_of_one_sample),
        cmocka_unit_test(test_predictor_in_f64),
        cmocka_unit_test(test_predictor_in_bf16),
        cmocka_unit_test(test_offload),
        cmocka_unit_test(test_training_bytes_are_planned),
        cmocka_unit_test(test_one_projection_for_all),
        cmocka_unit_test(test_memory_of_the_largest_plan),
        cmocka_unit_test(test_more_ranks_than_lists_divide_into),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
