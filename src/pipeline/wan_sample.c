/* Implements wan_sample.h.
 *
 * Clips are sampled in groups: the transformer computes the latents of a group, then the VAE decodes them. A
 * stop therefore loses at most one group. */
#include "pipeline/wan_sample.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/host.h"
#include "model/vae/vae.h"
#include "ops/gemm_peak.h"
#include "pipeline/wan_comment.h"
#include "pipeline/wan_image.h"
#include "pipeline/wan_image_rows.h"
#include "pipeline/wan_latents.h"
#include "pipeline/wan_transformer.h"
#include "sample/clip_writer.h"

enum { LINE_BYTES = 512 };
static const double GIB = 1073741824.0;

/* ---- texts ---- */

/* Computes the states of the texts, unless a file had them. */
static DsvStatus encode_texts(DsviWanJob *job)
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

/* ---- estimate ---- */

/* Logs how much memory and time sampling will take. */
static DsvStatus estimate(DsviWanJob *job)
{
    const DsviWanSampleArgs *a = job->args;
    char line[DSVI_SAMPLE_ROOM_LINE];
    double peak;
    DSVI_TRY(dsvi_wan_transformer_choose(job));
    double flops = (double)job->clips * dsvi_generator_flops(job->generator, job->guided);
    DsviArena plan = job->room.plan;
    dsvi_sample_room_line(&job->room, line);
    dsvi_wan_transformer_close(job);
    DSVI_TRY(dsvi_gemm_peak(a->backend, dsvi_dit_act(a->settings), &peak));
    if (a->settings->sparse_enabled && a->settings->sparse_warmup_steps >= a->settings->num_inference_steps)
        dsvi_wan_log(job, "sparse.warmup_steps=%lld keeps attention dense in all of num_inference_steps=%lld",
                     (long long)a->settings->sparse_warmup_steps,
                     (long long)a->settings->num_inference_steps);
    DSVI_TRY(dsvi_wan_transformer_report_experts(job));
    double weights = (double)plan.by_class[DSVI_MEM_WEIGHTS];
    dsvi_wan_log(job,
                 "transformer: %.2f billion parameters; %.2f GiB for weights and %.2f GiB for the pass, "
                 "of %.1f GiB on %s",
                 (double)job->table.parameters * 1e-9, weights / GIB, ((double)plan.used - weights) / GIB,
                 (double)a->backend->device->memory_bytes / GIB, a->backend->device->name);
    if (line[0])
        dsvi_wan_log(job, "%s", line);
    if (job->text_bytes > 0)
        dsvi_wan_log(job, "before it the text encoder takes %.2f GiB%s, after it the VAE %.2f GiB",
                     (double)job->text_bytes / GIB, job->text_streamed ? " (its layers take turns)" : "",
                     (double)job->vae_bytes / GIB);
    else
        dsvi_wan_log(job, "after it the VAE takes %.2f GiB", (double)job->vae_bytes / GIB);
    if (job->encoder_bytes > 0)
        dsvi_wan_log(job,
                     "before it the image encoder takes %.2f GiB, and the VAE %.2f GiB to encode the picture",
                     (double)job->encoder_bytes / GIB, (double)job->image_bytes / GIB);
    else if (job->image_bytes > 0)
        dsvi_wan_log(job, "before it the VAE takes %.2f GiB to encode the picture",
                     (double)job->image_bytes / GIB);
    dsvi_wan_log(
        job,
        "about %.*f s for %lld clip%s of num_inference_steps=%lld%s with dense attention at the speed of "
        "large matrix products",
        flops / peak < 10 ? 1 : 0, flops / peak, (long long)job->clips, job->clips == 1 ? "" : "s",
        (long long)a->settings->num_inference_steps,
        !job->guided    ? ""
        : job->together ? " and guidance in one pass"
                        : " and guidance in two passes");
    return DSV_OK;
}

/* ---- clips ---- */

/* Logs and keeps how the blocks of the clip that was sampled last attended. */
static void report_sparse(DsviWanJob *job, DsviSparseUseMean *mean)
{
    char line[LINE_BYTES], captured[64] = "";
    const DsviSparseUse *use = dsvi_generator_sparse_use(job->generator);
    if (!use)
        return;
    *mean = dsvi_sparse_use_mean(use);
    for (int64_t block = 0; block < use->blocks; block++) {
        dsvi_sparse_use_line(use, block, line, sizeof line);
        dsvi_wan_log(job, "%s", line);
    }
    if (mean->sparse_blocks > 0)
        snprintf(captured, sizeof captured, "; their lists hold %.3f of the attention mass", mean->captured);
    dsvi_wan_log(job, "%lld of %lld blocks were sparse, mean density of all blocks and steps %.3f%s",
                 (long long)mean->sparse_blocks, (long long)use->blocks, mean->density, captured);
}

/* Computes the latents of the clips [first, first + count). */
static DsvStatus sample_group(DsviWanJob *job, int64_t first, int64_t count)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX];
    double since = dsvi_clock_seconds();
    DSVI_TRY(dsvi_wan_transformer_open(job));
    dsvi_wan_add_seconds(&job->times.loading, &since);
    for (int64_t i = 0; i < count; i++) {
        DsviGeneratorClip clip = {
            .seed = (uint64_t)a->settings->seed,
            .noise = job->noise,
            .image = job->image,
            .image_rows = job->image_rows,
            .first_frame = job->first_frame,
            .text = job->rows,
            .negative = job->negative_rows,
            .before = first + i,
            .after = job->clips - first - i - 1,
        };
        DSVI_TRY(dsvi_wan_texts_rows(&job->texts, first + i, job->config.text_len, job->config.text_dim,
                                     job->rows));
        DSVI_TRY(dsvi_generator_latent(job->generator, &clip, a->events, job->latents[i]));
        dsvi_wan_add_seconds(&job->times.steps, &since);
        report_sparse(job, &job->sparse[i]);
        if (!a->latents_path)
            continue;
        DSVI_TRY(dsvi_wan_path_of_clip(job, a->latents_path, first + i, path));
        DSVI_TRY(dsvi_wan_latents_write(path, job->latent, job->latents[i]));
    }
    dsvi_wan_transformer_close(job);
    return DSV_OK;
}

static DsvStatus write_clip(const DsviWanJob *job, int64_t clip, const float *pixels,
                            const DsviSparseUseMean *sparse)
{
    const DsviWanSampleArgs *a = job->args;
    char path[DSVI_PATH_MAX], *text;
    DsviWanComment comment = {
        .model = a->folder->path,
        .prompt = a->text_path ? NULL : a->prompts[clip],
        .negative = job->guided && !a->text_path ? (a->negative ? a->negative : "") : NULL,
        .image = a->image_path,
        .last_image = a->last_image_path,
        .noise = a->noise_path,
        .sparse_state = a->sparse_path,
        .sparse = a->settings->sparse_enabled ? sparse : NULL,
    };
    DSVI_TRY(dsvi_wan_path_of_clip(job, a->output_path, clip, path));
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
static DsvStatus decode_group(DsviWanJob *job, int64_t first, int64_t count)
{
    DsvStatus status;
    const DsviWanSampleArgs *a = job->args;
    DsviVideoShape video = job->video;
    DsviVae *vae = NULL;
    double since = dsvi_clock_seconds();
    DsviVaeOptions options = {
        .act = dsvi_dit_act(a->settings), .decode = true, .memory_bytes = dsvi_wan_vae_memory(job)};
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
        dsvi_wan_add_seconds(&job->times.decoding, &since);
        DSVI_TRY_GOTO(status, write_clip(job, first + i, pixels, &job->sparse[i]), done);
        dsvi_wan_add_seconds(&job->times.writing, &since);
    }
done:
    dsvi_vae_close(&vae);
    free(pixels);
    return status;
}

static DsvStatus run_groups(DsviWanJob *job)
{
    int64_t most = job->clips < DSVI_WAN_GROUP_CLIPS ? job->clips : DSVI_WAN_GROUP_CLIPS;
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

static void report_times(const DsviWanJob *job)
{
    const DsviWanTimes *t = &job->times;
    int64_t steps = job->clips * job->args->settings->num_inference_steps;
    if (job->image || job->first_frame)
        dsvi_wan_log(job, "%.2f s to encode the picture", t->image);
    dsvi_wan_log(
        job,
        "%.2f s for the texts, %.2f s to load the transformer, %.2f s for %lld steps (%.1f ms each), "
        "%.2f s to decode, %.2f s to write",
        t->texts, t->loading, t->steps, (long long)steps, 1e3 * t->steps / (double)steps, t->decoding,
        t->writing);
}

DsvStatus dsvi_wan_sample(const DsviWanSampleArgs *args)
{
    DsvStatus status;
    DsviWanJob job = {.args = args};
    double since;
    DSVI_TRY_GOTO(status, dsvi_wan_prepare(&job), done);
    DSVI_TRY_GOTO(status, estimate(&job), done);
    since = dsvi_clock_seconds();
    DSVI_TRY_GOTO(status, encode_texts(&job), done);
    dsvi_wan_add_seconds(&job.times.texts, &since);
    DSVI_TRY_GOTO(status, dsvi_wan_image_rows_encode(&job), done);
    DSVI_TRY_GOTO(status, dsvi_wan_image_encode(&job), done);
    dsvi_wan_add_seconds(&job.times.image, &since);
    DSVI_TRY_GOTO(status, run_groups(&job), done);
    report_times(&job);
done:
    dsvi_wan_transformer_close(&job);
    dsvi_param_table_free(&job.table);
    dsvi_wan_texts_free(&job.texts);
    for (int i = 0; i < DSVI_WAN_GROUP_CLIPS; i++)
        free(job.latents[i]);
    dsvi_wan_image_free(&job);
    dsvi_wan_image_rows_free(&job);
    free(job.noise);
    free(job.rows);
    free(job.negative_rows);
    return status;
}
