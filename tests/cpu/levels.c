/* Runs the tests of each instruction set in a separate process; see levels.h. */
#include "cpu/levels.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

DsviBackend level_backend;

static int run_level(DsviIsa isa, int (*run)(void))
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

int run_levels(DsviIsa least, int (*run)(void))
{
    int failed = 0, best = (int)dsvi_isa_best();
    for (int isa = (int)least; isa <= best; isa++) {
        int status = 0;
        /* Variants between the first and the best are compiled from the same sources. */
        if (TEST_SANITIZED && isa != DSVI_ISA_BASE && isa < best)
            continue;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            exit(run_level((DsviIsa)isa, run));
        if (child < 0 || waitpid(child, &status, 0) < 0 || status != 0) {
            fprintf(stderr, "FAILED at level %s, status %d\n", dsvi_isa_name((DsviIsa)isa), status);
            failed = 1;
        }
    }
    return failed;
}
