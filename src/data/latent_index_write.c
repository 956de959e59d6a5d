/* The part of latent_index.h that writes an index. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/number_text.h"
#include "base/utf8.h"
#include "data/latent_index_internal.h"

static bool add_hex(cJSON *object, uint64_t value)
{
    char hex[DSVI_LATENT_INDEX_HEX + 1];
    snprintf(hex, sizeof hex, "%016" PRIx64, value);
    return cJSON_AddStringToObject(object, DSVI_LATENT_INDEX_XXH3, hex) != NULL;
}

/* ---- Text of any bytes ---- */

static bool needs_escape(const char *text)
{
    return text && !dsvi_utf8_valid(text, strlen(text));
}

/* Adds the text to `item` under `key`; if `escaped`, with bytes above 0x7f and "%" written as %XX. */
static bool add_text(cJSON *item, const char *key, const char *text, bool escaped)
{
    if (!escaped)
        return cJSON_AddStringToObject(item, key, text) != NULL;
    char *out = malloc(3 * strlen(text) + 1), *end = out;
    if (!out)
        return false;
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c > 0x7f || *c == '%')
            end += sprintf(end, "%%%02X", (unsigned char)*c);
        else
            *end++ = *c;
    }
    *end = 0;
    bool added = cJSON_AddStringToObject(item, key, out) != NULL;
    free(out);
    return added;
}

/* Returns an upper bound of the bytes of a text in an index, with all escapes of JSON and of add_text. */
static size_t text_bytes(const char *text)
{
    size_t bytes = 0;
    for (const unsigned char *c = (const unsigned char *)text; c && *c; c++)
        bytes += *c < ' ' || *c == '"' || *c == '\\' ? 6 : *c > 0x7f || *c == '%' ? 3 : 1;
    return bytes;
}

/* ---- Writing ---- */

size_t dsvi_latent_index_head_bytes(void)
{
    return (size_t)1 << 12;
}

size_t dsvi_latent_index_entry_bytes(const DsviLatentEntry *e)
{
    enum { NAMES_AND_NUMBERS = 656, CAPTION_NAMES = 80 };
    size_t bytes = NAMES_AND_NUMBERS + text_bytes(e->source) + text_bytes(dsvi_latent_index_name_of(e));
    for (int64_t i = 0; i < e->captions.count; i++)
        bytes += CAPTION_NAMES + text_bytes(e->captions.at[i].text);
    return bytes;
}

static bool latent_index_add_number(cJSON *object, const char *key, double value)
{
    char text[DSVI_NUMBER_BYTES]; /* cJSON's own number formatting may lose the last bit */
    dsvi_number_text(value, text);
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

/* Appends an empty object to the array and returns it, or NULL if memory is lacking. */
static cJSON *append_object(cJSON *array)
{
    cJSON *object = cJSON_CreateObject();
    if (object && cJSON_AddItemToArray(array, object))
        return object;
    cJSON_Delete(object);
    return NULL;
}

static bool add_key(cJSON *object, const char *name, const DsviHashKey *key)
{
    return !key->hex[0] || cJSON_AddStringToObject(object, name, key->hex);
}

static bool add_captions(cJSON *item, const DsviCaptions *captions, bool escaped)
{
    cJSON *array = captions->count ? cJSON_AddArrayToObject(item, "captions") : NULL;
    bool whole = array || !captions->count;
    for (int64_t i = 0; whole && i < captions->count; i++) {
        cJSON *caption = append_object(array);
        whole = caption && add_text(caption, "text", captions->at[i].text, escaped) &&
                add_key(caption, "states", &captions->at[i].states);
    }
    return whole;
}

static bool entry_needs_escape(const DsviLatentEntry *e)
{
    bool needed = needs_escape(e->source);
    for (int64_t i = 0; !needed && i < e->captions.count; i++)
        needed = needs_escape(e->captions.at[i].text);
    return needed;
}

/* Returns the size of an item without "size". */
static DsviClipSize size_of_config(const DsvConfig *config)
{
    return (DsviClipSize){config->num_frames, config->height, config->width};
}

/* Adds an array of whole numbers under `key`. */
static bool add_wholes(cJSON *item, const char *key, const int64_t *values, int count)
{
    cJSON *array = cJSON_AddArrayToObject(item, key);
    bool whole = array != NULL;
    for (int i = 0; whole && i < count; i++)
        whole = cJSON_AddItemToArray(array, cJSON_CreateNumber((double)values[i]));
    return whole;
}

static bool add_entry(cJSON *items, const DsvConfig *config, const DsviLatentEntry *e)
{
    bool escaped = entry_needs_escape(e);
    DsviClipSize usual = size_of_config(config);
    const int64_t size[3] = {e->size.frames, e->size.height, e->size.width};
    cJSON *item = append_object(items);
    if (!item)
        return false;
    bool whole = add_text(item, "source", e->source, escaped) &&
                 latent_index_add_number(item, "source_bytes", (double)e->stamp.bytes) &&
                 latent_index_add_number(item, "source_modified", e->stamp.modified) &&
                 add_key(item, "source_xxh3", &e->content) &&
                 latent_index_add_number(item, "start", e->start) &&
                 latent_index_add_number(item, "crop_x", e->crop_x) &&
                 latent_index_add_number(item, "crop_y", e->crop_y) &&
                 cJSON_AddStringToObject(item, "file", dsvi_latent_index_name_of(e)) &&
                 add_hex(item, e->checksum) && add_wholes(item, "shape", e->shape, 4);
    if (whole && !dsvi_clip_size_same(&e->size, &usual))
        whole = add_wholes(item, "size", size, 3);
    if (whole && e->repeats > 1)
        whole = latent_index_add_number(item, DSVI_LATENT_INDEX_REPEATED, (double)e->repeats);
    whole = whole && add_captions(item, &e->captions, escaped);
    if (whole && escaped)
        whole = cJSON_AddTrueToObject(item, "escaped") != NULL;
    return whole;
}

static bool add_model(cJSON *index, const DsviLatentModel *model)
{
    const DsviTextStore *text = &model->text;
    cJSON *to = NULL;
    bool whole = (!model->vae.hex[0] && !text->encoder.hex[0]) ||
                 (to = cJSON_AddObjectToObject(index, "model"));
    if (whole && model->vae.hex[0])
        whole = add_key(to, "vae", &model->vae) &&
                cJSON_AddStringToObject(to, "vae_type", dsvi_dtype_name(model->vae_type)) &&
                (!model->condition || cJSON_AddTrueToObject(to, DSVI_LATENT_INDEX_CONDITION));
    if (whole && model->image_encoder.hex[0])
        whole = add_key(to, "image_encoder", &model->image_encoder) &&
                latent_index_add_number(to, "image_rows", (double)model->image.rows) &&
                latent_index_add_number(to, "image_dim", (double)model->image.dim);
    if (whole && text->encoder.hex[0])
        whole = add_key(to, "text_encoder", &text->encoder) &&
                cJSON_AddStringToObject(to, "text_type", dsvi_dtype_name(text->dtype)) &&
                latent_index_add_number(to, "text_dim", (double)text->dim) &&
                add_key(to, "empty", &text->empty);
    return whole;
}

static bool has_repeats(DsviLatentEntry *const *entries, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (entries[i]->repeats > 1)
            return true;
    return false;
}

static bool has_several_sizes(const DsvConfig *config, DsviLatentEntry *const *entries, int64_t count)
{
    DsviClipSize usual = size_of_config(config);
    for (int64_t i = 0; i < count; i++)
        if (!dsvi_clip_size_same(&entries[i]->size, &usual))
            return true;
    return false;
}

char *dsvi_latent_index_text(const DsvConfig *config, const DsviLatentModel *model,
                             DsviLatentEntry *const *entries, int64_t count)
{
    DsviLatentIndexOption options[DSVI_LATENT_INDEX_OPTIONS];
    uint64_t checksum = dsvi_latent_index_hash_model(model);
    int recorded = dsvi_latent_index_options(config, config->codec_name, options);
    int version = has_repeats(entries, count)                 ? DSVI_LATENT_INDEX_REPEATS
                  : has_several_sizes(config, entries, count) ? DSVI_LATENT_INDEX_VERSION
                                                              : DSVI_LATENT_INDEX_ONE_SIZE;
    cJSON *index = cJSON_CreateObject(), *stored = NULL, *items = NULL;
    bool whole = index && cJSON_AddStringToObject(index, "format", dsvi_latent_index_format) &&
                 cJSON_AddNumberToObject(index, "version", version) &&
                 (stored = cJSON_AddObjectToObject(index, "settings")) &&
                 cJSON_AddStringToObject(stored, DSVI_LATENT_INDEX_CODEC, config->codec_name);
    for (int i = 0; whole && i < recorded; i++)
        whole = latent_index_add_number(stored, options[i].key, options[i].value);
    whole = whole && add_model(index, model) && (items = cJSON_AddArrayToObject(index, "items"));
    for (int64_t i = 0; whole && i < count; i++) {
        whole = add_entry(items, config, entries[i]);
        checksum = dsvi_latent_index_hash_entry(entries[i], version, checksum);
    }
    whole = whole && add_hex(index, checksum);
    char *text = whole ? cJSON_PrintUnformatted(index) : NULL;
    cJSON_Delete(index);
    return text;
}
