/* dsv bench attention, dsv bench step: measuring. */
#include "bench_lists.h"
#include "cmd.h"
#include "launch.h"

/* Flags of both. */
enum { JSON = CLI_LISTS_JSON, DEVICE = CLI_LISTS_DEVICE, SHARED_FLAGS };
enum { TARGET_MASS = CLI_LISTS_FLAGS };

static const CliFlag attention_flags[] = {
    CLI_LISTS,
    [TARGET_MASS] = {"--target-mass", "X", "instead of a density: share of the estimated mass in the lists"},
    {0},
};

static const char attention_text[] =
    "Times dense attention against selection plus attention over lists, forward and\n"
    "backward, on the same queries, keys and values, in turns. Tells times, the\n"
    "density of the lists and the share of the exact attention they hold.\n"
    "\n"
    "  dsv bench attention --tokens 8192 --heads 4 --head-dim 64 --density 0.1\n"
    "  dsv bench attention --heads-from heads.safetensors --target-mass 0.9\n";

static int run_attention(const CliArgs *args)
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
        status = cli_args_settings(args, &config);
    if (status == DSV_OK)
        status = dsv_bench_attention(&bench, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_bench_attention = {
    .name = "bench attention",
    .arguments = "",
    .takes_settings = true,
    .summary = "times dense against sparse attention",
    .text = attention_text,
    .flags = attention_flags,
    .run = run_attention,
};

enum { CONFIG = SHARED_FLAGS, DENSITIES, STEP_REPEATS };

static const CliFlag step_flags[] = {
    [JSON] = CLI_JSON_FLAG,
    [DEVICE] = CLI_DEVICE_FLAG,
    [CONFIG] = {"--config", "FILE", "settings to start from, as for dsv train"},
    [DENSITIES] = {"--densities", "X", "of lists, guard aside: one of all, or a JSON file as for dsv plan"},
    [STEP_REPEATS] = {"--repeats", "N", "steps measured, after two (with 1 one) to warm up (default 3 to 7)"},
    {0},
};

static const char step_text[] =
    "Times whole training steps of the model that the settings describe, on random\n"
    "latents, and tells how the time is shared out between kinds of work. Several\n"
    "ranks are started as for dsv train. With densities that differ among the heads\n"
    "of a block the rule is a count per head, whatever sparse.rule says.\n"
    "\n"
    "  dsv bench step --config configs/demo.yaml --json step.json threads=2\n"
    "  mpirun -n 2 dsv bench step --config configs/demo.yaml threads=1 cp_size=2\n";

static int run_step(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    DsvBenchStep bench = {.densities = args->flag[DENSITIES]};
    int misused = cli_args_integer(args, STEP_REPEATS, &bench.repeats);
    if (misused != CLI_DONE)
        return misused;
    int outcome = cli_launch_settings(args, CONFIG, DEVICE, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    DsvStatus status = dsv_bench_step(ranks, &bench, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_launch_leave(args, &ranks, status);
}

const CliVerb cli_verb_bench_step = {
    .name = "bench step",
    .arguments = "",
    .takes_settings = true,
    .summary = "times a training step",
    .text = step_text,
    .flags = step_flags,
    .run = run_step,
};
