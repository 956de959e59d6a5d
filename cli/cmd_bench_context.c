/* dsv bench context: attention of ranks that share a clip, by every way of sharing it out. */
#include "cmd.h"
#include "launch.h"

enum { JSON, DEVICE, TOKENS, HEADS, HEAD_DIM, DTYPE, DENSITY, HEAD_SPARSITY, GRAIN, GROUP, SELECTOR,
       HEADS_FROM, REPEATS, TRANSFERS_ONLY };

static const CliFlag flags[] = {
    [JSON] = {"--json", "FILE", "write the figures there as one JSON object"},
    [DEVICE] = {"--device", "NAME", "cpu or cuda (default cpu)"},
    [TOKENS] = {"--tokens", "N", "length of the sequence (default 8192, or the file's)"},
    [HEADS] = {"--heads", "N", "heads (default 4, or the file's)"},
    [HEAD_DIM] = {"--head-dim", "N", "head size (default 64; a file has its own)"},
    [DTYPE] = {"--dtype", "NAME", "bf16 or f32 (default bf16)"},
    [DENSITY] = {"--density", "X", "share of keys in the lists, mean of the heads (default 0.1)"},
    [HEAD_SPARSITY] = {"--head-sparsity", "L", "instead, head by head: 0.82*4,0.9..0.98*12, or a JSON file"},
    [GRAIN] = {"--grain", "N", "keys that a list entry stands for (default 1)"},
    [GROUP] = {"--group", "N", "queries that share a list (default 128)"},
    [SELECTOR] = {"--selector", "NAME", "projection or pooled (default projection)"},
    [HEADS_FROM] = {"--heads-from", "FILE", "q, k, v (heads, tokens, size) of a safetensors file, repeated"},
    [REPEATS] = {"--repeats", "N", "measurements, of which the median counts (default 5)"},
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

static int read_flags(const CliArgs *args, DsvBenchContext *bench)
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
    if (args->flag[DTYPE])
        bench->dtype = args->flag[DTYPE];
    if (args->flag[SELECTOR])
        bench->selector = args->flag[SELECTOR];
    bench->head_sparsity = args->flag[HEAD_SPARSITY];
    bench->heads_from = args->flag[HEADS_FROM];
    bench->transfers_only = args->flag[TRANSFERS_ONLY];
    return status;
}

static int run(const CliArgs *args)
{
    DsvBenchContext bench;
    DsvConfig config;
    DsvRanks *ranks;
    dsv_bench_context_defaults(&bench);
    int misused = read_flags(args, &bench);
    if (misused != CLI_DONE)
        return misused;
    dsv_config_defaults(&config);
    DsvStatus status = cli_args_device(args, DEVICE, &config);
    if (status == DSV_OK)
        status = cli_args_settings(args, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);
    int outcome = cli_launch_join(args, &config, &ranks);
    if (outcome != CLI_DONE)
        return outcome;
    status = dsv_bench_context(ranks, &bench, &config, args->flag[JSON], cli_print_line, NULL);
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
