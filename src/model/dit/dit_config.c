/* Shapes of Wan transformers: presets, ranges, and config.json with the keys of diffusers or of the original
 * Wan code.
 *
 * One table has for each field its keys, its range, and the value that the field has if a file lacks the
 * key. The published models agree on these values. */
#include "model/dit/dit_config.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"
#include "model/model_config.h"

enum {
    PATCH_MAX = 64,
    PUBLISHED_ROWS = 257 /* of a picture, computed by CLIP ViT-H */
};

typedef struct Field {
    const char *name;     /* key of diffusers; the option is model.NAME */
    const char *original; /* key of the Wan repository; NULL: it has none */
    size_t offset;        /* in DsviDitConfig */
    int64_t min, max;     /* range of values */
    int64_t absent;       /* value that a file without the key means; 0: the key is required */
} Field;

/* This macro is laid out by hand: clang-format 14 takes the braces of its initializer for a block. */
/* clang-format off */
#define FIELD(name, original, min, max, absent) \
    {#name, original, offsetof(DsviDitConfig, name), min, max, absent}
/* clang-format on */

static const Field FIELDS[] = {
    FIELD(num_layers, "num_layers", 1, 1000, 0),
    FIELD(num_attention_heads, "num_heads", 1, 1000, 0),
    FIELD(attention_head_dim, NULL, 32, 256, 0),
    FIELD(ffn_dim, "ffn_dim", 1, 1000000, 0),
    FIELD(freq_dim, "freq_dim", 2, 1000000, 256),
    FIELD(text_dim, "text_dim", 1, 1000000, 4096),
    {"dsv_text_len", "text_len", offsetof(DsviDitConfig, text_len), 1, 100000, 512},
    FIELD(in_channels, "in_dim", 1, 1000000, 0),
    FIELD(out_channels, "out_dim", 1, 1000000, 0),
    FIELD(rope_max_seq_len, "rope_max_seq_len", 1, 1000000000, 1024),
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

static int64_t *value_of(DsviDitConfig *config, const Field *field)
{
    return (int64_t *)((char *)config + field->offset);
}

static int64_t value_in(const DsviDitConfig *config, const Field *field)
{
    return *(const int64_t *)((const char *)config + field->offset);
}

int64_t dsvi_dit_image_len(const DsviDitConfig *config)
{
    int64_t rows = config->pos_embed_seq_len > 0 ? config->pos_embed_seq_len : PUBLISHED_ROWS;
    return config->image_dim == 0 ? 0 : config->image_len > 0 ? config->image_len : rows;
}

static DsvStatus check_image(const DsviDitConfig *config, const char *where)
{
    enum { IMAGE_MAX = 1000000 };
    if (config->image_dim < 0 || config->image_dim > IMAGE_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%s: image_dim is %lld, expected at most %d", where,
                         (long long)config->image_dim, IMAGE_MAX);
    if (config->pos_embed_seq_len < 0 || config->pos_embed_seq_len > IMAGE_MAX ||
        (config->pos_embed_seq_len > 0 && config->image_dim == 0))
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: pos_embed_seq_len is %lld, expected at most %d, and null without %s", where,
                         (long long)config->pos_embed_seq_len, IMAGE_MAX, "image_dim");
    return DSV_OK;
}

DsvStatus dsvi_dit_config_check(const DsviDitConfig *config, const char *where)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        const Field *field = &FIELDS[i];
        int64_t value = value_in(config, field);
        if (value < field->min || value > field->max)
            return DSVI_FAIL(DSV_E_USAGE, "%s: %s is %lld, expected %lld to %lld", where, field->name,
                             (long long)value, (long long)field->min, (long long)field->max);
    }
    if (config->attention_head_dim % 2)
        return DSVI_FAIL(DSV_E_USAGE, "%s: attention_head_dim is %lld, expected an even number", where,
                         (long long)config->attention_head_dim);
    if (config->freq_dim % 2)
        return DSVI_FAIL(DSV_E_USAGE, "%s: freq_dim is %lld, expected an even number", where,
                         (long long)config->freq_dim);
    for (int i = 0; i < 3; i++)
        if (config->patch[i] < 1 || config->patch[i] > PATCH_MAX)
            return DSVI_FAIL(DSV_E_USAGE, "%s: patch_size[%d] is %lld, expected 1 to %d", where, i,
                             (long long)config->patch[i], PATCH_MAX);
    DSVI_TRY(check_image(config, where));
    if (!(config->eps > 0 && config->eps < 1))
        return DSVI_FAIL(DSV_E_USAGE, "%s: eps is %g, expected a number between 0 and 1", where, config->eps);
    return DSV_OK;
}

static DsvStatus differs(const char *where, const char *name, double found, double wanted)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s: %s is %g, this model's is %g", where, name, found, wanted);
}

DsvStatus dsvi_dit_config_compare(const DsviDitConfig *found, const DsviDitConfig *wanted, const char *where)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        int64_t in_file = value_in(found, &FIELDS[i]), expected = value_in(wanted, &FIELDS[i]);
        if (in_file != expected)
            return differs(where, FIELDS[i].name, (double)in_file, (double)expected);
    }
    for (int i = 0; i < 3; i++)
        if (found->patch[i] != wanted->patch[i])
            return differs(where, "patch_size", (double)found->patch[i], (double)wanted->patch[i]);
    if (found->image_dim != wanted->image_dim)
        return differs(where, "image_dim", (double)found->image_dim, (double)wanted->image_dim);
    if (found->pos_embed_seq_len != wanted->pos_embed_seq_len)
        return differs(where, "pos_embed_seq_len", (double)found->pos_embed_seq_len,
                       (double)wanted->pos_embed_seq_len);
    return found->eps == wanted->eps ? DSV_OK : differs(where, "eps", found->eps, wanted->eps);
}

typedef struct Preset {
    const char *name;
    int64_t layers, heads, head_dim, ffn, freq, text_dim, text_len;
} Preset;

/* demo is a model that two CPU cores can train in minutes, for text rows that are all zero. Its width is 4 x
 * 96, the number of latent elements of a token with the haar codec's default options: the predicted velocity
 * contains the noise of all these elements, and a narrower residual stream could not carry it from input to
 * output. wan1.3b and wan14b are the published models. The others have the shapes in table 1 of the DSV
 * paper, with a Wan feed-forward layer of four times the width. */
static const Preset PRESETS[] = {
    {"demo", 4, 6, 64, 1536, 64, 32, 4},
    {"wan1.3b", 30, 12, 128, 8960, 256, 4096, 512},
    {"wan14b", 40, 40, 128, 13824, 256, 4096, 512},
    {"dsv0.8b", 28, 12, 96, 4 * 12 * 96, 256, 4096, 512},
    {"dsv2.7b", 32, 16, 128, 4 * 16 * 128, 256, 4096, 512},
    {"dsv30b", 42, 24, 256, 4 * 24 * 256, 256, 4096, 512},
};

/* Replaces *value, which comes from the preset, by the value of an option, unless the option is 0. */
static void override(int64_t *value, int64_t option)
{
    if (option != 0)
        *value = option;
}

DsvStatus dsvi_dit_config_make(const DsvConfig *settings, DsviDitConfig *out)
{
    const Preset *preset = NULL;
    for (size_t i = 0; i < sizeof PRESETS / sizeof *PRESETS; i++)
        if (strcmp(PRESETS[i].name, settings->model_preset) == 0)
            preset = &PRESETS[i];
    if (!preset)
        return DSVI_FAIL(DSV_E_USAGE, "model.preset: there is no preset %s", settings->model_preset);
    *out = (DsviDitConfig){
        .num_layers = preset->layers,
        .num_attention_heads = preset->heads,
        .attention_head_dim = preset->head_dim,
        .ffn_dim = preset->ffn,
        .freq_dim = preset->freq,
        .text_dim = preset->text_dim,
        .text_len = preset->text_len,
        .in_channels = 16,
        .out_channels = 16,
        .patch = {1, 2, 2},
        .rope_max_seq_len = 1024,
        .eps = 1e-6,
    };
    override(&out->num_layers, settings->model_num_layers);
    override(&out->num_attention_heads, settings->model_num_attention_heads);
    override(&out->attention_head_dim, settings->model_attention_head_dim);
    override(&out->ffn_dim, settings->model_ffn_dim);
    override(&out->text_dim, settings->model_text_dim);
    override(&out->text_len, settings->model_text_len);
    return dsvi_dit_config_check(out, "model");
}

/* Reads a whole number. If the key is missing or null, the number is `absent`; if `absent` is 0, a missing
 * key is an error. */
static DsvStatus dit_config_read_whole(const cJSON *object, const char *path, const char *key, int64_t absent,
                                       int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = absent;
    if ((!item || cJSON_IsNull(item)) && absent != 0)
        return DSV_OK;
    if (!item)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is missing", path, key);
    double value = cJSON_GetNumberValue(item); /* NaN if the item is no number */
    if (!(value >= 0 && value <= 1e15 && value == floor(value)))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is not a whole number", path, key);
    *out = (int64_t)value;
    return DSV_OK;
}

static DsvStatus read_patch(const cJSON *object, const char *path, int64_t patch[3])
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "patch_size");
    const int64_t published[3] = {1, 2, 2};
    memcpy(patch, published, sizeof published);
    if (!item)
        return DSV_OK;
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 3)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key patch_size is not a list of three numbers", path);
    for (int i = 0; i < 3; i++) {
        double value = cJSON_GetNumberValue(cJSON_GetArrayItem(item, i));
        if (!(value >= 1 && value <= PATCH_MAX && value == floor(value)))
            return DSVI_FAIL(DSV_E_FORMAT, "%s: patch_size[%d] is not a whole number from 1 to %d", path, i,
                             PATCH_MAX);
        patch[i] = (int64_t)value;
    }
    return DSV_OK;
}

static DsvStatus read_eps(const cJSON *object, const char *path, double *eps)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "eps");
    *eps = 1e-6;
    if (item && !cJSON_IsNumber(item))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key eps is not a number", path);
    if (item)
        *eps = cJSON_GetNumberValue(item);
    return DSV_OK;
}

static bool text_equals(const cJSON *item, const char *wanted)
{
    const char *text = cJSON_GetStringValue(item);
    return text && strcmp(text, wanted) == 0;
}

/* Returns the text of a JSON item, for an error message. */
static const char *text_of(const cJSON *item)
{
    return cJSON_IsString(item) ? cJSON_GetStringValue(item) : "not a text";
}

/* Fails if the file describes a variant of the model that dsv does not implement. */
static DsvStatus check_variant(const cJSON *object, const char *path)
{
    static const char *const VARIANTS[][2] = {
        {"vace_layers", "a VACE model (control video)"},
        {"vace_in_channels", "a VACE model (control video)"},
        {"vace_in_dim", "a VACE model (control video)"},
    };
    const cJSON *item;
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++) {
        item = cJSON_GetObjectItemCaseSensitive(object, VARIANTS[i][0]);
        if (item && !cJSON_IsNull(item))
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: key %s is set, as in %s, which dsv does not support",
                             path, VARIANTS[i][0], VARIANTS[i][1]);
    }
    item = cJSON_GetObjectItemCaseSensitive(object, "_class_name");
    if (item && !text_equals(item, "WanTransformer3DModel") && !text_equals(item, "WanModel"))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: _class_name is %s, expected WanTransformer3DModel or WanModel", path,
                         text_of(item));
    /* A ti2v transformer that gets only text computes the same as a t2v one. */
    item = cJSON_GetObjectItemCaseSensitive(object, "model_type");
    if (item && !text_equals(item, "t2v") && !text_equals(item, "ti2v") && !text_equals(item, "i2v") &&
        !text_equals(item, "flf2v"))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: model_type is %s, expected t2v, i2v, flf2v or ti2v", path,
                         text_of(item));
    item = cJSON_GetObjectItemCaseSensitive(object, "qk_norm");
    if (item && !cJSON_IsTrue(item) && !text_equals(item, "rms_norm_across_heads"))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: qk_norm is not rms_norm_across_heads", path);
    item = cJSON_GetObjectItemCaseSensitive(object, "cross_attn_norm");
    if (item && !cJSON_IsTrue(item))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: cross_attn_norm is not true", path);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(object, "window_size"))
        if (cJSON_GetNumberValue(item) != -1)
            return DSVI_FAIL(DSV_E_UNSUPPORTED,
                             "%s: window_size is not [-1, -1]: only global attention is "
                             "supported",
                             path);
    return DSV_OK;
}

/* Fails for models with fewer input than output channels. Image-to-video models have more input than output
 * channels: they take an encoded picture and its mask in the additional channels. Those of Wan 2.2 can be
 * recognised by no other key. */
static DsvStatus check_image_channels(const DsviDitConfig *config, bool original, const char *path)
{
    if (config->in_channels >= config->out_channels)
        return DSV_OK;
    return DSVI_FAIL(
        DSV_E_UNSUPPORTED,
        "%s: %s is %lld and %s is %lld: expected as many input as output channels, or more as in "
        "an image-to-video model",
        path, original ? "in_dim" : "in_channels", (long long)config->in_channels,
        original ? "out_dim" : "out_channels", (long long)config->out_channels);
}

/* Reads the keys of diffusers about image rows, which may be missing or null. The original code has no such
 * keys; dsvi_weights_find_image takes their values from the weights. */
static DsvStatus read_image_fields(const cJSON *object, const char *path, DsviDitConfig *out)
{
    static const char *const KEYS[] = {"image_dim", "added_kv_proj_dim", "pos_embed_seq_len"};
    int64_t value[3] = {0};
    for (int i = 0; i < 3; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, KEYS[i]);
        if (item && !cJSON_IsNull(item))
            DSVI_TRY(dit_config_read_whole(object, path, KEYS[i], 0, &value[i]));
    }
    out->image_dim = value[0];
    out->pos_embed_seq_len = value[2];
    if (value[1] != (value[0] ? dsvi_dit_width(out) : 0))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: added_kv_proj_dim is %lld, expected %lld: the model's width, and null without "
                         "image_dim",
                         path, (long long)value[1], (long long)(value[0] ? dsvi_dit_width(out) : 0));
    return DSV_OK;
}

static DsvStatus read_fields(const cJSON *object, const char *path, DsviDitConfig *out)
{
    bool original = cJSON_HasObjectItem(object, "num_heads") && cJSON_HasObjectItem(object, "dim");
    if (!original && !cJSON_HasObjectItem(object, "num_attention_heads"))
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: not the shape of a Wan transformer: neither num_attention_heads "
                         "(diffusers) nor dim and num_heads (original) is there",
                         path);
    for (int i = 0; i < FIELD_COUNT; i++) {
        const char *key = original ? FIELDS[i].original : FIELDS[i].name;
        if (key)
            DSVI_TRY(dit_config_read_whole(object, path, key, FIELDS[i].absent, value_of(out, &FIELDS[i])));
    }
    if (original) { /* files with original keys store the width; the head size follows from it */
        int64_t width, heads = out->num_attention_heads;
        DSVI_TRY(dit_config_read_whole(object, path, "dim", 0, &width));
        if (heads < 1 || width % heads)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: dim is %lld, not a multiple of num_heads, %lld", path,
                             (long long)width, (long long)heads);
        out->attention_head_dim = width / heads;
    }
    DSVI_TRY(read_image_fields(object, path, out));
    DSVI_TRY(check_image_channels(out, original, path));
    DSVI_TRY(read_patch(object, path, out->patch));
    DSVI_TRY(read_eps(object, path, &out->eps));
    return dsvi_dit_config_check(out, path);
}

static DsvStatus read_object(const cJSON *object, const char *path, DsviDitConfig *out)
{
    DSVI_TRY(check_variant(object, path));
    return read_fields(object, path, out);
}

DsvStatus dsvi_dit_config_read(const char *path, DsviDitConfig *out)
{
    cJSON *object;
    memset(out, 0, sizeof *out);
    DsvStatus status = dsvi_model_config_parse(path, &object);
    if (status == DSV_OK)
        status = read_object(object, path, out);
    cJSON_Delete(object);
    return status;
}

/* Adds the keys of config.json that diffusers writes, and dsv_text_len, to `object`. Returns false if memory
 * runs out. */
static bool fill_object(const DsviDitConfig *config, cJSON *object)
{
    const struct {
        const char *key;
        int64_t value; /* 0: null */
    } IMAGE[] = {
        {"added_kv_proj_dim", config->image_dim ? dsvi_dit_width(config) : 0},
        {"image_dim", config->image_dim},
        {"pos_embed_seq_len", config->pos_embed_seq_len},
    };
    bool ok = cJSON_AddStringToObject(object, "_class_name", "WanTransformer3DModel") &&
              cJSON_AddStringToObject(object, "_diffusers_version", "0.35.0") &&
              cJSON_AddTrueToObject(object, "cross_attn_norm") &&
              cJSON_AddNumberToObject(object, "eps", config->eps) &&
              cJSON_AddStringToObject(object, "qk_norm", "rms_norm_across_heads");
    for (size_t i = 0; i < sizeof IMAGE / sizeof *IMAGE; i++)
        ok = ok && (IMAGE[i].value ? cJSON_AddNumberToObject(object, IMAGE[i].key, (double)IMAGE[i].value)
                                   : cJSON_AddNullToObject(object, IMAGE[i].key));
    for (int i = 0; i < FIELD_COUNT; i++)
        ok = ok && cJSON_AddNumberToObject(object, FIELDS[i].name, (double)value_in(config, &FIELDS[i]));
    cJSON *patch = cJSON_AddArrayToObject(object, "patch_size");
    for (int i = 0; i < 3; i++)
        ok = ok && patch && cJSON_AddItemToArray(patch, cJSON_CreateNumber((double)config->patch[i]));
    return ok;
}

DsvStatus dsvi_dit_config_write(const char *path, const DsviDitConfig *config)
{
    DsvStatus status;
    cJSON *object = cJSON_CreateObject();
    char *text = object && fill_object(config, object) ? cJSON_Print(object) : NULL;
    if (text)
        status = dsvi_file_write(path, text, strlen(text));
    else
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the text of the file", path);
    cJSON_free(text);
    cJSON_Delete(object);
    return status;
}
