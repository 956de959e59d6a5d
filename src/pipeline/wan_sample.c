/* Implements wan_sample.h.
 *
 * Clips are sampled in groups: the transformer computes the latents of a group, then the VAE decodes them. A
 * stop therefore loses at most one group. */
#include "pipeline/wan_sample.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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

enum { GROUP_CLIPS = 16, LINE_BYTES = 512 };
#define VAE_ROOM ((uint64_t)8 << 30) /* bytes; with as much free memory the VAE chooses its own limit */
/* Guided steps of clips with at most so many tokens evaluate both texts in one pass, if there is memory.
 * Longer clips keep a device busy with one text, and two passes take half the memory. */
enum { TOGETHER_TOKENS_MAX = 4096 };
static const double GIB = 1073741824.0;

typedef struct WanJob {
    const DsviWanSampleArgs *args;
    DsviDitConfig config;
    DsviParamTable table;
    DsviWanShape shape;
    DsviVideoShape video, latent;
    DsviWanTexts texts;      /* prompts, then the negative prompt */
    int64_t clips, elements; /* clips in all; elements of a latent */
    bool guided;
    float *noise;                /* or NULL */
    float *rows, *negative_rows; /* (text_len, text_dim) of the present clip, and of all clips */
    float *latents[GROUP_CLIPS]; /* (elements) of each clip of the group */
    DsviDitFrozen *weights;      /* while the transformer is loaded */
    DsviGenerator *generator;
    void *memory;
} WanJob;

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
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_VAE));
    if (a->text_path)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_require(a->folder, DSVI_WAN_TEXT_ENCODER));
    return dsvi_wan_folder_require(a->folder, DSVI_WAN_TOKENIZER);
}

/* Opens the transformer's files and the VAE, so that damaged or foreign files are found before the work
 * begins. */
static DsvStatus check_weights_of_parts(const WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    DsviStoredWeights weights;
    DsviVae *vae;
    DsviVaeOptions options = {.act = dsvi_dit_act(a->settings), .decode = true};
    DSVI_TRY(dsvi_weights_open(a->folder->part[DSVI_WAN_TRANSFORMER], &job->table, &weights));
    dsvi_weights_close(&weights);
    DSVI_TRY(dsvi_vae_open(a->backend, a->folder->part[DSVI_WAN_VAE], &options, &vae));
    int64_t channels = dsvi_vae_config(vae)->z_dim;
    dsvi_vae_close(&vae);
    if (channels == job->latent.channels)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_SHAPE, "%s: a VAE of %lld latent channels, expected %lld, as the transformer has",
                     a->folder->part[DSVI_WAN_VAE], (long long)channels, (long long)job->latent.channels);
}

static DsvStatus prepare(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const DsvConfig *settings = a->settings;
    job->clips = a->prompt_count > 0 ? a->prompt_count : 1;
    job->guided = settings->guidance_scale > 1;
    DSVI_TRY(check_paths(job));
    DSVI_TRY(check_parts(job));
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
    return check_weights_of_parts(job);
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

/* Creates the transformer without memory, and plans its memory. */
static DsvStatus plan_transformer(WanJob *job, bool together, DsviArena *arena)
{
    const DsviWanSampleArgs *a = job->args;
    DSVI_TRY(dsvi_dit_frozen_create(&job->table, dsvi_dit_act(a->settings), &job->weights));
    if (dsvi_dit_stores_f8(a->settings))
        DSVI_TRY(dsvi_dit_frozen_use_f8(job->weights, a->backend));
    DSVI_TRY(dsvi_generator_create(&(DsviGeneratorArgs){.backend = a->backend,
                                                        .settings = a->settings,
                                                        .codec = &job->shape.codec,
                                                        .config = &job->config,
                                                        .table = &job->table,
                                                        .guided_batch = together},
                                   &job->generator));
    dsvi_arena_plan(arena);
    carve_transformer(job, arena);
    return DSV_OK;
}

static size_t free_bytes(const WanJob *job)
{
    DsviDevice *device = job->args->backend->device;
    size_t used = device->memory_used(device);
    return device->memory_bytes > used ? device->memory_bytes - used : 0;
}

/* Creates the transformer without memory, for guided steps in one pass if that is of use and fits. Fails if
 * the transformer does not fit at all. */
static DsvStatus choose_transformer(WanJob *job, DsviArena *arena)
{
    const DsvConfig *settings = job->args->settings;
    DsviDitShape shape = {
        .frames = job->latent.frames, .height = job->latent.height, .width = job->latent.width};
    size_t room = free_bytes(job);
    if (job->guided && dsvi_dit_tokens(&job->config, &shape) <= TOGETHER_TOKENS_MAX) {
        DSVI_TRY(plan_transformer(job, true, arena));
        if (arena->used <= room)
            return DSV_OK;
        close_transformer(job);
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
    double weights = (double)arena.by_class[DSVI_MEM_WEIGHTS];
    wan_log(job,
            "transformer: %.2f billion parameters; %.2f GiB for weights and %.2f GiB for the pass, "
            "of %.1f GiB on %s",
            (double)job->table.parameters * 1e-9, weights / GIB, ((double)arena.used - weights) / GIB,
            (double)a->backend->device->memory_bytes / GIB, a->backend->device->name);
    wan_log(job,
            "about %.*f s for %lld clip%s of num_inference_steps=%lld%s with dense attention at the speed of "
            "large matrix products",
            flops / peak < 10 ? 1 : 0, flops / peak, (long long)job->clips, job->clips == 1 ? "" : "s",
            (long long)a->settings->num_inference_steps, job->guided ? " and guidance" : "");
    return DSV_OK;
}

static DsvStatus open_transformer(WanJob *job)
{
    DsviArena arena;
    DsviDevice *device = job->args->backend->device;
    DSVI_TRY(choose_transformer(job, &arena));
    DSVI_TRY(dsvi_device_alloc_layout(device, carve_transformer, job, &job->memory));
    DSVI_TRY(dsvi_dit_frozen_load(job->weights, device, job->args->folder->part[DSVI_WAN_TRANSFORMER],
                                  job->args->loras));
    DsviDitWeights weights = dsvi_dit_frozen_weights(job->weights);
    return dsvi_generator_setup(job->generator, &weights);
}

/* ---- texts ---- */

/* Encodes the prompts, and after them the negative prompt if steps are guided. */
static DsvStatus encode_texts(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    const char **texts = malloc(((size_t)job->clips + 1) * sizeof *texts);
    if (!texts)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %lld prompts", (long long)job->clips);
    for (int64_t i = 0; i < job->clips; i++)
        texts[i] = a->prompts[i];
    texts[job->clips] = a->negative ? a->negative : "";
    DsvStatus status = dsvi_wan_texts_encode(a->backend, a->settings, a->folder, texts,
                                             job->clips + (job->guided ? 1 : 0), a->events, &job->texts);
    free(texts);
    return status;
}

static DsvStatus get_texts(WanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    int64_t text_len = job->config.text_len, dim = job->config.text_dim;
    DSVI_TRY(a->text_path ? dsvi_wan_texts_read(a->text_path, dim, &job->texts) : encode_texts(job));
    if (job->guided && job->texts.count <= job->clips)
        return DSVI_FAIL(
            DSV_E_NOT_FOUND,
            "%s: tensor negative_encoder_hidden_states is missing, which guidance_scale above 1 needs",
            a->text_path);
    job->rows = malloc((size_t)(text_len * dim) * sizeof *job->rows);
    job->negative_rows = malloc((size_t)(text_len * dim) * sizeof *job->negative_rows);
    if (!job->rows || !job->negative_rows)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for %lld rows of text", (long long)text_len);
    return job->guided ? dsvi_wan_texts_rows(&job->texts, job->clips, text_len, dim, job->negative_rows)
                       : DSV_OK;
}

/* ---- clips ---- */

/* Computes the latents of the clips [first, first + count). */
static DsvStatus sample_group(WanJob *job, int64_t first, int64_t count)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX];
    DSVI_TRY(open_transformer(job));
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
        if (!a->latents_path)
            continue;
        DSVI_TRY(path_of_clip(job, a->latents_path, first + i, path));
        DSVI_TRY(dsvi_wan_latents_write(path, job->latent, job->latents[i]));
    }
    close_transformer(job);
    return DSV_OK;
}

static DsvStatus write_clip(const WanJob *job, int64_t clip, const float *pixels)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX], *text;
    DsviWanComment comment = {
        .model = a->folder->path,
        .prompt = a->text_path ? NULL : a->prompts[clip],
        .negative = job->guided && !a->text_path ? (a->negative ? a->negative : "") : NULL,
        .noise = a->noise_path,
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

/* Returns the limit of the VAE's memory: memory_gib, but at most what is free. 0, the VAE's own choice, if
 * memory_gib is 0 and enough is free for this choice. */
static uint64_t vae_memory(const WanJob *job)
{
    uint64_t room = free_bytes(job), limit = dsvi_memory_limit(job->args->settings);
    if (limit == 0 && room >= VAE_ROOM)
        return 0;
    if (limit > 0 && limit <= room)
        return limit;
    return room > 0 ? room : 1;
}

/* Decodes the group's latents, in place, and writes the clips. */
static DsvStatus decode_group(WanJob *job, int64_t first, int64_t count)
{
    DsvStatus status;
    const DsviWanSampleArgs *a = job->args;
    DsviVideoShape video = job->video;
    DsviVae *vae = NULL;
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
        DSVI_TRY_GOTO(status, write_clip(job, first + i, pixels), done);
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

DsvStatus dsvi_wan_sample(const DsviWanSampleArgs *args)
{
    DsvStatus status;
    WanJob job = {.args = args};
    DSVI_TRY_GOTO(status, prepare(&job), done);
    DSVI_TRY_GOTO(status, estimate(&job), done);
    DSVI_TRY_GOTO(status, get_texts(&job), done);
    DSVI_TRY_GOTO(status, run_groups(&job), done);
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
