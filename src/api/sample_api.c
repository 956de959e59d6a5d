/* The functions of include/dsv/sample.h. Clips of published models are sampled by src/pipeline; this file
 * samples those of trained models. */
#include "dsv/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lora_files.h"
#include "api/lora_run.h"
#include "api/trained_run.h"
#include "base/config_abi.h"
#include "backend/backend.h"
#include "device/carve.h"
#include "run/model_path.h"
#include "run/notices.h"
#include "run/prompt_file.h"
#include "run/pipeline_part.h"
#include "base/safetensors.h"
#include "model/dit/dit_frozen.h"
#include "model/umt5/umt5.h"
#include "model/vae/vae.h"
#include "pipeline/wan_sample.h"
#include "pipeline/wan_settings.h"
#include "sample/clip_writer.h"
#include "sample/generator.h"
#include "sample/sample_room.h"

typedef struct Sampling {
    const DsvConfig *settings;
    DsviBackend backend;
    DsviModelPath model;
    DsviDitConfig config;
    DsviParamTable table;
    DsviCodec *codec;
    DsviGenerator *generator;
    void *memory;
    DsviDitFrozen *weights;
    DsviSampleRoom room;
    DsviHostPool pool; /* blocks of the weights that wait in host memory */
    const DsviLoraSet *loras;
    float *text;      /* (text_len, text_dim), or NULL */
    DsvEvents events; /* the caller's */
} Sampling;

/* Loads the options of a run from its file. A run that trained a published model, or a LoRA beside one, is
 * sampled densely unless the caller enables sparse attention, as the model alone is. A sparse state of such a
 * run has the decisions from before its dense finish, and no finish follows in a sample. */
static DsvStatus load_config_of_run(const char *file, DsvConfig *config)
{
    DsviWanFolder folder;
    bool published;
    DSVI_TRY(dsv_config_load(config, file));
    if (!config->model_path[0] || !dsvi_path_exists(config->model_path))
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_find(config->model_path, config, &folder, &published));
    if (published) {
        config->sparse_enabled = false;
        config->sparse_dense_finish = 0;
    }
    return DSV_OK;
}

DsvStatus dsv_config_of_run(const char *path, DsvConfig *config, bool *found)
{
    DsviModelPath model;
    DsviWanFolder folder;
    DsviLoraRun lora;
    *found = false;
    if (dsvi_pipeline_part(path) || dsvi_umt5_is(path) || dsvi_vae_is(path)) /* of a pipeline, not of a run */
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_find(path, config, &folder, found));
    if (*found)
        return dsvi_wan_settings(&folder, config);
    DSVI_TRY(dsvi_lora_run_find(path, &lora, found));
    if (*found)
        return load_config_of_run(lora.settings, config);
    DSVI_TRY(dsvi_model_find(path, &model));
    *found = model.settings[0] != 0;
    return *found ? load_config_of_run(model.settings, config) : DSV_OK;
}

static DsvStatus sample_read_text(Sampling *s, const char *text_path)
{
    DsvStatus status;
    DsviSafetensors *file;
    const DsviStoredTensor *rows;
    const int64_t shape[2] = {s->config.text_len, s->config.text_dim};
    DSVI_TRY(dsvi_safetensors_open(text_path, &file));
    DSVI_TRY_GOTO(status, dsvi_safetensors_require_floating(file, "encoder_hidden_states", 2, shape, &rows),
                  done);
    s->text = malloc((size_t)rows->count * sizeof(float));
    if (!s->text) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for its text rows", text_path);
        goto done;
    }
    dsvi_convert(DSVI_F32, s->text, rows->dtype, rows->data, rows->count);
done:
    dsvi_safetensors_close(&file);
    return status;
}

static void sample_carve(void *context, DsviArena *arena)
{
    Sampling *s = context;
    dsvi_dit_frozen_carve(s->weights, arena);
    dsvi_generator_carve(s->generator, arena);
    dsvi_generator_carve_run(s->generator, arena);
}

/* Passes on what the sparse layer says about a state that it loads: that its decisions are of other lists, or
 * that it is from a dense finish. */
static void log_of_sparse(void *context, const char *line)
{
    const DsvEvents *events = context;
    if (events->log)
        events->log(events->context, DSV_LOG_INFO, line);
}

/* Warns about options that decide which blocks are sparse, where they differ from those of the run: a sample
 * measures nothing, so that the decisions of the checkpoint hold. */
static DsvStatus warn_about_decisions(const Sampling *s, const DsvEvents *events)
{
    const DsvConfig *given = s->settings;
    DsvConfig run;
    char line[256];
    dsv_config_defaults(&run);
    DSVI_TRY(dsv_config_load(&run, s->model.settings));
    const struct {
        const char *key;
        bool differs;
    } options[] = {
        {"sparse.max_error", given->sparse_max_error != run.sparse_max_error},
        {"sparse.max_head_error", given->sparse_max_head_error != run.sparse_max_head_error},
        {"sparse.min_mass", given->sparse_min_mass != run.sparse_min_mass},
        {"sparse.min_head_mass", given->sparse_min_head_mass != run.sparse_min_head_mass},
        {"sparse.hysteresis", given->sparse_hysteresis != run.sparse_hysteresis},
        {"sparse.profile_every", given->sparse_profile_every != run.sparse_profile_every},
        {"sparse.warmup_steps", given->sparse_warmup_steps != run.sparse_warmup_steps},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i].differs)
            continue;
        snprintf(line, sizeof line,
                 "%s has no effect, because a sample measures nothing: blocks are sparse as the checkpoint "
                 "says",
                 options[i].key);
        if (events->log)
            events->log(events->context, DSV_LOG_WARNING, line);
    }
    return DSV_OK;
}

static DsvStatus sample_load(Sampling *s, const char *model_path, const DsvEvents *events)
{
    DsviSparse *sparse = dsvi_generator_sparse(s->generator);
    char line[DSVI_SAMPLE_ROOM_LINE];
    s->room = (DsviSampleRoom){.path = model_path,
                               .settings = s->settings,
                               .device = s->backend.device,
                               .weights = s->weights,
                               .layout = sample_carve,
                               .object = s};
    if (!dsvi_sample_room_choose(&s->room))
        return dsvi_sample_room_refuse(&s->room);
    dsvi_sample_room_line(&s->room, line);
    if (line[0] && events->log)
        events->log(events->context, DSV_LOG_INFO, line);
    DSVI_TRY(dsvi_device_alloc_layout(s->backend.device, sample_carve, s, &s->memory));
    DSVI_TRY(dsvi_sample_room_open(&s->room, events, &s->pool));
    DSVI_TRY(dsvi_dit_frozen_load(s->weights, s->backend.device, s->model.weights, s->loras));
    DsviDitWeights weights = dsvi_dit_frozen_weights(s->weights);
    DSVI_TRY(dsvi_generator_setup(s->generator, &weights));
    if (!sparse || !s->model.sparse[0])
        return DSV_OK;
    DSVI_TRY(warn_about_decisions(s, events));
    return dsvi_sparse_load(sparse, s->model.sparse);
}

/* Checks that model and codec fit. Called before weights are loaded, so that it fails early. */
static DsvStatus check_latent(const Sampling *s, const char *model_path)
{
    const DsvConfig *settings = s->settings;
    DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width}, latent;
    DSVI_TRY(s->codec->latent_shape(s->codec, video, &latent));
    DsvStatus status = dsvi_dit_check_latent(&s->config, s->codec, latent);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "%s", model_path);
}

/* Warns if guidance has no effect because there is no text, or if text was not part of training. Only latents
 * of a published VAE (codec.name=wan) are trained with text. */
static void warn_about_text(const Sampling *s, const char *text_path, const DsvEvents *events)
{
    char line[DSVI_PATH_MAX + 128];
    const char *guidance = text_path ? NULL : dsvi_notice_of_guidance(s->settings);
    if (!events->log)
        return;
    if (guidance)
        events->log(events->context, DSV_LOG_WARNING, guidance);
    if (!text_path || !s->model.checkpoint[0] || strcmp(s->settings->codec_name, "wan") == 0)
        return;
    snprintf(
        line, sizeof line,
        "--text: %s was trained without text, as every model with codec.name=%s is: what text changes in "
        "the sample was not learned",
        s->model.checkpoint, s->settings->codec_name);
    events->log(events->context, DSV_LOG_WARNING, line);
}

static DsvStatus write_sample(const Sampling *s, const char *path)
{
    const DsvConfig *settings = s->settings;
    int64_t count;
    DsviVideoFrames frames = {
        .pixels = dsvi_generator_pixels(s->generator, &count),
        .frames = settings->num_frames,
        .height = settings->height,
        .width = settings->width,
        .fps = settings->fps,
    };
    return dsvi_clip_write(path, &frames);
}

static DsvStatus sample_run(Sampling *s, const char *model_path, const char *text_path,
                            const char *video_path, const DsvEvents *events)
{
    if (text_path)
        DSVI_TRY(sample_read_text(s, text_path));
    DSVI_TRY(dsvi_codec_open(s->settings, &s->codec));
    dsvi_codec_decode_on(s->codec, &s->backend);
    if (!s->codec->decode)
        return DSVI_FAIL(DSV_E_USAGE, "%s: no VAE to decode the clip, expected one in model.vae", model_path);
    DSVI_TRY(check_latent(s, model_path));
    warn_about_text(s, text_path, events);
    DSVI_TRY(dsvi_param_table_make(&s->config, &s->table));
    DSVI_TRY(dsvi_generator_create(&(DsviGeneratorArgs){.backend = &s->backend,
                                                        .settings = s->settings,
                                                        .codec = s->codec,
                                                        .config = &s->config,
                                                        .table = &s->table,
                                                        .log = log_of_sparse,
                                                        .log_context = &s->events},
                                   &s->generator));
    DSVI_TRY(dsvi_dit_frozen_create(&s->table, dsvi_dit_act(s->settings), &s->weights));
    if (dsvi_dit_stores_f8(s->settings))
        DSVI_TRY(dsvi_dit_frozen_use_f8(s->weights, &s->backend));
    DSVI_TRY(sample_load(s, model_path, events));
    const DsviGeneratorClip clip = {.seed = (uint64_t)s->settings->seed, .text = s->text};
    DSVI_TRY(dsvi_generator_run(s->generator, &clip, events));
    return write_sample(s, video_path);
}

/* Returns whether the arguments ask for what only a published model can do. */
static bool asks_published(const DsvSampleArgs *args)
{
    return args->prompt_count > 0 || args->prompts_path || args->negative_prompt || args->noise_path ||
           args->latents_path || args->sparse_path || args->image_path || args->last_image_path;
}

static DsvStatus sample_trained(const DsvSampleArgs *args, const DsviLoraSet *loras,
                                const DsvConfig *settings, const DsvEvents *events)
{
    DsvStatus status;
    Sampling s = {.settings = settings, .loras = loras, .events = *events};
    if (asks_published(args))
        return DSVI_FAIL(
            DSV_E_USAGE,
            "%s: prompts, pictures, noise, latents and a sparse state need a published Wan model, such as a "
            "folder with model_index.json, a run that trained one, or a transformer with model.vae, "
            "model.text_encoder and model.tokenizer",
            args->model_path);
    DSVI_TRY_GOTO(status, dsvi_model_find(args->model_path, &s.model), done);
    DSVI_TRY_GOTO(status, dsvi_model_verify(&s.model), done);
    DSVI_TRY_GOTO(status, dsvi_model_config(&s.model, &s.config), done);
    DSVI_TRY_GOTO(status, dsvi_backend_open(settings, &s.backend), done);
    DSVI_TRY_GOTO(status, sample_run(&s, args->model_path, args->text_path, args->output_path, events), done);
done:
    dsvi_generator_free(&s.generator);
    dsvi_dit_frozen_free(&s.weights);
    dsvi_param_table_free(&s.table);
    if (s.codec)
        s.codec->close(s.codec);
    if (s.memory)
        s.backend.device->mem_free(s.backend.device, s.memory);
    if (s.pool.memory)
        dsvi_host_pool_close(s.backend.device, &s.pool);
    free(s.text);
    dsvi_backend_close(&s.backend);
    return status;
}

/* A published model, and LoRAs that are added to its transformers. */
typedef struct Published {
    DsviWanFolder folder;
    DsviLoraSet loras, loras_2; /* loras_2: of the expert for low noise */
    char sparse[DSVI_PATH_MAX]; /* file of a sparse state, or "" */
} Published;

/* Finds the file of the sparse state that args->sparse_path names. */
static DsvStatus find_sparse_state(const DsvSampleArgs *args, const DsvConfig *settings,
                                   char out[DSVI_PATH_MAX])
{
    const char *path = args->sparse_path;
    DsviModelPath run;
    DsviLoraRun lora;
    bool of_lora;
    out[0] = 0;
    if (!path)
        return DSV_OK;
    if (!settings->sparse_enabled)
        return DSVI_FAIL(DSV_E_USAGE, "%s: a sparse state is used with sparse.enabled=true only", path);
    snprintf(out, DSVI_PATH_MAX, "%s", path);
    if (dsvi_path_exists(path) && !dsvi_path_is_folder(path))
        return DSV_OK;
    DSVI_TRY(dsvi_lora_run_locate(path, &lora, &of_lora));
    if (of_lora)
        return dsvi_path_join(out, lora.checkpoint, "sparse.safetensors");
    DSVI_TRY(dsvi_model_find(path, &run));
    snprintf(out, DSVI_PATH_MAX, "%s", run.sparse);
    return out[0] ? DSV_OK : DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no sparse.safetensors of a checkpoint", path);
}

/* Samples a published model with the prompts of the array. */
static DsvStatus sample_prompts(const DsvSampleArgs *args, const char *const *prompts, int64_t count,
                                const Published *model, const DsvConfig *settings, const DsvEvents *events)
{
    DsviBackend backend = {0};
    DSVI_TRY(dsvi_backend_open(settings, &backend));
    DsvStatus status = dsvi_wan_sample(&(DsviWanSampleArgs){
        .backend = &backend,
        .settings = settings,
        .folder = &model->folder,
        .loras = &model->loras,
        .loras_2 = &model->loras_2,
        .prompts = prompts,
        .prompt_count = count,
        .negative = args->negative_prompt,
        .text_path = args->text_path,
        .image_path = args->image_path,
        .last_image_path = args->last_image_path,
        .noise_path = args->noise_path,
        .sparse_path = model->sparse[0] ? model->sparse : NULL,
        .latents_path = args->latents_path,
        .output_path = args->output_path,
        .events = events,
    });
    dsvi_backend_close(&backend);
    return status;
}

static DsvStatus sample_published(const DsvSampleArgs *args, const Published *model,
                                  const DsvConfig *settings, const DsvEvents *events)
{
    DsvStatus status;
    DsviPromptFile file = {0};
    int sources = (args->prompt_count > 0) + (args->prompts_path != NULL) + (args->text_path != NULL);
    if (sources == 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: a published model needs a prompt, a file of prompts or a file of text states",
                         args->model_path);
    if (sources > 1)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: a prompt, a file of prompts and a file of text states exclude one another",
                         args->model_path);
    if (!args->prompts_path)
        return sample_prompts(args, args->prompts, (int64_t)args->prompt_count, model, settings, events);
    DSVI_TRY_GOTO(status, dsvi_prompt_file_read(args->prompts_path, &file), done);
    DSVI_TRY_GOTO(status,
                  sample_prompts(args, (const char *const *)file.lines, file.count, model, settings, events),
                  done);
done:
    dsvi_prompt_file_free(&file);
    return status;
}

void dsv_sample_args_defaults_sized(DsvSampleArgs *args, size_t bytes)
{
    memset(args, 0, bytes);
    args->bytes = bytes;
}

/* Samples `args->model_path`, which is not the folder of a LoRA run. */
static DsvStatus sample_model(const DsvSampleArgs *args, const DsvConfig *settings, const DsvEvents *events)
{
    DsvStatus status;
    Published model = {.loras.count = 0};
    bool published;
    DSVI_TRY(dsvi_wan_folder_find(args->model_path, settings, &model.folder, &published));
    if (!published)
        DSVI_TRY(dsvi_clip_check_path(args->output_path, settings->num_frames));
    /* only a run on latents of a published VAE has trained a published model */
    if (!published && (asks_published(args) || strcmp(settings->codec_name, "wan") == 0))
        DSVI_TRY(dsvi_trained_run_find(args->model_path, settings, &model.folder, &published));
    const DsviLoraFiles files = {args->lora_paths, args->lora_scales, args->lora_experts, args->lora_count};
    DSVI_TRY_GOTO(status,
                  dsvi_lora_files_open(&files, args->model_path, published && model.folder.two_experts,
                                       &model.loras, &model.loras_2),
                  done);
    if (published)
        DSVI_TRY_GOTO(status, find_sparse_state(args, settings, model.sparse), done);
    status = published ? sample_published(args, &model, settings, events)
                       : sample_trained(args, &model.loras, settings, events);
done:
    dsvi_lora_set_close(&model.loras);
    dsvi_lora_set_close(&model.loras_2);
    return status;
}

/* Samples the base model of a run with the run's LoRA before those of the arguments. */
static DsvStatus sample_lora_run(const DsvSampleArgs *args, const DsviLoraRun *run, const DsvConfig *settings,
                                 const DsvEvents *events)
{
    const char *paths[DSVI_LORAS_MAX] = {run->lora};
    double scales[DSVI_LORAS_MAX] = {1};
    DsvExpert experts[DSVI_LORAS_MAX] = {run->expert};
    DsvSampleArgs with = *args;
    if (args->lora_count >= DSVI_LORAS_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%zu LoRAs beside that of %s, expected %d at most", args->lora_count,
                         args->model_path, DSVI_LORAS_MAX - 1);
    for (size_t i = 0; i < args->lora_count; i++) {
        paths[i + 1] = args->lora_paths[i];
        scales[i + 1] = args->lora_scales ? args->lora_scales[i] : 1;
        experts[i + 1] = args->lora_experts ? args->lora_experts[i] : DSV_EXPERT_BOTH;
    }
    with.model_path = run->base;
    with.lora_paths = paths;
    with.lora_scales = scales;
    with.lora_experts = experts;
    with.lora_count = args->lora_count + 1;
    return sample_model(&with, settings, events);
}

DsvStatus dsv_sample_clips(const DsvSampleArgs *args, const DsvConfig *settings, const DsvEvents *events)
{
    const DsvEvents none = {0};
    DsviLoraRun run;
    bool of_run;
    DSVI_TRY(dsvi_config_check_abi(settings));
    if (args->bytes != sizeof *args)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "DsvSampleArgs has %zu bytes, this library expects %zu: set it up with "
            "dsv_sample_args_defaults, and compile the program and the library with the same headers",
            args->bytes, sizeof *args);
    events = events ? events : &none;
    DSVI_TRY(dsvi_lora_run_find(args->model_path, &run, &of_run));
    return of_run ? sample_lora_run(args, &run, settings, events) : sample_model(args, settings, events);
}

DsvStatus dsv_sample(const char *model_path, const char *text_path, const char *video_path,
                     const DsvConfig *settings, const DsvEvents *events)
{
    DsvSampleArgs args;
    dsv_sample_args_defaults(&args);
    args.model_path = model_path;
    args.text_path = text_path;
    args.output_path = video_path;
    return dsv_sample_clips(&args, settings, events);
}
