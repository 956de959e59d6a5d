/* The CUDA kernels: mass of lists whose threshold follows from a sample of the spans
 * (select_mass_cases.h). */
#include "cuda/gpu.h"
#include "ops/select_mass_cases.h"
#include "test.h"

static void holds_sinks(void **state)
{
    (void)state;
    for (int64_t tokens = 8192; tokens <= (test_small() ? 8192 : 131072); tokens *= 4)
        check_select_sink_cases(&gpu_backend, 6, tokens, 16, 16);
    check_select_sink_cases(&gpu_backend, 6, 8192, 16, 4);
}

static void holds_trained_heads(void **state)
{
    (void)state;
    FILE *file = fopen(shared_path("fixtures/heads/heads.safetensors"), "rb");
    if (!file)
        skip();
    fclose(file);
    for (int64_t tokens = 8192; tokens <= (test_small() ? 8192 : 131072); tokens *= 4)
        check_select_trained_cases(&gpu_backend, 0, tokens, 16);
}

static int run(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_sinks),
        cmocka_unit_test(holds_trained_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv)
{
    return run_on_gpu(run, argc, argv);
}
