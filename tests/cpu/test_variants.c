/* Every variant of every dense op, from the scalar truth to the best of this machine, against the checker. */
#include "cpu/levels.h"
#include "ops/case_groups.h"

static int run(void)
{
    return run_dense_cases(&level_backend);
}

int main(void)
{
    return run_levels(DSV_ISA_REF, run);
}
