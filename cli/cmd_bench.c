/* dsv bench attention, dsv bench step: measuring. */
#include "cmd.h"
#include "launch.h"

/* Flags of both. */
enum { JSON, DEVICE, SHARED_FLAGS };
#define JSON_FLAG {"--json", "FILE", "write the figures there as one JSON object"}
#define DEVICE_FLAG {"--device", "NAME", "cpu or cuda (default cpu)"}

enum { TOKENS = SHARED_FLAGS, HEADS, HEAD_DIM, DTYPE, DENSITY, TARGET_MASS, GRAIN, GROUP, SELECTOR,
       HEADS_FROM, REPEATS };

static const CliFlag attention_flags[] = {
    [JSON] = JSON_FLAG,
    [DEVICE] = DEVICE_FLAG,
    [TOKENS] = {"--tokens", "N", "length of the sequence (default 8192, or the file's)"},
    [HEADS] = {"--heads", "N", "heads (default 4, or the file's)"},
    [HEAD_DIM] = {"--head-dim", "N", "head size (default 64; a file has its own)"},
    [DTYPE] = {"--dtype", "NAME", "bf16 or f32 (default bf16)"},
    [DENSITY] = {"--density", "X", "share of the keys in the lists (default 0.1)"},
    [TARGET_MASS] = {"--target-mass", "X", "instead: share of the estimated mass in the lists"},
    [GRAIN] = {"--grain", "N", "keys that a list entry stands for (default 1)"},
    [GROUP] = {"--group", "N", "queries that share a list (default 128)"},
    [SELECTOR] = {"--selector", "NAME", "projection or pooled (default projection)"},
    [HEADS_FROM] = {"--heads-from", "FILE", "q, k, v (heads, tokens, size) of a safetensors file, repeated"},
    [REPEATS] = {"--repeats", "N", "measurements, of which the median counts (default 5)"},
    {0},
};

static const char attention_text[] =
    "Times dense attention against selection plus attention over lists, forward and\n"
    "backward, on the same queries, keys and values, in turns. Tells times, the\n"
    "density of the lists and the share of the exact attention they hold.\n"
    "\n"
    "  dsv bench attention --tokens 8192 --heads 4 --head-dim 64 --density 0.1\n"
    "  dsv bench attention --heads-from heads.safetensors --target-mass 0.9\n";

static int read_attention(const CliArgs *args, DsvBenchAttention *bench)
{
    const struct {
        int flag;
        int64_t *value;
    } integers[] = {
        {TOKENS, &bench->tokens}, {HEADS, &bench->heads}, {HEAD_DIM, &bench->head_dim},
        {GRAIN, &bench->grain}, {GROUP, &bench->group}, {REPEATS, &bench->repeats},
    };
    int status = CLI_DONE;
    for (size_t i = 0; i < sizeof integers / sizeof *integers && status == CLI_DONE; i++)
        status = cli_args_integer(args, integers[i].flag, integers[i].value);
    if (status == CLI_DONE)
        status = cli_args_number(args, DENSITY, &bench->density);
    if (status == CLI_DONE)
        status = cli_args_number(args, TARGET_MASS, &bench->target_mass);
    if (args->flag[DTYPE])
        bench->dtype = args->flag[DTYPE];
    if (args->flag[SELECTOR])
        bench->selector = args->flag[SELECTOR];
    bench->heads_from = args->flag[HEADS_FROM];
    return status;
}

static DsvStatus read_settings(const CliArgs *args, DsvConfig *config)
{
    DsvStatus status = cli_args_device(args, DEVICE, config);
    return status == DSV_OK ? cli_args_settings(args, config) : status;
}

static int run_attention(const CliArgs *args)
{
    DsvBenchAttention bench;
    DsvConfig config;
    dsv_bench_attention_defaults(&bench);
    int misused = read_attention(args, &bench);
    if (misused != CLI_DONE)
        return misused;
    dsv_config_defaults(&config);
    DsvStatus status = read_settings(args, &config);
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
    [JSON] = JSON_FLAG,
    [DEVICE] = DEVICE_FLAG,
    [CONFIG] = {"--config", "FILE", "settings to start from, as for dsv train"},
    [DENSITIES] = {"--densities", "X", "of lists, guard aside: one of all, or a JSON file as for dsv plan"},
    [STEP_REPEATS] = {"--repeats", "N", "steps measured, after two (with 1 one) to warm up (default 3 to 7)"},
    {0},
};

static const char step_text[] =
    "Times whole training steps of the model that the settings describe, on random\n"
    "latents, and tells how the time is shared out between kinds of work. Several\n"
    "ranks are started as for dsv train.\n"
    "\n"
    "  dsv bench step --config configs/demo.yaml --json step.json threads=2\n"
    "  mpirun -n 2 dsv bench step --config configs/demo.yaml threads=1 cp_size=2\n";

static int run_step(const CliArgs *args)
{
    DsvConfig config;
    DsvRanks *ranks;
    DsvStatus status = DSV_OK;
    DsvBenchStep bench = {.densities = args->flag[DENSITIES]};
    int misused = cli_args_integer(args, STEP_REPEATS, &bench.repeats);
    if (misused != CLI_DONE)
        return misused;
    dsv_config_defaults(&config);
    if (args->flag[CONFIG])
        status = dsv_config_load(&config, args->flag[CONFIG]);
    if (status == DSV_OK)
        status = read_settings(args, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);
    int outcome = cli_launch_join(args, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    status = dsv_bench_step(ranks, &bench, &config, args->flag[JSON], cli_print_line, NULL);
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
