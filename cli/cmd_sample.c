/* dsv sample: generates clips with a trained or a published model. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "terminal.h"

enum { LORAS_MAX = 16 };
enum { PROMPT, NEGATIVE, PROMPTS, TEXT, IMAGE, LAST_IMAGE, NOISE, LATENTS, SPARSE, LORA, LORA_SCALE };

static const CliFlag flags[] = {
    [PROMPT] = {"--prompt", "TEXT", "what the clip shows"},
    [NEGATIVE] = {"--negative-prompt", "TEXT", "what guidance leads away from; default: nothing"},
    [PROMPTS] = {"--prompts", "FILE", "a prompt on each line: clips OUT-0000.mp4, ..."},
    [TEXT] = {"--text", "FILE", "safetensors: encoder_hidden_states (rows, text_dim)"},
    [IMAGE] = {"--image", "FILE", "PNG or JPEG: first frame, for image-to-video models"},
    [LAST_IMAGE] = {"--last-image", "FILE", "PNG or JPEG: last frame, for image-to-video models"},
    [NOISE] = {"--noise", "FILE", "safetensors: noise (C, F, H, W) to begin with"},
    [LATENTS] = {"--save-latents", "FILE", "write latents before decoding to this safetensors file"},
    [SPARSE] = {"--sparse", "PATH", "begin with the sparse state of this run, checkpoint or file"},
    [LORA] = {"--lora", "FILES", "LoRAs that are added to the model, separated by commas"},
    [LORA_SCALE] = {"--lora-scale", "NUMBERS", "their factors, separated by commas; default: all 1"},
    {0},
};

static const char text[] =
    "Samples a clip from MODEL: a published Wan 2.1 folder or file, a run folder (its\n"
    "newest checkpoint), a checkpoint, a folder that contains transformer/, or a\n"
    "transformer folder. transformer_ema of a checkpoint has the moving average of the\n"
    "weights (ema_decay). OUT ends with .mp4, .mkv, .mov, .avi or .mpg; with .png for\n"
    "one frame, frame-%04d.png for all; or with .safetensors for the tensor video.\n"
    "\n"
    "The options of the run to which MODEL belongs apply. A published model is sampled\n"
    "with height=480 width=832 num_frames=81 num_inference_steps=50 guidance_scale=5\n"
    "and the sampler and flow_shift of its scheduler_config.json. key=value arguments\n"
    "override both. --prompt, --negative-prompt, --prompts, --image, --last-image,\n"
    "--noise, --save-latents and --sparse are for published models. Without --text a\n"
    "run's clip is not conditioned on text.\n"
    "\n"
    "An image-to-video model (Wan2.2-I2V-A14B) needs --image. The picture is scaled to\n"
    "cover height x width and its middle is cropped; a picture of just this size is used\n"
    "as it is. The log names a size with the picture's aspect.\n"
    "\n"
    "Attention of a published model is dense, as in diffusers. With sparse.enabled=true\n"
    "it is dense for sparse.warmup_steps=5 steps; then blocks are sparse while their\n"
    "lists hold sparse.min_mass=0.8 of exact attention, measured every\n"
    "sparse.profile_every=5 steps.\n"
    "\n"
    "Weights that do not fit on the device, or into memory_gib, wait in host memory and\n"
    "are copied block by block while other blocks compute; the clip is the same.\n"
    "\n"
    "  dsv sample Wan2.1-T2V-1.3B-Diffusers cat.mp4 --prompt \"a cat on grass\" seed=1\n"
    "  dsv sample Wan2.1-T2V-1.3B-Diffusers cat.mp4 --prompt \"a cat\" --lora a.safetensors\n"
    "  dsv sample Wan2.2-I2V-A14B-Diffusers cat.mp4 --prompt \"the cat runs\" --image cat.png\n"
    "  dsv sample runs/mine clip.mp4 seed=3 num_inference_steps=30\n"
    "  dsv sample runs/mine/checkpoint-500/transformer_ema clip.mp4\n";

/* Sets the options that belong to the model, and over them the options of the command line. The command line
 * is also read first, because model.vae and other options of it name parts of the model. */
static DsvStatus sample_options(const CliArgs *args, DsvConfig *config)
{
    bool of_model;
    dsv_config_defaults(config);
    DsvStatus status = cli_args_options(args, config);
    if (status == DSV_OK)
        status = dsv_config_of_run(args->path[0], config, &of_model);
    return status == DSV_OK ? cli_args_options(args, config) : status;
}

/* The LoRAs of a command line. */
typedef struct SampleLoras {
    char paths_text[4096], scales_text[1024];
    const char *path[LORAS_MAX];
    double scale[LORAS_MAX];
    size_t paths, scales;
} SampleLoras;

/* Divides `list` at its commas. Returns the number of parts, LORAS_MAX + 1 if there are more. */
static size_t sample_split(char *list, char *part[LORAS_MAX])
{
    size_t count = 0;
    for (char *word; (word = strsep(&list, ",")) != NULL; count++) {
        if (count == LORAS_MAX)
            return LORAS_MAX + 1;
        part[count] = word;
    }
    return count;
}

static int sample_read_loras(const CliArgs *args, SampleLoras *out)
{
    const char *paths = args->flag[LORA], *scales = args->flag[LORA_SCALE];
    char *part[LORAS_MAX], *end;
    if (scales && !paths)
        return cli_misused(args->verb, "--lora-scale %s: expected --lora with it", scales);
    if (paths && snprintf(out->paths_text, sizeof out->paths_text, "%s", paths) < (int)sizeof out->paths_text)
        out->paths = sample_split(out->paths_text, part);
    if (paths && (out->paths == 0 || out->paths > LORAS_MAX))
        return cli_misused(args->verb, "--lora: expected at most %d files, separated by commas", LORAS_MAX);
    for (size_t i = 0; i < out->paths; i++) {
        out->path[i] = part[i];
        out->scale[i] = 1;
    }
    if (scales &&
        snprintf(out->scales_text, sizeof out->scales_text, "%s", scales) < (int)sizeof out->scales_text)
        out->scales = sample_split(out->scales_text, part);
    if (scales && out->scales != out->paths)
        return cli_misused(args->verb, "--lora-scale %s: expected a number for each file of --lora", scales);
    for (size_t i = 0; i < out->scales; i++) {
        out->scale[i] = strtod(part[i], &end);
        if (end == part[i] || *end || !isfinite(out->scale[i]))
            return cli_misused(args->verb, "--lora-scale %s: expected a number", part[i]);
    }
    return CLI_DONE;
}

static int run_sample(const CliArgs *args)
{
    SampleLoras loras = {.paths = 0};
    int misused = sample_read_loras(args, &loras);
    if (misused != CLI_DONE)
        return misused;
    DsvConfig config;
    CliTerminal terminal;
    DsvSampleArgs clips;
    dsv_sample_args_defaults(&clips);
    clips.model_path = args->path[0];
    clips.output_path = args->path[1];
    clips.prompts = &args->flag[PROMPT];
    clips.prompt_count = args->flag[PROMPT] ? 1 : 0;
    clips.prompts_path = args->flag[PROMPTS];
    clips.negative_prompt = args->flag[NEGATIVE];
    clips.text_path = args->flag[TEXT];
    clips.image_path = args->flag[IMAGE];
    clips.last_image_path = args->flag[LAST_IMAGE];
    clips.noise_path = args->flag[NOISE];
    clips.latents_path = args->flag[LATENTS];
    clips.sparse_path = args->flag[SPARSE];
    clips.lora_paths = loras.path;
    clips.lora_scales = loras.scale;
    clips.lora_count = loras.paths;
    DsvStatus status = sample_options(args, &config);
    if (status != DSV_OK)
        return cli_outcome(args, status);

    cli_terminal_open(&terminal, "this step");
    DsvEvents events = cli_terminal_events(&terminal);
    status = dsv_sample_clips(&clips, &config, &events);
    cli_terminal_close(&terminal);

    if (status == DSV_OK)
        cli_print_result("%s%s: %" PRId64 " frame%s, %" PRId64 " x %" PRId64 ", %g frames/s",
                         clips.output_path, clips.prompts_path ? ", numbered by prompt" : "",
                         config.num_frames, config.num_frames == 1 ? "" : "s", config.width, config.height,
                         config.fps);
    return cli_outcome(args, status);
}

const CliVerb cli_verb_sample = {
    .name = "sample",
    .arguments = "MODEL OUT",
    .paths_min = 2,
    .paths_max = 2,
    .takes_options = true,
    .summary = "sample a clip from a trained or published model",
    .text = text,
    .flags = flags,
    .run = run_sample,
};
