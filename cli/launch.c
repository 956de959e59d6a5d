/* See launch.h. A starter is known by the variables it sets: Open MPI's mpirun and srun --mpi=pmix set those
 * of MPI; torchrun, and whoever does as it does, RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; srun alone
 * those of Slurm. */
#include "launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config_file.h"
#include "terminal.h"

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
    errno = 0;
    long long found = value ? strtoll(value, &end, 10) : -1;
    return value && value[0] && !*end && !errno ? found : -1;
}

/* ---- what the starter has told ---- */

/* How this process was started. */
typedef enum Start {
    ALONE,
    BY_MPI,
    BY_PLACE, /* ranks meet over TCP at `place` */
    UNCLEAR,  /* the complaint is out */
} Start;

/* The word of a job: the user's, which may be a secret, and the starter's name for the job. Either may be
 * missing. */
static int set_word(const CliVerb *verb, const char *starters, DsvRanksPlace *place)
{
    const char *users = has("DSV_JOB_KEY") ? getenv("DSV_JOB_KEY") : "";
    int length = snprintf(place->job, sizeof place->job, "%s%s%s", users, users[0] && starters[0] ? "\n" : "",
                          starters);
    if ((size_t)length < sizeof place->job)
        return CLI_DONE;
    return cli_misused(verb, "DSV_JOB_KEY and the starter's name of the job have %d characters, wanted less "
                       "than %zu", length, sizeof place->job);
}

static int set_address(const CliVerb *verb, const char *address, DsvRanksPlace *place)
{
    size_t length = strlen(address);
    if (length >= sizeof place->address)
        return cli_misused(verb, "the name of rank 0's machine has %zu characters, wanted less than %zu",
                           length, sizeof place->address);
    memcpy(place->address, address, length + 1);
    return CLI_DONE;
}

static int place_as_torch_does(const CliVerb *verb, DsvRanksPlace *place)
{
    static const char *const NAMES[] = {"RANK", "WORLD_SIZE", "MASTER_PORT"};
    const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE"), *run = getenv("TORCHELASTIC_RUN_ID");
    int64_t value[3];
    for (int i = 0; i < 3; i++) {
        value[i] = number(NAMES[i]);
        if (value[i] < 0)
            return cli_misused(verb, "WORLD_SIZE is set, so %s should be a number, and it is %s", NAMES[i],
                               has(NAMES[i]) ? getenv(NAMES[i]) : "not set");
    }
    if (!has("MASTER_ADDR"))
        return cli_misused(verb, "WORLD_SIZE is set, so MASTER_ADDR should name the machine of rank 0");
    /* torchrun itself listens at its port. */
    int taken = agent && strcmp(agent, "True") == 0, port_max = 65535 - taken;
    if (value[2] < 1 || value[2] > port_max)
        return cli_misused(verb, "MASTER_PORT is %s, wanted 1 to %d", getenv("MASTER_PORT"), port_max);
    place->rank = value[0];
    place->size = value[1];
    place->port = (int)value[2] + taken;
    bool named = run && strcmp(run, "none") != 0; /* "none" is torchrun's where it was given no name */
    int outcome = set_address(verb, getenv("MASTER_ADDR"), place);
    return outcome == CLI_DONE ? set_word(verb, named ? run : "", place) : outcome;
}

/* The first of a list like "node[03-07,09],other". */
static void first_node(const char *list, char *name, size_t room)
{
    size_t stem = strcspn(list, "[,");
    const char *digits = list[stem] == '[' ? list + stem + 1 : "";
    snprintf(name, room, "%.*s%.*s", (int)stem, list, (int)strcspn(digits, "-,]"), digits);
}

static int place_as_slurm_says(const CliVerb *verb, DsvRanksPlace *place)
{
    enum { FIRST_PORT = 12000, PORTS = 20000 }; /* below those that systems give away */
    const char *nodes = getenv("SLURM_STEP_NODELIST");
    int64_t job = number("SLURM_JOB_ID"), step = number("SLURM_STEP_ID");
    char name[64];
    place->rank = number("SLURM_PROCID");
    place->size = number("SLURM_STEP_NUM_TASKS");
    if (place->rank < 0 || job < 0 || !nodes)
        return cli_misused(verb, "SLURM_STEP_NUM_TASKS is set, but not SLURM_PROCID, SLURM_JOB_ID and "
                           "SLURM_STEP_NODELIST");
    first_node(nodes, place->address, sizeof place->address);
    place->port = FIRST_PORT + (int)((job % PORTS * 31 + step + 1) % PORTS);
    snprintf(name, sizeof name, "slurm %" PRId64 ".%" PRId64, job, step);
    return set_word(verb, name, place);
}

static Start find_start(const CliVerb *verb, DsvRanksPlace *place)
{
    *place = (DsvRanksPlace){.rank = 0};
    if (has("OMPI_COMM_WORLD_SIZE") || has("PMIX_RANK"))
        return BY_MPI;
    if (has("WORLD_SIZE") && number("WORLD_SIZE") != 1)
        return place_as_torch_does(verb, place) == CLI_DONE ? BY_PLACE : UNCLEAR;
    if (number("SLURM_STEP_NUM_TASKS") > 1)
        return place_as_slurm_says(verb, place) == CLI_DONE ? BY_PLACE : UNCLEAR;
    if (number("PMI_SIZE") <= 1)
        return ALONE;
    cli_misused(verb, "PMI_SIZE is %s: started by an MPI that is not Open MPI, which dsv does not know",
                getenv("PMI_SIZE"));
    return UNCLEAR;
}

/* ---- joining and leaving ---- */

int cli_launch_join(const CliArgs *args, const DsvConfig *config, DsvRanks **ranks)
{
    DsvRanksPlace place;
    CliTerminal terminal = {.live = false}; /* not opened: a signal ends a process that waits for others */
    *ranks = NULL;
    Start start = find_start(args->verb, &place);
    if (start == ALONE || start == UNCLEAR)
        return start == ALONE ? CLI_DONE : CLI_MISUSED;
    DsvEvents events = cli_terminal_events(&terminal);
    if (start == BY_PLACE && place.rank == 0 && !place.job[0]) {
        char line[512];
        snprintf(line, sizeof line, "only %s:%d tells this job from others; DSV_JOB_KEY=<a secret word>, set "
                 "for all ranks, keeps other jobs and strangers out", place.address, place.port);
        events.log(events.context, DSV_LOG_INFO, line);
    }
    DsvStatus status = dsv_ranks_join(config, start == BY_PLACE ? &place : NULL, &events, ranks);
    return cli_outcome(args, status);
}

int cli_launch_decline(const CliArgs *args, int outcome, const char *why)
{
    DsvRanksPlace place;
    char sentence[1024];
    if (find_start(args->verb, &place) != BY_PLACE)
        return outcome; /* one that mpirun has started is noticed by mpirun */
    snprintf(sentence, sizeof sentence, "rank %" PRId64 ": %s", place.rank, why);
    fflush(stderr);
    dsv_ranks_decline(&place, sentence);
    return outcome;
}

int cli_launch_settings(const CliArgs *args, int file, int device, DsvConfig *config, DsvRanks **ranks)
{
    DsvStatus status = DSV_OK;
    dsv_config_defaults(config);
    if (file >= 0 && args->flag[file])
        status = cli_config_load(args->flag[file], config);
    if (status == DSV_OK && device >= 0)
        status = cli_args_device(args, device, config);
    if (status == DSV_OK)
        status = cli_args_settings(args, config);
    if (status == DSV_OK)
        return cli_launch_join(args, config, ranks);
    return cli_launch_decline(args, cli_outcome(args, status), dsv_error_message());
}

int cli_launch_outcome(const CliArgs *args, DsvRanks *ranks, DsvStatus status)
{
    bool failed = status != DSV_OK && status != DSV_E_INTERRUPTED;
    if (!ranks || dsv_ranks_rank(ranks) == 0) {
        int outcome = cli_outcome(args, status);
        fflush(NULL); /* upon the first that ends, the starter may end the others */
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
    fflush(stdout); /* leaving may end in the starter ending this process */
    dsv_ranks_leave(ranks);
    return outcome;
}
