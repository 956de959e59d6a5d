/* Implements model_path.h: finds the files of a model. */
#include "run/model_path.h"

#include <stdio.h>
#include <string.h>

#include "model/folder/wan_folder.h"
#include "model/vit/vit.h"
#include "model/weights/weights.h"
#include "run/checkpoint.h"
#include "run/expert.h"
#include "run/manifest.h"
#include "run/pipeline_part.h"

/* Sets `out` to folder/name if this path exists, otherwise to "". */
static DsvStatus join_if_exists(char out[DSVI_PATH_MAX], const char *folder, const char *name)
{
    DSVI_TRY(dsvi_path_join(out, folder, name));
    if (!dsvi_path_exists(out))
        out[0] = 0;
    return DSV_OK;
}

/* Sets `out` to folder/name, a file of a checkpoint. DSV_E_FORMAT if it is missing. */
static DsvStatus part_of_checkpoint(char out[DSVI_PATH_MAX], const char *folder, const char *name)
{
    DSVI_TRY(dsvi_path_join(out, folder, name));
    return dsvi_path_exists(out) ? DSV_OK : dsvi_manifest_verify_part(folder, name);
}

/* Sets *found if `path` is transformer/ or transformer_ema/ of a checkpoint. Then `holder` is the checkpoint
 * folder and *name the name of the model in it. */
static DsvStatus find_checkpoint_of(const char *path, char holder[DSVI_PATH_MAX], const char **name,
                                    bool *found)
{
    static const char *const NAMES[] = {"transformer", "transformer_ema"};
    char manifest[DSVI_PATH_MAX];
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    snprintf(holder, DSVI_PATH_MAX, "%.*s", (int)length, path);
    char *slash = strrchr(holder, '/'), *last = slash ? slash + 1 : holder;
    int i = strcmp(last, NAMES[0]) == 0 ? 0 : strcmp(last, NAMES[1]) == 0 ? 1 : -1;
    if (i < 0)
        return DSV_OK;
    if (slash && slash > holder)
        *slash = 0;
    else
        snprintf(last, 2, "%s", slash ? "" : ".");
    DSVI_TRY(join_if_exists(manifest, holder, "manifest.json"));
    *found = manifest[0] != 0;
    *name = *found ? NAMES[i] : *name;
    return DSV_OK;
}

/* Finds the folder `holder` so that holder/name is the model: the checkpoint that `path` is a part of (this
 * may change *name), `path` itself, or the newest checkpoint if `path` is a run folder. *verified is true if
 * the checksums of the checkpoint were checked. */
static DsvStatus find_holder(const char *path, char holder[DSVI_PATH_MAX], const char **name, bool *found,
                             bool *verified)
{
    char transformer[DSVI_PATH_MAX];
    DSVI_TRY(find_checkpoint_of(path, holder, name, found));
    if (*found)
        return DSV_OK;
    DSVI_TRY(join_if_exists(transformer, path, *name));
    if (transformer[0]) {
        snprintf(holder, DSVI_PATH_MAX, "%s", path);
        *found = true;
        return DSV_OK;
    }
    DSVI_TRY(dsvi_checkpoint_latest(path, NULL, NULL, holder, found));
    *verified = *found;
    return DSV_OK;
}

DsvStatus dsvi_model_refuse_pickle(const char *path)
{
    if (!dsvi_wan_is_pickle(path))
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "%s: %s files are Python pickles, which can run any code when they are read: dsv reads "
                     "weights from safetensors files only",
                     path, strrchr(path, '.'));
}

static DsvStatus find_model_of_file(const char *path, DsviModelPath *out)
{
    char folder[DSVI_PATH_MAX], holder[DSVI_PATH_MAX];
    const char *slash = strrchr(path, '/'), *file = slash ? slash + 1 : path, *name;
    bool found = false;
    DSVI_TRY(dsvi_model_refuse_pickle(path));
    snprintf(folder, sizeof folder, "%.*s", (int)(file - path), path);
    if (!slash)
        snprintf(folder, sizeof folder, ".");
    DSVI_TRY(find_checkpoint_of(folder, holder, &name, &found));
    if (found) {
        snprintf(out->checkpoint, sizeof out->checkpoint, "%s", holder);
        DSVI_TRY(dsvi_path_join(folder, holder, name));
    }
    DSVI_TRY(dsvi_path_join(out->weights, folder, file));
    DSVI_TRY(dsvi_path_join(out->config, folder, "config.json"));
    if (!dsvi_path_exists(out->config))
        out->config[0] = 0;
    return DSV_OK;
}

DsvStatus dsvi_model_find(const char *path, DsviModelPath *out)
{
    char holder[DSVI_PATH_MAX], manifest[DSVI_PATH_MAX];
    const char *name = "transformer";
    bool found = false;
    memset(out, 0, sizeof *out);
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such model folder or file", path);
    if (!dsvi_path_is_folder(path))
        return find_model_of_file(path, out);
    DSVI_TRY(find_holder(path, holder, &name, &found, &out->verified));
    if (found) {
        DSVI_TRY(dsvi_path_join(out->weights, holder, name));
        DSVI_TRY(join_if_exists(manifest, holder, "manifest.json"));
        if (manifest[0]) {
            snprintf(out->checkpoint, sizeof out->checkpoint, "%s", holder);
            DSVI_TRY(part_of_checkpoint(out->sparse, holder, "sparse.safetensors"));
            DSVI_TRY(part_of_checkpoint(out->settings, holder, "config.yaml"));
        }
    } else {
        snprintf(out->weights, sizeof out->weights, "%s", path);
    }
    DSVI_TRY(dsvi_path_join(out->config, out->weights, "config.json"));
    if (found && !dsvi_path_exists(out->config))
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: no such file, expected the sizes of the transformer beside its "
                         "weights",
                         out->config);
    if (!found && !dsvi_path_exists(out->config))
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: not a model: it has neither config.json, transformer/ nor a checkpoint", path);
    const char *part = dsvi_pipeline_part(out->weights);
    if (part)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: %s of a published pipeline, expected its transformer or the whole folder", path,
                         part);
    return DSV_OK;
}

DsvStatus dsvi_model_config(const DsviModelPath *model, DsviDitConfig *out)
{
    if (!model->config[0])
        return dsvi_weights_config(model->weights, out);
    DSVI_TRY(dsvi_dit_config_read(model->config, out));
    return dsvi_weights_find_image(model->weights, out);
}

/* Returns `path`, which is in model->checkpoint, relative to the checkpoint. */
static const char *path_in_checkpoint(const DsviModelPath *model, const char *path)
{
    const char *part = path + strlen(model->checkpoint);
    return part + strspn(part, "/");
}

/* Sets the rows of states that the folder's image encoder computes for a sample, if the folder exists. */
static DsvStatus find_image_len(const DsvConfig *settings, DsviDitConfig *out)
{
    char path[DSVI_PATH_MAX];
    DsviWanFolder folder;
    DsviVitConfig encoder;
    bool found;
    if (out->image_dim == 0 || out->pos_embed_seq_len > 0 || !dsvi_path_exists(settings->model_path))
        return DSV_OK;
    DSVI_TRY(dsvi_wan_folder_find(settings->model_path, settings, &folder, &found));
    if (!found || !folder.part[DSVI_WAN_IMAGE_ENCODER][0])
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(path, folder.part[DSVI_WAN_IMAGE_ENCODER], "config.json"));
    if (!dsvi_path_exists(path))
        return DSV_OK;
    DSVI_TRY(dsvi_vit_config_read(path, &encoder));
    out->image_len = dsvi_vit_rows(&encoder);
    return DSV_OK;
}

DsvStatus dsvi_model_of_options(const DsvConfig *settings, const DsviCodec *codec, DsviModelPath *model,
                                DsviVideoShape *latent, DsviDitConfig *out)
{
    DsviVideoShape video = {3, settings->num_frames, settings->height, settings->width};
    DSVI_TRY(codec->latent_shape(codec, video, latent));
    if (!settings->model_path[0]) {
        DSVI_TRY(dsvi_dit_config_make(settings, out));
        out->in_channels = out->out_channels = latent->channels;
        return DSV_OK;
    }
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_expert_path(settings, path));
    DSVI_TRY(dsvi_model_find(path, model));
    DSVI_TRY(dsvi_model_config(model, out));
    DSVI_TRY(find_image_len(settings, out));
    DsvStatus status = dsvi_dit_check_input(out, codec, *latent);
    return status == DSV_OK ? DSV_OK : dsvi_fail_prefix(status, "model.path=%s", settings->model_path);
}

DsvStatus dsvi_model_of_checkpoint(const DsvConfig *settings, const char *checkpoint, DsviDitConfig *out)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, checkpoint, "transformer/config.json"));
    DSVI_TRY(dsvi_dit_config_read(path, out));
    return find_image_len(settings, out);
}

DsvStatus dsvi_model_verify(const DsviModelPath *model)
{
    const char *const used[] = {model->weights, model->config, model->sparse, model->settings};
    if (!model->checkpoint[0] || model->verified)
        return DSV_OK;
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        if (used[i][0])
            DSVI_TRY(dsvi_manifest_verify_part(model->checkpoint, path_in_checkpoint(model, used[i])));
    return DSV_OK;
}
