/* Implements lora_files.h. */
#include "api/lora_files.h"

#include <string.h>

#include "api/lora_run.h"
#include "base/fs.h"
#include "run/model_path.h"

DsvStatus dsvi_lora_file_check(const char *path)
{
    DsviLoraRun run;
    bool found = false;
    DSVI_TRY(dsvi_model_refuse_pickle(path));
    if (!dsvi_path_is_folder(path))
        return DSV_OK;
    bool known = dsvi_lora_run_find(path, &run, &found) == DSV_OK && found;
    return DSVI_FAIL(DSV_E_USAGE, "%s is a folder, expected the safetensors file of a LoRA%s%s", path,
                     known ? ", such as " : "", known ? run.lora : "");
}

static DsvExpert meant_for(const DsviLoraFiles *files, size_t i)
{
    return files->experts ? files->experts[i] : DSV_EXPERT_BOTH;
}

static const char *noise_of(DsvExpert expert)
{
    return expert == DSV_EXPERT_HIGH ? "high" : "low";
}

/* Fails if a LoRA is of one of two experts, and the model has one transformer. */
static DsvStatus check_one_transformer(const DsviLoraFiles *files, const char *model)
{
    for (size_t i = 0; i < files->count; i++)
        if (meant_for(files, i) != DSV_EXPERT_BOTH)
            return DSVI_FAIL(
                DSV_E_USAGE,
                "%s is a LoRA of the expert for %s noise, but %s has one transformer: expected a "
                "LoRA for all noise levels",
                files->paths[i], noise_of(meant_for(files, i)), model);
    return DSV_OK;
}

/* Fails if the file says that its LoRA was trained for another expert. */
static DsvStatus check_trained_for(const char *path, const DsviLora *lora, DsvExpert meant)
{
    const char *noise = dsvi_safetensors_metadata(lora->file, DSVI_LORA_EXPERT_KEY);
    if (!noise || (strcmp(noise, "high") != 0 && strcmp(noise, "low") != 0))
        return DSV_OK;
    if (meant != DSV_EXPERT_BOTH && strcmp(noise, noise_of(meant)) == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE,
                     "%s was trained for the expert for %s noise and is meant for %s%s, expected it as "
                     "--lora-%s",
                     path, noise, meant == DSV_EXPERT_BOTH ? "both" : noise_of(meant),
                     meant == DSV_EXPERT_BOTH ? "" : " noise", noise);
}

/* Opens the LoRAs that one transformer gets. */
static DsvStatus open_for(const DsviLoraFiles *files, DsvExpert expert, bool two_experts, DsviLoraSet *out)
{
    const char *paths[DSVI_LORAS_MAX] = {NULL};
    double scales[DSVI_LORAS_MAX] = {0};
    DsvExpert meant[DSVI_LORAS_MAX];
    size_t count = 0;
    if (files->count > DSVI_LORAS_MAX)
        return dsvi_lora_set_open(files->paths, files->scales, files->count, out); /* refuses */
    for (size_t i = 0; i < files->count; i++) {
        if (meant_for(files, i) != DSV_EXPERT_BOTH && meant_for(files, i) != expert)
            continue;
        DSVI_TRY(dsvi_lora_file_check(files->paths[i]));
        paths[count] = files->paths[i];
        meant[count] = meant_for(files, i);
        scales[count++] = files->scales ? files->scales[i] : 1;
    }
    DSVI_TRY(dsvi_lora_set_open(paths, scales, count, out));
    for (size_t i = 0; i < count && two_experts; i++)
        DSVI_TRY(check_trained_for(paths[i], &out->lora[i], meant[i]));
    return DSV_OK;
}

DsvStatus dsvi_lora_files_open(const DsviLoraFiles *files, const char *model, bool two_experts,
                               DsviLoraSet *high, DsviLoraSet *low)
{
    high->count = low->count = 0;
    if (!two_experts)
        DSVI_TRY(check_one_transformer(files, model));
    DSVI_TRY(open_for(files, DSV_EXPERT_HIGH, two_experts, high));
    return two_experts ? open_for(files, DSV_EXPERT_LOW, two_experts, low) : DSV_OK;
}
