/* Checks the CUDA variants of attention and selection against the reference implementations
 * (sparse_case_group.c). */
#include "cuda/gpu.h"
#include "ops/case_groups.h"

static int run(void)
{
    return run_sparse_cases(&gpu_backend);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
