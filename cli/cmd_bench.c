/* dsv bench attention, dsv bench step: benchmarks of attention and of training steps. */
#include "bench_lists.h"
#include "cmd.h"
#include "launch.h"

/* Indices of the flags in the tables below: first the flags of both verbs, then those of dsv bench attention
 * alone. */
enum { JSON = CLI_LISTS_JSON, DEVICE = CLI_LISTS_DEVICE, SHARED_FLAGS };
enum { TARGET_MASS = CLI_LISTS_FLAGS };

static const CliFlag attention_flags[] = {
    CLI_LISTS,
    [TARGET_MASS] = {"--target-mass", "X", "lists that hold this estimated mass, instead of --density"},
    {0},
};

static const char attention_text[] =
    "Compares dense attention with sparse attention (selection of lists plus\n"
    "attention over them), forward and backward, on the same queries, keys and\n"
    "values; measurements alternate. Reports times, the density of the lists and\n"
    "their captured mass, the fraction of exact attention on the listed keys.\n"
    "\n"
    "  dsv bench attention --tokens 8192 --heads 4 --head-dim 64 --density 0.1\n"
    "  dsv bench attention --heads-from heads.safetensors --target-mass 0.9\n";

static int run_bench_attention(const CliArgs *args)
{
    DsvBenchAttention bench;
    DsvConfig config;
    dsv_bench_attention_defaults(&bench);
    int misused = cli_bench_lists(args, &bench.lists);
    if (misused == CLI_DONE)
        misused = cli_args_number(args, TARGET_MASS, &bench.target_mass);
    if (misused != CLI_DONE)
        return misused;
    dsv_config_defaults(&config);
    DsvStatus status = cli_args_device(args, DEVICE, &config);
    if (status == DSV_OK)
        status = cli_args_options(args, &config);
    if (status == DSV_OK)
        status = dsv_bench_attention(&bench, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_bench_attention = {
    .name = "bench attention",
    .arguments = "",
    .takes_options = true,
    .summary = "compare the times of dense and sparse attention",
    .text = attention_text,
    .flags = attention_flags,
    .run = run_bench_attention,
};

enum { CONFIG = SHARED_FLAGS, DENSITIES, STEP_REPEATS };

static const CliFlag step_flags[] = {
    [JSON] = CLI_JSON_FLAG,
    [DEVICE] = CLI_DEVICE_FLAG,
    [CONFIG] = {"--config", "FILE", "configuration file, as for dsv train"},
    [DENSITIES] = {"--densities", "X", "fixed list densities: a number, or a file as for dsv plan"},
    [STEP_REPEATS] = {"--repeats", "N", "measured steps, after 2 for warm-up (default 3 to 7)"},
    {0},
};

static const char step_text[] =
    "Measures whole training steps of the configured model on random latents, and\n"
    "reports how much time each kind of work takes. To measure several ranks, start\n"
    "them as for dsv train. If --densities differ between the heads of a block, lists\n"
    "are chosen with a fixed number of keys per head, whatever sparse.rule says.\n"
    "\n"
    "  dsv bench step --config configs/demo.yaml --json step.json threads=2\n"
    "  mpirun -n 2 dsv bench step --config configs/demo.yaml threads=1 cp_size=2\n";

static int run_bench_step(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    DsvBenchStep bench = {.densities = args->flag[DENSITIES]};
    int misused = cli_args_integer(args, STEP_REPEATS, &bench.repeats);
    if (misused != CLI_DONE)
        return misused;
    int outcome = cli_launch_config(args, CONFIG, DEVICE, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    DsvStatus status = dsv_bench_step(ranks, &bench, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_launch_leave(args, &ranks, status);
}

const CliVerb cli_verb_bench_step = {
    .name = "bench step",
    .arguments = "",
    .takes_options = true,
    .summary = "measure the time of a training step",
    .text = step_text,
    .flags = step_flags,
    .run = run_bench_step,
};
