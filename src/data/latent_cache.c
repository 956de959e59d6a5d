/* Implements latent_cache.h: a folder of encoded windows with an index. The file of a window is written
 * before its entry, and the index is replaced by one rename. An interrupted encoding loses at most the
 * entries of some windows, whose files are then written again. The process that writes holds a lock on
 * the file `lock`, because it rewrites the index from the entries it knows. */
#include "data/latent_cache.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/dtype.h"
#include "data/latent_cache_internal.h"
#include "data/latent_file.h"

static const char INDEX_NAME[] = "index.json", LOCK_NAME[] = "lock", TEXT_NAME[] = "text";

enum { STEM_MAX = 40 /* characters of the clip's name with which the file name of a window begins */ };
#define INDEX_BYTES_MAX ((size_t)1 << 31)

typedef DsviLatentEntry Entry;

DsvStatus dsvi_latent_cache_no_memory(const DsviLatentCache *cache)
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

void dsvi_latent_entry_free(Entry *entry)
{
    if (!entry)
        return;
    free(entry->source);
    dsvi_captions_free(&entry->captions);
    free(entry->file);
    free(entry);
}

static XXH128_hash_t key_hash(const char *source, const Entry *w)
{
    const double numbers[6] = {w->start,
                               w->crop_x,
                               w->crop_y,
                               (double)w->size.frames,
                               (double)w->size.height,
                               (double)w->size.width};
    XXH128_hash_t window = XXH3_128bits(numbers, sizeof numbers);
    return XXH3_128bits_withSeed(source, strlen(source), window.low64 ^ window.high64);
}

Entry **dsvi_latent_cache_slot(const DsviLatentCache *cache, const char *source, const Entry *window)
{
    size_t at = (size_t)key_hash(source, window).low64;
    if (!cache->table)
        return NULL;
    for (;; at++) {
        Entry **slot = &cache->table[at & (cache->table_size - 1)], *e = *slot;
        if (!e || (e->start == window->start && e->crop_x == window->crop_x && e->crop_y == window->crop_y &&
                   dsvi_clip_size_same(&e->size, &window->size) && strcmp(e->source, source) == 0))
            return slot;
    }
}

void dsvi_latent_cache_rebuild(DsviLatentCache *cache)
{
    int64_t kept = 0;
    cache->text_bytes = 0;
    memset(cache->table, 0, cache->table_size * sizeof *cache->table);
    for (int64_t i = 0; i < cache->count; i++) {
        Entry *e = cache->entries[i];
        Entry **slot = dsvi_latent_cache_slot(cache, e->source, e);
        if (*slot) {
            dsvi_latent_entry_free(e);
            continue;
        }
        *slot = cache->entries[kept++] = e;
        cache->text_bytes += dsvi_latent_index_entry_bytes(e);
    }
    cache->count = kept;
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
    dsvi_latent_cache_rebuild(cache);
    return true;
}

DsvStatus dsvi_latent_cache_insert(DsviLatentCache *cache, const Entry *entry)
{
    Entry *copy = malloc(sizeof *copy);
    if (!copy)
        return dsvi_latent_cache_no_memory(cache);
    *copy = *entry;
    copy->source = strdup(entry->source);
    copy->file = strdup(entry->file);
    DsvStatus status = dsvi_captions_copy(&copy->captions, &entry->captions);
    bool whole = status == DSV_OK && copy->source && copy->file;
    if (!whole || (cache->count == cache->room && !latent_cache_grow(cache))) {
        dsvi_latent_entry_free(copy);
        return dsvi_latent_cache_no_memory(cache);
    }
    Entry **slot = dsvi_latent_cache_slot(cache, copy->source, copy);
    cache->text_bytes += dsvi_latent_index_entry_bytes(copy);
    if (*slot) {
        cache->text_bytes -= dsvi_latent_index_entry_bytes(*slot);
        Entry old = **slot;
        **slot = *copy;
        *copy = old;
        dsvi_latent_entry_free(copy);
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
        order = memcmp(&x->size, &y->size, sizeof x->size);
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
        char *text = dsvi_latent_index_text(&cache->config, &cache->model, cache->entries, cache->count);
        status = text ? dsvi_file_replace(cache->index, text, strlen(text))
                      : dsvi_latent_cache_no_memory(cache);
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
    DsvStatus status = dsvi_latent_cache_insert(cache, &entry);
    free(resolved);
    return status;
}

/* Reads the index. cache->model becomes what the index records. */
static DsvStatus latent_cache_read_index(DsviLatentCache *cache, const DsvConfig *config)
{
    DSVI_TRY(dsvi_latent_index_read(cache->index, INDEX_BYTES_MAX, config, &cache->model, take_entry, cache));
    if (cache->model.text.encoder.hex[0])
        DSVI_TRY(dsvi_path_join(cache->model.text.folder, cache->folder, TEXT_NAME));
    return DSV_OK;
}

/* Fails if one of two models is not the expected one. `found` and `expected` are "" for none. */
static DsvStatus check_model(const DsviLatentCache *cache, const char *what, const DsviHashKey *found,
                             const DsviHashKey *expected)
{
    if (strcmp(found->hex, expected->hex) == 0)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s: made with %s %s, expected %s: encode into another folder",
                     cache->folder, what, found->hex[0] ? found->hex : "none",
                     expected->hex[0] ? expected->hex : "none");
}

static DsvStatus check_type(const DsviLatentCache *cache, const char *what, DsviDtype found,
                            DsviDtype expected)
{
    if (found == expected)
        return DSV_OK;
    return DSVI_FAIL(DSV_E_USAGE, "%s: made by the %s in %s, expected %s: change mixed_precision",
                     cache->folder, what, dsvi_dtype_name(found), dsvi_dtype_name(expected));
}

/* Compares the models of an index that was read with those that encode now. */
static DsvStatus check_models(const DsviLatentCache *cache, const DsviLatentModel *expected)
{
    const DsviTextStore *text = &cache->model.text;
    DSVI_TRY(check_model(cache, "the VAE", &cache->model.vae, &expected->vae));
    if (cache->model.condition != expected->condition)
        return DSVI_FAIL(DSV_E_USAGE, "%s: made for %s models, expected %s: encode into another folder",
                         cache->folder, cache->model.condition ? "image-to-video" : "text-to-video",
                         expected->condition ? "image-to-video" : "text-to-video");
    DSVI_TRY(check_model(cache, "the image encoder", &cache->model.image_encoder, &expected->image_encoder));
    if (cache->model.image.rows != expected->image.rows)
        return DSVI_FAIL(DSV_E_USAGE,
                         "%s: made with %" PRId64 " states of pictures for each window, expected %" PRId64
                         ": encode into another folder",
                         cache->folder, cache->model.image.rows, expected->image.rows);
    if (expected->vae.hex[0])
        DSVI_TRY(check_type(cache, "VAE", cache->model.vae_type, expected->vae_type));
    if (!text->encoder.hex[0])
        return DSV_OK;
    DSVI_TRY(check_model(cache, "the text encoder", &text->encoder, &expected->text.encoder));
    return check_type(cache, "text encoder", text->dtype, expected->text.dtype);
}

/* Makes `model` the models of the cache, and the folder of the text states. */
static DsvStatus take_model(DsviLatentCache *cache, const DsviLatentModel *model)
{
    cache->model = *model;
    cache->model.text.folder[0] = 0;
    if (!model->text.encoder.hex[0])
        return DSV_OK;
    DSVI_TRY(dsvi_path_join(cache->model.text.folder, cache->folder, TEXT_NAME));
    return dsvi_folder_make(cache->model.text.folder);
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

bool dsvi_latent_cache_lacks_index(const char *folder)
{
    char hashes[DSVI_PATH_MAX];
    return dsvi_path_join(hashes, folder, "hashes") == DSV_OK && dsvi_path_exists(hashes) &&
           !dsvi_latent_cache_is(folder);
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

DsvStatus dsvi_latent_cache_create(const char *folder, const DsvConfig *config, const DsviLatentModel *model,
                                   DsviLatentCache **out)
{
    static const DsviLatentModel NONE;
    DsvStatus status;
    DSVI_TRY(dsvi_folder_make(folder));
    DSVI_TRY(latent_cache_alloc(folder, out));
    DsviLatentCache *cache = *out;
    bool exists = dsvi_path_exists(cache->index);
    cache->writes = true;
    model = model ? model : &NONE;
    DSVI_TRY_GOTO(status, latent_cache_lock_folder(cache), fail);
    if (exists) {
        DSVI_TRY_GOTO(status, latent_cache_read_index(cache, config), fail);
        DSVI_TRY_GOTO(status, check_models(cache, model), fail);
    }
    cache->config = *config;
    /* A new index is written now, so that a folder that cannot be written fails at once. */
    cache->changed = !exists || strcmp(cache->model.text.encoder.hex, model->text.encoder.hex) != 0;
    DSVI_TRY_GOTO(status, take_model(cache, model), fail);
    DSVI_TRY_GOTO(status, dsvi_latent_cache_flush(cache), fail);
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
        dsvi_latent_entry_free(c->entries[i]);
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

DsviClipSize dsvi_latent_cache_size(const DsviLatentCache *cache, int64_t item)
{
    return cache->entries[item]->size;
}

int64_t dsvi_latent_cache_repeats(const DsviLatentCache *cache, int64_t item)
{
    return cache->entries[item]->repeats;
}

const DsviCaptions *dsvi_latent_cache_captions(const DsviLatentCache *cache, int64_t item)
{
    return &cache->entries[item]->captions;
}

const DsviLatentModel *dsvi_latent_cache_model(const DsviLatentCache *cache)
{
    return &cache->model;
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

/* Returns an entry with the place and the size of a window, and nothing else. */
static Entry entry_of(const DsviClipWindow *w)
{
    return (Entry){.start = w->start,
                   .crop_x = w->crop_x,
                   .crop_y = w->crop_y,
                   .size = {w->frames, w->height, w->width}};
}

bool dsvi_latent_cache_has(const DsviLatentCache *cache, const char *source, const DsviClipWindow *window)
{
    char path[DSVI_PATH_MAX];
    uint64_t checksum = 0;
    latent_cache_lock(cache);
    const Entry wanted = entry_of(window);
    const Entry *entry = cache->count ? *dsvi_latent_cache_slot(cache, source, &wanted) : NULL;
    if (entry) {
        snprintf(path, sizeof path, "%s", entry->file);
        checksum = entry->checksum;
    }
    latent_cache_unlock(cache);
    return entry && latent_cache_check_file(path, checksum) == DSV_OK;
}

/* Returns a hash of everything on which the latents of a window depend: contents of the clip, window, codec
 * and VAE. If the contents are unknown, the path of the clip and the place of the window are all that counts.
 */
static XXH128_hash_t latent_hash(const DsviLatentCache *cache, const DsviLatentSource *source,
                                 const DsviClipWindow *w)
{
    char text[512];
    const DsvConfig *config = &cache->config;
    const Entry window = entry_of(w);
    if (!source->content.hex[0])
        return key_hash(source->path, &window);
    int length = snprintf(text, sizeof text,
                          "%s %.17g %.17g %.17g %.17g %" PRId64 " %" PRId64 " %" PRId64 " %s %" PRId64
                          " %" PRId64 " %s %s%s%s",
                          source->content.hex, w->start, w->fps, w->crop_x, w->crop_y, w->frames, w->height,
                          w->width, config->codec_name, config->codec_spatial_levels,
                          config->codec_temporal_levels, cache->model.vae.hex,
                          dsvi_dtype_name(cache->model.vae_type), cache->model.condition ? " i2v" : "",
                          cache->model.image_encoder.hex);
    return XXH3_128bits(text, (size_t)length);
}

/* Makes the path of a window's file: the stem of the source, restricted to plain characters, and a hash. A
 * clip that takes the name of another clip does not overwrite the windows of the other, whose files keep
 * their names. */
static DsvStatus window_path(const DsviLatentCache *cache, const DsviLatentSource *source,
                             const DsviClipWindow *w, char path[DSVI_PATH_MAX])
{
    char name[STEM_MAX + 64];
    const char *slash = strrchr(source->path, '/'), *base = slash ? slash + 1 : source->path;
    size_t length = strcspn(base, ".");
    if (length > STEM_MAX)
        length = STEM_MAX;
    for (size_t i = 0; i < length; i++)
        name[i] = isalnum((unsigned char)base[i]) && (unsigned char)base[i] < 0x80 ? base[i] : '_';
    if (length == 0) /* a source like ".mp4" has no stem */
        name[length++] = '_';
    XXH128_hash_t hash = latent_hash(cache, source, w);
    snprintf(name + length, sizeof name - length, "-%016" PRIx64 "%016" PRIx64 ".safetensors",
             (uint64_t)hash.high64, (uint64_t)hash.low64);
    return dsvi_path_join(path, cache->folder, name);
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

/* Enters a window whose file is at `path`. */
static DsvStatus enter_window(DsviLatentCache *cache, const DsviLatentSource *source,
                              const DsviClipWindow *window, const int64_t shape[4], char *path,
                              uint64_t checksum)
{
    Entry entry = entry_of(window);
    entry.source = (char *)source->path;
    entry.file = path;
    entry.repeats = dsvi_latent_source_repeats(source);
    entry.stamp = source->stamp;
    entry.content = source->content;
    entry.checksum = checksum;
    if (source->captions)
        entry.captions = *source->captions;
    memcpy(entry.shape, shape, sizeof entry.shape);
    DSVI_TRY(check_room(cache, &entry));
    latent_cache_lock(cache);
    DsvStatus status = dsvi_latent_cache_insert(cache, &entry); /* copies the strings */
    cache->changed = true;
    latent_cache_unlock(cache);
    return status;
}

bool dsvi_latent_cache_recover(DsviLatentCache *cache, const DsviLatentSource *source,
                               const DsviClipWindow *window, const int64_t shape[4])
{
    char path[DSVI_PATH_MAX];
    uint64_t checksum;
    return source->content.hex[0] && window_path(cache, source, window, path) == DSV_OK &&
           dsvi_path_exists(path) &&
           dsvi_latent_verify_shape(path, shape, cache->model.image, &checksum) == DSV_OK &&
           enter_window(cache, source, window, shape, path, checksum) == DSV_OK;
}

DsvStatus dsvi_latent_cache_put(DsviLatentCache *cache, const DsviLatentSource *source,
                                const DsviClipWindow *window, const int64_t shape[4], const float *latent)
{
    char path[DSVI_PATH_MAX];
    uint64_t checksum;
    const DsviImageStates states = cache->model.image;
    int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
    if (!dsvi_all_finite(DSVI_F32, latent, elements))
        return DSVI_FAIL(
            DSV_E_DIVERGED,
            "%s: the latent of its window at %g s is not finite, expected a VAE whose weights are "
            "whole and do not overflow in the type of mixed_precision",
            source->path, window->start);
    if (!dsvi_all_finite(DSVI_F32, latent + elements, states.rows * states.dim))
        return DSVI_FAIL(
            DSV_E_DIVERGED,
            "%s: the states of the picture of its window at %g s are not finite, expected an image encoder "
            "whose weights are whole and do not overflow in the type of mixed_precision",
            source->path, window->start);
    DSVI_TRY(window_path(cache, source, window, path));
    DSVI_TRY(dsvi_latent_write(path, shape, states, latent, &checksum));
    return enter_window(cache, source, window, shape, path, checksum);
}
