/* dsv sample: generates clips with a trained or a published model. */
#include <inttypes.h>

#include "cmd.h"
#include "lora_flags.h"
#include "terminal.h"

enum {
    PROMPT,
    NEGATIVE,
    PROMPTS,
    TEXT,
    IMAGE,
    LAST_IMAGE,
    NOISE,
    LATENTS,
    SPARSE,
    LORA,
    LORA_SCALE,
    LORA_HIGH,
    HIGH_SCALE,
    LORA_LOW,
    LOW_SCALE
};

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
    [LORA_HIGH] = {"--lora-high", "FILES", "two experts: LoRAs of the expert for high noise only"},
    [HIGH_SCALE] = {"--lora-high-scale", "NUMBERS", "their factors"},
    [LORA_LOW] = {"--lora-low", "FILES", "two experts: LoRAs of the expert for low noise only"},
    [LOW_SCALE] = {"--lora-low-scale", "NUMBERS", "their factors"},
    {0},
};

static const char text[] =
    "Samples a clip from MODEL: a published Wan model (folder or file), a run folder\n"
    "(its newest checkpoint), a checkpoint, a folder that contains transformer/, or a\n"
    "transformer folder. transformer_ema of a checkpoint has the moving average of the\n"
    "weights (ema_decay). OUT ends with .mp4, .mkv, .mov, .avi or .mpg; with .png for\n"
    "one frame, frame-%04d.png for all; or with .safetensors for the tensor video.\n"
    "\n"
    "The options of the run to which MODEL belongs apply. A published model is sampled\n"
    "with device=auto (a GPU if there is one) height=480 width=832 num_frames=81\n"
    "num_inference_steps=50 guidance_scale=5 and the sampler and flow_shift of its\n"
    "scheduler_config.json. key=value arguments override both. --prompt,\n"
    "--negative-prompt, --prompts, --image, --last-image, --noise, --save-latents and\n"
    "--sparse are for published models. Without --text a run's clip is not conditioned\n"
    "on text.\n"
    "\n"
    "An image-to-video model (I2V of Wan 2.1, I2V-A14B of Wan 2.2) needs --image; FLF2V\n"
    "of Wan 2.1 also needs --last-image, which I2V-A14B may have and I2V may not.\n"
    "TI2V-5B of Wan 2.2 works with --image and without. A picture is scaled to cover\n"
    "height x width and its middle is cropped; a picture of just this size is used as it\n"
    "is. The log names a size with the picture's aspect.\n"
    "\n"
    "--lora adds LoRAs to the model; of a model of two experts (Wan 2.2 A14B) it adds\n"
    "them to both, and --lora-high and --lora-low to one.\n"
    "\n"
    "Attention of a published model, and of runs that trained one or a LoRA of one,\n"
    "is dense, as in diffusers. With sparse.enabled=true, which --sparse sets, a\n"
    "published model is dense for sparse.warmup_steps=5 steps; then blocks are sparse\n"
    "while their lists hold sparse.min_mass=0.8 of exact attention, measured every\n"
    "sparse.profile_every=5 steps. Runs have their own sparse options.\n"
    "\n"
    "Weights that do not fit on the device, or into memory_gib, wait in host memory and\n"
    "are copied block by block while other blocks compute; the clip is the same.\n"
    "\n"
    "  dsv sample Wan2.1-T2V-1.3B-Diffusers cat.mp4 --prompt \"a cat on grass\" seed=1\n"
    "  dsv sample Wan2.1-T2V-1.3B-Diffusers cat.mp4 --prompt \"a cat\" --lora a.safetensors\n"
    "  dsv sample Wan2.2-I2V-A14B-Diffusers cat.mp4 --prompt \"the cat runs\" --image cat.png\n"
    "  dsv sample runs/mine clip.mp4 seed=3 num_inference_steps=30\n"
    "  dsv sample runs/mine/checkpoint-500/transformer_ema clip.mp4\n";

/* Sets the options that belong to the model, over them what --sparse needs, and over both the options of the
 * command line. The command line is also read first, because model.vae and other options of it name parts of
 * the model. */
static DsvStatus sample_options(const CliArgs *args, DsvConfig *config)
{
    bool of_model;
    dsv_config_defaults(config);
    DsvStatus status = cli_args_options(args, config);
    if (status == DSV_OK)
        status = dsv_config_of_run(args->path[0], config, &of_model);
    if (args->flag[SPARSE])
        config->sparse_enabled = true;
    return status == DSV_OK ? cli_args_options(args, config) : status;
}

static int sample_read_loras(const CliArgs *args, CliLoras *out)
{
    int misused = cli_lora_flag(args, LORA, DSV_EXPERT_BOTH, out);
    if (misused == CLI_DONE)
        misused = cli_lora_flag(args, LORA_HIGH, DSV_EXPERT_HIGH, out);
    return misused == CLI_DONE ? cli_lora_flag(args, LORA_LOW, DSV_EXPERT_LOW, out) : misused;
}

static int run_sample(const CliArgs *args)
{
    CliLoras loras = {.count = 0};
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
    clips.lora_experts = loras.expert;
    clips.lora_count = loras.count;
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
