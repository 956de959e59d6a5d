/* dsv plan memory: shows how training would fit into the memory of a device that need not be there. */
#include "cmd.h"
#include "config_file.h"

enum { CONFIG, MEMORY_GIB, DEVICE_TABLE, CARD };

static const CliFlag flags[] = {
    [CONFIG] = {"--config", "FILE", "the same as CONFIG"},
    [MEMORY_GIB] = {"--memory-gib", "N", "device memory that may be used (default memory_gib)"},
    [DEVICE_TABLE] = {"--device-table", "FILE", "speeds and memory of the device, as JSON"},
    [CARD] = {"--card", "NAME", "memory of a known card, such as rtx4090"},
    {0},
};

static const char text[] = "Shows how a training run on one rank would fit into device memory, without the\n"
                           "device: a table of settings, each with the GiB that it takes on the device and\n"
                           "of the host, and the predicted seconds of a step. offload=auto trains with the\n"
                           "setting that is chosen. The table has a line for each value of\n"
                           "gradient_checkpointing with everything on the device, and for each value of\n"
                           "offload the fastest choice for every block: how many blocks keep all their\n"
                           "activations (all), their input and the output of attention (selective) or their\n"
                           "input (true), of how many that waits in host memory (host), and for how many\n"
                           "blocks optimizer state (states) or weights (weights) wait there (moved). Beside\n"
                           "weights that are trained all optimizer state and gradients of blocks wait.\n"
                           "State that waits is updated on the device or by the CPU (update).\n"
                           "\n"
                           "Memory is that of the layout of a run, apart from working memory of GPU kernels\n"
                           "and libraries. Times are predicted from FLOPs and copied bytes, with the speeds\n"
                           "in the FILE of --device-table, a JSON object (default: those shown here):\n"
                           "\n"
                           "  {\"tflops\": 600, \"memory_gbs\": 3000, \"link_gbs\": 50}\n"
                           "\n"
                           "It may also have host_gbs, the speed of host memory, update_gbs, the speed at\n"
                           "which AdamW of the CPU uses host memory, and memory_gib and host_gib, the\n"
                           "memory of both. If nothing fits, the least that would is named.\n"
                           "--card knows the memory of the cards below. For cards whose speeds were not\n"
                           "measured, settings are compared with the speeds of an H100 and no times are\n"
                           "given.\n"
                           "\n"
                           "  dsv plan memory configs/wan1.3b.yaml --memory-gib 24\n"
                           "  dsv plan memory configs/wan_lora.yaml model.path=FOLDER --card rtx4090\n"
                           "  dsv plan memory --config configs/wan_lora.yaml --device-table gpu.json\n";

static int run_plan_memory(const CliArgs *args)
{
    DsvConfig config;
    DsvMemoryQuestion question = {.table = args->flag[DEVICE_TABLE], .card = args->flag[CARD]};
    const char *file = args->path[0] ? args->path[0] : args->flag[CONFIG];
    int misused = cli_args_number(args, MEMORY_GIB, &question.memory_gib);
    if (misused != CLI_DONE)
        return misused;
    if (args->flag[MEMORY_GIB] && !(question.memory_gib > 0))
        return cli_misused(args->verb, "--memory-gib %s: expected a number above 0", args->flag[MEMORY_GIB]);
    if (args->path[0] && args->flag[CONFIG])
        return cli_misused(args->verb, "%s and --config %s: expected one of them", args->path[0],
                           args->flag[CONFIG]);
    if (question.table && question.card)
        return cli_misused(args->verb, "--device-table %s and --card %s: expected one of them",
                           question.table, question.card);
    dsv_config_defaults(&config);
    DsvStatus status = file ? cli_config_load(file, &config) : DSV_OK;
    if (status == DSV_OK)
        status = cli_args_options(args, &config);
    if (status == DSV_OK)
        status = dsv_plan_memory(&question, &config, cli_print_line, NULL);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_plan_memory = {
    .name = "plan memory",
    .arguments = "[CONFIG.yaml]",
    .paths_max = 1,
    .takes_options = true,
    .lists_cards = true,
    .summary = "show how training would fit into little device memory",
    .text = text,
    .flags = flags,
    .run = run_plan_memory,
};
