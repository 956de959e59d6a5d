/* Checks the CUDA variants of all operations except those of attention and selection (dense_case_group.c). */
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
