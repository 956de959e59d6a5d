/* Sparse attention with context parallelism on two GPUs, compared with one rank on one of these GPUs. The
 * ranks are threads that communicate with NCCL.
 *
 * Projections are computed from exact sums, so lists are equal, except for spans whose estimate is next to
 * the threshold: estimates are divided by sums whose order depends on how many heads a rank has. Lists of the
 * CPU would not be equal, since estimates of two variants may differ by DSVI_SELECT_COARSE_ERROR. */
#include "sparse/cp_run.h"

#include "cuda/common/cuda.h"
#include "dist/local_ranks.h"

static DsvStatus open_gpu(int64_t rank, DsviBackend *backend)
{
    return dsvi_cuda_open(rank, false, backend);
}

/* Larger bounds for BF16, because results for two halves of the keys are rounded before they are merged. */
/* Laid out by hand: clang-format 14 takes the braces of an initializer in a macro for a block. */
/* clang-format off */
#define F32_SLACK {1e-3, 1e-4, 1e-3}
#define BF16_SLACK {1e-3, 1.5e-2, 1e-3}
/* clang-format on */

static const struct {
    int64_t batch, heads, dim, group, grain;
    DsviDtype act;
    const char *setting;
    RunSlack slack;
} cases[] = {
    {1, 4, 64, 64, 1, DSVI_F32, "sparse.target_mass=0.8", F32_SLACK},
    {2, 3, 32, 32, 16, DSVI_F32, "sparse.explore=0.1", F32_SLACK},
    {1, 4, 128, 128, 1, DSVI_BF16, "sparse.target_mass=0.8", BF16_SLACK},
    {2, 5, 64, 64, 16, DSVI_BF16, "sparse.target_mass=0.8", BF16_SLACK},
    {1, 4, 128, 64, 1, DSVI_BF16, "sparse.explore=0.1", BF16_SLACK},
    {2, 3, 64, 64, 1, DSVI_F32, "sparse.selector=predictor", F32_SLACK},
    {1, 4, 128, 128, 1, DSVI_BF16, "sparse.selector=predictor", BF16_SLACK},
    {2, 3, 64, 64, 1, DSVI_F32, "sparse.tail=query", F32_SLACK},
    {1, 4, 128, 64, 1, DSVI_BF16, "sparse.tail=query", BF16_SLACK},
    {1, 4, 128, 64, 1, DSVI_BF16, "sparse.tail=key", BF16_SLACK},
    {2, 4, 128, 128, 16, DSVI_BF16, "sparse.tail=both", BF16_SLACK},
};

static CpRun make_run(size_t i)
{
    CpRun run = {.settings = rig_settings(),
                 .isa = "auto",
                 .open = open_gpu,
                 .ranks = 2,
                 .steps = 2,
                 .forced = true,
                 .recompute = true};
    run.settings.sparse_group = cases[i].group;
    run.settings.sparse_grain = cases[i].grain;
    run.settings.sparse_rank = 16;
    run.shape = rig_shape(2, cases[i].batch, cases[i].heads, cases[i].dim, 4, 15, 17, cases[i].act);
    rig_set(&run.settings, cases[i].setting);
    rig_set(&run.settings, "sparse.max_density=1");
    rig_set(&run.settings, "sparse.list_memory=1");
    rig_set(&run.settings, "sparse.profile_every=1");
    rig_set(&run.settings, i % 2 ? "sparse.offload_lists=true" : "sparse.offload_lists=false");
    return run;
}

/* Ranks divide heads, divide tokens, and (head_ranks 0) change between both. */
static void two_ranks(void **state)
{
    static RunSeen alone, shared;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CpRun run = make_run(i);
        run_alone(&run, &alone);
        for (run.head_ranks = 0; run.head_ranks <= 2; run.head_ranks++)
            for (int uneven = 0; uneven < 2; uneven++) {
                run.uneven = uneven;
                if (uneven && run.head_ranks == 1)
                    continue;
                run_shared(&run, 1, &shared);
                assert_same_run(&run, &alone, &shared, cases[i].slack);
                run_free(&run, &shared);
            }
        run_free(&run, &alone);
    }
}

static DsvStatus meet(DsviComm *comm, void *nothing)
{
    DsviBackend backend;
    DsviCpGroup *group = NULL;
    (void)nothing;
    DSVI_TRY(open_gpu(dsvi_comm_rank(comm), &backend));
    DsvStatus status = dsvi_comm_fail(comm, dsvi_cp_group_create(&backend, comm, 0, &group));
    dsvi_cp_group_close(&group);
    backend.device->close(backend.device);
    return status;
}

/* Returns whether this machine has two GPUs that can communicate; else prints the reason. */
static bool two_gpus(void)
{
    RankOutcome outcome[RANKS_MAX];
    run_ranks(2, 60, meet, NULL, outcome);
    return gpus_were_joined(outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_ranks)};
    return two_gpus() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
}
