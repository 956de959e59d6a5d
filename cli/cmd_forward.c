/* dsv forward: one pass over tensors from a file. */
#include <stdio.h>

#include "cmd.h"
#include "terminal.h"

enum { GRAD };

static const CliFlag flags[] = {
    [GRAD] = {"--grad", NULL, "run the backward pass too; IN then holds target"},
    {0},
};

static const char text[] =
    "Runs MODEL once on hidden_states (B, C, F, H, W), timestep (B) and\n"
    "encoder_hidden_states (B, L, text_dim) of the safetensors file IN and writes\n"
    "output to the safetensors file OUT. With --grad, IN also holds target, shaped as\n"
    "hidden_states, and OUT also loss, the mean squared error, and its gradients:\n"
    "grad_hidden_states, grad_encoder_hidden_states and grad.NAME for every weight.\n"
    "\n"
    "Attention is dense and everything F32 unless sparse.enabled=true or\n"
    "mixed_precision=bf16 is given: the way to compare with another implementation.\n"
    "Other settings are those of the run that MODEL belongs to.\n"
    "\n"
    "  dsv forward runs/mine in.safetensors out.safetensors --grad\n";

static DsvStatus read_settings(const CliArgs *args, DsvConfig *config)
{
    static const char *const exact[] = {"sparse.enabled=false", "mixed_precision=no"};
    bool of_run;
    dsv_config_defaults(config);
    DsvStatus status = dsv_config_of_run(args->path[0], config, &of_run);
    for (size_t i = 0; i < sizeof exact / sizeof *exact && status == DSV_OK; i++)
        status = dsv_config_set(config, exact[i]);
    return status == DSV_OK ? cli_args_settings(args, config) : status;
}

static int run(const CliArgs *args)
{
    DsvConfig config;
    DsvStatus status = read_settings(args, &config);
    if (status == DSV_OK)
        status = dsv_forward(args->path[0], args->path[1], args->path[2], args->flag[GRAD] != NULL, &config);
    if (status == DSV_OK)
        cli_print_result("%s: written", args->path[2]);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_forward = {
    .name = "forward",
    .arguments = "MODEL IN OUT",
    .paths_least = 3,
    .paths_most = 3,
    .takes_settings = true,
    .summary = "runs a model once on tensors from a file, gradients on demand",
    .text = text,
    .flags = flags,
    .run = run,
};
