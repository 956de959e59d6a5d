/* dsv bench attention, dsv bench part, dsv bench step: benchmarks of attention, of parts of published models
 * and of training steps. */
#include "bench_lists.h"
#include "cmd.h"
#include "launch.h"

/* Indices of the flags in the tables below: first the flags of all verbs, then those of dsv bench attention
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
    "values; measurements alternate. Reports times, the density of the lists, their\n"
    "captured mass, which is the fraction of exact attention on the listed keys, and\n"
    "the relative error of attention's output against exact attention: output_error\n"
    "with the tail of options sparse.tail, sparse.tail_chunk and sparse.tail_run,\n"
    "list_error for the lists alone. Without flags the lists are those of training.\n"
    "sparse.order changes nothing unless FILE has the metadata grid=FxHxW, the tokens'\n"
    "frames, rows and columns: other tokens have no neighbours.\n"
    "\n"
    "  dsv bench attention --tokens 32768 --heads 12 --head-dim 128 --device cuda\n"
    "  dsv bench attention --group 128 --density 0.1 sparse.tail=none\n"
    "  dsv bench attention --heads-from heads.safetensors --target-mass 0.9\n";

static int run_bench_attention(const CliArgs *args)
{
    DsvBenchAttention bench;
    DsvConfig config;
    dsv_bench_attention_defaults(&bench);
    int misused = cli_bench_lists(args, TARGET_MASS, &bench.lists);
    if (misused == CLI_DONE)
        misused = cli_args_number(args, TARGET_MASS, &bench.target_mass);
    if (misused == CLI_DONE && args->flag[CLI_LISTS_DENSITY] && args->flag[TARGET_MASS])
        misused = cli_misused(args->verb, "--density and --target-mass: expected one of them");
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

enum { ROWS = SHARED_FLAGS, PROMPTS, PART_REPEATS };

static const CliFlag part_flags[] = {
    [JSON] = CLI_JSON_FLAG,
    [DEVICE] = CLI_DEVICE_FLAG,
    [ROWS] = {"--rows", "N", "text encoder: ids of a prompt (default 512)"},
    [PROMPTS] = {"--prompts", "N", "text encoder: prompts encoded together (default 8)"},
    [PART_REPEATS] = {"--repeats", "N", "measured passes, after 1 for warm-up (default 3)"},
    {0},
};

static const char part_text[] =
    "Measures one part of a published model on random inputs: how long a VAE takes to\n"
    "encode and to decode a video of num_frames, height and width, or a text encoder\n"
    "to encode prompts, and the device memory of each. Loading does not count. Without\n"
    "options the video has 81 frames of 480 x 832.\n"
    "\n"
    "  dsv bench part Wan2.1-T2V-1.3B-Diffusers/vae --device cuda memory_gib=2\n"
    "  dsv bench part Wan2.1-T2V-1.3B-Diffusers/text_encoder --rows 200\n";

static int run_bench_part(const CliArgs *args)
{
    DsvConfig config;
    DsvBenchPart bench = {.path = args->path[0], .rows = 512, .prompts = 8};
    int misused = cli_args_integer(args, ROWS, &bench.rows);
    if (misused == CLI_DONE)
        misused = cli_args_integer(args, PROMPTS, &bench.prompts);
    if (misused == CLI_DONE)
        misused = cli_args_integer(args, PART_REPEATS, &bench.repeats);
    if (misused != CLI_DONE)
        return misused;
    dsv_config_defaults(&config);
    config.num_frames = 81;
    config.height = 480;
    config.width = 832;
    DsvStatus status = cli_args_device(args, DEVICE, &config);
    if (status == DSV_OK)
        status = cli_args_options(args, &config);
    if (status == DSV_OK)
        status = dsv_bench_part(&bench, &config, args->flag[JSON], cli_print_line, NULL);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_bench_part = {
    .name = "bench part",
    .arguments = "PART",
    .paths_min = 1,
    .paths_max = 1,
    .takes_options = true,
    .summary = "measure the VAE or the text encoder of a published model",
    .text = part_text,
    .flags = part_flags,
    .run = run_bench_part,
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
