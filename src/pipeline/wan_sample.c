/* Implements wan_sample.h.
 *
 * Clips are sampled in groups: the transformer computes the latents of a group, then the VAE decodes them. A
 * stop therefore loses at most one group. */
#include "pipeline/wan_sample.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/host.h"
#include "base/memory_limit.h"
#include "device/carve.h"
#include "model/dit/dit_frozen.h"
#include "model/vae/vae.h"
#include "ops/gemm_peak.h"
#include "pipeline/wan_comment.h"
#include "pipeline/wan_latents.h"
#include "pipeline/wan_shape.h"
#include "pipeline/wan_texts.h"
#include "sample/clip_writer.h"
#include "sample/generator.h"
#include "sample/sampler.h"

enum { GROUP_CLIPS = 16, LINE_BYTES = 512, TIMESTEPS = 1000 };
/* The rule for guided steps (saved_by_one_pass): FLOPs that a device does in the time in which it reads a
 * byte of weights, about 989e12 / 4.8e12 = 206 on an H200 in BF16; and the smallest fraction of a step that
 * is worth twice the memory of a pass. */
#define FLOPS_PER_BYTE 206
#define WORTH_SAVING 0.02
static const double GIB = 1073741824.0;

/* Seconds of each part of the work, all clips together. */
typedef struct WanTimes {
    double texts, loading, steps; /* loading: of the transformer */
    double decoding, writing;     /* decoding: with the loading of the VAE */
} WanTimes;

typedef struct WanJob {
    const DsviWanSampleArgs *args;
    DsviDitConfig config;
    DsviParamTable table;
    DsviWanShape shape;
    DsviVideoShape video, latent;
    DsviWanTexts texts;                    /* prompts, then the negative prompt */
    int64_t clips, elements;               /* clips in all; elements of a latent */
    bool guided, together;                 /* together: guided steps evaluate both texts in one pass */
    bool text_streamed;                    /* the layers of the text encoder take turns on the device */
    uint64_t text_bytes, vae_bytes;        /* device memory of text encoder and VAE; 0: no text encoder */
    float *noise;                          /* or NULL */
    float *rows, *negative_rows;           /* (text_len, text_dim) of the present clip, and of all clips */
    float *latents[GROUP_CLIPS];           /* (elements) of each clip of the group */
    DsviSparseUseMean sparse[GROUP_CLIPS]; /* with sparse.enabled: how the blocks of these clips attended */
    int expert;                            /* two experts: the one that is loaded; -1: none */
    DsviDitFrozen *weights;                /* while the transformer is loaded */
    DsviGenerator *generator;
    void *memory;
    WanTimes times;
} WanJob;

/* Adds the seconds since *since to *sum, and sets *since to now. */
static void add_seconds(double *sum, double *since)
{
    double now = dsvi_clock_seconds();
    *sum += now - *since;
    *since = now;
}

DSVI_PRINTF(2, 3)
static void wan_log(const WanJob *job, const char *format, ...)
{
    const DsvEvents *events = job->args->events;
    char line[LINE_BYTES];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (events->log)
        events->log(events->context, DSV_LOG_INFO, line);
}

/* Returns the path of a clip or of its latents. */
static DsvStatus path_of_clip(const WanJob *job, const char *path, int64_t clip, char out[DSVI_PATH_MAX])
{
    if (job->clips > 1)
        return dsvi_clip_numbered_path(out, path, clip);
    snprintf(out, DSVI_PATH_MAX, "%s", path);
    return DSV_OK;
}

/* ---- texts ---- */

/* Tokenizes the prompts, and after them the negative prompt if steps are guided. */
static DsvStatus tokenize_prompts(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const char **texts = malloc(((size_t)job->clips + 1) * sizeof *texts);
    if (!texts)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld prompts", (long long)job->clips);
    for (int64_t i = 0; i < job->clips; i++)
        texts[i] = a->prompts[i];
    texts[job->clips] = a->negative ? a->negative : "";
    DsvStatus status = dsvi_wan_texts_tokenize(a->folder->part[DSVI_WAN_TOKENIZER], texts,
                                               job->clips + (job->guided ? 1 : 0), NULL, a->events,
                                               &job->texts);
    free(texts);
    return status;
}

/* Reads the states of the texts, or the texts' ids, so that their faults are found before the work begins. */
static DsvStatus read_texts(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    if (!a->text_path)
        return tokenize_prompts(job);
    DSVI_TRY(dsvi_wan_texts_read(a->text_path, job->config.text_dim, &job->texts));
    if (!job->guided || job->texts.count > job->clips)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_NOT_FOUND,
        "%s: tensor negative_encoder_hidden_states is missing, which guidance_scale above 1 needs",
        a->text_path);
}

/* Computes the states of the texts, unless a file had them. */
static DsvStatus encode_texts(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    int64_t text_len = job->config.text_len, dim = job->config.text_dim;
    if (!a->text_path)
        DSVI_TRY(dsvi_wan_texts_encode(a->backend, a->settings, a->folder->part[DSVI_WAN_TEXT_ENCODER], NULL,
                                       &job->texts));
    job->rows = malloc((size_t)(text_len * dim) * sizeof *job->rows);
    job->negative_rows = malloc((size_t)(text_len * dim) * sizeof *job->negative_rows);
    if (!job->rows || !job->negative_rows)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld rows of text", (long long)text_len);
    return job->guided ? dsvi_wan_texts_rows(&job->texts, job->clips, text_len, dim, job->negative_rows)
                       : DSV_OK;
}

/* ---- checks before the work ---- */

static DsvStatus check_paths(const WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX];
    DSVI_TRY(path_of_clip(job, a->output_path, 0, path));
    DSVI_TRY(dsvi_clip_check_path(path, a->settings->num_frames));
    if (!a->latents_path)
        return DSV_OK;
    DSVI_TRY(path_of_clip(job, a->latents_path, 0, path));
    return dsvi_file_check_writable(path);
}

static DsvStatus check_parts(const WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DSVI_TRY(dsvi_wan_folder_check(a->folder));
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TRANSFORMER));
    if (a->folder->two_experts)
        DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TRANSFORMER_2));
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_VAE));
    if (a->text_path)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TEXT_ENCODER));
    return dsvi_wan_folder_require(a->folder, DSVI_WAN_TOKENIZER);
}

/* Checks arguments that depend on whether the model has two experts. */
static DsvStatus check_experts(const WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    if (!a->folder->two_experts && a->settings->guidance_scale_2 > 0)
        return DSVI_FAIL(DSV_E_USAGE, "guidance_scale_2=%g: %s has one transformer, and no second expert",
                         a->settings->guidance_scale_2, a->folder->path);
    if (a->folder->two_experts && a->sparse_path)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: a sparse state is of one transformer, and %s has two experts: expected none",
                         a->sparse_path, a->folder->path);
    if (a->folder->two_experts && a->loras && a->loras->count > 0)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s has two experts, to which dsv does not add LoRAs yet: expected no LoRA",
                         a->folder->path);
    return DSV_OK;
}

static size_t free_bytes(const WanJob *job)
{
    DsviDevice *device = job->args->backend->device;
    size_t used = device->memory_used(device);
    return device->memory_bytes > used ? device->memory_bytes - used : 0;
}

static uint64_t vae_memory(const WanJob *job)
{
    return dsvi_vae_memory_limit(job->args->backend->device, dsvi_memory_limit(job->args->settings));
}

/* Opens a transformer's files, so that damaged or foreign files are found before the work begins. */
static DsvStatus check_transformer(const WanJob *job, DsviWanPart part)
{
    DsviStoredWeights weights;
    DSVI_TRY(dsvi_weights_open(job->args->folder->part[part], &job->table, &weights));
    dsvi_weights_close(&weights);
    return DSV_OK;
}

/* Opens the VAE, which takes a moment, so that damaged or foreign files are found before the work begins, and
 * finds the memory that decoding will take. */
static DsvStatus check_vae(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviVideoShape video = job->video;
    DsviVae *vae;
    DsviVaeOptions options = {
        .act = dsvi_dit_act(a->settings), .decode = true, .memory_bytes = vae_memory(job)};
    DSVI_TRY(dsvi_vae_open(a->backend, a->folder->part[DSVI_WAN_VAE], &options, &vae));
    int64_t channels = dsvi_vae_config(vae)->z_dim;
    DsvStatus status =
        channels == job->latent.channels
            ? dsvi_vae_plan(vae, true, video.frames, video.height, video.width, &job->vae_bytes)
            : DSVI_FAIL(DSV_E_SHAPE,
                        "%s: a VAE of %lld latent channels, expected %lld, as the transformer has",
                        a->folder->part[DSVI_WAN_VAE], (long long)channels, (long long)job->latent.channels);
    dsvi_vae_close(&vae);
    return status;
}

/* Finds the memory that the text encoder will take. */
static DsvStatus check_text_encoder(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviUmt5Config sizes;
    DsviUmt5Options options;
    if (a->text_path)
        return DSV_OK;
    DSVI_TRY(dsvi_umt5_config_of(a->folder->part[DSVI_WAN_TEXT_ENCODER], &sizes));
    options = dsvi_wan_texts_options(&job->texts, a->settings);
    return dsvi_umt5_fit(a->backend, &sizes, &options, &job->text_streamed, &job->text_bytes);
}

static DsvStatus prepare(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const DsvConfig *settings = a->settings;
    job->clips = a->prompt_count > 0 ? a->prompt_count : 1;
    job->guided = settings->guidance_scale > 1;
    DSVI_TRY(check_paths(job));
    DSVI_TRY(check_parts(job));
    DSVI_TRY(check_experts(job));
    DSVI_TRY(dsvi_wan_folder_config(a->folder, &job->config));
    DSVI_TRY(dsvi_wan_shape(a->folder, &job->config, &job->shape));
    job->video = (DsviVideoShape){3, settings->num_frames, settings->height, settings->width};
    DSVI_TRY(job->shape.codec.latent_shape(&job->shape.codec, job->video, &job->latent));
    job->elements = job->latent.channels * job->latent.frames * job->latent.height * job->latent.width;
    if (a->noise_path)
        DSVI_TRY(dsvi_wan_latents_read(a->noise_path, "noise", job->latent, &job->noise));
    DSVI_TRY(dsvi_param_table_make(&job->config, &job->table));
    for (size_t i = 0; a->loras && i < a->loras->count; i++)
        DSVI_TRY(dsvi_lora_check(&a->loras->lora[i], &job->table));
    DSVI_TRY(read_texts(job));
    DSVI_TRY(check_transformer(job, DSVI_WAN_TRANSFORMER));
    if (a->folder->two_experts)
        DSVI_TRY(check_transformer(job, DSVI_WAN_TRANSFORMER_2));
    DSVI_TRY(check_text_encoder(job));
    return check_vae(job);
}

/* ---- transformer ---- */

static void carve_transformer(void *context, DsviArena *arena)
{
    WanJob *job = context;
    dsvi_dit_frozen_carve(job->weights, arena);
    dsvi_generator_carve(job->generator, arena);
    dsvi_generator_carve_run(job->generator, arena);
}

static void close_transformer(WanJob *job)
{
    DsviDevice *device = job->args->backend->device;
    dsvi_generator_free(&job->generator);
    dsvi_dit_frozen_free(&job->weights);
    device->mem_free(device, job->memory);
    job->memory = NULL;
}

/* Logs a decision of the guard (DsviSparseLog). */
static void log_decision(void *context, const char *line)
{
    wan_log(context, "%s", line);
}

/* Loads an expert over the other one, unless it is loaded. The time counts as loading, not as steps. */
static DsvStatus use_expert(void *context, int expert)
{
    static const char *const NAMES[] = {"high noise (transformer)", "low noise (transformer_2)"};
    WanJob *job = context;
    const DsviWanSampleArgs *a = job->args;
    double since = dsvi_clock_seconds(), seconds = 0;
    if (job->expert == expert)
        return DSV_OK;
    job->expert = -1;
    DSVI_TRY(dsvi_dit_frozen_load(job->weights, a->backend->device,
                                  a->folder->part[expert ? DSVI_WAN_TRANSFORMER_2 : DSVI_WAN_TRANSFORMER],
                                  a->loras));
    job->expert = expert;
    add_seconds(&seconds, &since);
    job->times.loading += seconds;
    job->times.steps -= seconds;
    wan_log(job, "the expert for %s runs now, loaded in %.2f s", NAMES[expert], seconds);
    return DSV_OK;
}

/* Creates the transformer without memory, and plans its memory. */
static DsvStatus plan_transformer(WanJob *job, bool together, DsviArena *arena)
{
    const DsviWanSampleArgs *a = job->args;
    DSVI_TRY(dsvi_dit_frozen_create(&job->table, dsvi_dit_act(a->settings), &job->weights));
    if (dsvi_dit_stores_f8(a->settings))
        DSVI_TRY(dsvi_dit_frozen_use_f8(job->weights, a->backend));
    DSVI_TRY(
        dsvi_generator_create(&(DsviGeneratorArgs){.backend = a->backend,
                                                   .settings = a->settings,
                                                   .codec = &job->shape.codec,
                                                   .config = &job->config,
                                                   .table = &job->table,
                                                   .sparse_learns = true,
                                                   .sparse_path = a->sparse_path,
                                                   .log = log_decision,
                                                   .log_context = job,
                                                   .use_expert = a->folder->two_experts ? use_expert : NULL,
                                                   .expert_context = job,
                                                   .boundary = a->folder->boundary_ratio * TIMESTEPS,
                                                   .guided_batch = together},
                              &job->generator));
    dsvi_arena_plan(arena);
    carve_transformer(job, arena);
    return DSV_OK;
}

/* Returns which fraction of a guided step is saved if one pass evaluates both texts: the second pass reads
 * the weights again, all other work is the same. The fraction falls with the number of tokens. It follows
 * from sizes alone, not from measured times, so that the same clip is always computed in the same way. */
static double saved_by_one_pass(const WanJob *job)
{
    const DsvConfig *settings = job->args->settings;
    DsviDitShape shape = {.batch = 1,
                          .frames = job->latent.frames,
                          .height = job->latent.height,
                          .width = job->latent.width,
                          .text_len = job->config.text_len};
    double pass = dsvi_dit_flops_gemm(&job->config, &shape) + dsvi_dit_flops_attention(&job->config, &shape);
    double reading = FLOPS_PER_BYTE * (double)job->table.parameters *
                     (double)dsvi_dtype_size(dsvi_dit_act(settings));
    return reading / (2 * (reading > pass ? reading : pass));
}

/* Creates the transformer without memory, for guided steps in one pass if that is of use and fits. Fails if
 * the transformer does not fit at all. */
static DsvStatus choose_transformer(WanJob *job, DsviArena *arena)
{
    const DsvConfig *settings = job->args->settings;
    size_t room = free_bytes(job);
    job->together = job->guided && saved_by_one_pass(job) >= WORTH_SAVING;
    if (job->together) {
        DSVI_TRY(plan_transformer(job, true, arena));
        if (arena->used <= room)
            return DSV_OK;
        close_transformer(job);
        job->together = false;
    }
    DSVI_TRY(plan_transformer(job, false, arena));
    if (arena->used <= room)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_NO_MEMORY,
        "%s: sampling %lld frames of %lld x %lld needs %.1f GiB of device memory, %.1f GiB of them for "
        "weights, and %.1f of %.1f GiB are free: smaller num_frames, height or width need less",
        job->args->folder->path, (long long)settings->num_frames, (long long)settings->width,
        (long long)settings->height, (double)arena->used / GIB,
        (double)arena->by_class[DSVI_MEM_WEIGHTS] / GIB, (double)room / GIB,
        (double)job->args->backend->device->memory_bytes / GIB);
}

/* Logs which expert computes how many steps. */
static DsvStatus report_experts(const WanJob *job)
{
    DsviSampler *sampler;
    const DsvConfig *settings = job->args->settings;
    double ratio = job->args->folder->boundary_ratio;
    int64_t high = 0;
    if (!job->args->folder->two_experts)
        return DSV_OK;
    DSVI_TRY(dsvi_sampler_create(settings->sampler, settings->num_inference_steps, settings->flow_shift, 1,
                                 &sampler));
    for (int64_t i = 0; i < settings->num_inference_steps; i++)
        high += (float)dsvi_sampler_timestep(sampler, i) >= (float)(ratio * TIMESTEPS);
    dsvi_sampler_free(&sampler);
    wan_log(
        job,
        "two experts, one on the device at a time: with boundary_ratio=%g and flow_shift=%g transformer "
        "computes %lld of %lld steps, transformer_2 the others; the Wan repository uses flow_shift=12 for "
        "T2V-A14B",
        ratio, settings->flow_shift, (long long)high, (long long)settings->num_inference_steps);
    return DSV_OK;
}

/* Logs how much memory and time sampling will take. */
static DsvStatus estimate(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviArena arena;
    double peak;
    DSVI_TRY(choose_transformer(job, &arena));
    double flops = (double)job->clips * dsvi_generator_flops(job->generator, job->guided);
    close_transformer(job);
    DSVI_TRY(dsvi_gemm_peak(a->backend, dsvi_dit_act(a->settings), &peak));
    if (a->settings->sparse_enabled && a->settings->sparse_warmup_steps >= a->settings->num_inference_steps)
        wan_log(job, "sparse.warmup_steps=%lld keeps attention dense in all of num_inference_steps=%lld",
                (long long)a->settings->sparse_warmup_steps, (long long)a->settings->num_inference_steps);
    DSVI_TRY(report_experts(job));
    double weights = (double)arena.by_class[DSVI_MEM_WEIGHTS];
    wan_log(job,
            "transformer: %.2f billion parameters; %.2f GiB for weights and %.2f GiB for the pass, "
            "of %.1f GiB on %s",
            (double)job->table.parameters * 1e-9, weights / GIB, ((double)arena.used - weights) / GIB,
            (double)a->backend->device->memory_bytes / GIB, a->backend->device->name);
    if (job->text_bytes > 0)
        wan_log(job, "before it the text encoder takes %.2f GiB%s, after it the VAE %.2f GiB",
                (double)job->text_bytes / GIB, job->text_streamed ? " (its layers take turns)" : "",
                (double)job->vae_bytes / GIB);
    else
        wan_log(job, "after it the VAE takes %.2f GiB", (double)job->vae_bytes / GIB);
    wan_log(job,
            "about %.*f s for %lld clip%s of num_inference_steps=%lld%s with dense attention at the speed of "
            "large matrix products",
            flops / peak < 10 ? 1 : 0, flops / peak, (long long)job->clips, job->clips == 1 ? "" : "s",
            (long long)a->settings->num_inference_steps,
            !job->guided    ? ""
            : job->together ? " and guidance in one pass"
                            : " and guidance in two passes");
    return DSV_OK;
}

static DsvStatus open_transformer(WanJob *job)
{
    DsviArena arena;
    DsviDevice *device = job->args->backend->device;
    DSVI_TRY(choose_transformer(job, &arena));
    DSVI_TRY(dsvi_device_alloc_layout(device, carve_transformer, job, &job->memory));
    job->expert = -1;
    if (!job->args->folder->two_experts)
        DSVI_TRY(dsvi_dit_frozen_load(job->weights, device, job->args->folder->part[DSVI_WAN_TRANSFORMER],
                                      job->args->loras));
    DsviDitWeights weights = dsvi_dit_frozen_weights(job->weights);
    return dsvi_generator_setup(job->generator, &weights);
}

/* ---- clips ---- */

/* Logs and keeps how the blocks of the clip that was sampled last attended. */
static void report_sparse(WanJob *job, DsviSparseUseMean *mean)
{
    char line[LINE_BYTES], captured[64] = "";
    const DsviSparseUse *use = dsvi_generator_sparse_use(job->generator);
    if (!use)
        return;
    *mean = dsvi_sparse_use_mean(use);
    for (int64_t block = 0; block < use->blocks; block++) {
        dsvi_sparse_use_line(use, block, line, sizeof line);
        wan_log(job, "%s", line);
    }
    if (mean->sparse_blocks > 0)
        snprintf(captured, sizeof captured, "; their lists hold %.3f of the attention mass", mean->captured);
    wan_log(job, "%lld of %lld blocks were sparse, mean density of all blocks and steps %.3f%s",
            (long long)mean->sparse_blocks, (long long)use->blocks, mean->density, captured);
}

/* Computes the latents of the clips [first, first + count). */
static DsvStatus sample_group(WanJob *job, int64_t first, int64_t count)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX];
    double since = dsvi_clock_seconds();
    DSVI_TRY(open_transformer(job));
    add_seconds(&job->times.loading, &since);
    for (int64_t i = 0; i < count; i++) {
        DsviGeneratorClip clip = {
            .seed = (uint64_t)a->settings->seed,
            .noise = job->noise,
            .text = job->rows,
            .negative = job->negative_rows,
            .before = first + i,
            .after = job->clips - first - i - 1,
        };
        DSVI_TRY(dsvi_wan_texts_rows(&job->texts, first + i, job->config.text_len, job->config.text_dim,
                                     job->rows));
        DSVI_TRY(dsvi_generator_latent(job->generator, &clip, a->events, job->latents[i]));
        add_seconds(&job->times.steps, &since);
        report_sparse(job, &job->sparse[i]);
        if (!a->latents_path)
            continue;
        DSVI_TRY(path_of_clip(job, a->latents_path, first + i, path));
        DSVI_TRY(dsvi_wan_latents_write(path, job->latent, job->latents[i]));
    }
    close_transformer(job);
    return DSV_OK;
}

static DsvStatus write_clip(const WanJob *job, int64_t clip, const float *pixels,
                            const DsviSparseUseMean *sparse)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX], *text;
    DsviWanComment comment = {
        .model = a->folder->path,
        .prompt = a->text_path ? NULL : a->prompts[clip],
        .negative = job->guided && !a->text_path ? (a->negative ? a->negative : "") : NULL,
        .noise = a->noise_path,
        .sparse_state = a->sparse_path,
        .sparse = a->settings->sparse_enabled ? sparse : NULL,
    };
    DSVI_TRY(path_of_clip(job, a->output_path, clip, path));
    DSVI_TRY(dsvi_wan_comment(&comment, a->settings, &text));
    DsviVideoFrames frames = {
        .pixels = pixels,
        .frames = job->video.frames,
        .height = job->video.height,
        .width = job->video.width,
        .fps = a->settings->fps,
        .comment = text,
    };
    DsvStatus status = dsvi_clip_write(path, &frames);
    free(text);
    return status;
}

/* Decodes the group's latents, in place, and writes the clips. */
static DsvStatus decode_group(WanJob *job, int64_t first, int64_t count)
{
    DsvStatus status;
    const DsviWanSampleArgs *a = job->args;
    DsviVideoShape video = job->video;
    DsviVae *vae = NULL;
    double since = dsvi_clock_seconds();
    DsviVaeOptions options = {
        .act = dsvi_dit_act(a->settings), .decode = true, .memory_bytes = vae_memory(job)};
    float *pixels = malloc((size_t)(video.channels * video.frames * video.height * video.width) *
                           sizeof *pixels);
    if (!pixels)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the frames of a clip");
    DSVI_TRY_GOTO(status, dsvi_vae_open(a->backend, a->folder->part[DSVI_WAN_VAE], &options, &vae), done);
    for (int64_t i = 0; i < count; i++) {
        dsvi_vae_denormalize(dsvi_vae_config(vae), job->elements / job->latent.channels, job->latents[i]);
        DSVI_TRY_GOTO(status,
                      dsvi_vae_decode(vae, video.frames, video.height, video.width, job->latents[i], pixels),
                      done);
        add_seconds(&job->times.decoding, &since);
        DSVI_TRY_GOTO(status, write_clip(job, first + i, pixels, &job->sparse[i]), done);
        add_seconds(&job->times.writing, &since);
    }
done:
    dsvi_vae_close(&vae);
    free(pixels);
    return status;
}

static DsvStatus run_groups(WanJob *job)
{
    int64_t most = job->clips < GROUP_CLIPS ? job->clips : GROUP_CLIPS;
    for (int64_t i = 0; i < most; i++) {
        job->latents[i] = malloc((size_t)job->elements * sizeof(float));
        if (!job->latents[i])
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the latents of %lld clips", (long long)most);
    }
    for (int64_t first = 0; first < job->clips; first += most) {
        int64_t count = job->clips - first < most ? job->clips - first : most;
        DSVI_TRY(sample_group(job, first, count));
        DSVI_TRY(decode_group(job, first, count));
    }
    return DSV_OK;
}

static void report_times(const WanJob *job)
{
    const WanTimes *t = &job->times;
    int64_t steps = job->clips * job->args->settings->num_inference_steps;
    wan_log(job,
            "%.2f s for the texts, %.2f s to load the transformer, %.2f s for %lld steps (%.1f ms each), "
            "%.2f s to decode, %.2f s to write",
            t->texts, t->loading, t->steps, (long long)steps, 1e3 * t->steps / (double)steps, t->decoding,
            t->writing);
}

DsvStatus dsvi_wan_sample(const DsviWanSampleArgs *args)
{
    DsvStatus status;
    WanJob job = {.args = args};
    double since;
    DSVI_TRY_GOTO(status, prepare(&job), done);
    DSVI_TRY_GOTO(status, estimate(&job), done);
    since = dsvi_clock_seconds();
    DSVI_TRY_GOTO(status, encode_texts(&job), done);
    add_seconds(&job.times.texts, &since);
    DSVI_TRY_GOTO(status, run_groups(&job), done);
    report_times(&job);
done:
    close_transformer(&job);
    dsvi_param_table_free(&job.table);
    dsvi_wan_texts_free(&job.texts);
    for (int i = 0; i < GROUP_CLIPS; i++)
        free(job.latents[i]);
    free(job.noise);
    free(job.rows);
    free(job.negative_rows);
    return status;
}
