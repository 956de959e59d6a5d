/* Implements latent_index.h: the index of a latent cache as JSON. The index is
 *
 *     {"format": "dsv-latent-cache", "version": 1,
 *      "settings": {"num_frames": ..., "height": ..., ..., "codec.temporal_levels": ...},
 *      "items": [{"source": ..., "source_bytes": ..., "source_modified": ...,
 *                 "start": ..., "crop_x": ..., "crop_y": ...,
 *                 "file": name in the folder, "xxh3": 16 hex digits, "shape": [C, F, H, W],
 *                 "text": the caption, if any, "escaped": true, if they are}, ...],
 *      "xxh3": 16 hex digits}
 *
 * JSON is UTF-8, but file names may contain any bytes: in an item that is `escaped`, bytes above 0x7f and "%"
 * in source and text are written as %XX. The checksum at the end covers the values of the items, so that
 * reformatting the file does not invalidate it. Indexes of version 0.1 have no checksum, and the oldest lack
 * source_bytes and source_modified. */
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

const char dsvi_latent_index_format[] = "dsv-latent-cache";

enum {
    VERSION = 1,
    HEX_DIGITS = 16, /* digits of a checksum */
    OPTIONS = 6
};

static const char CODEC_NAME[] = "codec.name", CHECKSUM[] = "xxh3";

/* An option that the index records. */
typedef struct Option {
    const char *key;
    double value;
} Option;

static void list_options(const DsvConfig *c, Option out[OPTIONS])
{
    const Option options[OPTIONS] = {
        {"num_frames", (double)c->num_frames},
        {"height", (double)c->height},
        {"width", (double)c->width},
        {"fps", c->fps},
        {"codec.spatial_levels", (double)c->codec_spatial_levels},
        {"codec.temporal_levels", (double)c->codec_temporal_levels},
    };
    memcpy(out, options, sizeof options);
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

/* Returns the checksum of all entries up to and including this one; `seed` is the checksum of the previous
 * entries. */
static uint64_t hash_entry(const DsviLatentEntry *e, uint64_t seed)
{
    const bool stamped = !isnan(e->stamp.modified);
    const double numbers[5] = {stamped ? (double)e->stamp.bytes : -1, stamped ? e->stamp.modified : -1,
                               e->start, e->crop_x, e->crop_y};
    seed = hash_text(e->source, seed);
    seed = hash_text(e->text, seed);
    seed = hash_text(latent_index_name_of(e), seed);
    seed = XXH3_64bits_withSeed(numbers, sizeof numbers, seed);
    seed = XXH3_64bits_withSeed(e->shape, sizeof e->shape, seed);
    return XXH3_64bits_withSeed(&e->checksum, sizeof e->checksum, seed);
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
    enum { NAMES_AND_NUMBERS = 512 };
    return NAMES_AND_NUMBERS + text_bytes(e->source) + text_bytes(e->text) +
           text_bytes(latent_index_name_of(e));
}

static bool latent_index_add_number(cJSON *object, const char *key, double value)
{
    char text[DSVI_NUMBER_BYTES]; /* cJSON's own number formatting may lose the last bit */
    dsvi_number_text(value, text);
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

static bool add_entry(cJSON *items, const DsviLatentEntry *e)
{
    bool escaped = needs_escape(e->source) || needs_escape(e->text);
    cJSON *item = cJSON_CreateObject(), *shape = NULL;
    if (!item || !cJSON_AddItemToArray(items, item)) {
        cJSON_Delete(item);
        return false;
    }
    bool whole = add_text(item, "source", e->source, escaped) &&
                 latent_index_add_number(item, "source_bytes", (double)e->stamp.bytes) &&
                 latent_index_add_number(item, "source_modified", e->stamp.modified) &&
                 latent_index_add_number(item, "start", e->start) &&
                 latent_index_add_number(item, "crop_x", e->crop_x) &&
                 latent_index_add_number(item, "crop_y", e->crop_y) &&
                 cJSON_AddStringToObject(item, "file", latent_index_name_of(e)) &&
                 add_hex(item, e->checksum) && (shape = cJSON_AddArrayToObject(item, "shape"));
    if (whole && e->text)
        whole = add_text(item, "text", e->text, escaped);
    if (whole && escaped)
        whole = cJSON_AddTrueToObject(item, "escaped") != NULL;
    for (int i = 0; whole && i < 4; i++)
        whole = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->shape[i]));
    return whole;
}

char *dsvi_latent_index_text(const DsvConfig *config, DsviLatentEntry *const *entries, int64_t count)
{
    Option options[OPTIONS];
    uint64_t checksum = 0;
    cJSON *index = cJSON_CreateObject(), *stored = NULL, *items = NULL;
    bool whole = index && cJSON_AddStringToObject(index, "format", dsvi_latent_index_format) &&
                 cJSON_AddNumberToObject(index, "version", VERSION) &&
                 (stored = cJSON_AddObjectToObject(index, "settings")) &&
                 cJSON_AddStringToObject(stored, CODEC_NAME, config->codec_name);
    list_options(config, options);
    for (int i = 0; whole && i < OPTIONS; i++)
        whole = latent_index_add_number(stored, options[i].key, options[i].value);
    whole = whole && (items = cJSON_AddArrayToObject(index, "items"));
    for (int64_t i = 0; whole && i < count; i++) {
        whole = add_entry(items, entries[i]);
        checksum = hash_entry(entries[i], checksum);
    }
    whole = whole && add_hex(index, checksum);
    char *text = whole ? cJSON_PrintUnformatted(index) : NULL;
    cJSON_Delete(index);
    return text;
}

/* ---- Reading ---- */

static DsvStatus latent_index_malformed(const char *path, const char *what)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s: no index of a latent cache: %s", path, what);
}

static DsvStatus check_options(const char *path, const cJSON *stored, const DsvConfig *expected)
{
    static const DsvConfig ANY;
    Option options[OPTIONS];
    const cJSON *codec = cJSON_GetObjectItemCaseSensitive(stored, CODEC_NAME);
    int folder = (int)(strrchr(path, '/') - path);
    if (!cJSON_IsString(codec))
        return latent_index_malformed(path, "no codec.name in its settings");
    if (expected && strcmp(codec->valuestring, expected->codec_name) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "%.*s: made with codec.name %s, expected %s", folder, path,
                         codec->valuestring, expected->codec_name);
    list_options(expected ? expected : &ANY, options);
    for (int i = 0; i < OPTIONS; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(stored, options[i].key);
        if (!cJSON_IsNumber(value))
            return latent_index_malformed(path, "a setting is missing");
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

static bool latent_index_read_shape(const cJSON *shape, int64_t out[4])
{
    bool whole = cJSON_GetArraySize(shape) == 4;
    for (int i = 0; whole && i < 4; i++)
        whole = latent_index_read_whole(cJSON_GetArrayItem(shape, i), &out[i]) && out[i] >= 1;
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

static bool read_texts(const cJSON *item, DsviLatentEntry *e)
{
    e->source = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "source"));
    e->text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "text"));
    e->file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
    if (!e->source || !e->file || !plain_name(e->file))
        return false;
    if (!cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "escaped")))
        return true;
    return unescape(e->source) && (!e->text || unescape(e->text));
}

/* Reads an entry. Its strings are owned by `item`. */
static bool read_entry(const cJSON *item, DsviLatentEntry *e)
{
    return read_texts(item, e) && read_hex(cJSON_GetObjectItemCaseSensitive(item, CHECKSUM), &e->checksum) &&
           read_number(item, "start", &e->start) && read_number(item, "crop_x", &e->crop_x) &&
           read_number(item, "crop_y", &e->crop_y) && read_stamp(item, &e->stamp) &&
           latent_index_read_shape(cJSON_GetObjectItemCaseSensitive(item, "shape"), e->shape);
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

static DsvStatus read_items(const char *path, const cJSON *index, const DsvConfig *config,
                            DsvStatus (*add)(void *context, const DsviLatentEntry *entry), void *context)
{
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(index, "version");
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(index, "items");
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(index, "format"));
    uint64_t checksum = 0;
    if (!format || strcmp(format, dsvi_latent_index_format) != 0)
        return latent_index_malformed(path, "not JSON, or of another format");
    if (!cJSON_IsNumber(version) || version->valuedouble != VERSION)
        return latent_index_malformed(path, "of another version of the format");
    DSVI_TRY(check_options(path, cJSON_GetObjectItemCaseSensitive(index, "settings"), config));
    if (!cJSON_IsArray(items))
        return latent_index_malformed(path, "no items in it");
    for (const cJSON *item = items->child; item; item = item->next) {
        DsviLatentEntry entry;
        if (!read_entry(item, &entry))
            return latent_index_malformed(path, "an item of it is incomplete");
        checksum = hash_entry(&entry, checksum);
        DSVI_TRY(add(context, &entry));
    }
    return check_checksum(path, cJSON_GetObjectItemCaseSensitive(index, CHECKSUM), checksum);
}

DsvStatus dsvi_latent_index_read(const char *path, size_t bytes_max, const DsvConfig *config,
                                 DsvStatus (*add)(void *context, const DsviLatentEntry *entry), void *context)
{
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(path, bytes_max, &text, &bytes));
    cJSON *index = cJSON_ParseWithLength(text, bytes);
    free(text);
    DsvStatus status = read_items(path, index, config, add, context);
    cJSON_Delete(index);
    return status;
}
