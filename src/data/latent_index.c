/* Implements latent_index.h: the index of a latent cache as JSON. The index is
 *
 *     {"format": "dsv-latent-cache", "version": 4,
 *      "settings": {"num_frames": ..., "height": ..., ..., "codec.temporal_levels": ...},
 *      "model": {"vae": 32 hex digits, "vae_type": "BF16", "condition": true, if windows have one,
 *                "image_encoder": 32 hex digits, "image_rows": ..., "image_dim": ..., if windows have states,
 *                "text_encoder": 32 hex digits, "text_type": "BF16", "text_dim": ..., "empty": key},
 *      "items": [{"source": ..., "source_bytes": ..., "source_modified": ..., "source_xxh3": 32 hex digits,
 *                 "start": ..., "crop_x": ..., "crop_y": ..., "size": [frames, height, width],
 *                 "file": name in the folder, "xxh3": 16 hex digits, "shape": [C, F, H, W],
 *                 "captions": [{"text": ..., "states": key}, ...], "escaped": true, if they are,
 *                 "repeats": ..., unless it is 1}, ...],
 *      "xxh3": 16 hex digits}
 *
 * The parts of "model" are missing if the cache was made without a VAE or without a text encoder, and so are
 * the keys of text states. JSON is UTF-8, but file names may contain any bytes: in an item that is `escaped`,
 * bytes above 0x7f and "%" in source and captions are written as %XX. The checksum at the end covers the
 * models and the values of the items, so that reformatting the file does not invalidate it.
 *
 * An item without "size" has num_frames, height and width of the settings. Version 3, in which no item
 * repeats, and version 2, in which moreover all items are without "size", are written if that is so, and
 * read, too.
 *
 * Version 1 is read, too: an item has one caption, "text", or none, and neither "source_xxh3" nor "model"
 * exist. Indexes of dsv 0.1 have no checksum, and the oldest lack source_bytes and source_modified. */
#include "data/latent_index.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <xxhash.h>

#include "base/number_text.h"
#include "base/utf8.h"
#include "data/dataset_list.h"

const char dsvi_latent_index_format[] = "dsv-latent-cache";

enum {
    VERSION_REPEATS = 4, /* items may repeat */
    VERSION = 3,
    VERSION_ONE_SIZE = 2, /* all windows have one size */
    VERSION_ONE_TEXT = 1, /* the version in which an item has one caption */
    HEX_DIGITS = 16,      /* digits of a checksum */
    OPTIONS = 6,
    IMAGE_MAX = 1000000 /* states of a window's pictures, and their width */
};

static const char CODEC_NAME[] = "codec.name", CHECKSUM[] = "xxh3", CONDITION[] = "condition",
                  REPEATS[] = "repeats";

/* An option that the index records. */
typedef struct Option {
    const char *key;
    double value;
} Option;

/* Lists the options on which the latents of a codec depend, and returns their number. The levels are options
 * of the codec haar alone. */
static int list_options(const DsvConfig *c, const char *codec, Option out[OPTIONS])
{
    enum { LEVELS = 2 };
    const Option options[OPTIONS] = {
        {"num_frames", (double)c->num_frames},
        {"height", (double)c->height},
        {"width", (double)c->width},
        {"fps", c->fps},
        {"codec.spatial_levels", (double)c->codec_spatial_levels},
        {"codec.temporal_levels", (double)c->codec_temporal_levels},
    };
    memcpy(out, options, sizeof options);
    return strcmp(codec, "haar") == 0 ? OPTIONS : OPTIONS - LEVELS;
}

/* ---- Checksum ---- */

static const char *latent_index_name_of(const DsviLatentEntry *e)
{
    const char *slash = strrchr(e->file, '/');
    return slash ? slash + 1 : e->file;
}

static uint64_t hash_text(const char *text, uint64_t seed)
{
    return text ? XXH3_64bits_withSeed(text, strlen(text) + 1, seed) : XXH3_64bits_withSeed("", 0, seed);
}

static uint64_t hash_captions(const DsviCaptions *captions, uint64_t seed)
{
    seed = XXH3_64bits_withSeed(&captions->count, sizeof captions->count, seed);
    for (int64_t i = 0; i < captions->count; i++) {
        seed = hash_text(captions->at[i].text, seed);
        seed = hash_text(captions->at[i].states.hex, seed);
    }
    return seed;
}

/* Returns the checksum of all entries up to and including this one; `seed` is the checksum of the previous
 * entries. */
static uint64_t hash_entry(const DsviLatentEntry *e, int version, uint64_t seed)
{
    const bool stamped = !isnan(e->stamp.modified);
    const double numbers[5] = {stamped ? (double)e->stamp.bytes : -1, stamped ? e->stamp.modified : -1,
                               e->start, e->crop_x, e->crop_y};
    seed = hash_text(e->source, seed);
    if (version == VERSION_ONE_TEXT) {
        seed = hash_text(e->captions.count ? e->captions.at[0].text : NULL, seed);
    } else {
        seed = hash_captions(&e->captions, seed);
        seed = hash_text(e->content.hex, seed);
    }
    if (version >= VERSION)
        seed = XXH3_64bits_withSeed(&e->size, sizeof e->size, seed);
    if (version >= VERSION_REPEATS)
        seed = XXH3_64bits_withSeed(&e->repeats, sizeof e->repeats, seed);
    seed = hash_text(latent_index_name_of(e), seed);
    seed = XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
    seed = XXH3_64bits_withSeed(e->shape, sizeof e->shape, seed);
    return XXH3_64bits_withSeed(&e->checksum, sizeof e->checksum, seed);
}

/* Returns the checksum with which those of the entries begin. */
static uint64_t hash_model(const DsviLatentModel *model)
{
    const int64_t numbers[3] = {model->vae_type, model->text.dtype, model->text.dim};
    uint64_t seed = hash_text(model->vae.hex, 0);
    seed = hash_text(model->text.encoder.hex, seed);
    seed = hash_text(model->text.empty.hex, seed);
    if (model->condition)
        seed = hash_text(CONDITION, seed);
    if (model->image_encoder.hex[0]) {
        seed = hash_text(model->image_encoder.hex, seed);
        seed = XXH3_64bits_withSeed(&model->image, sizeof model->image, seed);
    }
    return XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
}

static bool read_hex(const cJSON *item, uint64_t *value)
{
    const char *hex = cJSON_GetStringValue(item);
    if (!hex || strlen(hex) != HEX_DIGITS || strspn(hex, "0123456789abcdef") != HEX_DIGITS)
        return false;
    *value = strtoull(hex, NULL, 16);
    return true;
}

static bool add_hex(cJSON *object, uint64_t value)
{
    char hex[HEX_DIGITS + 1];
    snprintf(hex, sizeof hex, "%016" PRIx64, value);
    return cJSON_AddStringToObject(object, CHECKSUM, hex) != NULL;
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

/* Decodes an escaped text in place. Returns false if it is malformed. */
static bool unescape(char *text)
{
    char *out = text;
    for (const char *c = text; *c; c++) {
        unsigned byte = (unsigned char)*c;
        if (*c == '%') {
            if (strspn(c + 1, "0123456789ABCDEFabcdef") < 2 || sscanf(c + 1, "%2x", &byte) != 1 || byte == 0)
                return false;
            c += 2;
        }
        *out++ = (char)byte;
    }
    *out = 0;
    return true;
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
    size_t bytes = NAMES_AND_NUMBERS + text_bytes(e->source) + text_bytes(latent_index_name_of(e));
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
                 cJSON_AddStringToObject(item, "file", latent_index_name_of(e)) &&
                 add_hex(item, e->checksum) && add_wholes(item, "shape", e->shape, 4);
    if (whole && !dsvi_clip_size_same(&e->size, &usual))
        whole = add_wholes(item, "size", size, 3);
    if (whole && e->repeats > 1)
        whole = latent_index_add_number(item, REPEATS, (double)e->repeats);
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
                (!model->condition || cJSON_AddTrueToObject(to, CONDITION));
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
    Option options[OPTIONS];
    uint64_t checksum = hash_model(model);
    int recorded = list_options(config, config->codec_name, options);
    int version = has_repeats(entries, count)                 ? VERSION_REPEATS
                  : has_several_sizes(config, entries, count) ? VERSION
                                                              : VERSION_ONE_SIZE;
    cJSON *index = cJSON_CreateObject(), *stored = NULL, *items = NULL;
    bool whole = index && cJSON_AddStringToObject(index, "format", dsvi_latent_index_format) &&
                 cJSON_AddNumberToObject(index, "version", version) &&
                 (stored = cJSON_AddObjectToObject(index, "settings")) &&
                 cJSON_AddStringToObject(stored, CODEC_NAME, config->codec_name);
    for (int i = 0; whole && i < recorded; i++)
        whole = latent_index_add_number(stored, options[i].key, options[i].value);
    whole = whole && add_model(index, model) && (items = cJSON_AddArrayToObject(index, "items"));
    for (int64_t i = 0; whole && i < count; i++) {
        whole = add_entry(items, config, entries[i]);
        checksum = hash_entry(entries[i], version, checksum);
    }
    whole = whole && add_hex(index, checksum);
    char *text = whole ? cJSON_PrintUnformatted(index) : NULL;
    cJSON_Delete(index);
    return text;
}

/* ---- Reading ---- */

static DsvStatus latent_index_malformed(const char *path, const char *what)
{
    return DSVI_FAIL(
        DSV_E_FORMAT,
        "%s: no index of a latent cache: %s; without this file dsv encode writes it again and keeps "
        "the windows",
        path, what);
}

/* Compares the recorded options with those that are expected; sizes are not compared with data.buckets or if
 * the index has several. *usual becomes the size of the items without "size". */
static DsvStatus check_options(const char *path, int version, const cJSON *stored, const DsvConfig *expected,
                               DsviClipSize *usual)
{
    enum { SIZES = 3 }; /* the first of the options */
    int64_t *const size[SIZES] = {&usual->frames, &usual->height, &usual->width};
    static const DsvConfig ANY;
    Option options[OPTIONS];
    const cJSON *codec = cJSON_GetObjectItemCaseSensitive(stored, CODEC_NAME);
    int folder = (int)(strrchr(path, '/') - path);
    if (!cJSON_IsString(codec))
        return latent_index_malformed(path, "no codec.name in its settings");
    if (expected && strcmp(codec->valuestring, expected->codec_name) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "%.*s: made with codec.name %s, expected %s", folder, path,
                         codec->valuestring, expected->codec_name);
    int recorded = list_options(expected ? expected : &ANY, codec->valuestring, options);
    for (int i = 0; i < recorded; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(stored, options[i].key);
        if (!cJSON_IsNumber(value))
            return latent_index_malformed(path, "a setting is missing");
        if (i < SIZES && !dsvi_number_to_whole(value->valuedouble, size[i]))
            return latent_index_malformed(path, "a size is no whole number");
        if (i < SIZES && (version >= VERSION || (expected && expected->data_buckets[0])))
            continue;
        if (expected && !(value->valuedouble == options[i].value))
            return DSVI_FAIL(DSV_E_USAGE, "%.*s: made with %s %g, expected %g", folder, path, options[i].key,
                             value->valuedouble, options[i].value);
    }
    return DSV_OK;
}

static bool plain_name(const char *name)
{
    return name[0] && name[0] != '.' && !strchr(name, '/');
}

static bool read_number(const cJSON *item, const char *key, double *value)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, key);
    *value = cJSON_IsNumber(found) ? found->valuedouble : 0;
    return cJSON_IsNumber(found);
}

static bool latent_index_read_whole(const cJSON *item, int64_t *value)
{
    return cJSON_IsNumber(item) && dsvi_number_to_whole(item->valuedouble, value);
}

static bool read_wholes(const cJSON *shape, int64_t *out, int count)
{
    bool whole = cJSON_GetArraySize(shape) == count;
    for (int i = 0; whole && i < count; i++)
        whole = latent_index_read_whole(cJSON_GetArrayItem(shape, i), &out[i]) && out[i] >= 1;
    return whole;
}

/* Reads the size of a window; `usual` if the item has none. */
static bool read_window_size(const cJSON *size, const DsviClipSize *usual, DsviClipSize *out)
{
    int64_t sides[3];
    *out = *usual;
    if (!size)
        return true;
    bool whole = read_wholes(size, sides, 3);
    if (whole)
        *out = (DsviClipSize){sides[0], sides[1], sides[2]};
    return whole;
}

/* Reads the source's size and time of change. If one of the numbers is missing, both are unknown. */
static bool read_stamp(const cJSON *item, DsviFileStamp *stamp)
{
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(item, "source_bytes");
    int64_t size = 0;
    *stamp = (DsviFileStamp){0, NAN};
    double modified;
    if (!read_number(item, "source_modified", &modified) || !cJSON_IsNumber(bytes))
        return true;
    bool good = latent_index_read_whole(bytes, &size);
    *stamp = (DsviFileStamp){(uint64_t)size, modified};
    return good;
}

/* Reads a key that may be missing. */
static bool read_key(const cJSON *object, const char *name, DsviHashKey *key)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, name);
    *key = (DsviHashKey){""};
    return !found || dsvi_hash_key_read(cJSON_GetStringValue(found), key);
}

/* Reads the captions of an item. Their texts are owned by `item`. */
static bool read_captions_of(const cJSON *item, bool escaped, DsviCaptions *out)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(item, "captions");
    bool good = !array || cJSON_IsArray(array);
    int count = cJSON_GetArraySize(array);
    out->at = count > 0 && good ? calloc((size_t)count, sizeof *out->at) : NULL;
    if (count > 0 && !out->at)
        return false;
    for (const cJSON *one = array ? array->child : NULL; good && one; one = one->next) {
        DsviCaption *caption = &out->at[out->count++];
        caption->text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(one, "text"));
        good = caption->text && read_key(one, "states", &caption->states) &&
               (!escaped || unescape(caption->text));
    }
    return good;
}

/* Reads the caption of an item of version 1. Its text is owned by `item`. */
static bool read_one_text(const cJSON *item, bool escaped, DsviCaptions *out)
{
    char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "text"));
    if (!text)
        return true;
    out->at = calloc(1, sizeof *out->at);
    if (!out->at)
        return false;
    out->at[0].text = text;
    out->count = 1;
    return !escaped || unescape(text);
}

static bool read_texts(const cJSON *item, int version, DsviLatentEntry *e)
{
    bool escaped = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "escaped"));
    e->captions = (DsviCaptions){0};
    e->source = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "source"));
    e->file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
    if (!e->source || !e->file || !plain_name(e->file) || (escaped && !unescape(e->source)))
        return false;
    return version == VERSION_ONE_TEXT ? read_one_text(item, escaped, &e->captions)
                                       : read_captions_of(item, escaped, &e->captions);
}

/* Reads how often an item repeats: once, unless the item says otherwise. */
static bool read_repeats(const cJSON *item, int64_t *repeats)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, REPEATS);
    *repeats = 1;
    return !found ||
           (latent_index_read_whole(found, repeats) && *repeats >= 1 && *repeats <= DSVI_REPEATS_MAX);
}

/* Reads an entry. Its strings are owned by `item`; the caller frees e->captions.at, also after a failure. */
static bool read_entry(const cJSON *item, int version, const DsviClipSize *usual, DsviLatentEntry *e)
{
    return read_texts(item, version, e) &&
           read_hex(cJSON_GetObjectItemCaseSensitive(item, CHECKSUM), &e->checksum) &&
           read_number(item, "start", &e->start) && read_number(item, "crop_x", &e->crop_x) &&
           read_number(item, "crop_y", &e->crop_y) && read_stamp(item, &e->stamp) &&
           read_key(item, "source_xxh3", &e->content) && read_repeats(item, &e->repeats) &&
           read_window_size(cJSON_GetObjectItemCaseSensitive(item, "size"), usual, &e->size) &&
           read_wholes(cJSON_GetObjectItemCaseSensitive(item, "shape"), e->shape, 4);
}

static bool read_type(const cJSON *model, const char *name, DsviDtype *type)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(model, name));
    *type = text && strcmp(text, dsvi_dtype_name(DSVI_BF16)) == 0 ? DSVI_BF16 : DSVI_F32;
    return text && strcmp(text, dsvi_dtype_name(*type)) == 0;
}

/* Reads what a cache records of the states of pictures. */
static bool read_image(const cJSON *model, DsviLatentModel *out)
{
    if (!read_key(model, "image_encoder", &out->image_encoder))
        return false;
    return !out->image_encoder.hex[0] ||
           (latent_index_read_whole(cJSON_GetObjectItemCaseSensitive(model, "image_rows"),
                                    &out->image.rows) &&
            latent_index_read_whole(cJSON_GetObjectItemCaseSensitive(model, "image_dim"), &out->image.dim) &&
            out->image.rows >= 1 && out->image.rows <= IMAGE_MAX && out->image.dim >= 1 &&
            out->image.dim <= IMAGE_MAX);
}

static bool read_model(const cJSON *index, DsviLatentModel *out)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(index, "model");
    DsviTextStore *text = &out->text;
    memset(out, 0, sizeof *out);
    if (!model)
        return true;
    if (!read_key(model, "vae", &out->vae) || !read_key(model, "text_encoder", &text->encoder) ||
        !read_key(model, "empty", &text->empty))
        return false;
    if (out->vae.hex[0] && !read_type(model, "vae_type", &out->vae_type))
        return false;
    out->condition = out->vae.hex[0] && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(model, CONDITION));
    if (!read_image(model, out))
        return false;
    if (!text->encoder.hex[0])
        return true;
    return text->empty.hex[0] && read_type(model, "text_type", &text->dtype) &&
           latent_index_read_whole(cJSON_GetObjectItemCaseSensitive(model, "text_dim"), &text->dim) &&
           text->dim >= 1;
}

static DsvStatus check_checksum(const char *path, const cJSON *stored, uint64_t checksum)
{
    uint64_t expected;
    if (!stored) /* indexes of version 0.1 have no checksum */
        return DSV_OK;
    if (!read_hex(stored, &expected))
        return latent_index_malformed(path, "its xxh3 is no checksum");
    if (checksum != expected)
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: damaged, or edited: its items have the checksum %016" PRIx64
                         ", its last xxh3 says %016" PRIx64 " (without that key it is taken as it is)",
                         path, checksum, expected);
    return DSV_OK;
}

/* A reader of the items of an index. */
typedef struct ItemReader {
    const char *path;
    int version;
    DsviClipSize usual; /* of items without "size" */
    uint64_t checksum;  /* of the models and the items so far */
    DsvStatus (*add)(void *context, const DsviLatentEntry *entry);
    void *context;
} ItemReader;

static DsvStatus read_item(ItemReader *reader, const cJSON *item)
{
    DsvStatus status;
    DsviLatentEntry entry = {0};
    if (!read_entry(item, reader->version, &reader->usual, &entry)) {
        status = latent_index_malformed(reader->path, "an item of it is incomplete");
    } else {
        reader->checksum = hash_entry(&entry, reader->version, reader->checksum);
        status = reader->add(reader->context, &entry);
    }
    free(entry.captions.at);
    return status;
}

static DsvStatus read_items(ItemReader *reader, const cJSON *index, const DsvConfig *config,
                            DsviLatentModel *model)
{
    const char *path = reader->path;
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(index, "version");
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(index, "items");
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(index, "format"));
    if (!format || strcmp(format, dsvi_latent_index_format) != 0)
        return latent_index_malformed(path, "not JSON, or of another format");
    if (!cJSON_IsNumber(version) ||
        (version->valuedouble != VERSION_REPEATS && version->valuedouble != VERSION &&
         version->valuedouble != VERSION_ONE_SIZE && version->valuedouble != VERSION_ONE_TEXT))
        return latent_index_malformed(path, "of another version of the format");
    reader->version = (int)version->valuedouble;
    DSVI_TRY(check_options(path, reader->version, cJSON_GetObjectItemCaseSensitive(index, "settings"), config,
                           &reader->usual));
    if (!read_model(index, model))
        return latent_index_malformed(path, "its model is incomplete");
    reader->checksum = reader->version == VERSION_ONE_TEXT ? 0 : hash_model(model);
    if (!cJSON_IsArray(items))
        return latent_index_malformed(path, "no items in it");
    for (const cJSON *item = items->child; item; item = item->next)
        DSVI_TRY(read_item(reader, item));
    return check_checksum(path, cJSON_GetObjectItemCaseSensitive(index, CHECKSUM), reader->checksum);
}

DsvStatus dsvi_latent_index_read(const char *path, size_t bytes_max, const DsvConfig *config,
                                 DsviLatentModel *model,
                                 DsvStatus (*add)(void *context, const DsviLatentEntry *entry), void *context)
{
    ItemReader reader = {.path = path, .add = add, .context = context};
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, bytes_max, &text, &bytes));
    cJSON *index = cJSON_ParseWithLength(text, bytes);
    free(text);
    DsvStatus status = read_items(&reader, index, config, model);
    cJSON_Delete(index);
    return status;
}
