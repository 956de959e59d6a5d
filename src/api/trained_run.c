/* Implements trained_run.h. */
#include "api/trained_run.h"

#include <stdio.h>
#include <string.h>

#include "run/model_path.h"

DsvStatus dsvi_trained_run_find(const char *path, const DsvConfig *settings, DsviWanFolder *out, bool *found)
{
    DsviModelPath model;
    DsvConfig run;
    *found = false;
    DSVI_TRY(dsvi_model_find(path, &model));
    if (!model.checkpoint[0] || !model.settings[0])
        return DSV_OK;
    dsv_config_defaults(&run);
    DSVI_TRY(dsv_config_load(&run, model.settings));
    if (!run.model_path[0] || strcmp(run.codec_name, "wan") != 0)
        return DSV_OK;
    if (!dsvi_path_exists(run.model_path))
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: the model %s whose weights it trained is not there, expected its VAE and text "
                         "encoder there",
                         path, run.model_path);
    DSVI_TRY(dsvi_wan_folder_find(run.model_path, settings, out, found));
    if (!*found)
        return DSV_OK;
    DSVI_TRY(dsvi_model_verify(&model));
    DsviWanPart part = strcmp(run.model_expert, "low") == 0 ? DSVI_WAN_TRANSFORMER_2 : DSVI_WAN_TRANSFORMER;
    snprintf(out->part[part], sizeof out->part[part], "%s", model.weights);
    snprintf(out->path, sizeof out->path, "%s", path);
    return DSV_OK;
}
