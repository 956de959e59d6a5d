/* dsv plan: shows how ranks would divide a clip's self-attention (the parallel plan). */
#include <stdio.h>

#include "cmd.h"
#include "launch.h"

enum { CONFIG, RANKS, TABLE, DENSITIES, SAVE, JSON };

static const CliFlag flags[] = {
    [CONFIG] = {"--config", "FILE", "the same as CONFIG"},
    [RANKS] = {"--ranks", "N", "ranks that share a clip (default cp_size, or all started)"},
    [TABLE] = {"--table", "FILE", "use the costs in FILE, which --save or a run wrote"},
    [DENSITIES] = {"--densities", "X|FILE", "density of the lists (default: dense attention)"},
    [SAVE] = {"--save", "FILE", "write the measured costs to FILE"},
    [JSON] = {"--json", "FILE", "also write the plan to FILE, as a JSON object"},
    {0},
};

static const char text[] =
    "Shows how the ranks that share a clip (cp_size, context parallelism) would\n"
    "divide its self-attention: the tokens of each rank, and for each block how many\n"
    "ranks divide the heads (Ulysses) and how many the tokens, which heads are placed\n"
    "together, and the expected time per training step. For comparison it shows the\n"
    "times of three fixed choices: all ranks divide the heads in order; all divide\n"
    "the tokens and send the listed keys; all divide the tokens and send all keys.\n"
    "\n"
    "Without --table, the costs of attention and of transfers are measured: on the\n"
    "ranks that mpirun, srun or torchrun has started, otherwise on this CPU with\n"
    "threads as ranks.\n"
    "\n"
    "The FILE of --densities is a JSON array with an element for each block: a\n"
    "number, an array with a number for each head, or null for dense attention.\n"
    "\n"
    "  mpirun -n 4 dsv plan configs/wan1.3b.yaml --save costs.json\n"
    "  dsv plan configs/wan1.3b.yaml --ranks 4 --table costs.json\n"
    "  dsv plan configs/demo.yaml --ranks 2 --densities 0.1 --json plan.json\n";

static int run_plan(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    CliArgs with_file = *args;
    DsvPlanQuestion question = {
        .table = args->flag[TABLE],
        .densities = args->flag[DENSITIES],
        .save = args->flag[SAVE],
    };
    int misused = cli_args_integer(args, RANKS, &question.ranks);
    if (misused != CLI_DONE)
        return misused;
    if (args->flag[RANKS] && question.ranks < 2)
        return cli_misused(args->verb, "--ranks %s: expected 2 or more", args->flag[RANKS]);
    if (args->path[0] && args->flag[CONFIG])
        return cli_misused(args->verb, "%s and --config %s: expected one of them", args->path[0],
                           args->flag[CONFIG]);
    if (args->path[0])
        with_file.flag[CONFIG] = args->path[0];
    int outcome = cli_launch_config(&with_file, CONFIG, -1, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    DsvStatus status = dsv_plan(ranks, &question, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_launch_leave(args, &ranks, status);
}

const CliVerb cli_verb_plan = {
    .name = "plan",
    .arguments = "[CONFIG.yaml]",
    .paths_max = 1,
    .takes_options = true,
    .summary = "show how ranks would divide a clip's attention",
    .text = text,
    .flags = flags,
    .run = run_plan,
};
