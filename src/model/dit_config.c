/* Shapes of Wan transformers: presets, ranges, and config.json with the keys of diffusers or of the
 * original Wan code.
 *
 * One table of fields says for each number what it is called where, what it may be, and what it is in
 * files that leave it out (the published models agree on those). */
#include "model/dit_config.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

enum { CONFIG_BYTES_MAX = 1 << 20, PATCH_MAX = 64 };

typedef struct Field {
    const char *name;     /* diffusers' key; the settings' too, behind "model." */
    const char *original; /* the Wan repository's; NULL: it has none */
    size_t offset;        /* in DsvDitConfig */
    int64_t least, most;
    int64_t absent;       /* its value where a file leaves it out; 0: no file may */
} Field;

#define FIELD(name, original, least, most, absent) \
    {#name, original, offsetof(DsvDitConfig, name), least, most, absent}

static const Field FIELDS[] = {
    FIELD(num_layers, "num_layers", 1, 1000, 0),
    FIELD(num_attention_heads, "num_heads", 1, 1000, 0),
    FIELD(attention_head_dim, NULL, 32, 256, 0),
    FIELD(ffn_dim, "ffn_dim", 1, 1000000, 0),
    FIELD(freq_dim, "freq_dim", 2, 1000000, 256),
    FIELD(text_dim, "text_dim", 1, 1000000, 4096),
    {"dsv_text_len", "text_len", offsetof(DsvDitConfig, text_len), 1, 100000, 512},
    FIELD(in_channels, "in_dim", 1, 1000000, 0),
    FIELD(out_channels, "out_dim", 1, 1000000, 0),
    FIELD(rope_max_seq_len, "rope_max_seq_len", 1, 1000000000, 1024),
};
enum { FIELD_COUNT = sizeof FIELDS / sizeof *FIELDS };

static int64_t *value_of(DsvDitConfig *config, const Field *field)
{
    return (int64_t *)((char *)config + field->offset);
}

static int64_t value_in(const DsvDitConfig *config, const Field *field)
{
    return *(const int64_t *)((const char *)config + field->offset);
}

DsvStatus dsvi_dit_config_check(const DsvDitConfig *config, const char *where)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        const Field *field = &FIELDS[i];
        int64_t value = value_in(config, field);
        if (value < field->least || value > field->most)
            return DSVI_FAIL(DSV_E_USAGE, "%s: %s is %lld, wanted %lld to %lld", where, field->name,
                             (long long)value, (long long)field->least, (long long)field->most);
    }
    if (config->attention_head_dim % 2)
        return DSVI_FAIL(DSV_E_USAGE, "%s: attention_head_dim is %lld, wanted an even number", where,
                         (long long)config->attention_head_dim);
    if (config->freq_dim % 2)
        return DSVI_FAIL(DSV_E_USAGE, "%s: freq_dim is %lld, wanted an even number", where,
                         (long long)config->freq_dim);
    for (int i = 0; i < 3; i++)
        if (config->patch[i] < 1 || config->patch[i] > PATCH_MAX)
            return DSVI_FAIL(DSV_E_USAGE, "%s: patch_size[%d] is %lld, wanted 1 to %d", where, i,
                             (long long)config->patch[i], PATCH_MAX);
    if (!(config->eps > 0 && config->eps < 1))
        return DSVI_FAIL(DSV_E_USAGE, "%s: eps is %g, wanted a number between 0 and 1", where, config->eps);
    return DSV_OK;
}

static DsvStatus differs(const char *where, const char *name, double found, double wanted)
{
    return DSVI_FAIL(DSV_E_USAGE, "%s: %s is %g, this model's is %g", where, name, found, wanted);
}

DsvStatus dsvi_dit_config_compare(const DsvDitConfig *found, const DsvDitConfig *wanted, const char *where)
{
    for (int i = 0; i < FIELD_COUNT; i++) {
        int64_t there = value_in(found, &FIELDS[i]), here = value_in(wanted, &FIELDS[i]);
        if (there != here)
            return differs(where, FIELDS[i].name, (double)there, (double)here);
    }
    for (int i = 0; i < 3; i++)
        if (found->patch[i] != wanted->patch[i])
            return differs(where, "patch_size", (double)found->patch[i], (double)wanted->patch[i]);
    return found->eps == wanted->eps ? DSV_OK : differs(where, "eps", found->eps, wanted->eps);
}

typedef struct Preset {
    const char *name;
    int64_t layers, heads, head_dim, ffn, freq, text_dim, text_len;
} Preset;

/* The published models; the shapes of the DSV paper's table 1 with a Wan feed-forward layer of four times
 * the width; and a model two CPU cores can train in minutes, made for text rows that are all zero. Its width
 * is the 4 x 96 numbers that a token stands for in the haar codec's default latent: a velocity holds the
 * noise of all of them, and a narrower residual stream cannot bring it from end to end. */
static const Preset PRESETS[] = {
    {"demo", 4, 6, 64, 1536, 64, 32, 4},
    {"wan1.3b", 30, 12, 128, 8960, 256, 4096, 512},
    {"wan14b", 40, 40, 128, 13824, 256, 4096, 512},
    {"dsv0.8b", 28, 12, 96, 4 * 12 * 96, 256, 4096, 512},
    {"dsv2.7b", 32, 16, 128, 4 * 16 * 128, 256, 4096, 512},
    {"dsv30b", 42, 24, 256, 4 * 24 * 256, 256, 4096, 512},
};

static void override(int64_t *value, int64_t setting)
{
    if (setting != 0)
        *value = setting;
}

DsvStatus dsvi_dit_config_make(const DsvConfig *settings, DsvDitConfig *out)
{
    const Preset *preset = NULL;
    for (size_t i = 0; i < sizeof PRESETS / sizeof *PRESETS; i++)
        if (strcmp(PRESETS[i].name, settings->model_preset) == 0)
            preset = &PRESETS[i];
    if (!preset)
        return DSVI_FAIL(DSV_E_USAGE, "model.preset: there is no preset %s", settings->model_preset);
    *out = (DsvDitConfig){
        .num_layers = preset->layers, .num_attention_heads = preset->heads,
        .attention_head_dim = preset->head_dim, .ffn_dim = preset->ffn, .freq_dim = preset->freq,
        .text_dim = preset->text_dim, .text_len = preset->text_len, .in_channels = 16, .out_channels = 16,
        .patch = {1, 2, 2}, .rope_max_seq_len = 1024, .eps = 1e-6,
    };
    override(&out->num_layers, settings->model_num_layers);
    override(&out->num_attention_heads, settings->model_num_attention_heads);
    override(&out->attention_head_dim, settings->model_attention_head_dim);
    override(&out->ffn_dim, settings->model_ffn_dim);
    override(&out->text_dim, settings->model_text_dim);
    override(&out->text_len, settings->model_text_len);
    return dsvi_dit_config_check(out, "model");
}

/* A whole number; where the key is absent or null, `absent` stands, unless that is 0. */
static DsvStatus read_whole(const cJSON *object, const char *path, const char *key, int64_t absent,
                            int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    *out = absent;
    if ((!item || cJSON_IsNull(item)) && absent != 0)
        return DSV_OK;
    if (!item)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: key %s is missing", path, key);
    double value = cJSON_GetNumberValue(item); /* NaN for what is no number */
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

static bool says(const cJSON *item, const char *wanted)
{
    const char *text = cJSON_GetStringValue(item);
    return text && strcmp(text, wanted) == 0;
}

/* For messages. */
static const char *text_of(const cJSON *item)
{
    return cJSON_IsString(item) ? cJSON_GetStringValue(item) : "not a text";
}

/* Refuses values that ask for a computation which this engine does not do. */
static DsvStatus refuse_variants(const cJSON *object, const char *path)
{
    static const char *const ABSENT[] = {"image_dim", "added_kv_proj_dim", "pos_embed_seq_len",
                                         "vace_layers", "vace_in_channels", "vace_in_dim"};
    const cJSON *item;
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT; i++) {
        item = cJSON_GetObjectItemCaseSensitive(object, ABSENT[i]);
        if (item && !cJSON_IsNull(item))
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: key %s is set: only text-to-video models are supported",
                             path, ABSENT[i]);
    }
    item = cJSON_GetObjectItemCaseSensitive(object, "_class_name");
    if (item && !says(item, "WanTransformer3DModel") && !says(item, "WanModel"))
        return DSVI_FAIL(DSV_E_UNSUPPORTED,
                         "%s: _class_name is %s, wanted WanTransformer3DModel or WanModel", path,
                         text_of(item));
    /* A ti2v transformer given text alone computes what a t2v one does. */
    item = cJSON_GetObjectItemCaseSensitive(object, "model_type");
    if (item && !says(item, "t2v") && !says(item, "ti2v"))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: model_type is %s, wanted t2v", path, text_of(item));
    item = cJSON_GetObjectItemCaseSensitive(object, "qk_norm");
    if (item && !cJSON_IsTrue(item) && !says(item, "rms_norm_across_heads"))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: qk_norm is not rms_norm_across_heads", path);
    item = cJSON_GetObjectItemCaseSensitive(object, "cross_attn_norm");
    if (item && !cJSON_IsTrue(item))
        return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: cross_attn_norm is not true", path);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(object, "window_size"))
        if (cJSON_GetNumberValue(item) != -1)
            return DSVI_FAIL(DSV_E_UNSUPPORTED, "%s: window_size is not [-1, -1]: only global attention is "
                             "supported", path);
    return DSV_OK;
}

/* A Wan model with more input than output channels takes an image, encoded and masked, in the channels beyond
 * the latent's. Wan2.2's image-to-video models show this in no other key. */
static DsvStatus refuse_image_channels(const DsvDitConfig *config, bool original, const char *path)
{
    if (config->in_channels == config->out_channels)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "%s: %s is %lld and %s is %lld: image-conditioned models are not "
                     "supported, only text-to-video models, which have as many input as output channels",
                     path, original ? "in_dim" : "in_channels", (long long)config->in_channels,
                     original ? "out_dim" : "out_channels", (long long)config->out_channels);
}

static DsvStatus read_fields(const cJSON *object, const char *path, DsvDitConfig *out)
{
    bool original = cJSON_HasObjectItem(object, "num_heads") && cJSON_HasObjectItem(object, "dim");
    if (!original && !cJSON_HasObjectItem(object, "num_attention_heads"))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not the shape of a Wan transformer: neither num_attention_heads "
                         "(diffusers) nor dim and num_heads (original) is there", path);
    for (int i = 0; i < FIELD_COUNT; i++) {
        const char *key = original ? FIELDS[i].original : FIELDS[i].name;
        if (key)
            DSVI_TRY(read_whole(object, path, key, FIELDS[i].absent, value_of(out, &FIELDS[i])));
    }
    if (original) { /* the width is stored, the head size follows */
        int64_t width, heads = out->num_attention_heads;
        DSVI_TRY(read_whole(object, path, "dim", 0, &width));
        if (heads < 1 || width % heads)
            return DSVI_FAIL(DSV_E_FORMAT, "%s: dim is %lld, not a multiple of num_heads, %lld", path,
                             (long long)width, (long long)heads);
        out->attention_head_dim = width / heads;
    }
    DSVI_TRY(refuse_image_channels(out, original, path));
    DSVI_TRY(read_patch(object, path, out->patch));
    DSVI_TRY(read_eps(object, path, &out->eps));
    return dsvi_dit_config_check(out, path);
}

DsvStatus dsvi_dit_config_read(const char *path, DsvDitConfig *out)
{
    DsvStatus status;
    char *text = NULL;
    size_t bytes;
    cJSON *object = NULL;
    memset(out, 0, sizeof *out);
    DSVI_TRY_GOTO(status, dsvi_file_read(path, CONFIG_BYTES_MAX, &text, &bytes), done);
    object = cJSON_ParseWithLength(text, bytes);
    if (!cJSON_IsObject(object)) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: not a JSON object", path);
        goto done;
    }
    DSVI_TRY_GOTO(status, refuse_variants(object, path), done);
    DSVI_TRY_GOTO(status, read_fields(object, path, out), done);
done:
    cJSON_Delete(object);
    free(text);
    return status;
}

/* The keys diffusers writes, and ours. False when memory runs out. */
static bool fill_object(const DsvDitConfig *config, cJSON *object)
{
    static const char *const ABSENT[] = {"added_kv_proj_dim", "image_dim", "pos_embed_seq_len"};
    bool whole = cJSON_AddStringToObject(object, "_class_name", "WanTransformer3DModel") &&
                 cJSON_AddStringToObject(object, "_diffusers_version", "0.35.0") &&
                 cJSON_AddTrueToObject(object, "cross_attn_norm") &&
                 cJSON_AddNumberToObject(object, "eps", config->eps) &&
                 cJSON_AddStringToObject(object, "qk_norm", "rms_norm_across_heads");
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT; i++)
        whole = whole && cJSON_AddNullToObject(object, ABSENT[i]);
    for (int i = 0; i < FIELD_COUNT; i++)
        whole = whole && cJSON_AddNumberToObject(object, FIELDS[i].name,
                                                 (double)value_in(config, &FIELDS[i]));
    cJSON *patch = cJSON_AddArrayToObject(object, "patch_size");
    for (int i = 0; i < 3; i++)
        whole = whole && patch && cJSON_AddItemToArray(patch, cJSON_CreateNumber((double)config->patch[i]));
    return whole;
}

DsvStatus dsvi_dit_config_write(const char *path, const DsvDitConfig *config)
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
