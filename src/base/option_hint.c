/* See option_hint.h. HINTS lists options of the training scripts of diffusers, musubi-tuner, diffusion-pipe,
 * finetrainers, DiffSynth-Studio, FastVideo and the Wan repository. */
#include "base/option_hint.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/nearest.h"
#include "base/option_table.h"

typedef struct Hint {
    const char *name; /* in small letters, with underscores */
    const char *text;
} Hint;

/* clang-format off */
#define CALLED(key) "dsv calls it " key
#define STEPS "dsv counts steps, not epochs: max_train_steps"
#define SIZE "dsv calls it height and width"
#define NO_LORA_START "training does not start from a LoRA file; dsv lora merge adds one to a model"
#define PROMPT "dsv sample takes a prompt as --prompt TEXT"
#define SAMPLED "validation.prompts names a file of prompts for clips sampled in training"
#define CAPTIONS "captions come from files beside the clips or from the list at data.path (docs/data.md)"
#define REPEATS "dsv repeats the clips until max_train_steps steps are done; " \
                "data.path=FOLDER:xN,OTHER repeats those of one folder more often"
#define NO_VAE CALLED("model.vae for published models; codec.name is the codec of training")
#define SWAP "offload chooses what waits in host memory: optimizer state (states), " \
             "weights (weights), kept activations (residual); memory_gib is the limit of device memory"
#define NO_IMAGE "dsv sample takes a picture as --image FILE; in training the column image of a list " \
                 "names one, or the first frame of each clip is taken"
#define BY_LAUNCHER "the number of processes is given to mpirun, srun or torchrun (docs/distributed.md)"
#define ALWAYS_LOGGED "every run writes metrics.jsonl and TensorBoard events into output_dir"
/* clang-format on */

static const Hint HINTS[] = {
    {"learning_rate", CALLED("lr")},
    {"lr_warmup_steps", CALLED("warmup_steps")},
    {"num_warmup_steps", CALLED("warmup_steps")},
    {"warmup", CALLED("warmup_steps")},
    {"warmup_ratio", CALLED("warmup_steps")},
    {"scheduler", CALLED("lr_scheduler")},
    {"lr_scheduler_type", CALLED("lr_scheduler")},
    {"batch_size", CALLED("train_batch_size")},
    {"micro_batch_size_per_gpu", CALLED("train_batch_size")},
    {"per_device_train_batch_size", CALLED("train_batch_size")},
    {"train_sp_batch_size", CALLED("train_batch_size")},
    {"gradient_accumulation", CALLED("gradient_accumulation_steps")},
    {"grad_accum", CALLED("gradient_accumulation_steps")},
    {"accumulate_grad_batches", CALLED("gradient_accumulation_steps")},
    {"steps", CALLED("max_train_steps")},
    {"max_steps", CALLED("max_train_steps")},
    {"train_steps", CALLED("max_train_steps")},
    {"num_train_steps", CALLED("max_train_steps")},
    {"epoch", STEPS},
    {"epochs", STEPS},
    {"num_epochs", STEPS},
    {"max_epochs", STEPS},
    {"max_train_epochs", STEPS},
    {"num_train_epochs", STEPS},
    {"save_steps", CALLED("checkpointing_steps")},
    {"save_every", CALLED("checkpointing_steps")},
    {"save_freq", CALLED("checkpointing_steps")},
    {"save_every_n_steps", CALLED("checkpointing_steps")},
    {"checkpoint_every_n_steps", CALLED("checkpointing_steps")},
    {"save_every_n_epochs", CALLED("checkpointing_steps")},
    {"save_every_n_minutes", CALLED("checkpointing_steps")},
    {"checkpoint_every_n_minutes", CALLED("checkpointing_steps")},
    {"save_total_limit", CALLED("checkpoints_total_limit")},
    {"checkpointing_limit", CALLED("checkpoints_total_limit")},
    {"resume", CALLED("resume_from_checkpoint")},
    {"resume_from", CALLED("resume_from_checkpoint")},
    {"output", CALLED("output_dir")},
    {"output_path", CALLED("output_dir")},
    {"out_dir", CALLED("output_dir")},
    {"save_dir", CALLED("output_dir")},
    {"logging_dir", ALWAYS_LOGGED},
    {"report_to", ALWAYS_LOGGED},
    {"log_with", ALWAYS_LOGGED},
    {"wandb", ALWAYS_LOGGED},
    {"data", CALLED("data.path")},
    {"dataset", CALLED("data.path")},
    {"dataset_config", CALLED("data.path")},
    {"dataset_name", CALLED("data.path")},
    {"dataset_path", CALLED("data.path")},
    {"dataset_base_path", CALLED("data.path")},
    {"dataset_metadata_path", CALLED("data.path")},
    {"data_root", CALLED("data.path")},
    {"data_dir", CALLED("data.path")},
    {"train_data_dir", CALLED("data.path")},
    {"instance_data_root", CALLED("data.path")},
    {"instance_data_dir", CALLED("data.path")},
    {"video_directory", CALLED("data.path")},
    {"clips", CALLED("data.path")},
    {"num_workers", CALLED("data.workers")},
    {"dataloader_num_workers", CALLED("data.workers")},
    {"max_data_loader_n_workers", CALLED("data.workers")},
    {"center_crop", CALLED("data.random_crop")},
    {"resolution", SIZE},
    {"resolutions", SIZE},
    {"size", SIZE},
    {"max_pixels", SIZE},
    {"frames", CALLED("num_frames")},
    {"frame_num", CALLED("num_frames")},
    {"max_num_frames", CALLED("num_frames")},
    {"target_frames", CALLED("num_frames")},
    {"num_latent_t", CALLED("num_frames")},
    {"source_fps", CALLED("fps")},
    {"frame_rate", CALLED("fps")},
    {"enable_bucket", CALLED("data.buckets")},
    {"frame_buckets", CALLED("data.buckets")},
    {"num_ar_buckets", CALLED("data.buckets")},
    {"video_resolution_buckets", CALLED("data.buckets")},
    {"num_repeats", REPEATS},
    {"dataset_repeat", REPEATS},
    {"model", CALLED("model.path, or model.preset for a new model")},
    {"model_path", CALLED("model.path")},
    {"model_paths", CALLED("model.path")},
    {"pretrained_model_name_or_path", CALLED("model.path")},
    {"pretrained_model_path", CALLED("model.path")},
    {"dit", CALLED("model.path")},
    {"ckpt_path", CALLED("model.path")},
    {"ckpt_dir", CALLED("model.path")},
    {"transformer_path", CALLED("model.path")},
    {"vae", NO_VAE},
    {"vae_path", NO_VAE},
    {"t5", CALLED("model.text_encoder")},
    {"text_encoder", CALLED("model.text_encoder")},
    {"tokenizer", CALLED("model.tokenizer")},
    {"llm_path", CALLED("model.text_encoder")},
    {"prompt", PROMPT},
    {"negative_prompt", PROMPT},
    {"validation_prompt", SAMPLED},
    {"validation_prompts", SAMPLED},
    {"sample_prompts", SAMPLED},
    {"caption_dropout_p", CALLED("caption_dropout")},
    {"caption_column", CAPTIONS},
    {"uncond_fraction", CALLED("caption_dropout")},
    {"training_cfg_rate", CALLED("caption_dropout")},
    {"image", NO_IMAGE},
    {"clip", NO_IMAGE},
    {"image_encoder", NO_IMAGE},
    {"rank", CALLED("lora_rank")},
    {"lora", CALLED("lora_rank")},
    {"lora_base_model", CALLED("model.path")},
    {"network_dim", CALLED("lora_rank")},
    {"network_alpha", CALLED("lora_alpha")},
    {"network_dropout", CALLED("lora_dropout")},
    {"network_module", CALLED("lora_target_modules")},
    {"network_weights", NO_LORA_START},
    {"adapter", CALLED("lora_rank")},
    {"training_type", CALLED("lora_rank")},
    {"trainable_models", CALLED("lora_target_modules")},
    {"precision", CALLED("mixed_precision")},
    {"dtype", CALLED("mixed_precision")},
    {"bf16", CALLED("mixed_precision")},
    {"fp16", CALLED("mixed_precision")},
    {"save_dtype", CALLED("mixed_precision")},
    {"fp8", CALLED("base_precision")},
    {"fp8_base", CALLED("base_precision")},
    {"fp8_scaled", CALLED("base_precision")},
    {"activation_checkpointing", CALLED("gradient_checkpointing")},
    {"use_gradient_checkpointing", CALLED("gradient_checkpointing")},
    {"use_gradient_checkpointing_offload", CALLED("offload, with the value residual")},
    {"blocks_to_swap", SWAP},
    {"cpu_offload", SWAP},
    {"offload_optimizer", CALLED("offload, with the value states")},
    {"optimizer_offload", CALLED("offload, with the value states")},
    {"offload_model", SWAP},
    {"optimizer_type", CALLED("optimizer")},
    {"use_8bit_adam", CALLED("optimizer, with the value adamw_8bit")},
    {"beta1", CALLED("adam_beta1")},
    {"beta2", CALLED("adam_beta2")},
    {"betas", CALLED("adam_beta1 and adam_beta2")},
    {"eps", CALLED("adam_epsilon")},
    {"epsilon", CALLED("adam_epsilon")},
    {"wd", CALLED("weight_decay")},
    {"adam_weight_decay", CALLED("weight_decay")},
    {"gradient_clipping", CALLED("max_grad_norm")},
    {"grad_clip", CALLED("max_grad_norm")},
    {"clip_grad_norm", CALLED("max_grad_norm")},
    {"use_ema", CALLED("ema_decay")},
    {"ema", CALLED("ema_decay")},
    {"timestep_sampling", CALLED("weighting_scheme")},
    {"timestep_sample_method", CALLED("weighting_scheme")},
    {"flow_weighting_scheme", CALLED("weighting_scheme")},
    {"flow_logit_mean", CALLED("logit_mean")},
    {"flow_logit_std", CALLED("logit_std")},
    {"discrete_flow_shift", CALLED("flow_shift")},
    {"shift", CALLED("flow_shift")},
    {"sigma_shift", CALLED("flow_shift")},
    {"sample_shift", CALLED("flow_shift")},
    {"sample_solver", CALLED("sampler")},
    {"sample_steps", CALLED("num_inference_steps")},
    {"infer_steps", CALLED("num_inference_steps")},
    {"cfg", CALLED("guidance_scale")},
    {"cfg_scale", CALLED("guidance_scale")},
    {"sample_guide_scale", CALLED("guidance_scale")},
    {"base_seed", CALLED("seed")},
    {"validation_epochs", CALLED("validation_steps")},
    {"sample_every_n_steps", CALLED("validation_steps")},
    {"sample_every_n_epochs", CALLED("validation_steps")},
    {"eval_steps", CALLED("validation.every")},
    {"eval_every_n_steps", CALLED("validation.every")},
    {"eval_datasets", CALLED("validation.data")},
    {"sp_size", CALLED("cp_size")},
    {"sp_degree", CALLED("cp_size")},
    {"cp_degree", CALLED("cp_size")},
    {"ulysses_size", CALLED("cp_heads")},
    {"ring_size", CALLED("cp_size")},
    {"dp_degree", CALLED("dp_size")},
    {"dp_shards", CALLED("hsdp_shard_dim")},
    {"fsdp", CALLED("zero_stage")},
    {"tp_degree", "tensor parallelism is not in this version: cp_size ranks share a clip"},
    {"pipeline_stages", "pipeline parallelism is not in this version: cp_size ranks share a clip"},
    {"num_gpus", BY_LAUNCHER},
    {"gpus", BY_LAUNCHER},
    {"num_processes", BY_LAUNCHER},
    {"vsa_sparsity", CALLED("sparse.target_density, which is 1 - sparsity")},
    {"sparsity", CALLED("sparse.target_density, which is 1 - sparsity")},
    {"flash_attn", "dsv has its own attention: with sparse.enabled=true blocks may use sparse attention"},
    {"attn_mode", "dsv has its own attention: with sparse.enabled=true blocks may use sparse attention"},
    {"sdpa", "dsv has its own attention: with sparse.enabled=true blocks may use sparse attention"},
};

/* Spells a name as keys are spelled: small letters, underscores, no leading dashes, no blanks at the ends. */
static void normalise(const char *key, char text[DSVI_KEY_BYTES])
{
    size_t length = 0;
    key += strspn(key, "- ");
    for (; *key && length + 1 < DSVI_KEY_BYTES; key++)
        text[length++] = (char)(*key == '-' ? '_' : tolower((unsigned char)*key));
    while (length > 0 && text[length - 1] == ' ')
        length--;
    text[length] = 0;
}

static const char *last_part(const char *key)
{
    const char *dot = strrchr(key, '.');
    return dot ? dot + 1 : key;
}

static const char *find_hint(const char *name)
{
    for (size_t i = 0; i < sizeof HINTS / sizeof *HINTS; i++)
        if (strcmp(HINTS[i].name, name) == 0)
            return HINTS[i].text;
    return NULL;
}

const char *dsv_option_hint(const char *name)
{
    char key[DSVI_KEY_BYTES];
    normalise(name, key);
    return find_hint(key);
}

const char *dsv_option_hint_name(size_t index)
{
    return index < sizeof HINTS / sizeof *HINTS ? HINTS[index].name : NULL;
}

/* Returns the most similar key, if it is similar enough for a typing error, and their distance; otherwise
 * NULL. A wrong or missing group counts as one letter: target_mass and train.target_mass find
 * sparse.target_mass. */
static const char *mistyped(const char *key, size_t *distance)
{
    const DsviOption *options = dsvi_options();
    const char *nearest = NULL, *last = last_part(key);
    *distance = SIZE_MAX;
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++) {
        const char *known = options[i].info.key;
        size_t whole = dsvi_edit_distance(key, known), end = dsvi_edit_distance(last, last_part(known));
        size_t smaller = dsvi_is_typo(end, last) ? end + 1 : SIZE_MAX;
        if (dsvi_is_typo(whole, last) && whole < smaller)
            smaller = whole;
        if (smaller < *distance) {
            *distance = smaller;
            nearest = known;
        }
    }
    return nearest;
}

/* Writes the first group that is similar enough to `key` to `group`; returns false if there is none. */
static bool mistyped_group(const char *key, char group[DSVI_KEY_BYTES])
{
    const DsviOption *options = dsvi_options();
    for (size_t i = 0; i < DSVI_OPTION_COUNT; i++) {
        const char *known = options[i].info.key, *dot = strchr(known, '.');
        if (!dot)
            continue;
        snprintf(group, DSVI_KEY_BYTES, "%.*s", (int)(dot - known), known);
        if (dsvi_is_typo(dsvi_edit_distance(key, group), key))
            return true;
    }
    return false;
}

/* Returns whether `word` equals a word of the key `known` or, unless `exact`, is similar to one. */
static bool has_word(const char *known, const char *word, bool exact)
{
    char part[DSVI_KEY_BYTES];
    while (*known) {
        size_t length = strcspn(known, "._");
        snprintf(part, sizeof part, "%.*s", (int)length, known);
        size_t distance = dsvi_edit_distance(word, part);
        if (distance == 0 || (!exact && dsvi_is_typo(distance, word)))
            return true;
        known += length + (known[length] != 0);
    }
    return false;
}

static const char *last_word(const char *key)
{
    size_t at = strlen(key);
    while (at > 0 && !strchr("._", key[at - 1]))
        at--;
    return key + at;
}

/* Writes "; keys with that word: a, b" with the option keys, at most five, that contain the last word of the
 * unknown `key`. Returns false if there are none, or if the word is shorter than three letters. */
static bool list_same_word(const char *key, bool exact, char text[DSVI_HINT_BYTES])
{
    enum { NAMED_MAX = 5, SHORT = 3 };
    const DsviOption *options = dsvi_options();
    const char *word = last_word(key);
    size_t used = 0;
    int named = 0;
    if (strlen(word) < SHORT)
        return false;
    for (size_t i = 0; i < DSVI_OPTION_COUNT && named < NAMED_MAX; i++)
        if (has_word(last_part(options[i].info.key), word, exact))
            used += (size_t)snprintf(text + used, DSVI_HINT_BYTES - used, "%s%s",
                                     named++ ? ", " : "; keys with that word: ", options[i].info.key);
    return named > 0;
}

/* Finds the hint for a whole key, or for its last part if its group is unknown to dsv: "adapter.rank". */
static const char *find_foreign(const char *key)
{
    char group[DSVI_KEY_BYTES];
    const char *hint = find_hint(key), *last = last_part(key);
    if (hint || last == key)
        return hint;
    snprintf(group, sizeof group, "%.*s", (int)(last - key - 1), key);
    return dsvi_option_first_of_group(group) ? NULL : find_hint(last);
}

/* Tries the most certain kind of advice first: another trainer's name, a key that differs in one letter, keys
 * with the same word, less similar keys. */
void dsvi_option_advice(const char *given, char text[DSVI_HINT_BYTES])
{
    char key[DSVI_KEY_BYTES], group[DSVI_KEY_BYTES];
    size_t distance;
    normalise(given, key);
    const char *hint = find_foreign(key), *slip = mistyped(key, &distance);
    if (hint)
        snprintf(text, DSVI_HINT_BYTES, ": %s", hint);
    else if (slip && distance <= 1)
        snprintf(text, DSVI_HINT_BYTES, ", the nearest is %s", slip);
    else if (list_same_word(key, true, text))
        return;
    else if (slip)
        snprintf(text, DSVI_HINT_BYTES, ", the nearest is %s", slip);
    else if (mistyped_group(key, group))
        snprintf(text, DSVI_HINT_BYTES, ", the nearest is the group %s", group);
    else if (!list_same_word(key, false, text))
        snprintf(text, DSVI_HINT_BYTES, "; dsv help options lists all keys");
}
