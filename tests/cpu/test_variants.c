/* Checks all CPU variants of the operations of dense_case_group.c, from the scalar reference implementation
 * to the best instruction set of this machine. */
#include "cpu/levels.h"
#include "ops/case_groups.h"
#include "ops/check.h"

static int run(void)
{
    return run_dense_cases(&level_backend);
}

int main(void)
{
    check_keep_results();
    return run_levels(DSVI_ISA_REF, run);
}
