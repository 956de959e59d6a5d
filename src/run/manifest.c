/* Implements manifest.h: writes and verifies manifest.json of a checkpoint. */
#include "run/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "base/fs.h"

enum { MANIFEST_FORMAT = 1, MANIFEST_BYTES_MAX = 16 << 20 };

typedef struct Walk {
    const char *root;
    const char *inside; /* path of the current folder relative to root; "" for root itself */
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
                 cJSON_AddStringToObject(entry, "xxh3", hex) && cJSON_AddItemToArray(walk->files, entry);
    if (!whole) {
        cJSON_Delete(entry);
        return DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the manifest", walk->root);
    }
    return DSV_OK;
}

static DsvStatus manifest_add_entry(void *context, const char *name)
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
    DSVI_TRY(dsvi_folder_list(path, manifest_add_entry, &below));
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
    DSVI_TRY_GOTO(status, dsvi_folder_list(folder, manifest_add_entry, &walk), done);
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

/* Returns whether a path in a manifest stays inside the checkpoint folder. A manifest may have been
 * edited to name files elsewhere. */
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
        return DSVI_FAIL(DSV_E_FORMAT,
                         "%s/%s: an entry has no path, bytes or xxh3, or its path leads "
                         "outside the folder",
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

static const char *path_of(const cJSON *entry)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "path"));
}

/* Returns whether the entry is the file `part` or a file in the folder `part`. part NULL: always true. */
static bool is_of_part(const cJSON *entry, const char *part)
{
    const char *path = path_of(entry);
    size_t length = part ? strlen(part) : 0;
    return !part || (path && strncmp(path, part, length) == 0 && (!path[length] || path[length] == '/'));
}

static DsvStatus check_listed(void *context, const char *name)
{
    const Walk *walk = context;
    char relative[DSVI_PATH_MAX];
    const cJSON *entry;
    DSVI_TRY(dsvi_path_join(relative, walk->inside, name));
    cJSON_ArrayForEach(entry, walk->files)
        if (path_of(entry) && strcmp(path_of(entry), relative) == 0)
            return DSV_OK;
    return DSVI_FAIL(DSV_E_FORMAT, "%s/%s: not in the manifest", walk->root, relative);
}

/* Checks that all files of a part are listed. A damaged manifest may lack some. */
static DsvStatus verify_part(const char *folder, cJSON *files, const char *part)
{
    char path[DSVI_PATH_MAX];
    const cJSON *entry;
    Walk walk = {folder, part, files};
    DSVI_TRY(dsvi_path_join(path, folder, part));
    if (dsvi_path_is_folder(path))
        return dsvi_folder_list(path, check_listed, &walk);
    cJSON_ArrayForEach(entry, files)
        if (is_of_part(entry, part))
            return DSV_OK;
    return DSVI_FAIL(DSV_E_FORMAT, "%s: not in the manifest", path);
}

static DsvStatus verify_files(const char *folder, cJSON *files, const char *part)
{
    const cJSON *entry;
    if (part)
        DSVI_TRY(verify_part(folder, files, part));
    cJSON_ArrayForEach(entry, files)
        if (is_of_part(entry, part))
            DSVI_TRY(verify_entry(folder, entry));
    return DSV_OK;
}

static DsvStatus verify(const char *folder, const char *part)
{
    char path[DSVI_PATH_MAX];
    char *text = NULL;
    size_t bytes;
    DSVI_TRY(dsvi_path_join(path, folder, DSVI_MANIFEST_NAME));
    if (!dsvi_path_exists(path))
        return DSVI_FAIL(DSV_E_FORMAT, "%s: not a whole checkpoint, it has no %s", folder,
                         DSVI_MANIFEST_NAME);
    DSVI_TRY(dsvi_file_read(path, MANIFEST_BYTES_MAX, &text, &bytes));
    cJSON *manifest = cJSON_ParseWithLength(text, bytes);
    free(text);
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(manifest, "format");
    cJSON *files = cJSON_GetObjectItemCaseSensitive(manifest, "files");
    bool known = cJSON_IsNumber(format) && format->valuedouble == MANIFEST_FORMAT && cJSON_IsArray(files);
    DsvStatus status = known ? verify_files(folder, files, part)
                             : DSVI_FAIL(DSV_E_FORMAT, "%s: not a manifest of format %d", path,
                                         MANIFEST_FORMAT);
    cJSON_Delete(manifest);
    return status;
}

DsvStatus dsvi_manifest_verify(const char *folder)
{
    return verify(folder, NULL);
}

DsvStatus dsvi_manifest_verify_part(const char *folder, const char *part)
{
    return verify(folder, part);
}
