/* dsv lora convert and dsv lora merge: LoRA files. */
#include "cmd.h"
#include "lora_flags.h"
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

enum { SCALE, LORA_HIGH, HIGH_SCALE, LORA_LOW, LOW_SCALE };

static const CliFlag merge_flags[] = {
    [SCALE] = {"--scale", "NUMBER", "factor of the change of LORA; 1 unless given"},
    [LORA_HIGH] = {"--lora-high", "FILES", "two experts: LoRAs of the expert for high noise only"},
    [HIGH_SCALE] = {"--lora-high-scale", "NUMBERS", "their factors; default: all 1"},
    [LORA_LOW] = {"--lora-low", "FILES", "two experts: LoRAs of the expert for low noise only"},
    [LOW_SCALE] = {"--lora-low-scale", "NUMBERS", "their factors; default: all 1"},
    {0},
};

static const char merge_text[] =
    "Writes a copy of the model FOLDER to OUT_FOLDER, with LoRAs added to the weights of\n"
    "its transformers. Other parts are copied. FOLDER is a folder with transformer/, a\n"
    "transformer folder, or a safetensors file. OUT_FOLDER must be empty or new.\n"
    "\n"
    "A model of two experts (Wan 2.2 A14B) gets LORA in both experts, and the files of\n"
    "--lora-high and --lora-low in one. LORA may be left out if one of them is given.\n"
    "\n"
    "  dsv lora merge Wan2.1-T2V-1.3B-Diffusers mine.safetensors merged\n"
    "  dsv lora merge Wan2.2-T2V-A14B-Diffusers merged --lora-high h.safetensors \\\n"
    "      --lora-low l.safetensors\n";

/* Gathers the LoRAs of the command line. `lora`: the one without a flag, or NULL. */
static int merge_read_loras(const CliArgs *args, const char *lora, CliLoras *out)
{
    out->scale[0] = 1;
    int misused = cli_args_number(args, SCALE, &out->scale[0]);
    if (misused == CLI_DONE && args->flag[SCALE] && !lora)
        return cli_misused(args->verb, "--scale %s: expected LORA with it", args->flag[SCALE]);
    if (lora) {
        out->path[0] = lora;
        out->count = 1;
    }
    if (misused == CLI_DONE)
        misused = cli_lora_flag(args, LORA_HIGH, DSV_EXPERT_HIGH, out);
    if (misused == CLI_DONE)
        misused = cli_lora_flag(args, LORA_LOW, DSV_EXPERT_LOW, out);
    if (misused == CLI_DONE && out->count == 0)
        return cli_misused(args->verb, "no LoRA, expected LORA, --lora-high or --lora-low");
    return misused;
}

static int run_merge(const CliArgs *args)
{
    CliLoras loras = {.count = 0};
    bool named = args->path[2] != NULL;
    const char *out = args->path[named ? 2 : 1];
    int misused = merge_read_loras(args, named ? args->path[1] : NULL, &loras);
    if (misused != CLI_DONE)
        return misused;
    DsvStatus status = dsv_lora_merge_experts(args->path[0], loras.path, loras.scale, loras.expert,
                                              loras.count, out);
    if (status == DSV_OK)
        cli_print_result("%s: written", out);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_lora_merge = {
    .name = "lora merge",
    .arguments = "FOLDER [LORA] OUT_FOLDER",
    .paths_min = 2,
    .paths_max = 3,
    .summary = "write a copy of a model with LoRAs added to its weights",
    .text = merge_text,
    .flags = merge_flags,
    .run = run_merge,
};
