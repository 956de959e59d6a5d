/* Dense attention with context parallelism on two GPUs: Ulysses (head-parallel) and ring attention. The ranks
 * are threads that communicate with NCCL. */
#include "test.h"

#include "cp/attend_cases.h"
#include "cuda/common/cuda.h"

static DsviBackend one;

static DsvStatus open_gpu(int64_t rank, DsviBackend *backend)
{
    return dsvi_cuda_open(rank, false, backend);
}

/* Shards of keys that cuDNN supports, and short shards in F32, which cuDNN does not support. 5 heads cannot
 * be halved. */
static const CpCase cases[] = {
    {&one, 2, 1, 600, 1, 4, 64, 1, DSVI_BF16, DSVI_F32, 1, false, false, open_gpu},
    {&one, 2, 1, 600, 1, 4, 64, 2, DSVI_BF16, DSVI_F32, 2, false, false, open_gpu},
    {&one, 2, 2, 517, 4, 5, 128, 1, DSVI_BF16, DSVI_F32, 3, false, false, open_gpu},
    {&one, 2, 2, 517, 4, 5, 128, 2, DSVI_BF16, DSVI_F32, 4, true, false, open_gpu},
    {&one, 2, 2, 90, 8, 3, 32, 1, DSVI_F32, DSVI_F32, 5, false, false, open_gpu},
    {&one, 2, 2, 90, 8, 3, 32, 2, DSVI_F32, DSVI_F32, 6, true, false, open_gpu},
};

static void two_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend_case(&cases[i]);
}

static DsvStatus nothing(DsviCp *cp, const CpCase *c, void *ignored)
{
    (void)cp;
    (void)c;
    (void)ignored;
    return DSV_OK;
}

/* Returns whether this machine has two GPUs that can communicate; else prints the reason. */
static bool two_gpus(void)
{
    RankOutcome outcome[RANKS_MAX];
    try_cp(&cases[0], nothing, NULL, outcome);
    return gpus_were_joined(outcome);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_ranks)};
    DsvStatus status = dsvi_cuda_open(0, false, &one);
    if (status != DSV_OK) {
        fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
        return status == DSV_E_UNSUPPORTED ? SKIPPED : 1;
    }
    int failures = two_gpus() ? cmocka_run_group_tests(tests, NULL, NULL) : SKIPPED;
    one.device->close(one.device);
    return failures;
}
