/* Implements latent_cache.h: a folder of encoded windows with an index. The file of a window is written
 * before its entry, and the index is replaced by one rename. An interrupted encoding loses at most the
 * entries of some windows, whose files are then written again. The process that writes holds a lock on
 * the file `lock`, because it rewrites the index from the entries it knows. */
#include "data/latent_cache.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/fs.h"
#include "data/latent_file.h"
#include "data/latent_index.h"

static const char INDEX_NAME[] = "index.json", LOCK_NAME[] = "lock";

enum { STEM_MAX = 40 /* characters of the clip's name with which the file name of a window begins */ };
#define INDEX_BYTES_MAX ((size_t)1 << 31)

/* In this C file, the field `file` of an entry is a path; in the index file it is a plain file name. */
typedef DsviLatentEntry Entry;

struct DsviLatentCache {
    char folder[DSVI_PATH_MAX], index[DSVI_PATH_MAX];
    DsvConfig config; /* only the options that the index records */
    bool writes;
    int writer_lock;      /* lock of the folder; -1: not held */
    pthread_mutex_t lock; /* protects the fields below */
    Entry **entries;
    int64_t count, room;
    Entry **table;     /* (table_size) hash table of the entries by source and window, with open addressing */
    size_t table_size; /* a power of two, at least twice the count */
    size_t text_bytes; /* upper bound of the bytes of the entries as text */
    bool changed;      /* entries changed since the index was written */
};

static DsvStatus latent_cache_no_memory(const DsviLatentCache *cache)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %" PRId64 " windows", cache->folder,
                     cache->count + 1);
}

/* The mutex is not part of the cache's content, so functions that only look up entries may lock a const
 * cache. */
static void latent_cache_lock(const DsviLatentCache *cache)
{
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
}

static void latent_cache_unlock(const DsviLatentCache *cache)
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
    free(entry->file);
    free(entry);
}

static XXH128_hash_t key_hash(const char *source, double start, double crop_x, double crop_y)
{
    const double numbers[3] = {start, crop_x, crop_y};
    XXH128_hash_t window = XXH3_128bits(numbers, sizeof numbers);
    return XXH3_128bits_withSeed(source, strlen(source), window.low64 ^ window.high64);
}

/* Returns the table slot of the window's entry, or the empty slot where it belongs. */
static Entry **latent_cache_slot(const DsviLatentCache *cache, const char *source, double start,
                                 double crop_x, double crop_y)
{
    size_t at = (size_t)key_hash(source, start, crop_x, crop_y).low64;
    for (;; at++) {
        Entry **slot = &cache->table[at & (cache->table_size - 1)], *e = *slot;
        if (!e || (e->start == start && e->crop_x == crop_x && e->crop_y == crop_y &&
                   strcmp(e->source, source) == 0))
            return slot;
    }
}

/* Enters all entries into the empty table. */
static void fill_table(DsviLatentCache *cache)
{
    for (int64_t i = 0; i < cache->count; i++) {
        Entry *e = cache->entries[i];
        *latent_cache_slot(cache, e->source, e->start, e->crop_x, e->crop_y) = e;
    }
}

static bool latent_cache_grow(DsviLatentCache *cache)
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

/* Inserts a deep copy of the entry. It replaces the entry of the same window, or is appended. */
static DsvStatus latent_cache_insert(DsviLatentCache *cache, const Entry *entry)
{
    Entry *copy = malloc(sizeof *copy);
    if (!copy)
        return latent_cache_no_memory(cache);
    *copy = *entry;
    copy->source = strdup(entry->source);
    copy->text = entry->text ? strdup(entry->text) : NULL;
    copy->file = strdup(entry->file);
    bool whole = copy->source && copy->file && (copy->text || !entry->text);
    if (!whole || (cache->count == cache->room && !latent_cache_grow(cache))) {
        free_entry(copy);
        return latent_cache_no_memory(cache);
    }
    Entry **slot = latent_cache_slot(cache, copy->source, copy->start, copy->crop_x, copy->crop_y);
    cache->text_bytes += dsvi_latent_index_entry_bytes(copy);
    if (*slot) {
        cache->text_bytes -= dsvi_latent_index_entry_bytes(*slot);
        Entry old = **slot;
        **slot = *copy;
        *copy = old;
        free_entry(copy);
    } else {
        *slot = cache->entries[cache->count++] = copy;
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
        order = strcmp(x->file, y->file);
    return order;
}

/* ---- The index ---- */

DsvStatus dsvi_latent_cache_flush(DsviLatentCache *cache)
{
    DsvStatus status = DSV_OK;
    latent_cache_lock(cache);
    if (cache->changed) {
        /* Threads add windows in any order; the index must not depend on this order. */
        if (cache->count > 0)
            qsort(cache->entries, (size_t)cache->count, sizeof *cache->entries, by_source);
        char *text = dsvi_latent_index_text(&cache->config, cache->entries, cache->count);
        status = text ? dsvi_file_replace(cache->index, text, strlen(text)) : latent_cache_no_memory(cache);
        free(text);
        cache->changed = status != DSV_OK;
    }
    latent_cache_unlock(cache);
    return status;
}

/* Adds an entry of the index file to the list. */
static DsvStatus take_entry(void *context, const DsviLatentEntry *read)
{
    DsviLatentCache *cache = context;
    char path[DSVI_PATH_MAX];
    Entry entry = *read;
    DSVI_TRY(dsvi_path_join(path, cache->folder, read->file));
    entry.file = path;
    /* Old indexes contain paths as the user typed them. */
    char *resolved = cache->writes ? realpath(read->source, NULL) : NULL;
    entry.source = resolved ? resolved : read->source;
    DsvStatus status = latent_cache_insert(cache, &entry);
    free(resolved);
    return status;
}

static DsvStatus latent_cache_read_index(DsviLatentCache *cache, const DsvConfig *config)
{
    return dsvi_latent_index_read(cache->index, INDEX_BYTES_MAX, config, take_entry, cache);
}

/* ---- Opening and closing ---- */

bool dsvi_latent_cache_is(const char *folder)
{
    /* The index file may be long, but its beginning suffices to recognise a latent cache. */
    char path[DSVI_PATH_MAX], head[256];
    if (dsvi_path_join(path, folder, INDEX_NAME) != DSV_OK)
        return false;
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    size_t bytes = fread(head, 1, sizeof head - 1, file);
    fclose(file);
    head[bytes] = 0;
    return strstr(head, dsvi_latent_index_format) != NULL;
}

static DsvStatus latent_cache_alloc(const char *folder, DsviLatentCache **out)
{
    DsviLatentCache *cache = calloc(1, sizeof *cache);
    *out = NULL;
    if (!cache)
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory to open it", folder);
    DsvStatus status = dsvi_path_join(cache->index, folder, INDEX_NAME);
    if (status != DSV_OK) {
        free(cache);
        return status;
    }
    snprintf(cache->folder, sizeof cache->folder, "%s", folder); /* fits: cache->index is longer */
    pthread_mutex_init(&cache->lock, NULL);
    cache->writer_lock = -1;
    *out = cache;
    return DSV_OK;
}

/* Locks the folder, because two processes writing at once would each write an index without the other's
   windows. */
static DsvStatus latent_cache_lock_folder(DsviLatentCache *cache)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, cache->folder, LOCK_NAME));
    DsvStatus status = dsvi_file_lock(path, &cache->writer_lock);
    if (status == DSV_E_USAGE)
        return DSVI_FAIL(DSV_E_USAGE, "%s: another process encodes into it and has %s locked", cache->folder,
                         path);
    return status == DSV_E_UNSUPPORTED ? DSV_OK : status; /* the file system has no locks: continue without */
}

DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *config, DsviLatentCache **out)
{
    DsvStatus status;
    DSVI_TRY(dsvi_folder_make(folder));
    DSVI_TRY(latent_cache_alloc(folder, out));
    (*out)->writes = true;
    DSVI_TRY_GOTO(status, latent_cache_lock_folder(*out), fail);
    if (dsvi_path_exists((*out)->index))
        DSVI_TRY_GOTO(status, latent_cache_read_index(*out, config), fail);
    (*out)->config = *config;
    /* A new index is written now, so that a folder that cannot be written fails at once. */
    (*out)->changed = !dsvi_path_exists((*out)->index);
    DSVI_TRY_GOTO(status, dsvi_latent_cache_flush(*out), fail);
    return DSV_OK;
fail:
    dsvi_latent_cache_close(out);
    return status;
}

DsvStatus dsvi_latent_cache_open(const char *folder, const DsvConfig *config, DsviLatentCache **out)
{
    DsvStatus status;
    DSVI_TRY(latent_cache_alloc(folder, out));
    DSVI_TRY_GOTO(status, latent_cache_read_index(*out, config), fail);
    return DSV_OK;
fail:
    dsvi_latent_cache_close(out);
    return status;
}

void dsvi_latent_cache_close(DsviLatentCache **cache)
{
    DsviLatentCache *c = *cache;
    if (!c)
        return;
    dsvi_latent_cache_flush(c);
    if (c->writer_lock >= 0)
        close(c->writer_lock);
    for (int64_t i = 0; i < c->count; i++)
        free_entry(c->entries[i]);
    pthread_mutex_destroy(&c->lock);
    free(c->entries);
    free(c->table);
    free(c);
    *cache = NULL;
}

/* ---- Windows ---- */

int64_t dsvi_latent_cache_count(const DsviLatentCache *cache)
{
    return cache->count;
}

const char *dsvi_latent_cache_file(const DsviLatentCache *cache, int64_t item)
{
    return cache->entries[item]->file;
}

const char *dsvi_latent_cache_source(const DsviLatentCache *cache, int64_t item)
{
    return cache->entries[item]->source;
}

const char *dsvi_latent_cache_text(const DsviLatentCache *cache, int64_t item)
{
    return cache->entries[item]->text;
}

static DsvStatus latent_cache_check_file(const char *path, uint64_t expected)
{
    uint64_t checksum;
    DSVI_TRY(dsvi_latent_verify(path, &checksum));
    if (checksum != expected)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: checksum %016" PRIx64 ", expected %016" PRIx64 " as in the index",
                         path, checksum, expected);
    return DSV_OK;
}

DsvStatus dsvi_latent_cache_check(const DsviLatentCache *cache, int64_t item)
{
    return latent_cache_check_file(cache->entries[item]->file, cache->entries[item]->checksum);
}

bool dsvi_latent_cache_has(const DsviLatentCache *cache, const char *source, const DsviClipWindow *window)
{
    char path[DSVI_PATH_MAX];
    uint64_t checksum = 0;
    latent_cache_lock(cache);
    const Entry *entry = cache->count ? *latent_cache_slot(cache, source, window->start, window->crop_x,
                                                           window->crop_y)
                                      : NULL;
    if (entry) {
        snprintf(path, sizeof path, "%s", entry->file);
        checksum = entry->checksum;
    }
    latent_cache_unlock(cache);
    return entry && latent_cache_check_file(path, checksum) == DSV_OK;
}

/* A source, and the number of its windows that were dropped. */
typedef struct Checked {
    const DsviLatentSource *source;
    int64_t dropped;
} Checked;

static int latent_cache_by_path(const void *a, const void *b)
{
    return strcmp(((const Checked *)a)->source->path, ((const Checked *)b)->source->path);
}

/* Returns the item of `checked` for the entry's source if the source's file has changed since it was
 * encoded. Returns NULL if the file has not changed or is not in `checked`. */
static Checked *changed_source(const Entry *e, Checked *checked, int64_t count)
{
    const DsviLatentSource expected = {.path = e->source};
    const Checked key = {&expected, 0};
    Checked *found = bsearch(&key, checked, (size_t)count, sizeof key, latent_cache_by_path);
    bool same = found && found->source->stamp.bytes == e->stamp.bytes &&
                found->source->stamp.modified == e->stamp.modified;
    return same ? NULL : found;
}

static void drop_entries(DsviLatentCache *cache, Checked *checked, int64_t count)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < cache->count; i++) {
        Entry *e = cache->entries[i];
        Checked *changed = changed_source(e, checked, count);
        if (changed) {
            changed->dropped++;
            cache->text_bytes -= dsvi_latent_index_entry_bytes(e);
            unlink(e->file); /* a file that cannot be removed does no harm: the index does not name it */
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

DsvStatus dsvi_latent_cache_drop_changed(DsviLatentCache *cache, const DsviLatentSource *sources,
                                         int64_t count,
                                         void (*report)(void *context, const char *path, int64_t windows),
                                         void *context)
{
    Checked *checked = calloc((size_t)count + 1, sizeof *checked);
    if (!checked)
        return latent_cache_no_memory(cache);
    for (int64_t i = 0; i < count; i++)
        checked[i].source = &sources[i];
    qsort(checked, (size_t)count, sizeof *checked, latent_cache_by_path);
    latent_cache_lock(cache);
    drop_entries(cache, checked, count);
    latent_cache_unlock(cache);
    for (int64_t i = 0; i < count; i++)
        if (checked[i].dropped > 0)
            report(context, checked[i].source->path, checked[i].dropped);
    free(checked);
    return dsvi_latent_cache_flush(cache);
}

/* Makes the name of a window's file: the stem of the source, restricted to plain characters, and a hash of
 * source and window. */
static void name_file(const char *source, const DsviClipWindow *w, char name[STEM_MAX + 48])
{
    const char *slash = strrchr(source, '/'), *base = slash ? slash + 1 : source;
    size_t length = strcspn(base, ".");
    if (length > STEM_MAX)
        length = STEM_MAX;
    for (size_t i = 0; i < length; i++)
        name[i] = isalnum((unsigned char)base[i]) && (unsigned char)base[i] < 0x80 ? base[i] : '_';
    XXH128_hash_t hash = key_hash(source, w->start, w->crop_x, w->crop_y);
    snprintf(name + length, 48, "-%016" PRIx64 "%016" PRIx64 ".safetensors", (uint64_t)hash.high64,
             (uint64_t)hash.low64);
}

/* Fails if the index would become larger than readers accept, which would make the whole cache unreadable. */
static DsvStatus check_room(const DsviLatentCache *cache, const Entry *entry)
{
    latent_cache_lock(cache);
    size_t bytes = cache->text_bytes + dsvi_latent_index_entry_bytes(entry);
    int64_t count = cache->count;
    latent_cache_unlock(cache);
    if (bytes > INDEX_BYTES_MAX - dsvi_latent_index_head_bytes())
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: with %" PRId64 " windows its index is full: encode the other "
                         "clips into another folder",
                         cache->folder, count);
    return DSV_OK;
}

DsvStatus dsvi_latent_cache_put(DsviLatentCache *cache, const DsviLatentSource *source,
                                const DsviClipWindow *window, const int64_t shape[4], const float *latent)
{
    char name[STEM_MAX + 48], path[DSVI_PATH_MAX];
    Entry entry = {
        .source = (char *)source->path,
        .text = (char *)source->text,
        .file = path, /* a local buffer: latent_cache_insert copies the strings */
        .stamp = source->stamp,
        .start = window->start,
        .crop_x = window->crop_x,
        .crop_y = window->crop_y,
    };
    memcpy(entry.shape, shape, sizeof entry.shape);
    name_file(source->path, window, name);
    if (name[0] == '-') /* a source like ".mp4" has no stem */
        name[0] = '_';
    DSVI_TRY(dsvi_path_join(path, cache->folder, name));
    DSVI_TRY(check_room(cache, &entry));
    DSVI_TRY(dsvi_latent_write(path, shape, latent, &entry.checksum));
    latent_cache_lock(cache);
    DsvStatus status = latent_cache_insert(cache, &entry);
    cache->changed = true;
    latent_cache_unlock(cache);
    return status;
}
