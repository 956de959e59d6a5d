/* See latent_cache.h. A window's file is written before its entry, and the index in one rename, so that an
 * interrupted encoding loses at most the entries of windows whose files it then writes again. The file
 * `lock` is held by the process that writes: the index is rewritten from what that process knows. */
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

enum { STEM_MAX = 40 /* characters of the source's name that its files' names begin with */ };
#define INDEX_BYTES_MAX ((size_t)1 << 31)

typedef DsvLatentEntry Entry; /* `file` is the path */

struct DsvLatentCache {
    char folder[DSVI_PATH_MAX], index[DSVI_PATH_MAX];
    DsvConfig settings; /* only what the index tells of them */
    bool writes;
    int writer_lock;      /* of the folder; -1: not held */
    pthread_mutex_t lock; /* over what follows */
    Entry **entries;
    int64_t count, room;
    Entry **table;     /* (table_size) open addressing by source and window */
    size_t table_size; /* a power of two, at least twice the count */
    size_t text_bytes; /* of the entries as text, at most */
    bool changed;      /* since the index was written */
};

static DsvStatus no_memory(const DsvLatentCache *cache)
{
    return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for a list of %" PRId64 " windows", cache->folder,
                     cache->count + 1);
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
    free(entry->file);
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

/* Puts a copy of the entry, strings and all, in the place of one of the same window or behind the others. */
static DsvStatus insert(DsvLatentCache *cache, const Entry *entry)
{
    Entry *copy = malloc(sizeof *copy);
    if (!copy)
        return no_memory(cache);
    *copy = *entry;
    copy->source = strdup(entry->source);
    copy->text = entry->text ? strdup(entry->text) : NULL;
    copy->file = strdup(entry->file);
    bool whole = copy->source && copy->file && (copy->text || !entry->text);
    if (!whole || (cache->count == cache->room && !grow(cache))) {
        free_entry(copy);
        return no_memory(cache);
    }
    Entry **place = place_of(cache, copy->source, copy->start, copy->crop_x, copy->crop_y);
    cache->text_bytes += dsvi_latent_index_entry_bytes(copy);
    if (*place) {
        cache->text_bytes -= dsvi_latent_index_entry_bytes(*place);
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
        order = strcmp(x->file, y->file);
    return order;
}

/* ---- The index ---- */

DsvStatus dsvi_latent_cache_flush(DsvLatentCache *cache)
{
    DsvStatus status = DSV_OK;
    lock(cache);
    if (cache->changed) {
        /* Threads put windows in any order; the index must not show it. */
        if (cache->count > 0)
            qsort(cache->entries, (size_t)cache->count, sizeof *cache->entries, by_source);
        char *text = dsvi_latent_index_text(&cache->settings, cache->entries, cache->count);
        status = text ? dsvi_file_replace(cache->index, text, strlen(text)) : no_memory(cache);
        free(text);
        cache->changed = status != DSV_OK;
    }
    unlock(cache);
    return status;
}

/* An entry of the index file into the list. */
static DsvStatus take_entry(void *context, const DsvLatentEntry *read)
{
    DsvLatentCache *cache = context;
    char path[DSVI_PATH_MAX];
    Entry entry = *read;
    DSVI_TRY(dsvi_path_join(path, cache->folder, read->file));
    entry.file = path;
    /* Indexes had paths as they were typed at first. */
    char *resolved = cache->writes ? realpath(read->source, NULL) : NULL;
    entry.source = resolved ? resolved : read->source;
    DsvStatus status = insert(cache, &entry);
    free(resolved);
    return status;
}

static DsvStatus read_index(DsvLatentCache *cache, const DsvConfig *settings)
{
    return dsvi_latent_index_read(cache->index, INDEX_BYTES_MAX, settings, take_entry, cache);
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
    return strstr(head, dsvi_latent_index_format) != NULL;
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
    cache->writer_lock = -1;
    *out = cache;
    return DSV_OK;
}

/* Two writers would each rewrite the index without the other's windows. */
static DsvStatus lock_folder(DsvLatentCache *cache)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, cache->folder, LOCK_NAME));
    DsvStatus status = dsvi_file_lock(path, &cache->writer_lock);
    if (status == DSV_E_USAGE)
        return DSVI_FAIL(DSV_E_USAGE, "%s: another process encodes into it and has %s locked", cache->folder,
                         path);
    return status == DSV_E_UNSUPPORTED ? DSV_OK : status; /* no locks here: as good as it gets */
}

DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *settings, DsvLatentCache **out)
{
    DsvStatus status;
    DSVI_TRY(dsvi_folder_make(folder));
    DSVI_TRY(make_cache(folder, out));
    (*out)->writes = true;
    DSVI_TRY_GOTO(status, lock_folder(*out), fail);
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

int64_t dsvi_latent_cache_count(const DsvLatentCache *cache)
{
    return cache->count;
}

const char *dsvi_latent_cache_file(const DsvLatentCache *cache, int64_t item)
{
    return cache->entries[item]->file;
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
    return check_file(cache->entries[item]->file, cache->entries[item]->checksum);
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
        snprintf(path, sizeof path, "%s", entry->file);
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
            cache->text_bytes -= dsvi_latent_index_entry_bytes(e);
            unlink(e->file); /* what cannot be removed is not in the index, and in nobody's way */
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
        name[i] = isalnum((unsigned char)base[i]) && (unsigned char)base[i] < 0x80 ? base[i] : '_';
    XXH128_hash_t hash = key_hash(source, w->start, w->crop_x, w->crop_y);
    snprintf(name + length, 48, "-%016" PRIx64 "%016" PRIx64 ".safetensors", (uint64_t)hash.high64,
             (uint64_t)hash.low64);
}

/* An index that has grown past what is read would lose all that is in it. */
static DsvStatus check_room(const DsvLatentCache *cache, const Entry *entry)
{
    lock(cache);
    size_t bytes = cache->text_bytes + dsvi_latent_index_entry_bytes(entry);
    int64_t count = cache->count;
    unlock(cache);
    if (bytes > INDEX_BYTES_MAX - dsvi_latent_index_head_bytes())
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
        .file = path, /* copied before they are kept */
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
