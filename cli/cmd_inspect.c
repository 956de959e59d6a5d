/* dsv inspect: describes and checks a file or folder. */
#include "cmd.h"

static const char text[] = "Describes PATH (a run folder, checkpoint, model folder, latent cache,\n"
                           "safetensors file or clip) with its shapes and counts, and checks it: checksums,\n"
                           "missing tensors, numbers that are not finite. If it is damaged, the intact part\n"
                           "is described and the exit status is 1.\n"
                           "\n"
                           "  dsv inspect runs/mine\n";

static int run_inspect(const CliArgs *args)
{
    return cli_outcome(args, dsv_inspect(args->path[0], cli_print_line, NULL));
}

const CliVerb cli_verb_inspect = {
    .name = "inspect",
    .arguments = "PATH",
    .paths_min = 1,
    .paths_max = 1,
    .summary = "describe a file or folder, and check whether it is intact",
    .text = text,
    .run = run_inspect,
};
