/* See manifest.h. */
#include "train/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

enum { MANIFEST_FORMAT = 1, MANIFEST_BYTES_MOST = 16 << 20 };

typedef struct Walk {
    const char *root;
    const char *inside; /* path below root, "" at the top */
    cJSON *files;
} Walk;

static DsvStatus add_file(const Walk *walk, const char *relative, const char *path)
{
    uint64_t bytes, checksum;
    char hex[17];
    DSVI_TRY(dsvi_file_size(path, &bytes));
    DSVI_TRY(dsvi_file_checksum(path, &checksum));
    snprintf(hex, sizeof hex, "%016" PRIx64, checksum);
    cJSON *entry = cJSON_CreateObject();
    bool whole = entry && cJSON_AddStringToObject(entry, "path", relative) &&
                 cJSON_AddNumberToObject(entry, "bytes", (double)bytes) &&
                 cJSON_AddStringToObject(entry, "xxh3", hex) &&
                 cJSON_AddItemToArray(walk->files, entry);
    if (!whole) {
        cJSON_Delete(entry);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the manifest", walk->root);
    }
    return DSV_OK;
}

static DsvStatus visit(void *context, const char *name)
{
    const Walk *walk = context;
    char relative[DSVI_PATH_MAX], path[DSVI_PATH_MAX];
    if (walk->inside[0])
        DSVI_TRY(dsvi_path_join(relative, walk->inside, name));
    else
        snprintf(relative, sizeof relative, "%s", name);
    DSVI_TRY(dsvi_path_join(path, walk->root, relative));
    if (!dsvi_path_is_folder(path))
        return add_file(walk, relative, path);
    Walk below = {walk->root, relative, walk->files};
    DSVI_TRY(dsvi_folder_list(path, visit, &below));
    return dsvi_folder_sync(path);
}

DsvStatus dsvi_manifest_write(const char *folder)
{
    DsvStatus status;
    char path[DSVI_PATH_MAX];
    char *text = NULL;
    cJSON *manifest = cJSON_CreateObject();
    cJSON *files = manifest ? cJSON_AddArrayToObject(manifest, "files") : NULL;
    Walk walk = {folder, "", files};

    if (!files || !cJSON_AddNumberToObject(manifest, "format", MANIFEST_FORMAT)) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the manifest", folder);
        goto done;
    }
    DSVI_TRY_GOTO(status, dsvi_folder_list(folder, visit, &walk), done);
    text = cJSON_Print(manifest);
    if (!text) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the manifest", folder);
        goto done;
    }
    DSVI_TRY_GOTO(status, dsvi_path_join(path, folder, DSVI_MANIFEST_NAME), done);
    DSVI_TRY_GOTO(status, dsvi_file_write(path, text, strlen(text)), done);
    DSVI_TRY_GOTO(status, dsvi_folder_sync(folder), done);
done:
    cJSON_free(text);
    cJSON_Delete(manifest);
    return status;
}

/* A manifest is ours, but its folder may have been copied or edited: paths must stay inside. */
static bool path_stays_inside(const char *path)
{
    return path[0] && path[0] != '/' && !strstr(path, "..");
}

static DsvStatus verify_entry(const char *folder, const cJSON *entry)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(entry, "path");
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(entry, "bytes");
    const cJSON *hex = cJSON_GetObjectItemCaseSensitive(entry, "xxh3");
    char path[DSVI_PATH_MAX], found_hex[17];
    uint64_t found_bytes, found_checksum;

    if (!cJSON_IsString(name) || !cJSON_IsNumber(bytes) || !cJSON_IsString(hex) ||
        !path_stays_inside(name->valuestring))
        return DSVI_FAIL(DSV_E_FORMAT, "%s/%s: an entry lacks path, bytes or xxh3, or leads elsewhere",
                         folder, DSVI_MANIFEST_NAME);
    DSVI_TRY(dsvi_path_join(path, folder, name->valuestring));
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: the manifest lists it, but it is missing", path);
    DSVI_TRY(dsvi_file_size(path, &found_bytes));
    if ((double)found_bytes != bytes->valuedouble)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: %" PRIu64 " bytes, the manifest says %.0f", path, found_bytes,
                         bytes->valuedouble);
    DSVI_TRY(dsvi_file_checksum(path, &found_checksum));
    snprintf(found_hex, sizeof found_hex, "%016" PRIx64, found_checksum);
    if (strcmp(found_hex, hex->valuestring) != 0)
        return DSVI_FAIL(DSV_E_FORMAT, "%s: checksum %s, the manifest says %s", path, found_hex,
                         hex->valuestring);
    return DSV_OK;
}

DsvStatus dsvi_manifest_verify(const char *folder)
{
    DsvStatus status;
    char path[DSVI_PATH_MAX];
    char *text = NULL;
    size_t bytes;
    cJSON *manifest = NULL;
    const cJSON *entry;

    DSVI_TRY(dsvi_path_join(path, folder, DSVI_MANIFEST_NAME));
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not a whole checkpoint, it has no %s", folder,
                         DSVI_MANIFEST_NAME);
    DSVI_TRY(dsvi_file_read(path, MANIFEST_BYTES_MOST, &text, &bytes));
    manifest = cJSON_ParseWithLength(text, bytes);
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(manifest, "format");
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(manifest, "files");
    if (!cJSON_IsNumber(format) || format->valuedouble != MANIFEST_FORMAT || !cJSON_IsArray(files)) {
        status = DSVI_FAIL(DSV_E_FORMAT, "%s: not a manifest of format %d", path, MANIFEST_FORMAT);
        goto done;
    }
    cJSON_ArrayForEach(entry, files)
        DSVI_TRY_GOTO(status, verify_entry(folder, entry), done);
    status = DSV_OK;
done:
    cJSON_Delete(manifest);
    free(text);
    return status;
}
