/* A process per instruction set. */
#include "cpu/levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

DsvBackend level_backend;

/* All levels are compiled from the same sources: sanitizers, which take ten times as long, see the least and
 * the best. */
#ifdef __SANITIZE_ADDRESS__
enum { BETWEEN = 0 };
#else
enum { BETWEEN = 1 };
#endif

static int run_level(DsvIsa isa, int (*run)(void))
{
    if (dsvi_cpu_open(dsvi_isa_name(isa), 0, &level_backend) != DSV_OK) {
        fprintf(stderr, "%s: %s\n", dsvi_isa_name(isa), dsv_error_message());
        return 1;
    }
    printf("==== %s\n", level_backend.device->name);
    int failures = run();
    dsvi_cpu_close(&level_backend);
    return failures ? 1 : 0;
}

int run_levels(DsvIsa least, int (*run)(void))
{
    int failed = 0, best = (int)dsvi_isa_best();
    for (int isa = (int)least; isa <= best; isa++) {
        int status = 0;
        if (!BETWEEN && isa > (int)least && isa < best)
            continue;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            exit(run_level((DsvIsa)isa, run));
        if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0) {
            fprintf(stderr, "FAILED at level %s, status %d\n", dsvi_isa_name((DsvIsa)isa), status);
            failed = 1;
        }
    }
    return failed;
}
