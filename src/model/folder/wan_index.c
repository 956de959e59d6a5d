/* Reads what the JSON files of a published folder say about the kind of model (wan_parts.h). */
#include <stdio.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "model/folder/wan_parts.h"
#include "model/model_config.h"

enum { WHERE_BYTES = 256 };

/* Values of _class_name in model_index.json that stand for an unsupported kind of model. */
static const char *const PIPELINES[][2] = {
    {"WanVACEPipeline", "a VACE model (control video)"},
    {"WanVideoToVideoPipeline", "a video-to-video pipeline"},
    {"WanAnimatePipeline", "a Wan Animate model"},
};

/* Parts in model_index.json with the only class that dsv implements. The scheduler's class is checked with
 * its own file, and tokenizers of all classes have the same files. */
static const char *const CLASSES[][2] = {
    {"transformer", "WanTransformer3DModel"},
    {"transformer_2", "WanTransformer3DModel"},
    {"vae", "AutoencoderKLWan"},
    {"text_encoder", "UMT5EncoderModel"},
    {"image_encoder", "CLIPVisionModel"},
};

void dsvi_wan_refuse(DsviWanFolder *folder, const char *where, const char *variant)
{
    if (folder->refused)
        return;
    folder->refused = true;
    snprintf(
        folder->refusal, sizeof folder->refusal,
        "%s: this is %s, which dsv does not support yet: only text-to-video and image-to-video models of "
        "Wan 2.1 and 2.2",
        where, variant);
}

/* Returns whether a key is there with a value other than null and false. */
static bool wan_key_is_set(const cJSON *object, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    return item && !cJSON_IsNull(item) && !cJSON_IsFalse(item);
}

/* Returns the class of a part in model_index.json: the second of ["library", "class"]. NULL if there is none.
 */
static const char *wan_part_class(const cJSON *object, const char *part)
{
    return cJSON_GetStringValue(cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(object, part), 1));
}

static void refuse_by_index(DsviWanFolder *folder, const cJSON *object)
{
    char phrase[WHERE_BYTES];
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "_class_name"));
    for (size_t i = 0; name && i < sizeof PIPELINES / sizeof *PIPELINES; i++)
        if (strcmp(name, PIPELINES[i][0]) == 0)
            dsvi_wan_refuse(folder, "model_index.json: _class_name", PIPELINES[i][1]);
    if (!name || (strcmp(name, "WanPipeline") != 0 && strcmp(name, "WanImageToVideoPipeline") != 0)) {
        snprintf(phrase, sizeof phrase, "a pipeline of class %.64s", name ? name : "(none)");
        dsvi_wan_refuse(folder, "model_index.json", phrase);
    }
    for (size_t i = 0; i < sizeof CLASSES / sizeof *CLASSES; i++) {
        const char *found = wan_part_class(object, CLASSES[i][0]);
        if (!found || strcmp(found, CLASSES[i][1]) == 0)
            continue;
        snprintf(phrase, sizeof phrase, "a pipeline whose %s is a %.64s instead of a %s", CLASSES[i][0],
                 found, CLASSES[i][1]);
        dsvi_wan_refuse(folder, "model_index.json", phrase);
    }
}

/* Finds whether the model has two experts. */
static DsvStatus read_experts(DsviWanFolder *folder, const char *path, const cJSON *object)
{
    const cJSON *ratio = cJSON_GetObjectItemCaseSensitive(object, "boundary_ratio");
    bool bounded = ratio && !cJSON_IsNull(ratio), second = wan_part_class(object, "transformer_2") != NULL;
    folder->expand_timesteps = wan_key_is_set(object, "expand_timesteps");
    if (bounded && !second)
        return DSVI_FAIL(
            DSV_E_FORMAT,
            "%s: boundary_ratio is set and transformer_2 is not, expected both for a model of two "
            "experts or null for both",
            path);
    if (second && !bounded)
        return DSVI_FAIL(
            DSV_E_FORMAT,
            "%s: transformer_2 is set and boundary_ratio is not, expected both for a model of two "
            "experts or null for both",
            path);
    if (bounded && !(cJSON_IsNumber(ratio) && ratio->valuedouble >= 0 && ratio->valuedouble <= 1))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: boundary_ratio is not a number from 0 to 1", path);
    folder->two_experts = bounded;
    folder->boundary_ratio = bounded ? ratio->valuedouble : 0;
    return DSV_OK;
}

DsvStatus dsvi_wan_index_read(DsviWanFolder *folder)
{
    char path[DSVI_PATH_MAX];
    cJSON *object;
    DSVI_TRY(dsvi_path_join(path, folder->path, "model_index.json"));
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK) {
        refuse_by_index(folder, object);
        status = folder->refused ? DSV_OK : read_experts(folder, path, object);
    }
    cJSON_Delete(object);
    return status;
}
