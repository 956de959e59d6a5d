/* dsv inspect: what a path is. */
#include "cmd.h"

static const char text[] =
    "Tells what PATH is - a run folder, checkpoint, model folder, latent cache,\n"
    "safetensors file or clip - with its shapes and counts, and checks its health:\n"
    "checksums, missing tensors, numbers that are not finite. What is damaged is\n"
    "described as far as it goes; the exit status is then 1.\n"
    "\n"
    "  dsv inspect runs/mine\n";

static int run(const CliArgs *args)
{
    return cli_outcome(args, dsv_inspect(args->path[0], cli_print_line, NULL));
}

const CliVerb cli_verb_inspect = {
    .name = "inspect",
    .arguments = "PATH",
    .paths_least = 1,
    .paths_most = 1,
    .summary = "tells what a path is and whether it is sound",
    .text = text,
    .run = run,
};
