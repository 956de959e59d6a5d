/* Main program of the tests that need a GPU; see gpu.h. */
#include "cuda/gpu.h"

#include "cuda/common/cuda.h"
#include "test.h"

DsviBackend gpu_backend;

int run_on_gpu(int (*run)(void), int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failures = 0;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        if (argc > 2 && strcmp(argv[2], deterministic ? "deterministic" : "default") != 0)
            continue;
        DsvStatus status = dsvi_cuda_open(0, deterministic, &gpu_backend);
        if (status != DSV_OK) {
            fprintf(stderr, "SKIPPED: %s\n", dsv_error_message());
            return status == DSV_E_UNSUPPORTED ? SKIPPED : 1;
        }
        printf("==== %s\n", gpu_backend.device->name);
        failures += run();
        gpu_backend.device->close(gpu_backend.device);
    }
    return failures ? 1 : 0;
}
