/* dsv encode: clips to cached latents. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "config_file.h"
#include "terminal.h"

enum { CONFIG };

/* That of dsv train, which is to read the latents. */
static const char DEFAULT_CONFIG[] = "configs/demo.yaml";

static const CliFlag flags[] = {
    [CONFIG] = {"--config", "FILE", "settings to start from: the file given to dsv train"},
    {0},
};

static const char text[] =
    "Decodes and encodes every clip of DATA, a folder or a CSV or JSONL list, once,\n"
    "into latents of the size, frame count, rate and codec that the settings name:\n"
    "those of --config, or of configs/demo.yaml where none is named, like dsv train.\n"
    "dsv train then reads them with data.path=OUT. What OUT already holds is kept:\n"
    "a call that was stopped goes on where it was. OUT is a folder of its own, and\n"
    "one process at a time encodes into it.\n"
    "\n"
    "  dsv encode clips latents --config configs/demo.yaml num_frames=33\n";

static DsvStatus read_settings(const CliArgs *args, const char *path, DsvConfig *config)
{
    char data[DSV_TEXT_MAX + 16];
    dsv_config_defaults(config);
    DsvStatus status = cli_config_load(path, config);
    if (status == DSV_OK)
        status = cli_args_settings(args, config);
    snprintf(data, sizeof data, "data.path=%s", args->path[0]);
    return status == DSV_OK ? dsv_config_set(config, data) : status;
}

static int run(const CliArgs *args)
{
    DsvConfig config;
    CliTerminal terminal;
    const char *path = args->flag[CONFIG] ? args->flag[CONFIG] : DEFAULT_CONFIG;
    if (!args->flag[CONFIG] && access(cli_config_find(path), F_OK) != 0)
        return cli_misused(args->verb, "no --config named, and there is no %s here", path);
    DsvStatus status = read_settings(args, path, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);

    cli_terminal_open(&terminal, "the windows in work");
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
    .paths_least = 2,
    .paths_most = 2,
    .takes_settings = true,
    .summary = "encodes clips into cached latents, once",
    .text = text,
    .flags = flags,
    .run = run,
};
