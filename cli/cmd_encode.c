/* dsv encode: encodes clips into a latent cache. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "config_file.h"
#include "terminal.h"

enum { CONFIG, MODEL };

/* The configuration file that is used by default, as in dsv train, which will read the latents. */
static const char DEFAULT_CONFIG[] = "configs/demo.yaml";

static const CliFlag flags[] = {
    [CONFIG] = {"--config", "FILE", "configuration file, the same as for dsv train"},
    [MODEL] = {"--model", "FOLDER", "published Wan model: its VAE and its text encoder encode"},
    {0},
};

static const char text[] =
    "Decodes every clip of DATA (a folder, or a CSV or JSONL list) and writes its\n"
    "latents to the folder OUT. Size, number of frames, frame rate and codec come\n"
    "from --config and from key=value arguments; without --config from\n"
    "configs/demo.yaml or, with --model, from the defaults of the options. Afterwards\n"
    "train with data.path=OUT.\n"
    "\n"
    "With --model the latents are those of the model's VAE (codec.name=wan: means,\n"
    "normalised), and the text states of every distinct caption and of the empty\n"
    "prompt are stored, too. height and width must be multiples of 16, num_frames\n"
    "4k + 1. Both models compute in the type that mixed_precision names: bf16, or F32\n"
    "with mixed_precision=no.\n"
    "\n"
    "What OUT already contains is skipped: repeat the command to continue after an\n"
    "interruption. A clip whose bytes have changed is encoded again; a renamed one is\n"
    "not. OUT/clips.csv lists every clip with what was used of it, or why it was left\n"
    "out. OUT must not be the folder of the clips. Only one process at a time may\n"
    "write to OUT.\n"
    "\n"
    "  dsv encode clips latents --config configs/demo.yaml num_frames=33\n"
    "  dsv encode clips cache --model Wan2.1-T2V-1.3B-Diffusers device=cuda \\\n"
    "      height=480 width=832 num_frames=81\n";

/* Loads the file of --config, or the default file, which a call with --model does not need. */
static DsvStatus encode_load_config(const CliArgs *args, DsvConfig *config)
{
    dsv_config_defaults(config);
    if (args->flag[CONFIG])
        return cli_config_load(args->flag[CONFIG], config);
    return args->flag[MODEL] ? DSV_OK : cli_config_load(DEFAULT_CONFIG, config);
}

static DsvStatus encode_read_config(const CliArgs *args, DsvConfig *config)
{
    char data[DSV_TEXT_MAX + 16];
    DsvStatus status = encode_load_config(args, config);
    if (status == DSV_OK && args->flag[MODEL])
        status = dsv_config_set(config, "codec.name=wan");
    if (status == DSV_OK)
        status = cli_args_options(args, config);
    snprintf(data, sizeof data, "data.path=%s", args->path[0]);
    return status == DSV_OK ? dsv_config_set(config, data) : status;
}

static int run_encode_verb(const CliArgs *args)
{
    DsvConfig config;
    CliTerminal terminal;
    if (!args->flag[CONFIG] && !args->flag[MODEL] && access(cli_config_find(DEFAULT_CONFIG), F_OK) != 0)
        return cli_misused(args->verb, "no --config given, and there is no %s here", DEFAULT_CONFIG);
    DsvStatus status = encode_read_config(args, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);

    cli_terminal_open(&terminal, "the windows that are being encoded");
    DsvEvents events = cli_terminal_events(&terminal);
    status = dsv_encode(args->path[1], args->flag[MODEL], &config, &events);
    cli_terminal_close(&terminal);

    if (status == DSV_OK)
        printf("%s: ready, train with data.path=%s\n", args->path[1], args->path[1]);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_encode = {
    .name = "encode",
    .arguments = "DATA OUT",
    .paths_min = 2,
    .paths_max = 2,
    .takes_options = true,
    .summary = "encode clips into a latent cache",
    .text = text,
    .flags = flags,
    .run = run_encode_verb,
};
