/* The part of latent_index.h that reads an index. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/number_text.h"
#include "data/dataset_list.h"
#include "data/latent_index_internal.h"

enum { IMAGE_MAX = 1000000 /* states of a window's pictures, and their width */ };

static bool read_hex(const cJSON *item, uint64_t *value)
{
    const char *hex = cJSON_GetStringValue(item);
    if (!hex || strlen(hex) != DSVI_LATENT_INDEX_HEX ||
        strspn(hex, "0123456789abcdef") != DSVI_LATENT_INDEX_HEX)
        return false;
    *value = strtoull(hex, NULL, 16);
    return true;
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

static DsvStatus latent_index_malformed(const char *path, const char *what)
{
    return DSVI_FAIL(
        DSV_E_FORMAT,
        "%s: no index of a latent cache: %s; without this file dsv encode writes it again and keeps "
        "the windows",
        path, what);
}

/* Checks that the recorded options are the expected ones. The size (frames, height, width) is not checked if
 * data.buckets is set or if the index has windows of several sizes. Sets *usual to the size of the items that
 * name none. */
static DsvStatus check_options(const char *path, int version, const cJSON *stored, const DsvConfig *expected,
                               DsviClipSize *usual)
{
    enum { SIZES = 3 }; /* the first of the options */
    int64_t *const size[SIZES] = {&usual->frames, &usual->height, &usual->width};
    static const DsvConfig ANY;
    DsviLatentIndexOption options[DSVI_LATENT_INDEX_OPTIONS];
    const cJSON *codec = cJSON_GetObjectItemCaseSensitive(stored, DSVI_LATENT_INDEX_CODEC);
    int folder = (int)(strrchr(path, '/') - path);
    if (!cJSON_IsString(codec))
        return latent_index_malformed(path, "no codec.name in its settings");
    if (expected && strcmp(codec->valuestring, expected->codec_name) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "%.*s: made with codec.name %s, expected %s", folder, path,
                         codec->valuestring, expected->codec_name);
    int recorded = dsvi_latent_index_options(expected ? expected : &ANY, codec->valuestring, options);
    for (int i = 0; i < recorded; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(stored, options[i].key);
        if (!cJSON_IsNumber(value))
            return latent_index_malformed(path, "a setting is missing");
        if (i < SIZES && !dsvi_number_to_whole(value->valuedouble, size[i]))
            return latent_index_malformed(path, "a size is no whole number");
        if (i < SIZES && (version >= DSVI_LATENT_INDEX_VERSION || (expected && expected->data_buckets[0])))
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
    return version == DSVI_LATENT_INDEX_ONE_TEXT ? read_one_text(item, escaped, &e->captions)
                                                 : read_captions_of(item, escaped, &e->captions);
}

/* Reads how often an item repeats: once, unless the item says otherwise. */
static bool read_repeats(const cJSON *item, int64_t *repeats)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(item, DSVI_LATENT_INDEX_REPEATED);
    *repeats = 1;
    return !found ||
           (latent_index_read_whole(found, repeats) && *repeats >= 1 && *repeats <= DSVI_REPEATS_MAX);
}

/* Reads an entry. Its strings are owned by `item`; the caller frees e->captions.at, also after a failure. */
static bool read_entry(const cJSON *item, int version, const DsviClipSize *usual, DsviLatentEntry *e)
{
    return read_texts(item, version, e) &&
           read_hex(cJSON_GetObjectItemCaseSensitive(item, DSVI_LATENT_INDEX_XXH3), &e->checksum) &&
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
    out->condition = out->vae.hex[0] &&
                     cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(model, DSVI_LATENT_INDEX_CONDITION));
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
        reader->checksum = dsvi_latent_index_hash_entry(&entry, reader->version, reader->checksum);
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
    if (!cJSON_IsNumber(version) || (version->valuedouble != DSVI_LATENT_INDEX_REPEATS &&
                                     version->valuedouble != DSVI_LATENT_INDEX_VERSION &&
                                     version->valuedouble != DSVI_LATENT_INDEX_ONE_SIZE &&
                                     version->valuedouble != DSVI_LATENT_INDEX_ONE_TEXT))
        return latent_index_malformed(path, "of another version of the format");
    reader->version = (int)version->valuedouble;
    DSVI_TRY(check_options(path, reader->version, cJSON_GetObjectItemCaseSensitive(index, "settings"), config,
                           &reader->usual));
    if (!read_model(index, model))
        return latent_index_malformed(path, "its model is incomplete");
    reader->checksum = reader->version == DSVI_LATENT_INDEX_ONE_TEXT ? 0
                                                                     : dsvi_latent_index_hash_model(model);
    if (!cJSON_IsArray(items))
        return latent_index_malformed(path, "no items in it");
    for (const cJSON *item = items->child; item; item = item->next)
        DSVI_TRY(read_item(reader, item));
    return check_checksum(path, cJSON_GetObjectItemCaseSensitive(index, DSVI_LATENT_INDEX_XXH3),
                          reader->checksum);
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
