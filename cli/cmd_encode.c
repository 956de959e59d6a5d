/* dsv encode: encodes clips into a latent cache. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "config_file.h"
#include "terminal.h"

enum { CONFIG };

/* The configuration file that is used by default, as in dsv train, which will read the latents. */
static const char DEFAULT_CONFIG[] = "configs/demo.yaml";

static const CliFlag flags[] = {
    [CONFIG] = {"--config", "FILE", "configuration file, the same as for dsv train"},
    {0},
};

static const char text[] =
    "Decodes every clip of DATA (a folder, or a CSV or JSONL list) and writes its\n"
    "latents to the folder OUT. Size, number of frames, frame rate and codec come\n"
    "from --config, or from configs/demo.yaml without it, and from key=value\n"
    "arguments. Afterwards train with data.path=OUT.\n"
    "\n"
    "Clips that OUT already contains are skipped: repeat the command to continue\n"
    "after an interruption. OUT must not be the folder of the clips. Only one process\n"
    "at a time may write to OUT.\n"
    "\n"
    "  dsv encode clips latents --config configs/demo.yaml num_frames=33\n";

static DsvStatus encode_read_config(const CliArgs *args, const char *path, DsvConfig *config)
{
    char data[DSV_TEXT_MAX + 16];
    dsv_config_defaults(config);
    DsvStatus status = cli_config_load(path, config);
    if (status == DSV_OK)
        status = cli_args_options(args, config);
    snprintf(data, sizeof data, "data.path=%s", args->path[0]);
    return status == DSV_OK ? dsv_config_set(config, data) : status;
}

static int run_encode_verb(const CliArgs *args)
{
    DsvConfig config;
    CliTerminal terminal;
    const char *path = args->flag[CONFIG] ? args->flag[CONFIG] : DEFAULT_CONFIG;
    if (!args->flag[CONFIG] && access(cli_config_find(path), F_OK) != 0)
        return cli_misused(args->verb, "no --config given, and there is no %s here", path);
    DsvStatus status = encode_read_config(args, path, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);

    cli_terminal_open(&terminal, "the windows that are being encoded");
    DsvEvents events = cli_terminal_events(&terminal);
    status = dsv_encode(args->path[1], &config, &events);
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
