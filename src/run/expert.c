/* Implements expert.h. */
#include "run/expert.h"

#include <stdio.h>
#include <string.h>

#include "model/dit/dit.h"
#include "model/folder/wan_folder.h"
#include "sample/scheduler_config.h"

/* flow_shift with which the Wan repository samples T2V-A14B and I2V-A14B; the schedulers of the published
 * folders have 3. */
enum { PUBLISHED_SHIFT_T2V = 12, PUBLISHED_SHIFT_I2V = 5 };

static bool is_chosen(const DsvConfig *settings)
{
    return strcmp(settings->model_expert, "none") != 0;
}

static bool is_low(const DsvConfig *settings)
{
    return strcmp(settings->model_expert, "low") == 0;
}

/* Logs the expert's noise levels, and flow_shift beside its published values. */
static DsvStatus report_range(const DsvConfig *settings, const DsviWanFolder *folder, DsviSparseLog *log,
                              void *context)
{
    DsviSchedulerConfig scheduler;
    DsviDitConfig config;
    char line[512], of_folder[64] = "";
    if (!log)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_config(folder, &config));
    bool image = dsvi_dit_takes_condition(&config);
    if (folder->part[DSVI_WAN_SCHEDULER][0]) {
        DSVI_TRY(dsvi_scheduler_config_read(folder->part[DSVI_WAN_SCHEDULER], &scheduler));
        snprintf(of_folder, sizeof of_folder, ", the folder's scheduler has %g", scheduler.flow_shift);
    }
    snprintf(
        line, sizeof line,
        "model.expert=%s trains %s at noise levels %g to %g (boundary_ratio=%g); flow_shift=%g%s, the Wan "
        "repository uses %d for %s-A14B",
        settings->model_expert, is_low(settings) ? "transformer_2" : "transformer", settings->sigma_min,
        settings->sigma_max, folder->boundary_ratio, settings->flow_shift, of_folder,
        image ? PUBLISHED_SHIFT_I2V : PUBLISHED_SHIFT_T2V, image ? "I2V" : "T2V");
    log(context, line);
    return DSV_OK;
}

static DsvStatus check_choice(const DsvConfig *settings, const DsviWanFolder *folder, bool found)
{
    if (found && folder->two_experts && !is_chosen(settings))
        return DSVI_FAIL(DSV_E_USAGE,
                         "model.path=%s has two experts, expected model.expert=high or model.expert=low",
                         settings->model_path);
    if (!is_chosen(settings) || (found && folder->two_experts))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "model.expert=%s, but model.path=%s is no model of two experts",
                     settings->model_expert, settings->model_path);
}

/* Decides model.first_frame=auto. */
static void choose_first_frame(DsvConfig *settings, const DsviWanFolder *folder, DsviSparseLog *log,
                               void *context)
{
    bool given = folder->expand_timesteps;
    if (strcmp(settings->model_first_frame, "auto") != 0)
        return;
    snprintf(settings->model_first_frame, sizeof settings->model_first_frame, given ? "given" : "noise");
    if (given && log)
        log(context,
            "model.first_frame=given: TI2V-5B of Wan 2.2 learns to continue the first latent frame, which "
            "has no noise and no loss; model.first_frame=noise trains it as a text-to-video model");
}

static bool samples_clips(const DsvConfig *settings)
{
    return settings->validation_at_end || settings->validation_steps > 0;
}

/* Checks that clips can be sampled while the expert trains: the other one takes the place of frozen weights,
 * which only a LoRA has. */
static DsvStatus check_sampling(const DsvConfig *settings, const DsviWanFolder *folder)
{
    if (!samples_clips(settings))
        return DSV_OK;
    if (settings->lora_rank == 0)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "model.expert=%s: sampled clips need both experts, and a run that trains all weights "
            "has no room for the other: expected validation_at_end=false and validation_steps=0, "
            "or lora_rank above 0",
            settings->model_expert);
    DSVI_TRY(dsvi_wan_folder_require(folder, DSVI_WAN_TRANSFORMER));
    return dsvi_wan_folder_require(folder, DSVI_WAN_TRANSFORMER_2);
}

DsvStatus dsvi_expert_prepare(DsvConfig *settings, DsviSparseLog *log, void *context)
{
    const DsvConfig asked = *settings;
    DsviWanFolder folder = {0};
    bool found = false;
    if (settings->model_path[0] && dsvi_path_exists(settings->model_path))
        DSVI_TRY(dsvi_wan_folder_find(settings->model_path, settings, &folder, &found));
    DSVI_TRY(check_choice(settings, &folder, found));
    choose_first_frame(settings, &folder, log, context);
    if (!is_chosen(settings))
        return DSV_OK;
    DSVI_TRY(check_sampling(settings, &folder));
    if (is_low(settings) && settings->sigma_max > folder.boundary_ratio)
        settings->sigma_max = folder.boundary_ratio;
    if (!is_low(settings) && settings->sigma_min < folder.boundary_ratio)
        settings->sigma_min = folder.boundary_ratio;
    if (settings->sigma_min >= settings->sigma_max)
        return DSVI_FAIL(
            DSV_E_USAGE,
            "sigma_min=%g and sigma_max=%g leave no noise level to model.expert=%s, which has %g to "
            "%g (boundary_ratio)",
            asked.sigma_min, asked.sigma_max, settings->model_expert,
            is_low(settings) ? 0 : folder.boundary_ratio, is_low(settings) ? folder.boundary_ratio : 1);
    return report_range(settings, &folder, log, context);
}

DsvStatus dsvi_expert_path(const DsvConfig *settings, char out[DSVI_PATH_MAX])
{
    DsviWanFolder folder;
    bool found = false;
    snprintf(out, DSVI_PATH_MAX, "%s", settings->model_path);
    if (!is_chosen(settings))
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_find(settings->model_path, settings, &folder, &found));
    DSVI_TRY(check_choice(settings, &folder, found));
    DsviWanPart part = is_low(settings) ? DSVI_WAN_TRANSFORMER_2 : DSVI_WAN_TRANSFORMER;
    DSVI_TRY(dsvi_wan_folder_require(&folder, part));
    snprintf(out, DSVI_PATH_MAX, "%s", folder.part[part]);
    return DSV_OK;
}

DsvStatus dsvi_expert_lend(const DsvConfig *settings, DsviTrainerExperts *out, bool *lends)
{
    enum { TIMESTEPS = 1000 };
    DsviWanFolder folder;
    bool found;
    *lends = is_chosen(settings) && samples_clips(settings);
    if (!*lends)
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_find(settings->model_path, settings, &folder, &found));
    DSVI_TRY(check_choice(settings, &folder, found));
    snprintf(out->path[0], DSVI_PATH_MAX, "%s", folder.part[DSVI_WAN_TRANSFORMER]);
    snprintf(out->path[1], DSVI_PATH_MAX, "%s", folder.part[DSVI_WAN_TRANSFORMER_2]);
    out->trained = is_low(settings);
    out->boundary = folder.boundary_ratio * TIMESTEPS;
    return DSV_OK;
}
