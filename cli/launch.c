/* See launch.h. Starters leave their marks in the environment. */
#include "launch.h"

#include <stdlib.h>

/* Open MPI's mpirun, and srun --mpi=pmix. */
static const char *const MPI_MARKS[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"};
/* Starters of several processes that MPI would not know of. */
static const char *const OTHER_MARKS[] = {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"};

enum {
    MPI_COUNT = sizeof MPI_MARKS / sizeof *MPI_MARKS,
    OTHER_COUNT = sizeof OTHER_MARKS / sizeof *OTHER_MARKS
};

static bool started_by_mpi(void)
{
    for (int i = 0; i < MPI_COUNT; i++)
        if (getenv(MPI_MARKS[i]))
            return true;
    return false;
}

int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks)
{
    *ranks = NULL;
    if (started_by_mpi())
        return cli_outcome(args, dsv_ranks_join(config, ranks));
    for (int i = 0; i < OTHER_COUNT; i++) {
        const char *count = getenv(OTHER_MARKS[i]);
        if (count && atoi(count) > 1)
            return cli_misused(args->verb, "%s is %s, but ranks are started by Open MPI's mpirun -n %s or by "
                               "srun --mpi=pmix; unset it to train alone", OTHER_MARKS[i], count, count);
    }
    return CLI_DONE;
}
