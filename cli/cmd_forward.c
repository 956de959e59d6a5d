/* dsv forward: one forward pass, and on request one backward pass, on tensors from a file. */
#include <stdio.h>

#include "cmd.h"
#include "terminal.h"

enum { GRAD, LORA };

static const CliFlag flags[] = {
    [GRAD] = {"--grad", NULL, "also run the backward pass; IN must contain target"},
    [LORA] = {"--lora", "FILE", "a LoRA beside the transformer; --grad then gives its gradients"},
    {0},
};

static const char text[] =
    "Runs MODEL once on the tensors hidden_states (B, C, F, H, W), timestep (B) and\n"
    "encoder_hidden_states (B, L, text_dim) of the safetensors file IN, and writes\n"
    "the tensor output to the safetensors file OUT. With --grad, IN must also contain\n"
    "target, of the shape of hidden_states, and OUT also contains loss, the mean\n"
    "squared error, and its gradients: grad_hidden_states,\n"
    "grad_encoder_hidden_states and grad.NAME for every weight. A model that takes the\n"
    "states of an image (Wan 2.1 I2V) also needs encoder_hidden_states_image\n"
    "(B, R, image_dim), or (2 B, R / 2, image_dim) for first and last frames (FLF2V).\n"
    "With timestep (B, 2) the first latent frame has a time of its own, the first one,\n"
    "and is left out of the loss (Wan 2.2 TI2V-5B).\n"
    "\n"
    "If MODEL is a VAE, IN has video (B, 3, T, H, W), latents_random (B, z, T, H, W)\n"
    "or both, and OUT gets moments, mode, latents_normalized and decoded of the video,\n"
    "and decoded_random.\n"
    "\n"
    "If MODEL is a text encoder (UMT5: its folder, or a safetensors file), IN must\n"
    "contain input_ids and attention_mask (B, L), I32 or I64, and OUT gets\n"
    "last_hidden_state (B, L, d_model), with zero rows where the mask is 0.\n"
    "\n"
    "If MODEL is the image encoder of Wan 2.1 I2V (CLIP), IN must contain pixel_values\n"
    "(B, 3, H, W), prepared as preprocessor_config.json says, and OUT gets\n"
    "hidden_states (B, R, hidden_size): the states before the last layer.\n"
    "\n"
    "Attention is dense and all computation is in F32, as needed for comparison with\n"
    "other implementations, unless sparse.enabled=true or mixed_precision=bf16 is\n"
    "given. Other options have the values of the run to which MODEL belongs.\n"
    "\n"
    "  dsv forward runs/mine in.safetensors out.safetensors --grad\n";

static DsvStatus forward_read_config(const CliArgs *args, DsvConfig *config)
{
    static const char *const exact[] = {"device=cpu", "sparse.enabled=false", "mixed_precision=no"};
    bool of_run;
    dsv_config_defaults(config);
    DsvStatus status = dsv_config_of_run(args->path[0], config, &of_run);
    for (size_t i = 0; i < sizeof exact / sizeof *exact && status == DSV_OK; i++)
        status = dsv_config_set(config, exact[i]);
    return status == DSV_OK ? cli_args_options(args, config) : status;
}

static int run_forward(const CliArgs *args)
{
    DsvConfig config;
    DsvStatus status = forward_read_config(args, &config);
    if (status == DSV_OK)
        status = dsv_forward_lora(args->path[0], args->flag[LORA], args->path[1], args->path[2],
                                  args->flag[GRAD] != NULL, &config);
    if (status == DSV_OK)
        cli_print_result("%s: written", args->path[2]);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_forward = {
    .name = "forward",
    .arguments = "MODEL IN OUT",
    .paths_min = 3,
    .paths_max = 3,
    .takes_options = true,
    .summary = "run a model once on tensors from a file, optionally with gradients",
    .text = text,
    .flags = flags,
    .run = run_forward,
};
