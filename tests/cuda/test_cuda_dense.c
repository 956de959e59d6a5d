/* The CUDA variants of every dense op against the checker. */
#include "cuda/gpu.h"
#include "ops/case_groups.h"

static int run(void)
{
    return run_dense_cases(&gpu_backend);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
