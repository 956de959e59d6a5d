/* Implements wan_settings.h. */
#include "pipeline/wan_settings.h"

#include <stdio.h>
#include <string.h>

#include "sample/scheduler_config.h"

/* Published weights were trained densely and do not adapt to lists while a clip is sampled. Lists therefore
 * hold more keys than in training, and must hold more of exact attention. A tail would cost more than it
 * saves here. */
static void sparse_settings(DsvConfig *settings)
{
    settings->sparse_enabled = false;
    snprintf(settings->sparse_order, sizeof settings->sparse_order, "tube");
    snprintf(settings->sparse_tail, sizeof settings->sparse_tail, "none");
    settings->sparse_grain = 1;
    settings->sparse_chunk = 16;
    settings->sparse_target_mass = 0.9;
    settings->sparse_target_density = 0.2;
    settings->sparse_min_keys = 0;
    settings->sparse_dense_finish = 0;
    settings->sparse_max_error = 0.35;
    settings->sparse_max_head_error = 0.9;
    settings->sparse_warmup_steps = 5;
    settings->sparse_profile_every = 5;
    settings->sparse_refresh_every = 5;
    settings->sparse_min_mass = 0.8;
}

DsvStatus dsvi_wan_settings(const DsviWanFolder *folder, DsvConfig *settings)
{
    DsviSchedulerConfig scheduler = {"unipc", 5};
    const char *path = folder->part[DSVI_WAN_SCHEDULER];
    if (!folder->refused && strcmp(folder->layout, "diffusers") == 0)
        DSVI_TRY(dsvi_wan_folder_require(folder, DSVI_WAN_SCHEDULER));
    if (path[0])
        DSVI_TRY(dsvi_scheduler_config_read(path, &scheduler));
    snprintf(settings->device, sizeof settings->device, "auto");
    snprintf(settings->sampler, sizeof settings->sampler, "%s", scheduler.sampler);
    settings->flow_shift = scheduler.flow_shift;
    settings->height = 480;
    settings->width = 832;
    settings->num_frames = 81;
    settings->fps = folder->expand_timesteps ? 24 : 16;
    settings->num_inference_steps = 50;
    settings->guidance_scale = 5;
    sparse_settings(settings);
    return DSV_OK;
}
