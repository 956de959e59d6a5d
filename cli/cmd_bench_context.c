/* dsv bench context: attention of ranks that share a clip, by every way of sharing it out. */
#include "bench_lists.h"
#include "cmd.h"
#include "launch.h"

enum { HEAD_SPARSITY = CLI_LISTS_FLAGS, TRANSFERS_ONLY };

static const CliFlag flags[] = {
    CLI_LISTS,
    [HEAD_SPARSITY] = {"--head-sparsity", "L", "instead of a density: 0.82*4,0.9..0.98*12, or a JSON file"},
    [TRANSFERS_ONLY] = {"--transfers-only", NULL, "what travels, without attention"},
    {0},
};

static const char text[] =
    "Times attention over lists of ranks that share a clip, forward and backward,\n"
    "with all that they send for it, by every way of sharing it out, in turns:\n"
    "\n"
    "  naive_heads  heads in order, in equal numbers\n"
    "  naive_keys   tokens; keys and values of all ranks are gathered\n"
    "  heads        heads, placed by how dense their lists are\n"
    "  keys         tokens; keys that lists name are fetched\n"
    "  planned      as a run would plan it\n"
    "\n"
    "Tells the time of the slowest rank, in it that of attention, and of the rest,\n"
    "which transfers take where attention does not hide them; and what travels\n"
    "where tokens are divided, by itself. Ranks are started as for dsv train.\n"
    "\n"
    "  mpirun -n 2 dsv bench context --tokens 8192 --head-sparsity 0.8..0.98*4\n"
    "  mpirun -n 2 dsv bench context --heads-from heads.safetensors --density 0.08\n";

static int run(const CliArgs *args)
{
    DsvBenchContext bench;
    DsvConfig config;
    DsvRanks *ranks;
    dsv_bench_context_defaults(&bench);
    int misused = cli_bench_lists(args, &bench.lists);
    if (misused != CLI_DONE)
        return misused;
    if (args->flag[CLI_LISTS_DENSITY] && args->flag[HEAD_SPARSITY])
        return cli_misused(args->verb, "--density and --head-sparsity: wanted one of them");
    bench.head_sparsity = args->flag[HEAD_SPARSITY];
    bench.transfers_only = args->flag[TRANSFERS_ONLY];
    int outcome = cli_launch_settings(args, -1, CLI_LISTS_DEVICE, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    DsvStatus status = dsv_bench_context(ranks, &bench, &config, args->flag[CLI_LISTS_JSON], cli_print_line,
                                         NULL);
    return cli_launch_leave(args, &ranks, status);
}

const CliVerb cli_verb_bench_context = {
    .name = "bench context",
    .arguments = "",
    .takes_settings = true,
    .summary = "times attention of ranks that share a clip",
    .text = text,
    .flags = flags,
    .run = run,
};
