/* See launch.h. The launcher is recognised by its environment variables: OMPI_* or PMIX_RANK of Open MPI's
 * mpirun and of srun --mpi=pmix; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of torchrun and similar
 * launchers; SLURM_* of srun without MPI. */
#include "launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_file.h"
#include "terminal.h"

static bool is_env_set(const char *name)
{
    const char *value = getenv(name);
    return value && value[0];
}

/* Returns the value of an environment variable; -1 if it is not a number. */
static int64_t env_number(const char *name)
{
    char *end;
    const char *value = getenv(name);
    errno = 0;
    long long found = value ? strtoll(value, &end, 10) : -1;
    return value && value[0] && !*end && !errno ? found : -1;
}

/* ---- the launcher's environment ---- */

/* How this process was started. */
typedef enum Launch {
    LAUNCH_SINGLE, /* one process */
    LAUNCH_MPI,    /* ranks use MPI */
    LAUNCH_TCP,    /* ranks connect by TCP, as DsvRanksPlace describes */
    LAUNCH_ERROR,  /* the environment is contradictory; the error has been printed */
} Launch;

/* Sets the job key: the user's secret DSV_JOB_KEY and the launcher's name of the job. Either may be empty. */
static int set_job_key(const CliVerb *verb, const char *job_name, DsvRanksPlace *place)
{
    const char *secret = is_env_set("DSV_JOB_KEY") ? getenv("DSV_JOB_KEY") : "";
    int length = snprintf(place->job, sizeof place->job, "%s%s%s", secret,
                          secret[0] && job_name[0] ? "\n" : "", job_name);
    if ((size_t)length < sizeof place->job)
        return CLI_DONE;
    return cli_misused(verb,
                       "DSV_JOB_KEY and the launcher's name of the job have %d characters, expected less "
                       "than %zu",
                       length, sizeof place->job);
}

static int set_address(const CliVerb *verb, const char *address, DsvRanksPlace *place)
{
    size_t length = strlen(address);
    if (length >= sizeof place->address)
        return cli_misused(verb, "the name of rank 0's machine has %zu characters, expected less than %zu",
                           length, sizeof place->address);
    memcpy(place->address, address, length + 1);
    return CLI_DONE;
}

static int place_from_torchrun(const CliVerb *verb, DsvRanksPlace *place)
{
    static const char *const NAMES[] = {"RANK", "WORLD_SIZE", "MASTER_PORT"};
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE"), *run = getenv("TORCHELASTIC_RUN_ID");
    int64_t value[3];
    for (int i = 0; i < 3; i++) {
        value[i] = env_number(NAMES[i]);
        if (value[i] < 0)
            return cli_misused(verb, "WORLD_SIZE is set, so %s should be a number, and it is %s", NAMES[i],
                               is_env_set(NAMES[i]) ? getenv(NAMES[i]) : "not set");
    }
    if (!is_env_set("MASTER_ADDR"))
        return cli_misused(verb, "WORLD_SIZE is set, so MASTER_ADDR should name the machine of rank 0");
    /* torchrun itself listens at MASTER_PORT: use the next port. */
    int taken = agent && strcmp(agent, "True") == 0, port_max = 65535 - taken;
    if (value[2] < 1 || value[2] > port_max)
        return cli_misused(verb, "MASTER_PORT is %s, expected 1 to %d", getenv("MASTER_PORT"), port_max);
    place->rank = value[0];
    place->size = value[1];
    place->port = (int)value[2] + taken;
    bool named = run && strcmp(run, "none") != 0; /* torchrun sets "none" if the job has no name */
    int outcome = set_address(verb, getenv("MASTER_ADDR"), place);
    return outcome == CLI_DONE ? set_job_key(verb, named ? run : "", place) : outcome;
}

/* Writes the first name of a list of Slurm nodes: "node03" of "node[03-07,09],other". */
static void first_node(const char *list, char *name, size_t room)
{
    size_t stem = strcspn(list, "[,");
    const char *digits = list[stem] == '[' ? list + stem + 1 : "";
    snprintf(name, room, "%.*s%.*s", (int)stem, list, (int)strcspn(digits, "-,]"), digits);
}

static int place_from_slurm(const CliVerb *verb, DsvRanksPlace *place)
{
    enum { FIRST_PORT = 12000, PORTS = 20000 }; /* all below the ephemeral ports, which systems assign */
    const char *nodes = getenv("SLURM_STEP_NODELIST");
    int64_t job = env_number("SLURM_JOB_ID"), step = env_number("SLURM_STEP_ID");
    char name[64];
    place->rank = env_number("SLURM_PROCID");
    place->size = env_number("SLURM_STEP_NUM_TASKS");
    if (place->rank < 0 || job < 0 || !nodes)
        return cli_misused(verb, "SLURM_STEP_NUM_TASKS is set, but not SLURM_PROCID, SLURM_JOB_ID and "
                                 "SLURM_STEP_NODELIST");
    first_node(nodes, place->address, sizeof place->address);
    place->port = FIRST_PORT + (int)((job % PORTS * 31 + step + 1) % PORTS);
    snprintf(name, sizeof name, "slurm %" PRId64 ".%" PRId64, job, step);
    return set_job_key(verb, name, place);
}

static Launch find_launch(const CliVerb *verb, DsvRanksPlace *place)
{
    *place = (DsvRanksPlace){.rank = 0};
    if (is_env_set("OMPI_COMM_WORLD_SIZE") || is_env_set("PMIX_RANK"))
        return LAUNCH_MPI;
    if (is_env_set("WORLD_SIZE") && env_number("WORLD_SIZE") != 1)
        return place_from_torchrun(verb, place) == CLI_DONE ? LAUNCH_TCP : LAUNCH_ERROR;
    if (env_number("SLURM_STEP_NUM_TASKS") > 1)
        return place_from_slurm(verb, place) == CLI_DONE ? LAUNCH_TCP : LAUNCH_ERROR;
    if (env_number("PMI_SIZE") <= 1)
        return LAUNCH_SINGLE;
    cli_misused(verb, "PMI_SIZE is %s: started by an MPI that is not Open MPI, which dsv does not know",
                getenv("PMI_SIZE"));
    return LAUNCH_ERROR;
}

/* ---- joining and leaving ---- */

int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks)
{
    DsvRanksPlace place;
    /* cli_terminal_open is not called: it would install signal handlers, but a signal must end a process that
     * waits for other ranks. */
    CliTerminal terminal = {.live = false};
    *ranks = NULL;
    Launch launch = find_launch(args->verb, &place);
    if (launch == LAUNCH_SINGLE || launch == LAUNCH_ERROR)
        return launch == LAUNCH_SINGLE ? CLI_DONE : CLI_MISUSED;
    DsvEvents events = cli_terminal_events(&terminal);
    if (launch == LAUNCH_TCP && place.rank == 0 && !place.job[0]) {
        char line[512];
        snprintf(line, sizeof line,
                 "this job has no job key, and any program can connect to %s:%d: set "
                 "DSV_JOB_KEY=<a secret word> for all ranks",
                 place.address, place.port);
        events.log(events.context, DSV_LOG_INFO, line);
    }
    DsvStatus status = dsv_ranks_join(config, launch == LAUNCH_TCP ? &place : NULL, &events, ranks);
    return cli_outcome(args, status);
}

int cli_launch_decline(const CliArgs *args, int outcome, const char *why)
{
    DsvRanksPlace place;
    char sentence[1024];
    if (find_launch(args->verb, &place) != LAUNCH_TCP)
        return outcome; /* mpirun itself notices that one of its processes ends */
    snprintf(sentence, sizeof sentence, "rank %" PRId64 ": %s", place.rank, why);
    fflush(stderr);
    dsv_ranks_decline(&place, sentence);
    return outcome;
}

int cli_launch_config(const CliArgs *args, int file, int device, DsvConfig *config, DsvRanks **ranks)
{
    DsvStatus status = DSV_OK;
    dsv_config_defaults(config);
    if (file >= 0 && args->flag[file])
        status = cli_config_load(args->flag[file], config);
    if (status == DSV_OK && device >= 0)
        status = cli_args_device(args, device, config);
    if (status == DSV_OK)
        status = cli_args_options(args, config);
    if (status == DSV_OK)
        return cli_launch_join(args, config, ranks);
    return cli_launch_decline(args, cli_outcome(args, status), dsv_error_message());
}

int cli_launch_outcome(const CliArgs *args, DsvRanks *ranks, DsvStatus status)
{
    bool failed = status != DSV_OK && status != DSV_E_INTERRUPTED;
    if (!ranks || dsv_ranks_rank(ranks) == 0) {
        int outcome = cli_outcome(args, status);
        fflush(NULL); /* the launcher may kill all processes once the first has ended */
        if (ranks && failed)
            (void)dsv_ranks_told(ranks);
        return outcome;
    }
    if (failed && !dsv_ranks_told(ranks))
        cli_print_error("rank %" PRId64 ": %s", dsv_ranks_rank(ranks), dsv_error_message());
    return status == DSV_OK ? CLI_DONE : CLI_FAILED;
}

int cli_launch_leave(const CliArgs *args, DsvRanks **ranks, DsvStatus status)
{
    int outcome = cli_launch_outcome(args, *ranks, status);
    fflush(stdout); /* once a rank has left, the launcher may kill this process */
    dsv_ranks_leave(ranks);
    return outcome;
}
