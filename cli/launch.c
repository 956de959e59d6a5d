/* See launch.h. Starters leave their marks in the environment: Open MPI's mpirun and srun --mpi=pmix those
 * of MPI; torchrun, and whoever does as it does, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; srun alone
 * those of Slurm. */
#include "launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

/* A variable as a number; -1 where it is none. */
static int64_t number(const char *name)
{
    char *end;
    const char *value = getenv(name);
    long long found = value ? strtoll(value, &end, 10) : -1;
    return value && value[0] && !*end ? found : -1;
}

static int join(const CliArgs *args, const DsvConfig *config, const DsvRanksPlace *place, DsvRanks **ranks)
{
    return cli_outcome(args, dsv_ranks_join(config, place, ranks));
}

static int join_as_torch_does(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks)
{
    static const char *const NAMES[] = {"RANK", "WORLD_SIZE", "MASTER_PORT"};
    const char *address = getenv("MASTER_ADDR"), *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
    int64_t value[3];
    for (int i = 0; i < 3; i++) {
        value[i] = number(NAMES[i]);
        if (value[i] < 0)
            return cli_misused(args->verb, "WORLD_SIZE is set, so %s should be a number, and it is %s",
                               NAMES[i], has(NAMES[i]) ? getenv(NAMES[i]) : "not set");
    }
    if (!has("MASTER_ADDR"))
        return cli_misused(args->verb, "WORLD_SIZE is set, so MASTER_ADDR should name the machine of rank 0");
    /* torchrun itself sits at its port. */
    bool taken = agent && strcmp(agent, "True") == 0;
    DsvRanksPlace place = {.rank = value[0], .size = value[1], .port = (int)value[2] + taken};
    snprintf(place.address, sizeof place.address, "%s", address);
    return join(args, config, &place, ranks);
}

/* The first of a list like "node[03-07,09],other". */
static void first_node(const char *list, char *name, size_t room)
{
    size_t stem = strcspn(list, "[,");
    const char *digits = list[stem] == '[' ? list + stem + 1 : "";
    snprintf(name, room, "%.*s%.*s", (int)stem, list, (int)strcspn(digits, "-,]"), digits);
}

static int join_as_slurm_says(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks)
{
    enum { FIRST_PORT = 12000, PORTS = 20000 }; /* below those that systems give away */
    const char *nodes = getenv("SLURM_STEP_NODELIST");
    DsvRanksPlace place = {.rank = number("SLURM_PROCID"), .size = number("SLURM_STEP_NUM_TASKS")};
    int64_t job = number("SLURM_JOB_ID"), step = number("SLURM_STEP_ID");
    if (place.rank < 0 || job < 0 || !nodes)
        return cli_misused(args->verb, "SLURM_STEP_NUM_TASKS is set, but not SLURM_PROCID, SLURM_JOB_ID and "
                           "SLURM_STEP_NODELIST");
    first_node(nodes, place.address, sizeof place.address);
    place.port = FIRST_PORT + (int)((job * 31 + step + 1) % PORTS);
    return join(args, config, &place, ranks);
}

int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks)
{
    *ranks = NULL;
    if (has("OMPI_COMM_WORLD_SIZE") || has("PMIX_RANK"))
        return join(args, config, NULL, ranks);
    if (has("WORLD_SIZE") && number("WORLD_SIZE") != 1)
        return join_as_torch_does(args, config, ranks);
    if (number("SLURM_STEP_NUM_TASKS") > 1)
        return join_as_slurm_says(args, config, ranks);
    if (number("PMI_SIZE") > 1)
        return cli_misused(args->verb, "PMI_SIZE is %s: started by an MPI that is not Open MPI, which dsv "
                           "does not know", getenv("PMI_SIZE"));
    return CLI_DONE;
}

int cli_launch_settings(const CliArgs *args, int file, int device, DsvConfig *config, DsvRanks **ranks)
{
    DsvStatus status = DSV_OK;
    dsv_config_defaults(config);
    if (file >= 0 && args->flag[file])
        status = dsv_config_load(config, args->flag[file]);
    if (status == DSV_OK && device >= 0)
        status = cli_args_device(args, device, config);
    if (status == DSV_OK)
        status = cli_args_settings(args, config);
    return status == DSV_OK ? cli_launch_join(args, config, ranks) : cli_outcome(args, status);
}

int cli_launch_leave(const CliArgs *args, DsvRanks **ranks, DsvStatus status)
{
    bool speaks = !*ranks || dsv_ranks_rank(*ranks) == 0;
    int outcome = speaks ? cli_outcome(args, status) : status == DSV_OK ? CLI_DONE : CLI_FAILED;
    fflush(stdout); /* leaving may end in the starter ending this process */
    dsv_ranks_leave(ranks);
    return outcome;
}
