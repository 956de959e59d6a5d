/* Dense attention of two ranks, threads with a GPU each and NCCL between them: by heads and round a ring. */
#include "test.h"

#include "context/attend_cases.h"
#include "cuda/cuda.h"

static DsvBackend one;

static DsvStatus open_gpu(int64_t rank, DsvBackend *backend)
{
    return dsvi_cuda_open(rank, false, backend);
}

/* Stretches of keys that cuDNN serves, and short ones in F32, which it does not; 5 heads cannot be halved. */
static const ContextCase cases[] = {
    {&one, 2, 1, 600, 1, 4, 64, 1, DSV_BF16, DSV_F32, 1, false, false, open_gpu},
    {&one, 2, 1, 600, 1, 4, 64, 2, DSV_BF16, DSV_F32, 2, false, false, open_gpu},
    {&one, 2, 2, 517, 4, 5, 128, 1, DSV_BF16, DSV_F32, 3, false, false, open_gpu},
    {&one, 2, 2, 517, 4, 5, 128, 2, DSV_BF16, DSV_F32, 4, true, false, open_gpu},
    {&one, 2, 2, 90, 8, 3, 32, 1, DSV_F32, DSV_F32, 5, false, false, open_gpu},
    {&one, 2, 2, 90, 8, 3, 32, 2, DSV_F32, DSV_F32, 6, true, false, open_gpu},
};

static void two_ranks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_attend_case(&cases[i]);
}

static DsvStatus nothing(DsvContext *context, const ContextCase *c, void *ignored)
{
    (void)context;
    (void)c;
    (void)ignored;
    return DSV_OK;
}

/* Whether two GPUs can be joined here; else says why not. */
static bool two_gpus(void)
{
    RankOutcome outcome[RANKS_MOST];
    try_context(&cases[0], nothing, NULL, outcome);
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
