/* config.json of a text encoder, with the keys of the package transformers. */
#include <stddef.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "model/model_config.h"
#include "model/umt5/umt5_internal.h"

static const char UMT5_TYPE[] = "umt5", UMT5_CLASS[] = "UMT5";

enum { HEAD_MULTIPLE = 8 };

typedef struct Umt5Field {
    const char *key;
    size_t offset;    /* in DsviUmt5Config */
    int64_t min, max; /* range of values */
    int64_t absent;   /* value that a file without the key means: the default of the package transformers */
} Umt5Field;

/* The largest sizes keep every product of two sizes and the size of a number far below 2^63. */
/* clang-format off */
static const Umt5Field FIELDS[] = {
    {"vocab_size", offsetof(DsviUmt5Config, vocab_size), 1, 100000000, 250112},
    {"d_model", offsetof(DsviUmt5Config, d_model), 1, 100000, 512},
    {"num_heads", offsetof(DsviUmt5Config, num_heads), 1, 1000, 6},
    {"d_kv", offsetof(DsviUmt5Config, d_kv), HEAD_MULTIPLE, 128, 64},
    {"d_ff", offsetof(DsviUmt5Config, d_ff), 1, 1000000, 1024},
    {"num_layers", offsetof(DsviUmt5Config, num_layers), 1, 1000, 8},
    {"relative_attention_num_buckets", offsetof(DsviUmt5Config, buckets), 4, 10000, 32},
    {"relative_attention_max_distance", offsetof(DsviUmt5Config, max_distance), 2, 1000000, 128},
};
/* clang-format on */
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

DsvStatus dsvi_umt5_config_check(const DsviUmt5Config *config, const char *where)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        int64_t value = *(const int64_t *)((const char *)config + FIELDS[i].offset);
        if (value < FIELDS[i].min || value > FIELDS[i].max)
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s is %lld, expected %lld to %lld", where, FIELDS[i].key,
                             (long long)value, (long long)FIELDS[i].min, (long long)FIELDS[i].max);
    }
    if (config->d_kv % HEAD_MULTIPLE)
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: d_kv is %lld, expected a multiple of %d", where,
                         (long long)config->d_kv, HEAD_MULTIPLE);
    if (config->max_distance <= config->buckets / 4)
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: relative_attention_max_distance is %lld, expected more than a quarter of "
                         "relative_attention_num_buckets, %lld",
                         where, (long long)config->max_distance, (long long)config->buckets);
    if (!(config->eps > 0 && config->eps < 1))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: layer_norm_epsilon is %g, expected a number between 0 and 1",
                         where, config->eps);
    return DSV_OK;
}

/* Fails if the file describes another model, or a variant of UMT5 that dsv does not implement. */
static DsvStatus umt5_config_check_variant(const cJSON *object, const char *path)
{
    static const char *const wanted[][2] = {{"feed_forward_proj", "gated-gelu"},
                                            {"dense_act_fn", "gelu_new"}};
    DSVI_TRY(dsvi_model_config_require(object, path, UMT5_TYPE, UMT5_CLASS));
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, wanted[i][0]);
        const char *found = cJSON_GetStringValue(item);
        if (item && (!found || strcmp(found, wanted[i][1]) != 0))
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: %s is %.64s, expected %s", path, wanted[i][0],
                             found ? found : "not a text", wanted[i][1]);
    }
    return DSV_OK;
}

static DsvStatus umt5_config_read_object(const cJSON *object, const char *path, DsviUmt5Config *out)
{
    DSVI_TRY(umt5_config_check_variant(object, path));
    for (int i = 0; i < FIELD_COUNT; i++)
        DSVI_TRY(dsvi_model_config_whole(object, path, FIELDS[i].key, FIELDS[i].absent,
                                         (int64_t *)((char *)out + FIELDS[i].offset)));
    DSVI_TRY(dsvi_model_config_number(object, path, "layer_norm_epsilon", DSVI_UMT5_EPS, &out->eps));
    return dsvi_umt5_config_check(out, path);
}

DsvStatus dsvi_umt5_config_read(const char *path, DsviUmt5Config *out)
{
    cJSON *object;
    memset(out, 0, sizeof *out);
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK)
        status = umt5_config_read_object(object, path, out);
    cJSON_Delete(object);
    return status;
}

static bool umt5_config_is_of_umt5(const char *path)
{
    cJSON *object;
    bool is = dsvi_model_config_parse(path, &object) == DSV_OK &&
              dsvi_model_config_is(object, UMT5_TYPE, UMT5_CLASS);
    cJSON_Delete(object);
    return is;
}

bool dsvi_umt5_is(const char *path)
{
    char config[DSVI_PATH_MAX];
    DsviSafetensors *file;
    bool is = false;
    if (dsvi_path_is_folder(path))
        return dsvi_path_join(config, path, "config.json") == DSV_OK && dsvi_path_exists(config) &&
               umt5_config_is_of_umt5(config);
    if (dsvi_safetensors_open_unmapped(path, &file) != DSV_OK)
        return false;
    for (const char *const *name = dsvi_umt5_embedding; *name; name++)
        is = is || dsvi_safetensors_find(file, *name);
    dsvi_safetensors_close(&file);
    return is;
}
