/* dsv text: ids and hidden states of prompts. */
#include <stdio.h>

#include "cmd.h"
#include "terminal.h"

static const char text[] =
    "Encodes every line of the text file PROMPTS with the text encoder (UMT5) of\n"
    "MODEL, and writes to the safetensors file OUT for lines 0, 1, ...: input_ids.0\n"
    "(n) I32 and hidden.0 (n, d_model) F32, without padding. An empty line is the\n"
    "empty prompt. Prompts are cleaned as in the Wan pipelines and cut to 512 ids.\n"
    "\n"
    "MODEL is a pipeline folder (text_encoder/ and tokenizer/), a folder of the Wan\n"
    "repository with its text encoder as safetensors, or one safetensors file that\n"
    "also contains the tokenizer (spiece_model). Weights may be F32, BF16, F16 or\n"
    "F8_E4M3. If the layers do not fit into memory, they are read again for each\n"
    "batch.\n"
    "\n"
    "  dsv text Wan2.1-T2V-1.3B-Diffusers prompts.txt states.safetensors device=cuda\n";

static int run_text_verb(const CliArgs *args)
{
    DsvConfig config;
    CliTerminal terminal;
    dsv_config_defaults(&config);
    DsvStatus status = cli_args_options(args, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);
    cli_terminal_open(&terminal, "the prompts that are being encoded");
    DsvEvents events = cli_terminal_events(&terminal);
    status = dsv_text(args->path[0], args->path[1], args->path[2], &config, &events);
    cli_terminal_close(&terminal);
    if (status == DSV_OK)
        cli_print_result("%s: written", args->path[2]);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_text = {
    .name = "text",
    .arguments = "MODEL PROMPTS OUT",
    .paths_min = 3,
    .paths_max = 3,
    .takes_options = true,
    .summary = "encode prompts with the text encoder of a published pipeline",
    .text = text,
    .run = run_text_verb,
};
