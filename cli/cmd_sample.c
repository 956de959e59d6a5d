/* dsv sample: generates a clip with a trained model. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cmd.h"
#include "terminal.h"

enum { TEXT };

static const CliFlag flags[] = {
    [TEXT] = {"--text", "FILE", "safetensors: encoder_hidden_states (text_len, text_dim)"},
    {0},
};

static const char text[] =
    "Samples a clip from MODEL: a run folder (its newest checkpoint), a checkpoint, a\n"
    "folder that contains transformer/, or a transformer folder. transformer_ema of a\n"
    "checkpoint has the moving average of the weights (ema_decay). The options of the\n"
    "run to which MODEL belongs apply; key=value arguments override them. Without\n"
    "--text the clip is sampled without text conditioning.\n"
    "\n"
    "  dsv sample runs/mine clip.mp4 seed=3 num_inference_steps=30\n"
    "  dsv sample runs/mine/checkpoint-500/transformer_ema clip.mp4\n";

static bool is_mp4(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && strcmp(dot, ".mp4") == 0;
}

static int run_sample(const CliArgs *args)
{
    const char *model = args->path[0], *video = args->path[1];
    DsvConfig config;
    CliTerminal terminal;
    bool of_run;
    if (!is_mp4(video))
        return cli_misused(args->verb, "%s: the name of the clip must end with .mp4", video);
    dsv_config_defaults(&config);
    DsvStatus status = dsv_config_of_run(model, &config, &of_run);
    if (status == DSV_OK)
        status = cli_args_options(args, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);

    cli_terminal_open(&terminal, "this step");
    DsvEvents events = cli_terminal_events(&terminal);
    status = dsv_sample(model, args->flag[TEXT], video, &config, &events);
    cli_terminal_close(&terminal);

    if (status == DSV_OK)
        cli_print_result("%s: %" PRId64 " frame%s, %" PRId64 " x %" PRId64 ", %g frames/s", video,
                         config.num_frames, config.num_frames == 1 ? "" : "s", config.width, config.height,
                         config.fps);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_sample = {
    .name = "sample",
    .arguments = "MODEL OUT.mp4",
    .paths_min = 2,
    .paths_max = 2,
    .takes_options = true,
    .summary = "sample a clip from a trained model",
    .text = text,
    .flags = flags,
    .run = run_sample,
};
