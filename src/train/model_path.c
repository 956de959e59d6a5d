/* See model_path.h. */
#include "train/model_path.h"

#include <stdio.h>
#include <string.h>

#include "train/checkpoint.h"

/* out = folder/name if that exists, else "". */
static DsvStatus find_beside(char out[DSVI_PATH_MAX], const char *folder, const char *name)
{
    DSVI_TRY(dsvi_path_join(out, folder, name));
    if (!dsvi_path_exists(out))
        out[0] = 0;
    return DSV_OK;
}

/* Whether `path` is one of the models of a checkpoint, which is its holder then; and which. */
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
    DSVI_TRY(find_beside(manifest, holder, "manifest.json"));
    *found = manifest[0] != 0;
    *name = *found ? NAMES[i] : *name;
    return DSV_OK;
}

/* The folder that holds the model `path` leads to, under `name`: itself, or a run's newest checkpoint, or the
 * checkpoint it is a part of, where `name` is changed if need be. */
static DsvStatus find_holder(const char *path, char holder[DSVI_PATH_MAX], const char **name, bool *found)
{
    char transformer[DSVI_PATH_MAX];
    DSVI_TRY(find_checkpoint_of(path, holder, name, found));
    if (*found)
        return DSV_OK;
    DSVI_TRY(find_beside(transformer, path, *name));
    if (transformer[0]) {
        snprintf(holder, DSVI_PATH_MAX, "%s", path);
        *found = true;
        return DSV_OK;
    }
    return dsvi_checkpoint_latest(path, NULL, NULL, holder, found);
}

static DsvStatus find_in_file(const char *path, DsvModelPath *out)
{
    char folder[DSVI_PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    snprintf(out->weights, sizeof out->weights, "%s", path);
    return dsvi_path_join(out->config, slash ? folder : ".", "config.json");
}

DsvStatus dsvi_model_find(const char *path, DsvModelPath *out)
{
    char holder[DSVI_PATH_MAX], manifest[DSVI_PATH_MAX];
    const char *name = "transformer";
    bool found = false;
    memset(out, 0, sizeof *out);
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no such model folder or file", path);
    if (!dsvi_path_is_folder(path))
        return find_in_file(path, out);
    DSVI_TRY(find_holder(path, holder, &name, &found));
    if (found) {
        DSVI_TRY(dsvi_path_join(out->weights, holder, name));
        DSVI_TRY(find_beside(manifest, holder, "manifest.json"));
        if (manifest[0]) {
            snprintf(out->checkpoint, sizeof out->checkpoint, "%s", holder);
            DSVI_TRY(find_beside(out->sparse, holder, "sparse.safetensors"));
            DSVI_TRY(find_beside(out->settings, holder, "config.yaml"));
        }
    } else {
        snprintf(out->weights, sizeof out->weights, "%s", path);
    }
    DSVI_TRY(dsvi_path_join(out->config, out->weights, "config.json"));
    if (!dsvi_path_exists(out->config))
        return DSVI_FAIL(DSV_E_NOT_FOUND,
                         "%s: not a model: it has neither config.json, transformer/ nor a checkpoint", path);
    return DSV_OK;
}
