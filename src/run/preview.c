/* Implements preview.h: checks options and plans memory before a run. */
#include "run/preview.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/host.h"
#include "data/dataset_sources.h"
#include "device/device_limit.h"
#include "model/codec/codec.h"
#include "ops/gemm_peak.h"
#include "train/memory_explain.h"
#include "train/plan_speeds.h"
#include "train/trainer_offload.h"
#include "train/trainer_sizes.h"
#include "run/checkpoint.h"
#include "run/model_path.h"
#include "run/notices.h"
#include "run/run_facts.h"
#include "run/run_sizes.h"
#include "train/flow_draw.h"

enum { LINE_BYTES = 1024 };
static const double GIB = 1073741824.0;

/* Returns the fewest ranks that the options name, and of these the ranks that divide the state. */
static int64_t named_ranks(const DsvConfig *settings, int64_t *shard_ranks)
{
    int64_t cp = settings->cp_size, data = settings->dp_size, shard = settings->hsdp_shard_dim;
    int64_t ranks = (cp > 1 ? cp : 1) * (data > 1 ? data : 1);
    ranks = shard > ranks ? shard : ranks;
    *shard_ranks = shard > 0 ? shard : ranks;
    return ranks;
}

/* Refuses what the run of several ranks refuses that the options name, although the plan is that of one. */
static DsvStatus check_offload(const DsvConfig *settings)
{
    int64_t shard_ranks, ranks = named_ranks(settings, &shard_ranks);
    return dsvi_trainer_offload_check(settings, ranks, shard_ranks);
}

/* Returns the options with all options for several ranks reset to one rank. */
static DsvConfig config_of_one_rank(const DsvConfig *settings)
{
    DsvConfig alone = *settings;
    alone.cp_size = 1;
    alone.cp_heads = alone.dp_size = alone.hsdp_shard_dim = 0;
    return alone;
}

/* Refuses options of a LoRA in a run without one, in which they would have no effect. */
static DsvStatus refuse_lora_options(const DsvConfig *settings)
{
    DsvConfig initial;
    dsv_config_defaults(&initial);
    const char *key = settings->lora_alpha != initial.lora_alpha       ? "lora_alpha"
                      : settings->lora_dropout != initial.lora_dropout ? "lora_dropout"
                      : strcmp(settings->lora_target_modules, initial.lora_target_modules) != 0
                          ? "lora_target_modules"
                          : NULL;
    return key ? DSVI_FAIL(DSV_E_USAGE, "lora_rank is 0 and %s is given, expected a lora_rank of 1 or more",
                           key)
               : DSV_OK;
}

/* Returns whether data.buckets is a list; the sizes of auto are known only once the clips are. */
static bool lists_sizes(const DsvConfig *settings)
{
    return settings->data_buckets[0] && strcmp(settings->data_buckets, "auto") != 0;
}

/* Refuses clips that are sampled from pictures if none of the `sizes` of data.buckets can have such a
 * picture: sampled clips have the size num_frames x height x width, and the VAE is freed once clips are
 * encoded. Checks nothing without sizes. */
static DsvStatus check_sampled_size(const DsvConfig *settings, const DsviDitConfig *config,
                                    const DsviClipSizes *sizes)
{
    const DsviClipSize size = {settings->num_frames, settings->height, settings->width};
    bool samples = settings->validation_at_end || settings->validation_steps > 0;
    char text[DSVI_CLIP_SIZE_BYTES];
    if (!samples || sizes->count == 0 || settings->validation_data[0] ||
        strcmp(settings->codec_name, "wan") != 0 ||
        !(dsvi_dit_takes_condition(config) || dsvi_dit_given_first(settings)))
        return DSV_OK;
    for (int64_t i = 0; i < sizes->count; i++)
        if (dsvi_clip_size_same(&sizes->at[i], &size))
            return DSV_OK;
    return DSVI_FAIL(
        DSV_E_USAGE,
        "sampled clips begin with pictures of windows of %s (num_frames x height x width), which "
        "%s: expected this size in data.buckets, clips in validation.data, "
        "or validation_at_end=false and validation_steps=0 to sample none",
        dsvi_clip_size_text(&size, text),
        lists_sizes(settings) ? "data.buckets does not list" : "data.buckets=auto gives no clip");
}

/* Checks the options that concern the model together. */
static DsvStatus check_model_options(const DsvConfig *settings)
{
    if (settings->lora_rank > 0 && !settings->model_path[0])
        return DSVI_FAIL(
            DSV_E_USAGE,
            "lora_rank is %lld and model.path is empty, expected the model beside whose weights the "
            "LoRA is trained",
            (long long)settings->lora_rank);
    if (settings->lora_rank == 0)
        DSVI_TRY(refuse_lora_options(settings));
    if (settings->lora_rank == 0 && dsvi_dit_stores_f8(settings))
        return DSVI_FAIL(DSV_E_USAGE,
                         "base_precision is fp8 and lora_rank is 0, expected a LoRA: weights that are "
                         "trained are stored in F32");
    if (settings->validation_ema && settings->ema_decay == 0)
        return DSVI_FAIL(DSV_E_USAGE,
                         "validation.ema is true and ema_decay is 0, expected ema_decay above 0");
    return DSV_OK;
}

/* Returns whether the run takes the shape of the model from the checkpoint with which it goes on, if there is
 * one: it trains all weights, and the model at model.path may no longer exist. */
static bool asks_checkpoint(const DsvConfig *settings)
{
    return settings->resume_from_checkpoint[0] && settings->model_path[0] && settings->lora_rank == 0;
}

/* Reads the shape of the model from the checkpoint with which the run goes on. *found is false if there is
 * none. */
static DsvStatus config_of_checkpoint(const DsvConfig *settings, const DsviCodec *codec, DsviPreview *out,
                                      bool *found)
{
    const DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width};
    char checkpoint[DSVI_PATH_MAX];
    snprintf(checkpoint, sizeof checkpoint, "%s", settings->resume_from_checkpoint);
    *found = true;
    if (strcmp(checkpoint, "latest") == 0)
        DSVI_TRY(
            dsvi_checkpoint_latest_part(settings->output_dir, "transformer/config.json", checkpoint, found));
    if (!*found)
        return DSV_OK;
    DSVI_TRY(codec->latent_shape(codec, video, &out->latent));
    return dsvi_model_of_checkpoint(settings, checkpoint, &out->config);
}

static DsvStatus preview_choose_config(const DsvConfig *settings, const DsviCodec *codec, DsviPreview *out)
{
    DsviModelPath model;
    bool found = false;
    DSVI_TRY(check_model_options(settings));
    if (asks_checkpoint(settings))
        DSVI_TRY(config_of_checkpoint(settings, codec, out, &found));
    return found ? DSV_OK : dsvi_model_of_options(settings, codec, &model, &out->latent, &out->config);
}

/* Makes the memory plan of the model out->config. `planned` becomes a trainer that has only the fields that
 * dsvi_trainer_plan, dsvi_run_facts and dsvi_memory_explain read; also after a failure, the caller frees its
 * mesh. `settings` are of one rank. No `sizes`: the one of the settings. speeds NULL: nominal ones. `log`
 * (may be NULL) receives the table of offload=auto. */
static DsvStatus preview_plan(const DsvConfig *settings, DsviBackend *backend, const DsviCodec *codec,
                              const DsviClipSizes *sizes, const DsviDeviceSpeeds *speeds, DsviSparseLog *log,
                              void *log_context, DsviTrainer *planned, DsviPreview *out)
{
    *planned = (DsviTrainer){
        .settings = settings, .backend = backend, .codec = codec, .config = out->config, .clips = *sizes};
    if (speeds)
        planned->speeds = *speeds;
    DSVI_TRY(check_sampled_size(settings, &out->config, sizes));
    DSVI_TRY(dsvi_mesh_make(settings, NULL, &planned->mesh));
    DsvStatus status = dsvi_trainer_plan_report(planned, settings, log, log_context, &out->device,
                                                &out->host);
    planned->arena = out->device;
    planned->host_arena = out->host;
    planned->here = (DsviPeersOnMachine){.ranks = 1, .sum = out->host.used};
    planned->host_available = backend->device->host_available(backend->device);
    return status;
}

/* Finds the sizes of the clips at data.path. */
static DsvStatus sizes_of_clips(const DsvConfig *settings, const DsviCodec *codec,
                                const DsviDitConfig *config, DsviClipSizes *sizes)
{
    DsviDataset *dataset;
    DSVI_TRY(dsvi_dataset_open(settings->data_path, settings, &dataset));
    DsvStatus status = dsvi_run_sizes_assign(dataset, settings, codec, config);
    *sizes = dataset->sizes;
    dsvi_dataset_close(&dataset);
    return status;
}

/* As dsvi_preview_make, for a run of `ranks`. clips: finds the sizes of data.buckets=auto, if data.path is
 * set, and checks that a run of one rank has enough memory. */
static DsvStatus preview_try(const DsvConfig *settings, DsviBackend *backend, bool clips, int64_t ranks,
                             DsviPreview *out)
{
    DsvStatus status;
    DsviCodec *codec;
    DsviTrainer planned = {.settings = NULL};
    DsvConfig alone = config_of_one_rank(settings);
    DsviClipSizes sizes = {.count = 0};
    if (lists_sizes(settings))
        DSVI_TRY(dsvi_clip_sizes_parse(settings->data_buckets, &sizes));
    DSVI_TRY(dsvi_codec_open(&alone, &codec));
    DSVI_TRY_GOTO(status, preview_choose_config(&alone, codec, out), done);
    if (clips && settings->data_path[0] && settings->data_buckets[0] && !lists_sizes(settings))
        DSVI_TRY_GOTO(status, sizes_of_clips(&alone, codec, &out->config, &sizes), done);
    DSVI_TRY_GOTO(status, dsvi_trainer_sizes_check(settings, &sizes, dsvi_mesh_cp_ranks(settings, ranks)),
                  done);
    DSVI_TRY_GOTO(status, preview_plan(&alone, backend, codec, &sizes, NULL, NULL, NULL, &planned, out),
                  done);
    if (clips && ranks == 1)
        DSVI_TRY_GOTO(status, dsvi_memory_check(&planned, &out->device, &out->host), done);
done:
    dsvi_mesh_free(&planned.mesh);
    codec->close(codec);
    return status;
}

DsvStatus dsvi_preview_make(const DsvConfig *settings, DsviBackend *backend, DsviPreview *out)
{
    return preview_try(settings, backend, false, 1, out);
}

DsvStatus dsvi_preview_check_clips(const DsvConfig *settings, DsviBackend *backend, int64_t ranks)
{
    DsviPreview preview;
    DSVI_TRY(dsvi_flow_check(settings));
    return preview_try(settings, backend, true, ranks, &preview);
}

DsvStatus dsvi_preview_check(const DsvConfig *settings, DsviBackend *backend)
{
    DsviPreview preview;
    DSVI_TRY(dsvi_flow_check(settings));
    return asks_checkpoint(settings) ? DSV_OK : dsvi_preview_make(settings, backend, &preview);
}

static void preview_model_text(const DsviTrainer *planned, const DsviPreview *preview, int64_t parameters,
                               char text[LINE_BYTES])
{
    const DsviVideoShape *latent = &preview->latent;
    snprintf(text, LINE_BYTES,
             "model: %" PRId64 " parameters, %" PRId64 " blocks, latents %" PRId64 " x %" PRId64 " x %" PRId64
             " x %" PRId64 ", on %s",
             parameters, preview->config.num_layers, latent->channels, latent->frames, latent->height,
             latent->width, planned->backend->device->name);
}

static DsvStatus count_parameters(const DsviDitConfig *config, int64_t *parameters)
{
    DsviParamTable table;
    DSVI_TRY(dsvi_param_table_make(config, &table));
    *parameters = table.parameters;
    dsvi_param_table_free(&table);
    return DSV_OK;
}

static DsvStatus preview_report(const DsviTrainer *planned, const DsviPreview *preview, DsviCodec *codec,
                                void (*line)(void *context, const char *text), void *context)
{
    char text[LINE_BYTES];
    int64_t parameters;
    DsviRunFacts facts;
    const DsviDevice *device = planned->backend->device;
    DSVI_TRY(count_parameters(&preview->config, &parameters));
    preview_model_text(planned, preview, parameters, text);
    line(context, text);
    dsvi_run_facts(planned, 0, (size_t)dsvi_resident_bytes(), 0, &facts);
    dsvi_run_facts_memory(&facts, text, sizeof text);
    line(context, text);
    size_t used = device->memory_used(planned->backend->device);
    snprintf(text, sizeof text, "not counted above: decoded clips%s",
             device->kind == DSVI_DEVICE_CPU ? ""
                                             : ", and what the libraries of the GPU and other programs use");
    if (used > 0 && device->kind != DSVI_DEVICE_CPU)
        snprintf(text + strlen(text), sizeof text - strlen(text), "; now these use %.2f GiB",
                 (double)used / GIB);
    line(context, text);
    DSVI_TRY(dsvi_memory_check(planned, &preview->device, &preview->host));
    size_t available = dsvi_device_free_bytes(planned->backend->device);
    /* On a CPU, device memory and host memory are the same memory. */
    size_t needed = preview->device.used + (device->kind == DSVI_DEVICE_CPU ? preview->host.used : 0);
    uint64_t decoding;
    if (needed > available)
        return dsvi_memory_explain(planned, &preview->device, &preview->host);
    DSVI_TRY(dsvi_run_facts_decoding(planned->settings, planned->backend, codec, preview->device.used,
                                     available - needed, &decoding));
    dsvi_run_facts_decoding_text(decoding, text, sizeof text);
    if (decoding > 0)
        line(context, text);
    needed += (size_t)decoding;
    snprintf(text, sizeof text, "it fits: %.1f of %.1f GiB", (double)needed / GIB,
             (double)device->memory_bytes / GIB);
    line(context, text);
    return DSV_OK;
}

/* Opens data.path and reports the sources and, with data.buckets, the sizes and the inputs of each. Without
 * data.path nothing is opened. *sizes stays empty without data.buckets. */
static DsvStatus preview_data(const DsvConfig *settings, const DsviCodec *codec, const DsviDitConfig *config,
                              DsviDataset **dataset, DsviClipSizes *sizes,
                              void (*line)(void *context, const char *text), void *context)
{
    char text[LINE_BYTES];
    if (!settings->data_path[0] && settings->data_buckets[0] && !lists_sizes(settings))
        return DSVI_FAIL(DSV_E_USAGE,
                         "data.buckets is auto and data.path is empty, expected clips that have sizes");
    if (!settings->data_path[0])
        return lists_sizes(settings) ? dsvi_clip_sizes_parse(settings->data_buckets, sizes) : DSV_OK;
    DSVI_TRY(dsvi_dataset_open(settings->data_path, settings, dataset));
    DSVI_TRY(dsvi_run_sizes_assign(*dataset, settings, codec, config));
    if (settings->data_buckets[0])
        *sizes = (*dataset)->sizes;
    for (int64_t i = 0; i < (*dataset)->left_out_count; i++) {
        snprintf(text, sizeof text, "left out: %.900s", (*dataset)->left_out[i].reason);
        line(context, text);
    }
    for (int64_t i = 0; i < (*dataset)->remark_count; i++)
        line(context, (*dataset)->remarks[i]);
    dsvi_dataset_sources_report(*dataset, line, context);
    dsvi_run_sizes_report(*dataset, settings, codec, config, line, context);
    return DSV_OK;
}

/* Reports the memory of a run of each size alone. */
static DsvStatus preview_passes(const DsviTrainer *planned, const DsviClipSizes *sizes,
                                void (*line)(void *context, const char *text), void *context)
{
    char text[LINE_BYTES], name[DSVI_CLIP_SIZE_BYTES];
    for (int64_t i = 0; i < sizes->count && sizes->count > 1; i++) {
        DsviTrainer one = {.settings = planned->settings,
                           .backend = planned->backend,
                           .codec = planned->codec,
                           .config = planned->config,
                           .speeds = planned->speeds,
                           .clips = {{sizes->at[i]}, 1}};
        DsviArena device, host;
        DSVI_TRY(dsvi_mesh_make(planned->settings, NULL, &one.mesh));
        DsvStatus status = dsvi_trainer_plan(&one, planned->settings, &device, &host);
        dsvi_mesh_free(&one.mesh);
        DSVI_TRY(status);
        snprintf(text, sizeof text, "bucket %s alone takes %.3f GiB",
                 dsvi_clip_size_text(&sizes->at[i], name), (double)device.used / GIB);
        line(context, text);
    }
    return DSV_OK;
}

/* Reports the FLOPs of an epoch and how long they take at the speed of large matrix products (`peak`, or
 * measured if it is 0), which is a lower bound. Reports nothing without a data set. */
static DsvStatus preview_epoch(const DsviTrainer *planned, const DsviDataset *dataset, double peak,
                               void (*line)(void *context, const char *text), void *context)
{
    const DsvConfig *s = planned->settings;
    char text[LINE_BYTES];
    double flops = 0;
    int64_t samples = 0;
    if (!dataset)
        return DSV_OK;
    for (int64_t i = 0; i < dataset->sizes.count; i++) {
        const DsviClipSize *size = &dataset->sizes.at[i];
        DsviVideoShape video = {3, size->frames, size->height, size->width}, latent;
        DSVI_TRY(planned->codec->latent_shape(planned->codec, video, &latent));
        const DsviDitShape shape = dsvi_dit_shape_of(&planned->config, 1, latent);
        int64_t windows = (dsvi_dataset_size_count(dataset, i).samples + s->train_batch_size - 1) /
                          s->train_batch_size * s->train_batch_size;
        samples += windows;
        flops += (double)windows * dsvi_dit_flops_step(&planned->config, &shape, s->lora_rank > 0, 1);
    }
    if (planned->speeds.assumed) {
        snprintf(text, sizeof text,
                 "an epoch of %" PRId64 " samples with dense attention: %.3g FLOP on one rank", samples,
                 flops);
        line(context, text);
        return DSV_OK;
    }
    if (peak == 0)
        DSVI_TRY(dsvi_gemm_peak(planned->backend, dsvi_dit_act(s), &peak));
    snprintf(text, sizeof text,
             "an epoch of %" PRId64
             " samples with dense attention: %.3g FLOP on one rank, at least %.3g s at the "
             "%.3g FLOP/s of large matrix products on %s",
             samples, flops, flops / peak, peak, planned->backend->device->name);
    line(context, text);
    return DSV_OK;
}

DsvStatus dsvi_preview_report(const DsvConfig *settings, DsviBackend *backend, const DsviDeviceSpeeds *speeds,
                              void (*line)(void *context, const char *text), void *context)
{
    DsvStatus status;
    DsviCodec *codec;
    DsviPreview preview;
    DsviTrainer planned = {.settings = NULL};
    DsviDeviceSpeeds measured;
    DsvConfig alone = config_of_one_rank(settings);
    DsviDataset *dataset = NULL;
    DsviClipSizes sizes = {.count = 0};
    DSVI_TRY(check_offload(settings));
    DSVI_TRY(dsvi_codec_open(&alone, &codec));
    DSVI_TRY_GOTO(status, preview_choose_config(&alone, codec, &preview), done);
    DSVI_TRY_GOTO(status, preview_data(&alone, codec, &preview.config, &dataset, &sizes, line, context),
                  done);
    DSVI_TRY_GOTO(status, dsvi_trainer_sizes_check(settings, &sizes, settings->cp_size), done);
    if (dsvi_plan_needs_speeds(settings, backend->device) && !speeds) {
        DSVI_TRY_GOTO(status, dsvi_plan_speeds(settings, backend, &measured), done);
        speeds = &measured;
    }
    DSVI_TRY_GOTO(status,
                  preview_plan(&alone, backend, codec, &sizes, speeds, line, context, &planned, &preview),
                  done);
    dsvi_notices(settings, NULL, line, line, context);
    DSVI_TRY_GOTO(status, preview_report(&planned, &preview, codec, line, context), done);
    DSVI_TRY_GOTO(status, preview_passes(&planned, &sizes, line, context), done);
    DSVI_TRY_GOTO(status, preview_epoch(&planned, dataset, planned.speeds.flops, line, context), done);
done:
    dsvi_mesh_free(&planned.mesh);
    dsvi_dataset_close(&dataset);
    codec->close(codec);
    return status;
}
