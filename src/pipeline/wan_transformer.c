/* Implements wan_transformer.h. */
#include "pipeline/wan_transformer.h"

#include "base/host.h"
#include "device/carve.h"
#include "sample/sampler.h"

enum { TIMESTEPS = 1000, PUBLISHED_SHIFT_T2V = 12, PUBLISHED_SHIFT_I2V = 5 };
/* The rule for guided steps (saved_by_one_pass): FLOPs that a device does in the time in which it reads a
 * byte of weights, about 989e12 / 4.8e12 = 206 on an H200 in BF16; and the smallest fraction of a step that
 * is worth twice the memory of a pass. */
#define FLOPS_PER_BYTE 206
#define WORTH_SAVING 0.02

static void carve_transformer(void *context, DsviArena *arena)
{
    DsviWanJob *job = context;
    dsvi_dit_frozen_carve(job->weights, arena);
    dsvi_generator_carve(job->generator, arena);
    dsvi_generator_carve_run(job->generator, arena);
}

void dsvi_wan_transformer_close(DsviWanJob *job)
{
    DsviDevice *device = job->args->backend->device;
    dsvi_generator_free(&job->generator);
    dsvi_dit_frozen_free(&job->weights);
    device->mem_free(device, job->memory);
    dsvi_host_pool_close(device, &job->pool);
    job->memory = NULL;
}

/* Logs a decision of the guard (DsviSparseLog). */
static void log_decision(void *context, const char *line)
{
    dsvi_wan_log(context, "%s", line);
}

/* Loads an expert over the other one, unless it is loaded. The time counts as loading, not as steps. */
static DsvStatus use_expert(void *context, int expert)
{
    static const char *const NAMES[] = {"high noise (transformer)", "low noise (transformer_2)"};
    DsviWanJob *job = context;
    const DsviWanSampleArgs *a = job->args;
    double since = dsvi_clock_seconds(), seconds = 0;
    if (job->expert == expert)
        return DSV_OK;
    job->expert = -1;
    DSVI_TRY(dsvi_dit_frozen_load(job->weights, a->backend->device,
                                  a->folder->part[expert ? DSVI_WAN_TRANSFORMER_2 : DSVI_WAN_TRANSFORMER],
                                  expert ? a->loras_2 : a->loras));
    job->expert = expert;
    dsvi_wan_add_seconds(&seconds, &since);
    job->times.loading += seconds;
    job->times.steps -= seconds;
    dsvi_wan_log(job, "the expert for %s runs now, loaded in %.2f s", NAMES[expert], seconds);
    return DSV_OK;
}

/* Creates the transformer without memory, and plans its memory. *fits: the memory suffices. */
static DsvStatus plan_transformer(DsviWanJob *job, bool together, bool *fits)
{
    const DsviWanSampleArgs *a = job->args;
    DSVI_TRY(dsvi_dit_frozen_create(&job->table, dsvi_dit_act(a->settings), &job->weights));
    if (dsvi_dit_stores_f8(a->settings))
        DSVI_TRY(dsvi_dit_frozen_use_f8(job->weights, a->backend));
    DSVI_TRY(dsvi_generator_create(
        &(DsviGeneratorArgs){.backend = a->backend,
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
                             .image = job->config.in_channels > job->config.out_channels,
                             .image_len = job->image_len,
                             .given_first = job->given_first,
                             .guided_batch = together},
        &job->generator));
    job->room = (DsviSampleRoom){.path = a->folder->path,
                                 .settings = a->settings,
                                 .device = a->backend->device,
                                 .weights = job->weights,
                                 .layout = carve_transformer,
                                 .object = job};
    *fits = dsvi_sample_room_choose(&job->room);
    return DSV_OK;
}

/* Returns which fraction of a guided step is saved if one pass evaluates both texts: the second pass reads
 * the weights again, all other work is the same. The fraction falls with the number of tokens. It follows
 * from sizes alone, not from measured times, so that the same clip is always computed in the same way. */
static double saved_by_one_pass(const DsviWanJob *job)
{
    const DsvConfig *settings = job->args->settings;
    DsviDitShape shape = dsvi_dit_shape_of(&job->config, 1, job->latent);
    shape.image_len = job->image_len;
    double pass = dsvi_dit_flops_gemm(&job->config, &shape) + dsvi_dit_flops_attention(&job->config, &shape);
    double reading = FLOPS_PER_BYTE * (double)job->table.parameters *
                     (double)dsvi_dtype_size(dsvi_dit_act(settings));
    return reading / (2 * (reading > pass ? reading : pass));
}

/* One pass is preferred even if it needs more blocks in host memory than two passes: the result then does not
 * depend on the free memory, and one pass needs half the copies. */
DsvStatus dsvi_wan_transformer_choose(DsviWanJob *job)
{
    bool fits;
    job->together = job->guided && saved_by_one_pass(job) >= WORTH_SAVING;
    if (job->together) {
        DSVI_TRY(plan_transformer(job, true, &fits));
        if (fits)
            return DSV_OK;
        dsvi_wan_transformer_close(job);
        job->together = false;
    }
    DSVI_TRY(plan_transformer(job, false, &fits));
    return fits ? DSV_OK : dsvi_sample_room_refuse(&job->room);
}

DsvStatus dsvi_wan_transformer_report_experts(const DsviWanJob *job)
{
    DsviSampler *sampler;
    const DsvConfig *settings = job->args->settings;
    double ratio = job->args->folder->boundary_ratio;
    bool image = job->config.in_channels > job->config.out_channels;
    int64_t high = 0;
    if (!job->args->folder->two_experts)
        return DSV_OK;
    DSVI_TRY(dsvi_sampler_create(settings->sampler, settings->num_inference_steps, settings->flow_shift, 1,
                                 &sampler));
    for (int64_t i = 0; i < settings->num_inference_steps; i++)
        high += (float)dsvi_sampler_timestep(sampler, i) >= (float)(ratio * TIMESTEPS);
    dsvi_sampler_free(&sampler);
    dsvi_wan_log(
        job,
        "two experts, one on the device at a time: with boundary_ratio=%g and flow_shift=%g transformer "
        "computes %lld of %lld steps, transformer_2 the others; the Wan repository uses flow_shift=%d for "
        "%s-A14B",
        ratio, settings->flow_shift, (long long)high, (long long)settings->num_inference_steps,
        image ? PUBLISHED_SHIFT_I2V : PUBLISHED_SHIFT_T2V, image ? "I2V" : "T2V");
    return DSV_OK;
}

DsvStatus dsvi_wan_transformer_open(DsviWanJob *job)
{
    DsviDevice *device = job->args->backend->device;
    DSVI_TRY(dsvi_wan_transformer_choose(job));
    DSVI_TRY(dsvi_device_alloc_layout(device, carve_transformer, job, &job->memory));
    DSVI_TRY(dsvi_sample_room_open(&job->room, job->args->events, &job->pool));
    job->expert = -1;
    if (!job->args->folder->two_experts)
        DSVI_TRY(dsvi_dit_frozen_load(job->weights, device, job->args->folder->part[DSVI_WAN_TRANSFORMER],
                                      job->args->loras));
    DsviDitWeights weights = dsvi_dit_frozen_weights(job->weights);
    return dsvi_generator_setup(job->generator, &weights);
}
