/* See latent_cache.h. The index is
 *
 *     {"format": "dsv-latent-cache", "version": 1,
 *      "settings": {"num_frames": ..., "height": ..., ..., "codec.temporal_levels": ...},
 *      "items": [{"source": ..., "source_bytes": ..., "source_modified": ...,
 *                 "start": ..., "crop_x": ..., "crop_y": ...,
 *                 "file": name in the folder, "xxh3": 16 hex digits, "shape": [C, F, H, W],
 *                 "text": the caption, if any}, ...]}
 *
 * A window's file is written before its entry, and the index in one rename, so that an interrupted encoding
 * loses at most the entries of windows whose files it then writes again. */
#include "data/latent_cache.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <xxhash.h>

#include "base/fs.h"
#include "base/number_text.h"
#include "data/latent_file.h"

static const char INDEX_NAME[] = "index.json", FORMAT[] = "dsv-latent-cache";

enum {
    VERSION = 1,
    STEM_MAX = 40 /* characters of the source's name that its files' names begin with */
};
#define INDEX_BYTES_MAX ((size_t)1 << 31)
#define HEAD_BYTES_MAX ((size_t)1 << 12) /* of it, what is no item */

typedef struct Entry {
    char *source, *text; /* text: NULL for none */
    DsvFileStamp stamp;  /* of the source; one that is not known is NaN */
    double start, crop_x, crop_y;
    char *path;
    uint64_t checksum;
    int64_t shape[4];
} Entry;

struct DsvLatentCache {
    char folder[DSVI_PATH_MAX], index[DSVI_PATH_MAX];
    DsvConfig settings;   /* only what the index tells of them */
    bool writes;
    pthread_mutex_t lock; /* over what follows */
    Entry **entries;
    int64_t count, room;
    Entry **table;     /* (table_size) open addressing by source and window */
    size_t table_size; /* a power of two, at least twice the count */
    size_t text_bytes; /* of the entries as text, at most */
    bool changed;      /* since the index was written */
};

/* A setting that the index holds. */
typedef struct Setting {
    const char *key;
    double value;
} Setting;

enum { SETTINGS = 6 };

static void list_settings(const DsvConfig *c, Setting out[SETTINGS])
{
    const Setting settings[SETTINGS] = {
        {"num_frames", (double)c->num_frames},
        {"height", (double)c->height},
        {"width", (double)c->width},
        {"fps", c->fps},
        {"codec.spatial_levels", (double)c->codec_spatial_levels},
        {"codec.temporal_levels", (double)c->codec_temporal_levels},
    };
    memcpy(out, settings, sizeof settings);
}

static const char CODEC_NAME[] = "codec.name";

static DsvStatus no_memory(const DsvLatentCache *cache)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %" PRId64 " windows", cache->folder,
                     cache->count + 1);
}

static DsvStatus malformed(const DsvLatentCache *cache, const char *what)
{
    return DSVI_FAIL(DSV_E_FORMAT, "%s: no index of a latent cache: %s", cache->index, what);
}

/* The lock is no part of what a cache holds: looking something up takes it too. */
static void lock(const DsvLatentCache *cache)
{
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
}

static void unlock(const DsvLatentCache *cache)
{
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
}

/* ---- Entries ---- */

static void free_entry(Entry *entry)
{
    if (!entry)
        return;
    free(entry->source);
    free(entry->text);
    free(entry->path);
    free(entry);
}

static XXH128_hash_t key_hash(const char *source, double start, double crop_x, double crop_y)
{
    const double numbers[3] = {start, crop_x, crop_y};
    XXH128_hash_t window = XXH3_128bits(numbers, sizeof numbers);
    return XXH3_128bits_withSeed(source, strlen(source), window.low64 ^ window.high64);
}

/* Where in the table the window stands, or would stand. */
static Entry **place_of(const DsvLatentCache *cache, const char *source, double start, double crop_x,
                        double crop_y)
{
    size_t at = (size_t)key_hash(source, start, crop_x, crop_y).low64;
    for (;; at++) {
        Entry **place = &cache->table[at & (cache->table_size - 1)], *e = *place;
        if (!e || (e->start == start && e->crop_x == crop_x && e->crop_y == crop_y &&
                   strcmp(e->source, source) == 0))
            return place;
    }
}

/* The entries into the table, which is empty. */
static void fill_table(DsvLatentCache *cache)
{
    for (int64_t i = 0; i < cache->count; i++) {
        Entry *e = cache->entries[i];
        *place_of(cache, e->source, e->start, e->crop_x, e->crop_y) = e;
    }
}

static bool grow(DsvLatentCache *cache)
{
    int64_t room = cache->room ? 2 * cache->room : 64;
    Entry **table = calloc(2 * (size_t)room, sizeof *table);
    Entry **entries = realloc(cache->entries, (size_t)room * sizeof *entries);
    if (entries)
        cache->entries = entries;
    if (!table || !entries) {
        free(table);
        return false;
    }
    free(cache->table);
    cache->table = table;
    cache->table_size = 2 * (size_t)room;
    cache->room = room;
    fill_table(cache);
    return true;
}

/* In an index, at most: with every character that JSON may escape. */
static size_t text_bytes(const char *text)
{
    size_t bytes = 0;
    for (; text && *text; text++)
        bytes += (unsigned char)*text < ' ' || *text == '"' || *text == '\\' ? 6 : 1;
    return bytes;
}

static size_t entry_bytes(const Entry *e)
{
    enum { NAMES_AND_NUMBERS = 512 };
    return NAMES_AND_NUMBERS + text_bytes(e->source) + text_bytes(e->text) +
           text_bytes(strrchr(e->path, '/') + 1);
}

/* Puts a copy of the entry, strings and all, in the place of one of the same window or behind the others. */
static DsvStatus insert(DsvLatentCache *cache, const Entry *entry)
{
    Entry *copy = malloc(sizeof *copy);
    if (!copy)
        return no_memory(cache);
    *copy = *entry;
    copy->source = strdup(entry->source);
    copy->text = entry->text ? strdup(entry->text) : NULL;
    copy->path = strdup(entry->path);
    bool whole = copy->source && copy->path && (copy->text || !entry->text);
    if (!whole || (cache->count == cache->room && !grow(cache))) {
        free_entry(copy);
        return no_memory(cache);
    }
    Entry **place = place_of(cache, copy->source, copy->start, copy->crop_x, copy->crop_y);
    cache->text_bytes += entry_bytes(copy);
    if (*place) {
        cache->text_bytes -= entry_bytes(*place);
        Entry old = **place;
        **place = *copy;
        *copy = old;
        free_entry(copy);
    } else {
        *place = cache->entries[cache->count++] = copy;
    }
    return DSV_OK;
}

static int by_source(const void *a, const void *b)
{
    const Entry *x = *(Entry *const *)a, *y = *(Entry *const *)b;
    int order = strcmp(x->source, y->source);
    if (order == 0)
        order = (x->start > y->start) - (x->start < y->start);
    if (order == 0)
        order = strcmp(x->path, y->path);
    return order;
}

/* ---- The index ---- */

static bool add_number(cJSON *object, const char *key, double value)
{
    char text[DSVI_NUMBER_ROOM]; /* cJSON's own printing may lose the last bit */
    dsvi_number_text(value, text);
    return cJSON_AddRawToObject(object, key, text) != NULL;
}

static bool add_entry(cJSON *items, const Entry *e)
{
    char hex[17];
    cJSON *item = cJSON_CreateObject(), *shape = NULL;
    if (!item || !cJSON_AddItemToArray(items, item)) {
        cJSON_Delete(item);
        return false;
    }
    snprintf(hex, sizeof hex, "%016" PRIx64, e->checksum);
    bool whole = cJSON_AddStringToObject(item, "source", e->source) &&
                 add_number(item, "source_bytes", (double)e->stamp.bytes) &&
                 add_number(item, "source_modified", e->stamp.modified) &&
                 add_number(item, "start", e->start) &&
                 add_number(item, "crop_x", e->crop_x) && add_number(item, "crop_y", e->crop_y) &&
                 cJSON_AddStringToObject(item, "file", strrchr(e->path, '/') + 1) &&
                 cJSON_AddStringToObject(item, "xxh3", hex) &&
                 (shape = cJSON_AddArrayToObject(item, "shape"));
    if (whole && e->text)
        whole = cJSON_AddStringToObject(item, "text", e->text) != NULL;
    for (int i = 0; whole && i < 4; i++)
        whole = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->shape[i]));
    return whole;
}

/* The index as text; free with cJSON_free. NULL: no memory. */
static char *index_text(const DsvLatentCache *cache)
{
    Setting settings[SETTINGS];
    cJSON *index = cJSON_CreateObject(), *told = NULL, *items = NULL;
    bool whole = index && cJSON_AddStringToObject(index, "format", FORMAT) &&
                 cJSON_AddNumberToObject(index, "version", VERSION) &&
                 (told = cJSON_AddObjectToObject(index, "settings")) &&
                 cJSON_AddStringToObject(told, CODEC_NAME, cache->settings.codec_name);
    list_settings(&cache->settings, settings);
    for (int i = 0; whole && i < SETTINGS; i++)
        whole = add_number(told, settings[i].key, settings[i].value);
    whole = whole && (items = cJSON_AddArrayToObject(index, "items"));
    for (int64_t i = 0; whole && i < cache->count; i++)
        whole = add_entry(items, cache->entries[i]);
    char *text = whole ? cJSON_PrintUnformatted(index) : NULL;
    cJSON_Delete(index);
    return text;
}

DsvStatus dsvi_latent_cache_flush(DsvLatentCache *cache)
{
    DsvStatus status = DSV_OK;
    lock(cache);
    if (cache->changed) {
        /* Threads put windows in any order; the index must not show it. */
        if (cache->count > 0)
            qsort(cache->entries, (size_t)cache->count, sizeof *cache->entries, by_source);
        char *text = index_text(cache);
        status = text ? dsvi_file_replace(cache->index, text, strlen(text)) : no_memory(cache);
        cJSON_free(text);
        cache->changed = status != DSV_OK;
    }
    unlock(cache);
    return status;
}

static DsvStatus check_settings(const DsvLatentCache *cache, const cJSON *told, const DsvConfig *settings)
{
    Setting wanted[SETTINGS];
    const cJSON *codec = cJSON_GetObjectItemCaseSensitive(told, CODEC_NAME);
    if (!cJSON_IsString(codec))
        return malformed(cache, "no codec.name in its settings");
    if (settings && strcmp(codec->valuestring, settings->codec_name) != 0)
        return DSVI_FAIL(DSV_E_USAGE, "%s: made with codec.name %s, wanted %s", cache->folder,
                         codec->valuestring, settings->codec_name);
    list_settings(settings ? settings : &cache->settings, wanted);
    for (int i = 0; i < SETTINGS; i++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(told, wanted[i].key);
        if (!cJSON_IsNumber(value))
            return malformed(cache, "a setting is missing");
        if (settings && !(value->valuedouble == wanted[i].value))
            return DSVI_FAIL(DSV_E_USAGE, "%s: made with %s %g, wanted %g", cache->folder, wanted[i].key,
                             value->valuedouble, wanted[i].value);
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

static DsvStatus read_entry(DsvLatentCache *cache, const cJSON *item)
{
    char path[DSVI_PATH_MAX];
    char *source = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "source"));
    char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "text"));
    const char *file = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "file"));
    const char *hex = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "xxh3"));
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    double bytes;
    Entry entry = {.source = source, .text = text, .path = path};
    bool whole = source && file && plain_name(file) && hex && strlen(hex) == 16 &&
                 strspn(hex, "0123456789abcdef") == 16 && read_number(item, "start", &entry.start) &&
                 read_number(item, "crop_x", &entry.crop_x) && read_number(item, "crop_y", &entry.crop_y) &&
                 cJSON_GetArraySize(shape) == 4;
    for (int i = 0; whole && i < 4; i++) {
        double side = cJSON_GetNumberValue(cJSON_GetArrayItem(shape, i));
        whole = side >= 1 && side < 1e12;
        entry.shape[i] = whole ? (int64_t)side : 0;
    }
    if (!whole)
        return malformed(cache, "an item of it is incomplete");
    /* Indexes had no stamps at first. */
    if (!read_number(item, "source_bytes", &bytes) ||
        !read_number(item, "source_modified", &entry.stamp.modified))
        entry.stamp.modified = NAN;
    else
        entry.stamp.bytes = (uint64_t)bytes;
    DSVI_TRY(dsvi_path_join(path, cache->folder, file));
    entry.checksum = strtoull(hex, NULL, 16);
    /* Indexes had paths as they were typed at first. */
    char *resolved = cache->writes ? realpath(source, NULL) : NULL;
    entry.source = resolved ? resolved : source;
    DsvStatus status = insert(cache, &entry);
    free(resolved);
    return status;
}

static DsvStatus read_items(DsvLatentCache *cache, const cJSON *index, const DsvConfig *settings)
{
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(index, "version");
    const cJSON *items = cJSON_GetObjectItemCaseSensitive(index, "items");
    const char *format = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(index, "format"));
    if (!format || strcmp(format, FORMAT) != 0)
        return malformed(cache, "not JSON, or of another format");
    if (!cJSON_IsNumber(version) || version->valuedouble != VERSION)
        return malformed(cache, "of another version of the format");
    DSVI_TRY(check_settings(cache, cJSON_GetObjectItemCaseSensitive(index, "settings"), settings));
    if (!cJSON_IsArray(items))
        return malformed(cache, "no items in it");
    for (const cJSON *item = items->child; item; item = item->next)
        DSVI_TRY(read_entry(cache, item));
    return DSV_OK;
}

static DsvStatus read_index(DsvLatentCache *cache, const DsvConfig *settings)
{
    char *text;
    size_t bytes;
    DSVI_TRY(dsvi_file_read(cache->index, INDEX_BYTES_MAX, &text, &bytes));
    cJSON *index = cJSON_ParseWithLength(text, bytes);
    free(text);
    DsvStatus status = read_items(cache, index, settings);
    cJSON_Delete(index);
    return status;
}

/* ---- Opening and closing ---- */

bool dsvi_latent_cache_is(const char *folder)
{
    /* The index may be long: its first words tell. */
    char path[DSVI_PATH_MAX], head[256];
    if (dsvi_path_join(path, folder, INDEX_NAME) != DSV_OK)
        return false;
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    size_t bytes = fread(head, 1, sizeof head - 1, file);
    fclose(file);
    head[bytes] = 0;
    return strstr(head, FORMAT) != NULL;
}

static DsvStatus make_cache(const char *folder, DsvLatentCache **out)
{
    DsvLatentCache *cache = calloc(1, sizeof *cache);
    *out = NULL;
    if (!cache)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", folder);
    DsvStatus status = dsvi_path_join(cache->index, folder, INDEX_NAME);
    if (status != DSV_OK) {
        free(cache);
        return status;
    }
    snprintf(cache->folder, sizeof cache->folder, "%s", folder); /* fits, being shorter than cache->index */
    pthread_mutex_init(&cache->lock, NULL);
    *out = cache;
    return DSV_OK;
}

DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *settings, DsvLatentCache **out)
{
    DsvStatus status;
    DSVI_TRY(dsvi_folder_make(folder));
    DSVI_TRY(make_cache(folder, out));
    (*out)->writes = true;
    if (dsvi_path_exists((*out)->index))
        DSVI_TRY_GOTO(status, read_index(*out, settings), fail);
    (*out)->settings = *settings;
    /* A first index is written at once, so that a folder that cannot be written fails now. */
    (*out)->changed = !dsvi_path_exists((*out)->index);
    DSVI_TRY_GOTO(status, dsvi_latent_cache_flush(*out), fail);
    return DSV_OK;
fail:
    dsvi_latent_cache_close(out);
    return status;
}

DsvStatus dsvi_latent_cache_open(const char *folder, const DsvConfig *settings, DsvLatentCache **out)
{
    DsvStatus status;
    DSVI_TRY(make_cache(folder, out));
    DSVI_TRY_GOTO(status, read_index(*out, settings), fail);
    return DSV_OK;
fail:
    dsvi_latent_cache_close(out);
    return status;
}

void dsvi_latent_cache_close(DsvLatentCache **cache)
{
    DsvLatentCache *c = *cache;
    if (!c)
        return;
    dsvi_latent_cache_flush(c);
    for (int64_t i = 0; i < c->count; i++)
        free_entry(c->entries[i]);
    pthread_mutex_destroy(&c->lock);
    free(c->entries);
    free(c->table);
    free(c);
    *cache = NULL;
}

/* ---- Windows ---- */

int64_t dsvi_latent_cache_count(const DsvLatentCache *cache)
{
    return cache->count;
}

const char *dsvi_latent_cache_file(const DsvLatentCache *cache, int64_t item)
{
    return cache->entries[item]->path;
}

const char *dsvi_latent_cache_source(const DsvLatentCache *cache, int64_t item)
{
    return cache->entries[item]->source;
}

const char *dsvi_latent_cache_text(const DsvLatentCache *cache, int64_t item)
{
    return cache->entries[item]->text;
}

static DsvStatus check_file(const char *path, uint64_t wanted)
{
    uint64_t checksum;
    DSVI_TRY(dsvi_latent_verify(path, &checksum));
    if (checksum != wanted)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: checksum %016" PRIx64 ", wanted %016" PRIx64 " as in the index",
                         path, checksum, wanted);
    return DSV_OK;
}

DsvStatus dsvi_latent_cache_check(const DsvLatentCache *cache, int64_t item)
{
    return check_file(cache->entries[item]->path, cache->entries[item]->checksum);
}

bool dsvi_latent_cache_has(const DsvLatentCache *cache, const char *source, const DsvClipWindow *window)
{
    char path[DSVI_PATH_MAX];
    uint64_t checksum = 0;
    lock(cache);
    const Entry *entry = cache->count
                             ? *place_of(cache, source, window->start, window->crop_x, window->crop_y)
                             : NULL;
    if (entry) {
        snprintf(path, sizeof path, "%s", entry->path);
        checksum = entry->checksum;
    }
    unlock(cache);
    return entry && check_file(path, checksum) == DSV_OK;
}

/* A source, and how many windows of it are out of date. */
typedef struct Checked {
    const DsvLatentSource *source;
    int64_t dropped;
} Checked;

static int by_path(const void *a, const void *b)
{
    return strcmp(((const Checked *)a)->source->path, ((const Checked *)b)->source->path);
}

/* The source the entry was cut from when its file was another; NULL: it is up to date, or of none of them. */
static Checked *changed_source(const Entry *e, Checked *checked, int64_t count)
{
    const DsvLatentSource wanted = {.path = e->source};
    const Checked key = {&wanted, 0};
    Checked *found = bsearch(&key, checked, (size_t)count, sizeof key, by_path);
    bool same = found && found->source->stamp.bytes == e->stamp.bytes &&
                found->source->stamp.modified == e->stamp.modified;
    return same ? NULL : found;
}

static void drop_entries(DsvLatentCache *cache, Checked *checked, int64_t count)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < cache->count; i++) {
        Entry *e = cache->entries[i];
        Checked *changed = changed_source(e, checked, count);
        if (changed) {
            changed->dropped++;
            cache->text_bytes -= entry_bytes(e);
            unlink(e->path); /* what cannot be removed is not in the index, and in nobody's way */
            free_entry(e);
        } else {
            cache->entries[kept++] = e;
        }
    }
    if (kept == cache->count)
        return;
    cache->count = kept;
    cache->changed = true;
    memset(cache->table, 0, cache->table_size * sizeof *cache->table);
    fill_table(cache);
}

DsvStatus dsvi_latent_cache_drop_changed(DsvLatentCache *cache, const DsvLatentSource *sources, int64_t count,
                                         void (*tell)(void *context, const char *path, int64_t windows),
                                         void *context)
{
    Checked *checked = calloc((size_t)count + 1, sizeof *checked);
    if (!checked)
        return no_memory(cache);
    for (int64_t i = 0; i < count; i++)
        checked[i].source = &sources[i];
    qsort(checked, (size_t)count, sizeof *checked, by_path);
    lock(cache);
    drop_entries(cache, checked, count);
    unlock(cache);
    for (int64_t i = 0; i < count; i++)
        if (checked[i].dropped > 0)
            tell(context, checked[i].source->path, checked[i].dropped);
    free(checked);
    return dsvi_latent_cache_flush(cache);
}

/* Stem of the source, as far as it is plain characters, and a hash of source and window. */
static void name_file(const char *source, const DsvClipWindow *w, char name[STEM_MAX + 48])
{
    const char *slash = strrchr(source, '/'), *base = slash ? slash + 1 : source;
    size_t length = strcspn(base, ".");
    if (length > STEM_MAX)
        length = STEM_MAX;
    for (size_t i = 0; i < length; i++)
        name[i] = isalnum((unsigned char)base[i]) ? base[i] : '_';
    XXH128_hash_t hash = key_hash(source, w->start, w->crop_x, w->crop_y);
    snprintf(name + length, 48, "-%016" PRIx64 "%016" PRIx64 ".safetensors", (uint64_t)hash.high64,
             (uint64_t)hash.low64);
}

/* An index that has grown past what is read would lose all that is in it. */
static DsvStatus check_room(const DsvLatentCache *cache, const Entry *entry)
{
    lock(cache);
    size_t bytes = cache->text_bytes + entry_bytes(entry);
    int64_t count = cache->count;
    unlock(cache);
    if (bytes > INDEX_BYTES_MAX - HEAD_BYTES_MAX)
        return DSVI_FAIL(DSV_E_USAGE, "%s: with %" PRId64 " windows its index is full: encode the other "
                         "clips into another folder", cache->folder, count);
    return DSV_OK;
}

DsvStatus dsvi_latent_cache_put(DsvLatentCache *cache, const DsvLatentSource *source,
                                const DsvClipWindow *window, const int64_t shape[4], const float *latent)
{
    char name[STEM_MAX + 48], path[DSVI_PATH_MAX];
    Entry entry = {
        .source = (char *)source->path,
        .text = (char *)source->text,
        .path = path, /* copied before they are kept */
        .stamp = source->stamp,
        .start = window->start,
        .crop_x = window->crop_x,
        .crop_y = window->crop_y,
    };
    memcpy(entry.shape, shape, sizeof entry.shape);
    name_file(source->path, window, name);
    if (name[0] == '-') /* a source like ".mp4" leaves no stem */
        name[0] = '_';
    DSVI_TRY(dsvi_path_join(path, cache->folder, name));
    DSVI_TRY(check_room(cache, &entry));
    DSVI_TRY(dsvi_latent_write(path, shape, latent, &entry.checksum));
    lock(cache);
    DsvStatus status = insert(cache, &entry);
    cache->changed = true;
    unlock(cache);
    return status;
}
