/* dsv bench context: compares the ways to divide the self-attention of a clip among ranks (context
   parallelism). */
#include "bench_lists.h"
#include "cmd.h"
#include "launch.h"

enum { HEAD_SPARSITY = CLI_LISTS_FLAGS, TRANSFERS_ONLY };

static const CliFlag flags[] = {
    CLI_LISTS,
    [HEAD_SPARSITY] = {"--head-sparsity", "L", "sparsity of each head, instead of --density (see above)"},
    [TRANSFERS_ONLY] = {"--transfers-only", NULL, "measure transfers without attention"},
    {0},
};

static const char text[] =
    "Compares ways to divide sparse attention among ranks that share a clip (context\n"
    "parallelism), forward and backward, transfers included; measurements alternate:\n"
    "\n"
    "  naive_heads  Ulysses: each rank has equally many heads, in order\n"
    "  naive_keys   each rank has a range of tokens; all keys and values are gathered\n"
    "  heads        Ulysses; heads are placed by the density of their lists\n"
    "  keys         sparse sequence parallelism: only the listed keys are sent\n"
    "  planned      as a training run would plan it\n"
    "\n"
    "Reports the time of the slowest rank, divided into attention and the rest, which\n"
    "is mostly transfers that do not overlap with attention; and for naive_keys and\n"
    "keys the time of the transfers alone. Start the ranks as for dsv train.\n"
    "\n"
    "--head-sparsity is a list with repeats and ranges, 0.82*4,0.9..0.98*12 (4 heads\n"
    "of 0.82, 12 from 0.9 to 0.98), or the name of a JSON file.\n"
    "\n"
    "  mpirun -n 2 dsv bench context --tokens 8192 --head-sparsity 0.8..0.98*4\n"
    "  mpirun -n 2 dsv bench context --heads-from heads.safetensors --density 0.08\n";

static int run_bench_context(const CliArgs *args)
{
    DsvBenchContext bench;
    DsvConfig config;
    DsvRanks *ranks;
    dsv_bench_context_defaults(&bench);
    int misused = cli_bench_lists(args, CLI_LISTS_DENSITY, &bench.lists);
    if (misused != CLI_DONE)
        return misused;
    if (args->flag[CLI_LISTS_DENSITY] && args->flag[HEAD_SPARSITY])
        return cli_misused(args->verb, "--density and --head-sparsity: expected one of them");
    bench.head_sparsity = args->flag[HEAD_SPARSITY];
    bench.transfers_only = args->flag[TRANSFERS_ONLY];
    int outcome = cli_launch_config(args, -1, CLI_LISTS_DEVICE, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    DsvStatus status = dsv_bench_context(ranks, &bench, &config, args->flag[CLI_LISTS_JSON], cli_print_line,
                                         NULL);
    return cli_launch_leave(args, &ranks, status);
}

const CliVerb cli_verb_bench_context = {
    .name = "bench context",
    .arguments = "",
    .takes_options = true,
    .summary = "compare ways to divide a clip's attention among ranks",
    .text = text,
    .flags = flags,
    .run = run_bench_context,
};
