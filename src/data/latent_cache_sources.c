/* The part of latent_cache.h that compares the entries of a cache with the clips that are encoded now. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/clip_hashes.h"
#include "data/latent_cache_internal.h"

static const char HASHES_NAME[] = "hashes";

/* A source, and the numbers of its windows that an update has changed. */
typedef struct Checked {
    const DsviLatentSource *source;
    int64_t own; /* windows that the source has, without those below */
    int64_t dropped, moved, shared;
} Checked;

typedef struct Update {
    DsviLatentCache *cache;
    Checked *by_path;     /* (count) sorted by path */
    Checked **by_content; /* (known) those with known contents, sorted by contents, then by path */
    int64_t count, known;
} Update;

static int checked_by_path(const void *a, const void *b)
{
    return strcmp(((const Checked *)a)->source->path, ((const Checked *)b)->source->path);
}

static int checked_by_content(const void *a, const void *b)
{
    const DsviLatentSource *x = (*(Checked *const *)a)->source, *y = (*(Checked *const *)b)->source;
    int order = strcmp(x->content.hex, y->content.hex);
    return order ? order : strcmp(x->path, y->path);
}

static Checked *checked_of_path(const Update *u, const char *path)
{
    const DsviLatentSource wanted = {.path = path};
    const Checked key = {.source = &wanted};
    return u->count ? bsearch(&key, u->by_path, (size_t)u->count, sizeof key, checked_by_path) : NULL;
}

/* Returns the index in by_content of the first source with these contents, or `known`. */
static int64_t first_of_content(const Update *u, const DsviHashKey *content)
{
    int64_t low = 0, high = u->known;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(u->by_content[middle]->source->content.hex, content->hex) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < u->known && dsvi_hash_key_same(&u->by_content[low]->source->content, content) ? low
                                                                                               : u->known;
}

static DsvStatus update_begin(Update *u, DsviLatentCache *cache, const DsviLatentSource *sources,
                              int64_t count)
{
    *u = (Update){.cache = cache, .count = count};
    u->by_path = calloc((size_t)count + 1, sizeof *u->by_path);
    u->by_content = calloc((size_t)count + 1, sizeof(Checked *));
    if (!u->by_path || !u->by_content)
        return dsvi_latent_cache_no_memory(cache);
    for (int64_t i = 0; i < count; i++)
        u->by_path[i].source = &sources[i];
    qsort(u->by_path, (size_t)count, sizeof *u->by_path, checked_by_path);
    for (int64_t i = 0; i < count; i++)
        if (u->by_path[i].source->content.hex[0])
            u->by_content[u->known++] = &u->by_path[i];
    qsort(u->by_content, (size_t)u->known, sizeof(Checked *), checked_by_content);
    return DSV_OK;
}

static void update_end(Update *u)
{
    free(u->by_path);
    free(u->by_content);
}

static bool same_stamp(const DsviFileStamp *a, const DsviFileStamp *b)
{
    return a->bytes == b->bytes && a->modified == b->modified;
}

DsvStatus dsvi_latent_cache_recall(const DsviLatentCache *cache, DsviLatentSource *sources, int64_t count)
{
    Update u;
    char file[DSVI_PATH_MAX];
    DsvStatus status = update_begin(&u, (DsviLatentCache *)cache, sources, count);
    for (int64_t i = 0; i < cache->count && status == DSV_OK; i++) {
        const DsviLatentEntry *e = cache->entries[i];
        const Checked *found = checked_of_path(&u, e->source);
        if (found && e->content.hex[0] && same_stamp(&found->source->stamp, &e->stamp))
            sources[found->source - sources].content = e->content;
    }
    update_end(&u);
    DSVI_TRY(status);
    DSVI_TRY(dsvi_path_join(file, cache->folder, HASHES_NAME));
    return dsvi_clip_hashes_recall(file, sources, count);
}

DsvStatus dsvi_latent_cache_remember(const DsviLatentCache *cache, DsviLatentSource *const *sources,
                                     int64_t count)
{
    char file[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(file, cache->folder, HASHES_NAME));
    return dsvi_clip_hashes_append(file, sources, count);
}

/* Returns whether an entry's latents are of the bytes that the source's file has now. */
static bool entry_is_current(const DsviLatentEntry *e, const DsviLatentSource *source)
{
    if (e->content.hex[0] && source->content.hex[0])
        return dsvi_hash_key_same(&e->content, &source->content);
    return same_stamp(&e->stamp, &source->stamp);
}

/* Stores what the source says about itself in the entry. Notes whether anything has changed. */
static DsvStatus entry_take_source(DsviLatentCache *cache, DsviLatentEntry *e, const DsviLatentSource *source)
{
    static const DsviCaptions NONE;
    const DsviCaptions *captions = source->captions ? source->captions : &NONE;
    if (strcmp(e->source, source->path) != 0) {
        char *path = strdup(source->path);
        if (!path)
            return dsvi_latent_cache_no_memory(cache);
        free(e->source);
        e->source = path;
        cache->changed = true;
    }
    if (e->repeats != dsvi_latent_source_repeats(source)) {
        e->repeats = dsvi_latent_source_repeats(source);
        cache->changed = true;
    }
    if (!dsvi_captions_equal(&e->captions, captions)) {
        DsviCaptions copy;
        DSVI_TRY(dsvi_captions_copy(&copy, captions));
        dsvi_captions_free(&e->captions);
        e->captions = copy;
        cache->changed = true;
    }
    if (!same_stamp(&e->stamp, &source->stamp) || strcmp(e->content.hex, source->content.hex) != 0) {
        e->stamp = source->stamp;
        e->content = source->content;
        cache->changed = true;
    }
    return DSV_OK;
}

/* Returns the source that has the bytes of an entry whose own source has other bytes now: the clip was
 * renamed before another clip took its name. NULL if no source has them. */
static Checked *source_of_old_bytes(const Update *u, const DsviLatentEntry *e)
{
    int64_t first = first_of_content(u, &e->content);
    return first < u->known ? u->by_content[first] : NULL;
}

/* Brings the entries of all sources up to date. Entries that are to be dropped become the last of the list;
 * *kept is the number of the others. */
static DsvStatus update_own_entries(Update *u, int64_t *kept)
{
    DsviLatentCache *cache = u->cache;
    int64_t end = cache->count;
    for (int64_t i = 0; i < end;) {
        DsviLatentEntry *e = cache->entries[i];
        Checked *of = checked_of_path(u, e->source), *renamed = NULL;
        bool current = of && entry_is_current(e, of->source);
        if (of && !current && (renamed = source_of_old_bytes(u, e))) {
            DSVI_TRY(entry_take_source(cache, e, renamed->source));
            renamed->moved++;
        } else if (of && !current) {
            of->dropped++;
            cache->entries[i] = cache->entries[--end];
            cache->entries[end] = e;
            continue; /* with the entry that has taken this place */
        } else if (of) {
            of->own++;
            DSVI_TRY(entry_take_source(cache, e, of->source));
        }
        i++;
    }
    *kept = end;
    return DSV_OK;
}

/* Gives entries of clips that are gone to a source of the same contents that has no entries. */
static DsvStatus update_moved(Update *u)
{
    for (int64_t i = 0; i < u->cache->count; i++) {
        DsviLatentEntry *e = u->cache->entries[i];
        int64_t first = first_of_content(u, &e->content);
        if (first == u->known || checked_of_path(u, e->source) || access(e->source, F_OK) == 0)
            continue;
        Checked *of = u->by_content[first];
        if (of->own > 0)
            continue;
        DSVI_TRY(entry_take_source(u->cache, e, of->source));
        of->moved++;
    }
    return DSV_OK;
}

/* Adds entries for the sources that have none and the contents of a clip with entries. */
static DsvStatus update_shared(Update *u)
{
    DsviLatentCache *cache = u->cache;
    int64_t count = cache->count;
    for (int64_t i = 0; i < count; i++) {
        const DsviLatentEntry *e = cache->entries[i];
        for (int64_t k = first_of_content(u, &e->content); k < u->known; k++) {
            Checked *of = u->by_content[k];
            if (!dsvi_hash_key_same(&of->source->content, &e->content))
                break;
            if (*dsvi_latent_cache_slot(cache, of->source->path, e))
                continue;
            DsviLatentEntry copy = *e;
            copy.source = (char *)of->source->path;
            copy.stamp = of->source->stamp;
            copy.repeats = dsvi_latent_source_repeats(of->source);
            copy.captions = of->source->captions ? *of->source->captions : (DsviCaptions){0};
            DSVI_TRY(dsvi_latent_cache_insert(cache, &copy));
            cache->changed = true;
            of->shared++;
        }
    }
    return DSV_OK;
}

static int entry_by_file(const void *a, const void *b)
{
    return strcmp((*(DsviLatentEntry *const *)a)->file, (*(DsviLatentEntry *const *)b)->file);
}

/* Removes the entries from number `kept` on, and their files unless another entry has the same file. A file
 * that cannot be removed does no harm: the index does not name it. */
static void update_drop(DsviLatentCache *cache, int64_t kept)
{
    if (kept == cache->count)
        return;
    qsort(cache->entries, (size_t)kept, sizeof *cache->entries, entry_by_file);
    for (int64_t i = kept; i < cache->count; i++) {
        DsviLatentEntry *e = cache->entries[i];
        if (!bsearch(&e, cache->entries, (size_t)kept, sizeof e, entry_by_file))
            unlink(e->file);
        dsvi_latent_entry_free(e);
    }
    cache->count = kept;
    cache->changed = true;
}

static DsvStatus update_entries(Update *u)
{
    int64_t kept;
    DSVI_TRY(update_own_entries(u, &kept));
    update_drop(u->cache, kept);
    DSVI_TRY(update_moved(u));
    if (u->cache->count == 0 && !u->cache->table)
        return DSV_OK;
    dsvi_latent_cache_rebuild(u->cache);
    return update_shared(u);
}

DsvStatus dsvi_latent_cache_update(DsviLatentCache *cache, const DsviLatentSource *sources, int64_t count,
                                   dsvi_latent_change_fn *tell, void *context)
{
    Update u;
    pthread_mutex_lock(&cache->lock);
    DsvStatus status = update_begin(&u, cache, sources, count);
    if (status == DSV_OK)
        status = update_entries(&u);
    pthread_mutex_unlock(&cache->lock);
    for (int64_t i = 0; i < count && status == DSV_OK; i++) {
        const Checked *of = &u.by_path[i];
        if (of->dropped > 0)
            tell(context, of->source->path, DSVI_LATENT_DROPPED, of->dropped);
        if (of->moved > 0)
            tell(context, of->source->path, DSVI_LATENT_MOVED, of->moved);
        if (of->shared > 0)
            tell(context, of->source->path, DSVI_LATENT_SHARED, of->shared);
    }
    update_end(&u);
    return status == DSV_OK ? dsvi_latent_cache_flush(cache) : status;
}
