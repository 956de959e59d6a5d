/* Implements weights_identity.h: the keys of all files one after another, hashed again. */
#include "model/weights/weights_identity.h"

#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "model/weights/weights_files.h"

/* Writes the keys of config.json, if there is one, and of all files to `keys`, which has room for them. */
static DsvStatus identity_of_files(const char *config, const DsviWeightFiles *files, char *keys)
{
    DsviHashKey key;
    if (dsvi_path_exists(config)) {
        DSVI_TRY(dsvi_file_hash_key(config, &key));
        strcat(keys, key.hex);
    }
    for (size_t i = 0; i < files->count; i++) {
        DSVI_TRY(dsvi_file_sample_key(files->paths[i], &key));
        strcat(keys, key.hex);
    }
    return DSV_OK;
}

DsvStatus dsvi_weights_identity(const char *path, DsviHashKey *out)
{
    DsvStatus status;
    DsviWeightFiles files;
    char config[DSVI_PATH_MAX], *keys = NULL;
    *out = (DsviHashKey){""};
    DSVI_TRY_GOTO(status, dsvi_weight_files_find(path, &files), done);
    DSVI_TRY_GOTO(status, dsvi_path_join(config, path, "config.json"), done);
    keys = calloc(files.count + 2, DSVI_HASH_KEY_DIGITS);
    if (!keys) {
        status = DSVI_FAIL(DSV_E_NO_MEMORY, "%s: no memory for the hashes of %zu files", path, files.count);
        goto done;
    }
    DSVI_TRY_GOTO(status, identity_of_files(config, &files, keys), done);
    *out = dsvi_hash_key_of(keys, strlen(keys));
done:
    free(keys);
    dsvi_weight_files_free(&files);
    return status;
}
