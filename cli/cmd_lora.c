/* dsv lora convert and dsv lora merge: LoRA files. */
#include "cmd.h"
#include "terminal.h"

enum { TO };

static const CliFlag convert_flags[] = {
    [TO] = {"--to", "FORM", "comfy, diffusers or kohya; comfy unless given"},
    {0},
};

static const char convert_text[] =
    "Writes the LoRA of the safetensors file IN to the file OUT, with the tensor names\n"
    "of another program. IN may have the names of ComfyUI and PEFT, kohya's scripts,\n"
    "VideoX-Fun, diffusers or DiffSynth. ComfyUI, diffusers and musubi-tuner all read\n"
    "the form comfy. OUT has no alpha: alpha / rank is multiplied into the matrices.\n"
    "Only the form kohya has an alpha, equal to the rank.\n"
    "\n"
    "  dsv lora convert kohya.safetensors mine.safetensors --to comfy\n";

static int run_convert(const CliArgs *args)
{
    const char *form = args->flag[TO] ? args->flag[TO] : "comfy";
    DsvStatus status = dsv_lora_convert(args->path[0], args->path[1], form);
    if (status == DSV_OK)
        cli_print_result("%s: written", args->path[1]);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_lora_convert = {
    .name = "lora convert",
    .arguments = "IN OUT",
    .paths_min = 2,
    .paths_max = 2,
    .summary = "write a LoRA with the tensor names of another program",
    .text = convert_text,
    .flags = convert_flags,
    .run = run_convert,
};

enum { SCALE };

static const CliFlag merge_flags[] = {
    [SCALE] = {"--scale", "NUMBER", "factor of the LoRA's change; 1 unless given"},
    {0},
};

static const char merge_text[] =
    "Writes a copy of the model FOLDER to OUT_FOLDER, with the LoRA added to the\n"
    "weights of its transformer. Other parts are copied. FOLDER is a folder with\n"
    "transformer/, a transformer folder, or a safetensors file. OUT_FOLDER must be\n"
    "empty or new.\n"
    "\n"
    "  dsv lora merge Wan2.1-T2V-1.3B-Diffusers mine.safetensors merged\n";

static int run_merge(const CliArgs *args)
{
    double scale = 1;
    int misused = cli_args_number(args, SCALE, &scale);
    if (misused != CLI_DONE)
        return misused;
    DsvStatus status = dsv_lora_merge(args->path[0], args->path[1], scale, args->path[2]);
    if (status == DSV_OK)
        cli_print_result("%s: written", args->path[2]);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_lora_merge = {
    .name = "lora merge",
    .arguments = "FOLDER LORA OUT_FOLDER",
    .paths_min = 3,
    .paths_max = 3,
    .summary = "write a copy of a model with a LoRA added to its weights",
    .text = merge_text,
    .flags = merge_flags,
    .run = run_merge,
};
