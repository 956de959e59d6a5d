/* Finds the safetensors files of a model: an index and its shards, or a single file. */
#include "model/weights/weights_files.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

void dsvi_weight_files_free(DsviWeightFiles *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->paths[i]);
    free(files->paths);
    memset(files, 0, sizeof *files);
}

/* Adds `path` to the list of files, unless the list contains it already. */
static DsvStatus add_path(DsviWeightFiles *files, const char *path)
{
    for (size_t i = 0; i < files->count; i++)
        if (strcmp(files->paths[i], path) == 0)
            return DSV_OK;
    if (files->count == files->room) {
        size_t room = files->room ? 2 * files->room : 8;
        char **paths = realloc(files->paths, room * sizeof *paths);
        if (!paths)
            return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for a list of %zu files", room);
        files->paths = paths;
        files->room = room;
    }
    files->paths[files->count] = strdup(path);
    if (!files->paths[files->count])
        return DSVI_FAIL(DSV_E_NO_MEMORY, "no memory for the path %s", path);
    files->count++;
    return DSV_OK;
}

static DsvStatus add_name(DsviWeightFiles *files, const char *folder, const char *name)
{
    char path[DSVI_PATH_MAX];
    DSVI_TRY(dsvi_path_join(path, folder, name));
    return add_path(files, path);
}

/* Adds the file that one entry of an index of weight files names. The file must be in the folder of the
 * index: a name that contains a path could make dsv read any file. */
static DsvStatus add_shard(DsviWeightFiles *files, const char *folder, const char *index, const cJSON *entry)
{
    const char *name = cJSON_GetStringValue(entry);
    if (!name || !name[0] || name[0] == '.' || strchr(name, '/') || strchr(name, '\\'))
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s: the file of tensor %s is '%s', expected the name of a file beside "
                         "the index",
                         index, entry->string, name ? name : "not a text");
    return add_name(files, folder, name);
}

static DsvStatus weights_files_read_index(const char *folder, const char *path, DsviWeightFiles *files)
{
    const size_t limit = (size_t)64 << 20;
    DsvStatus status;
    char *text = NULL;
    size_t bytes;
    cJSON *object = NULL;
    const cJSON *entry;
    DSVI_TRY_GOTO(status, dsvi_file_read(path, limit, &text, &bytes), done);
    object = cJSON_ParseWithLength(text, bytes);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(object, "weight_map");
    if (!cJSON_IsObject(map) || !map->child) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: no weight_map that names files", path);
        goto done;
    }
    cJSON_ArrayForEach(entry, map)
        DSVI_TRY_GOTO(status, add_shard(files, folder, path, entry), done);
done:
    cJSON_Delete(object);
    free(text);
    return status;
}

static bool weights_files_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool is_pickle(const char *name)
{
    return weights_files_ends_with(name, ".pth") || weights_files_ends_with(name, ".pt") ||
           weights_files_ends_with(name, ".bin") || weights_files_ends_with(name, ".ckpt");
}

static DsvStatus fail_for_pickle(const char *path)
{
    return DSVI_FAIL(DSV_E_UNSUPPORTED,
                     "%s: weights in a pickle are not read, for opening one can run code: "
                     "convert them to safetensors",
                     path);
}

/* Files found in a folder that has neither an index nor a file of the usual name. */
typedef struct Scan {
    const char *folder;
    DsviWeightFiles *files;
    char pickle[DSVI_PATH_MAX]; /* path of a pickle, or "" */
} Scan;

static DsvStatus scan_name(void *context, const char *name)
{
    Scan *scan = context;
    if (is_pickle(name))
        return dsvi_path_join(scan->pickle, scan->folder, name);
    return weights_files_ends_with(name, ".safetensors") ? add_name(scan->files, scan->folder, name) : DSV_OK;
}

static DsvStatus scan_folder(const char *folder, DsviWeightFiles *files)
{
    Scan scan = {.folder = folder, .files = files};
    DSVI_TRY(dsvi_folder_list(folder, scan_name, &scan));
    if (files->count > 1)
        return DSVI_FAIL(DSV_E_USAGE, "%s: %zu safetensors files and no index of shards: name one of them",
                         folder, files->count);
    if (files->count == 0 && scan.pickle[0])
        return fail_for_pickle(scan.pickle);
    if (files->count == 0)
        return DSVI_FAIL(DSV_E_NOT_FOUND, "%s: no safetensors file in this folder", folder);
    return DSV_OK;
}

DsvStatus dsvi_weight_files_find(const char *path, DsviWeightFiles *out)
{
    /* Names of diffusers, then those of the package transformers. */
    static const char *const INDEXES[] = {DSVI_WEIGHTS_INDEX, "model.safetensors.index.json"};
    static const char *const SINGLES[] = {DSVI_WEIGHTS_SINGLE, "model.safetensors"};
    char inside[DSVI_PATH_MAX];
    memset(out, 0, sizeof *out);
    if (!dsvi_path_is_folder(path))
        return is_pickle(path) ? fail_for_pickle(path) : add_path(out, path);
    for (size_t i = 0; i < sizeof INDEXES / sizeof *INDEXES; i++) {
        DSVI_TRY(dsvi_path_join(inside, path, INDEXES[i]));
        if (dsvi_path_exists(inside))
            return weights_files_read_index(path, inside, out);
    }
    for (size_t i = 0; i < sizeof SINGLES / sizeof *SINGLES; i++) {
        DSVI_TRY(dsvi_path_join(inside, path, SINGLES[i]));
        if (dsvi_path_exists(inside))
            return add_path(out, inside);
    }
    return scan_folder(path, out);
}
