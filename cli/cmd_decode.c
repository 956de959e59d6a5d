/* dsv decode: decodes stored latents to a clip. */
#include <inttypes.h>

#include "cmd.h"
#include "terminal.h"

static const char text[] =
    "Decodes the tensor latents, (z, T, H, W) or (1, z, T, H, W), of the safetensors\n"
    "file LATENTS with the VAE of MODEL, and writes the clip to OUT: a video file\n"
    "(.mp4, .mkv, .mov, .avi, .mpg), frame-%04d.png, or .safetensors for the tensor\n"
    "video. Latents are normalised, as dsv sample --save-latents and pipelines of\n"
    "diffusers store them.\n"
    "\n"
    "MODEL is a published Wan folder, a VAE folder, or the safetensors file of a VAE.\n"
    "With memory_gib the VAE works in smaller pieces; every limit gives the same clip.\n"
    "\n"
    "  dsv decode Wan2.1-T2V-1.3B-Diffusers latents.safetensors clip.mp4 fps=16\n";

static int run_decode(const CliArgs *args)
{
    DsvConfig config;
    DsvDecoded clip;
    dsv_config_defaults(&config);
    DsvStatus status = cli_args_options(args, &config);
    if (status == DSV_OK)
        status = dsv_decode(args->path[0], args->path[1], args->path[2], &config, &clip);
    if (status == DSV_OK)
        cli_print_result("%s: %" PRId64 " frame%s, %" PRId64 " x %" PRId64 ", %g frames/s", args->path[2],
                         clip.frames, clip.frames == 1 ? "" : "s", clip.width, clip.height, config.fps);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_decode = {
    .name = "decode",
    .arguments = "MODEL LATENTS OUT",
    .paths_min = 3,
    .paths_max = 3,
    .takes_options = true,
    .summary = "decode latents to a clip with the VAE of a published model",
    .text = text,
    .run = run_decode,
};
