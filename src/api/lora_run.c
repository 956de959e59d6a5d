/* Implements lora_run.h. */
#include "api/lora_run.h"

#include <stdio.h>
#include <string.h>

#include "dsv/config.h"
#include "run/checkpoint.h"

static DsvStatus lora_run_has(const char *folder, const char *name, char path[DSVI_PATH_MAX], bool *has)
{
    DSVI_TRY(dsvi_path_join(path, folder, name));
    *has = dsvi_path_exists(path);
    return DSV_OK;
}

/* Finds the checkpoint: `path` itself, or the newest of a run folder. */
static DsvStatus lora_run_checkpoint(const char *path, char checkpoint[DSVI_PATH_MAX], bool *found)
{
    char file[DSVI_PATH_MAX];
    *found = false;
    if (!dsvi_path_is_folder(path))
        return DSV_OK;
    DSVI_TRY(lora_run_has(path, "state.json", file, found));
    if (*found) {
        snprintf(checkpoint, DSVI_PATH_MAX, "%s", path);
        return DSV_OK;
    }
    DSVI_TRY(lora_run_has(path, "metrics.jsonl", file, found));
    return *found ? dsvi_checkpoint_latest(path, NULL, NULL, checkpoint, found) : DSV_OK;
}

/* Finds the file of the LoRA, whose name tells the expert. */
static DsvStatus lora_run_file(const char *checkpoint, DsviLoraRun *out, bool *found)
{
    static const struct {
        const char *expert;
        DsvExpert number;
    } EXPERTS[] = {{"none", DSV_EXPERT_BOTH}, {"high", DSV_EXPERT_HIGH}, {"low", DSV_EXPERT_LOW}};
    char name[DSVI_LORA_FILE_BYTES];
    *found = false;
    for (size_t i = 0; i < sizeof EXPERTS / sizeof *EXPERTS && !*found; i++) {
        dsvi_checkpoint_lora_name(EXPERTS[i].expert, false, name);
        DSVI_TRY(lora_run_has(checkpoint, name, out->lora, found));
        out->expert = EXPERTS[i].number;
    }
    return DSV_OK;
}

DsvStatus dsvi_lora_run_locate(const char *path, DsviLoraRun *out, bool *found)
{
    memset(out, 0, sizeof *out);
    DSVI_TRY(lora_run_checkpoint(path, out->checkpoint, found));
    if (*found)
        DSVI_TRY(lora_run_file(out->checkpoint, out, found));
    return *found ? lora_run_has(out->checkpoint, "config.yaml", out->settings, found) : DSV_OK;
}

DsvStatus dsvi_lora_run_find(const char *path, DsviLoraRun *out, bool *found)
{
    DsvConfig settings;
    DSVI_TRY(dsvi_lora_run_locate(path, out, found));
    if (!*found)
        return DSV_OK;
    dsv_config_defaults(&settings);
    DSVI_TRY(dsv_config_load(&settings, out->settings));
    snprintf(out->base, sizeof out->base, "%s", settings.model_path);
    if (out->base[0] && dsvi_path_exists(out->base))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_NOT_FOUND,
                     "%s: the model %s beside which its LoRA was trained is not there: sample the model with "
                     "--lora %s",
                     path, out->base, out->lora);
}
