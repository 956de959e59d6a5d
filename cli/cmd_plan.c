/* dsv plan: how ranks would share out a clip's self-attention. */
#include <stdio.h>

#include "cmd.h"
#include "launch.h"

enum { CONFIG, RANKS, TABLE, DENSITIES, SAVE, JSON };

static const CliFlag flags[] = {
    [CONFIG] = {"--config", "FILE", "the same as CONFIG"},
    [RANKS] = {"--ranks", "N", "that share a clip (default cp_size, or those that measure)"},
    [TABLE] = {"--table", "FILE", "what attention and links cost, as --save or a run writes it"},
    [DENSITIES] = {"--densities", "X|FILE", "of all lists, or for each block and head (default: dense)"},
    [SAVE] = {"--save", "FILE", "write the costs there"},
    [JSON] = {"--json", "FILE", "write the plan there as one JSON object"},
    {0},
};

static const char text[] =
    "Shows how the ranks that share a clip (cp_size) would share out its\n"
    "self-attention: who has which tokens, and for each block how many ranks divide\n"
    "the heads and how many the tokens, which heads go together, and what a training\n"
    "step is expected to spend on it; beside that, what choices made without looking\n"
    "would take: all ranks divide the heads, in order; all divide the tokens and send\n"
    "the keys that are in lists; or all keys.\n"
    "\n"
    "Without a table attention and links are measured: by the ranks, where mpirun, srun\n"
    "or torchrun starts them; otherwise on this CPU, with threads for ranks.\n"
    "FILE of densities is a JSON array: for each block a number, an array of one for\n"
    "each head, or null where the block attends densely.\n"
    "\n"
    "  mpirun -n 4 dsv plan configs/wan1.3b.yaml --save costs.json\n"
    "  dsv plan configs/wan1.3b.yaml --ranks 4 --table costs.json\n"
    "  dsv plan configs/demo.yaml --ranks 2 --densities 0.1 --json plan.json\n";

static int run(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    CliArgs with_file = *args;
    DsvPlanQuestion question = {
        .table = args->flag[TABLE], .densities = args->flag[DENSITIES], .save = args->flag[SAVE],
    };
    int misused = cli_args_integer(args, RANKS, &question.ranks);
    if (misused != CLI_DONE)
        return misused;
    if (args->flag[RANKS] && question.ranks < 2)
        return cli_misused(args->verb, "--ranks %s: wanted 2 or more", args->flag[RANKS]);
    if (args->path[0] && args->flag[CONFIG])
        return cli_misused(args->verb, "%s and --config %s: wanted one of them", args->path[0],
                           args->flag[CONFIG]);
    if (args->path[0])
        with_file.flag[CONFIG] = args->path[0];
    int outcome = cli_launch_settings(&with_file, CONFIG, -1, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    DsvStatus status = dsv_plan(ranks, &question, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_launch_leave(args, &ranks, status);
}

const CliVerb cli_verb_plan = {
    .name = "plan",
    .arguments = "[CONFIG.yaml]",
    .paths_most = 1,
    .takes_settings = true,
    .summary = "shows how ranks would share out a clip's attention",
    .text = text,
    .flags = flags,
    .run = run,
};
