/* config.json and preprocessor_config.json of an image encoder, with the keys of the package transformers. */
#include <stddef.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "model/model_config.h"
#include "model/vit/vit_internal.h"

static const char VIT_TYPE[] = "clip_vision_model", VIT_CLASS[] = "CLIPVisionModel";

enum { CHANNELS = 3, BICUBIC = 3, EDGE_MAX = 16384 };

typedef struct VitField {
    const char *key;
    size_t offset;    /* in DsviVitConfig */
    int64_t min, max; /* range of values */
    int64_t absent;   /* value that a file without the key means: the default of CLIPVisionConfig */
} VitField;

/* clang-format off */
static const VitField FIELDS[] = {
    {"hidden_size", offsetof(DsviVitConfig, hidden_size), 1, 100000, 768},
    {"intermediate_size", offsetof(DsviVitConfig, intermediate_size), 1, 1000000, 3072},
    {"num_hidden_layers", offsetof(DsviVitConfig, num_hidden_layers), 1, 1000, 12},
    {"num_attention_heads", offsetof(DsviVitConfig, num_attention_heads), 1, 1000, 12},
    {"image_size", offsetof(DsviVitConfig, image_size), 1, EDGE_MAX, 224},
    {"patch_size", offsetof(DsviVitConfig, patch_size), 1, 1024, 32},
    {"num_channels", offsetof(DsviVitConfig, num_channels), CHANNELS, CHANNELS, CHANNELS},
};
/* clang-format on */
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

int64_t dsvi_vit_rows(const DsviVitConfig *config)
{
    const int64_t side = config->image_size / config->patch_size;
    return 1 + side * side;
}

static DsvStatus vit_config_check(const DsviVitConfig *config, const char *path)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        int64_t value = *(const int64_t *)((const char *)config + FIELDS[i].offset);
        if (value < FIELDS[i].min || value > FIELDS[i].max)
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s is %lld, expected %lld to %lld", path, FIELDS[i].key,
                             (long long)value, (long long)FIELDS[i].min, (long long)FIELDS[i].max);
    }
    const int64_t dim = config->hidden_size / config->num_attention_heads;
    if (config->hidden_size % config->num_attention_heads || dim % 2 || dim > DSVI_HEAD_DIM_MAX)
        return DSVI_FAIL(
            DSV_E_UNSUPPORTED,
            "%s: hidden_size is %lld, expected an even multiple of num_attention_heads, %lld, with "
            "at most %d numbers in a head",
            path, (long long)config->hidden_size, (long long)config->num_attention_heads, DSVI_HEAD_DIM_MAX);
    if (config->image_size % config->patch_size)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: image_size is %lld, expected a multiple of patch_size, %lld",
                         path, (long long)config->image_size, (long long)config->patch_size);
    if (!(config->eps > 0 && config->eps < 1))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: layer_norm_eps is %g, expected a number between 0 and 1",
                         path, config->eps);
    return DSV_OK;
}

static DsvStatus vit_read_activation(const cJSON *object, const char *path, DsviActivation *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "hidden_act");
    const char *name = item ? cJSON_GetStringValue(item) : "quick_gelu";
    if (name && strcmp(name, "gelu") == 0)
        *out = DSVI_GELU_ERF;
    else if (name && strcmp(name, "quick_gelu") == 0)
        *out = DSVI_GELU_QUICK;
    else
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: hidden_act is %.64s, expected gelu or quick_gelu", path,
                         name ? name : "not a text");
    return DSV_OK;
}

static DsvStatus vit_config_read_object(const cJSON *object, const char *path, DsviVitConfig *out)
{
    DSVI_TRY(dsvi_model_config_require(object, path, VIT_TYPE, VIT_CLASS));
    for (int i = 0; i < FIELD_COUNT; i++)
        DSVI_TRY(dsvi_model_config_whole(object, path, FIELDS[i].key, FIELDS[i].absent,
                                         (int64_t *)((char *)out + FIELDS[i].offset)));
    DSVI_TRY(dsvi_model_config_number(object, path, "layer_norm_eps", 1e-5, &out->eps));
    DSVI_TRY(vit_read_activation(object, path, &out->activation));
    return vit_config_check(out, path);
}

DsvStatus dsvi_vit_config_read(const char *path, DsviVitConfig *out)
{
    cJSON *object;
    memset(out, 0, sizeof *out);
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK)
        status = vit_config_read_object(object, path, out);
    cJSON_Delete(object);
    return status;
}

bool dsvi_vit_is(const char *path)
{
    char config[DSVI_PATH_MAX];
    cJSON *object = NULL;
    bool is = dsvi_path_is_folder(path) && dsvi_path_join(config, path, "config.json") == DSV_OK &&
              dsvi_path_exists(config) && dsvi_model_config_parse(config, &object) == DSV_OK &&
              dsvi_model_config_is(object, VIT_TYPE, VIT_CLASS);
    cJSON_Delete(object);
    return is;
}

/* Reads a length that is a number, or an object with the key `key`. */
static DsvStatus processor_length(const cJSON *object, const char *path, const char *name, const char *key,
                                  int64_t *length)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    int64_t value = *length;
    if (cJSON_IsObject(item) && !cJSON_GetObjectItemCaseSensitive(item, key))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s has no key %s", path, name, key);
    DSVI_TRY(cJSON_IsObject(item) ? dsvi_model_config_whole(item, path, key, 0, &value)
                                  : dsvi_model_config_whole(object, path, name, value, &value));
    if (value < 1 || value > EDGE_MAX)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s is %lld, expected 1 to %d", path, name, (long long)value,
                         EDGE_MAX);
    *length = value;
    return DSV_OK;
}

static DsvStatus processor_colours(const cJSON *object, const char *path, const char *key, double least,
                                   double value[3])
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    for (int i = 0; item && i < CHANNELS; i++) {
        value[i] = cJSON_GetNumberValue(cJSON_GetArrayItem(item, i)); /* NaN if there is no such number */
        if (!(value[i] >= least && value[i] <= 1e6) || cJSON_GetArraySize(item) != CHANNELS)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a list of three numbers from %g", path, key,
                             least);
    }
    return DSV_OK;
}

static DsvStatus processor_read_object(const cJSON *object, const char *path, DsviVitProcessor *out)
{
    static const char *const STEPS[] = {"do_resize", "do_center_crop", "do_rescale", "do_normalize"};
    int64_t width, resample;
    for (size_t i = 0; i < sizeof STEPS / sizeof *STEPS; i++)
        if (cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(object, STEPS[i])))
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s is false, expected true", path, STEPS[i]);
    DSVI_TRY(dsvi_model_config_whole(object, path, "resample", BICUBIC, &resample));
    if (resample != BICUBIC)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: resample is %lld, expected 3 (bicubic)", path,
                         (long long)resample);
    DSVI_TRY(processor_length(object, path, "size", "shortest_edge", &out->shortest_edge));
    DSVI_TRY(processor_length(object, path, "crop_size", "height", &out->crop));
    width = out->crop;
    DSVI_TRY(processor_length(object, path, "crop_size", "width", &width));
    if (width != out->crop || out->crop > out->shortest_edge)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: crop_size is %lld x %lld, expected a square of at most size, %lld", path,
                         (long long)out->crop, (long long)width, (long long)out->shortest_edge);
    const cJSON *factor = cJSON_GetObjectItemCaseSensitive(object, "rescale_factor");
    out->factor = factor ? cJSON_GetNumberValue(factor) : out->factor;
    if (!(out->factor > 0 && out->factor <= 1))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key rescale_factor is not a number between 0 and 1", path);
    DSVI_TRY(processor_colours(object, path, "image_mean", 0, out->mean));
    return processor_colours(object, path, "image_std", 1e-6, out->std);
}

DsvStatus dsvi_vit_processor_read(const char *path, DsviVitProcessor *out)
{
    cJSON *object;
    *out = (DsviVitProcessor){
        .shortest_edge = 224,
        .crop = 224,
        .factor = 1.0 / 255,
        .mean = {0.48145466, 0.4578275, 0.40821073},
        .std = {0.26862954, 0.26130258, 0.27577711},
    };
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK)
        status = processor_read_object(object, path, out);
    cJSON_Delete(object);
    return status;
}
